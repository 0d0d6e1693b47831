"""What GLIDE, Chimera, DREAM and DFlash make of a lesson."""

import pytest
import torch
from transformers import DynamicCache

from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import load_head, make, save_head
from crossdraft.heads.networks.base import TargetTables
from crossdraft.heads.networks.dflash import spread
from crossdraft.heads.networks.dream import MiddleGuess
from crossdraft.heads.networks.glide import TargetRows
from crossdraft.heads.networks.layers import Rotary, Unrolled
from crossdraft.heads.networks.registry import NETWORKS
from crossdraft.heads.networks.target_kv import LastLayer
from crossdraft.heads.networks.train_batch import Lesson
from tests.engine.zoo import ZOO
from tests.heads.rehearsal import HIDDEN, LONG, START, VALUES, some_head, some_lesson, tables

ALL = ("glide", "chimera", "dream", "dflash")
PLACE = 6  # from where drafts leave in these tests


def changed(lesson, hidden_from, tokens_from):
    """The lesson with other features from one place on, and other tokens from another."""
    hidden = {layer: rows.clone() for layer, rows in lesson.hidden.items()}
    for rows in hidden.values():
        rows[:, hidden_from:] += 1
    tokens = lesson.tokens.clone()
    tokens[:, tokens_from:] = 43 - tokens[:, tokens_from:]  # other ids among 3 … 39, 4 … 40
    return Lesson(tokens, hidden, lesson.starts, lesson.lengths)


def said(head, lesson):
    return torch.stack([guess.logits[0, PLACE] for guess in head(lesson)])


@pytest.mark.parametrize("network", ALL)
@torch.inference_mode()
def test_a_guess_knows_no_more_than_a_draft_would(network):
    """Of the target what stands up to its place; of tokens the root and those drafted before (a block: the root)."""
    head = some_head(network)
    lesson = some_lesson(head)
    before = said(head, lesson)
    behind = changed(lesson, PLACE + 1, LONG)
    assert torch.equal(said(head, behind), before)
    for offset in range(1, 5):
        known = PLACE + 1 + (offset if network != "dflash" else 1)
        other = said(head, changed(lesson, PLACE + 1, known))
        assert torch.allclose(other[offset - 1], before[offset - 1], atol=1e-12)
    assert not torch.allclose(said(head, changed(lesson, PLACE, LONG)), before)
    assert not torch.allclose(said(head, changed(lesson, PLACE + 1, PLACE + 1)), before)


@pytest.mark.parametrize("network", ["glide", "dream"])
@torch.inference_mode()
def test_a_look_at_what_the_target_made_of_later_places_would_be_noticed(network, monkeypatch):
    """The planted bug: no block-wise mask over the target's keys and values."""
    head = some_head(network)
    lesson = some_lesson(head)

    def everything(self, layer, query, fresh):
        if fresh is not None:
            self._seen[layer] = [tuple(rows.repeat_interleave(2, 1) for rows in fresh)]
        return torch.nn.functional.scaled_dot_product_attention(query, *self._seen[layer][0])

    monkeypatch.setattr(Unrolled, "across", everything)
    assert not torch.allclose(said(head, changed(lesson, PLACE + 1, LONG)), said(head, lesson))


@pytest.mark.parametrize("network", ALL)
def test_a_head_keeps_its_words_on_disk_and_stores_nothing_of_the_target(network, tmp_path):
    head = make(network, config(network), tables()).float()
    head.restore({name: (value + 0.1).bfloat16().float() for name, value in head.stored().items()})
    save_head(tmp_path, head, network, "of this target")
    again = load_head(tmp_path, tables(), "of this target").double()
    lesson = some_lesson(head)
    for one, other in zip(head.double()(lesson), again(lesson), strict=True):
        assert torch.allclose(one.logits, other.logits, atol=1e-4)  # the borrowed rows were float32
    assert not [name for name in head.stored() if name.startswith(("target.", "embeddings"))]
    assert ("lm_head.weight" in head.stored()) == (network in ("glide", "chimera"))


# -- GLIDE -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["video_llava", "llava_onevision"])
@torch.inference_mode()
def test_the_rows_are_the_targets_own(kind):
    """Keys and values of its last layer as its own cache holds them, with and without biases."""
    model, _ = ZOO[kind]()
    ids, cache = torch.tensor([[1, 5, 6, 7, 8, 9]]), DynamicCache()
    out = model(input_ids=ids, past_key_values=cache, output_hidden_states=True)
    layer = LastLayer.of(model)
    assert (layer.head_dim, layer.kv_heads, layer.rope_theta) == (16, 2, 10000.0)
    key, value = TargetRows(layer)(out.hidden_states[-2])
    turned = Rotary(16, layer.rope_theta, 64)(key, torch.arange(6))
    assert torch.allclose(turned, cache.layers[-1].keys, atol=1e-6)  # our table of angles is float32
    assert torch.allclose(value, cache.layers[-1].values, atol=1e-12)


def test_a_target_of_another_anatomy_has_none(monkeypatch):
    model, _ = ZOO["video_llava"]()
    attention = model.base_model.language_model.layers[-1].self_attn
    monkeypatch.setattr(attention, "k_norm", torch.nn.Identity(), raising=False)
    assert LastLayer.of(model) is None
    without = tables()
    with pytest.raises(CrossdraftError, match="must be built like Llama's"):
        make("glide", config("glide"), TargetTables(without.embeddings, without.head))


@pytest.mark.parametrize("wrong", [{"head_dim": 16}, {"heads": 3, "kv_heads": 1}])
def test_heads_that_do_not_fit_the_targets_are_refused(wrong):
    with pytest.raises(CrossdraftError, match="head_dim 8 and heads a multiple of 2"):
        make("glide", config("glide", **wrong), tables())


def config(network, **more):
    kind = NETWORKS[network].config
    values = VALUES | more
    return kind(**{name: value for name, value in values.items() if name in kind.__dataclass_fields__})


# -- Chimera -----------------------------------------------------------------------------------------------------------


def test_a_row_takes_in_three_tokens():
    head = some_head("chimera")
    rows = head.embed_rows(torch.tensor([[5, 5, 6, 7]]))[0]
    for row, grams in zip(rows, ([5, 5, 6], [5, 6, 7]), strict=True):
        side_by_side = head.embed(torch.tensor(grams)).flatten()
        assert torch.allclose(row, head.trigram.linear(head.trigram.block(side_by_side)))


def test_before_the_text_its_first_token_is_repeated(monkeypatch):
    head, seen = some_head("chimera"), []
    rows = head.embed_rows
    monkeypatch.setattr(head, "embed_rows", lambda tokens: seen.append(tokens[0].tolist()) or rows(tokens))
    lesson = some_lesson(head)
    head(lesson)
    text = lesson.tokens[0].tolist()
    assert seen == [[text[0], text[0], *text]]  # the second row, of token 1, is that of tokens 0, 0, 1


def test_chimera_begins_without_the_residual():
    head = make("chimera", config("chimera"), tables()).double()
    outputs = torch.randn(2, 2 * HIDDEN, dtype=torch.double)
    assert torch.equal(head.say(outputs), head.lm_head(outputs[:, :HIDDEN]))
    assert torch.equal(head.features_of(outputs), outputs[:, :HIDDEN])


# -- DREAM -------------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def test_dream_begins_as_its_first_layer_with_the_gates_shut():
    head = make("dream", config("dream"), tables()).double()
    for guess in head(some_lesson(head)):
        assert torch.equal(guess.features, guess.middle)


def test_the_middle_loss_by_hand():
    """SmoothL1 of a difference of 0.2 is 0.02, of 3 is 2.5; only judged places count."""
    head = some_head("dream")
    lesson = some_lesson(head)
    told = lesson.hidden[3].roll(-1, 1)
    middle = told + 0.2
    middle[0, START - 1] = told[0, START - 1] + 3
    middle[0, : START - 1] = middle[0, LONG - 2 :] = 99
    places = LONG - 2 - (START - 1)
    loss = head.extra_losses(lesson, [MiddleGuess(1, torch.zeros(0), middle=middle)])["middle"]
    assert float(loss) == pytest.approx((2.5 + (places - 1) * 0.02) / places)


@pytest.mark.parametrize("layer", [0, 6])
def test_a_layer_that_is_not_in_the_middle_is_refused(layer):
    with pytest.raises(CrossdraftError, match="one of 1 … 5"):
        config("dream", middle_layer=layer)


# -- DFlash ------------------------------------------------------------------------------------------------------------


def lesson_of(rows, long, start):
    head = some_head("dflash", anchors=3)
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(3, 40, (rows, long), generator=generator)
    hidden = {layer: torch.randn(rows, long, HIDDEN, generator=generator, dtype=torch.double) for layer in head.reads}
    lengths = torch.tensor([long - row for row in range(rows)])
    return head, Lesson(tokens, hidden, torch.full((rows,), start), lengths)


def test_anchors_lie_evenly_over_the_answer_unless_it_trains():
    head, lesson = lesson_of(2, 14, 4)
    valid = head(lesson)[0].valid
    # Judged at offset 1: places 3 … 11 and, one token shorter, 3 … 10.
    assert valid.nonzero().tolist() == [[0, 5], [0, 8], [0, 11], [1, 5], [1, 8], [1, 10]]
    assert torch.equal(head(lesson)[3].valid, valid)


def test_while_training_anchors_are_drawn_from_the_judged_places():
    head, lesson = lesson_of(2, 14, 4)
    head.train()
    torch.manual_seed(0)
    drawn = [head(lesson)[0].valid for _ in range(30)]
    assert all((valid.sum(1) == 3).all() and not (valid & ~lesson.judged(1)).any() for valid in drawn)
    assert torch.equal(torch.stack(drawn).any(0), lesson.judged(1))


def test_an_answer_shorter_than_its_anchors_has_fewer():
    head, lesson = lesson_of(1, 7, 4)  # two places are judged
    guess = head(lesson)[0]
    assert guess.valid.nonzero().tolist() == [[0, 3], [0, 4]]


@torch.inference_mode()
def test_blocks_side_by_side_are_each_alone():
    head, lesson = lesson_of(2, 14, 4)
    every = some_head("dflash", anchors=50)
    for few, all_ in zip(head(lesson), every(lesson), strict=True):
        assert torch.allclose(few.logits[few.valid], all_.logits[few.valid], atol=1e-12)


def test_layers_are_spread_over_the_depth():
    assert spread(7) == (1, 2, 4, 5, 6)
    assert spread(36) == (1, 10, 18, 26, 35)
    assert spread(3) == (1, 2)
    assert spread(1) == (1,)
    with pytest.raises(CrossdraftError, match="cannot read layer 9"):
        config("dflash", read_layers=(2, 9))
