"""The aligned drafter: it drafts what its adapter was trained to say, and answers stay the target's own."""

from dataclasses import replace

import pytest
import torch

import crossdraft as cd
from crossdraft.drafters.base import read_prompt
from crossdraft.drafters.event.load import load_drafter
from crossdraft.engine.drafter import Budget, PromptFeatures, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import save_head
from crossdraft.heads.glance.frame_encoder import PIXELS
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.load import load_target, target_fingerprint
from crossdraft_lab.align.drafter import AlignedDrafter, AlignedOptions, FusedDrafter
from crossdraft_lab.align.load import aligned_drafter, load_adapter
from crossdraft_lab.align.networks import attention
from crossdraft_lab.align.networks.attention import PastAttention
from crossdraft_lab.align.networks.base import TARGET
from crossdraft_lab.networks import ADAPTERS
from tests.align.small import IDS, some_adapter
from tests.support import encodes_clips

FRAMES = torch.randn(4 * 5, 12, generator=torch.Generator().manual_seed(5), dtype=torch.double)  # of 4 frames
TEXT = (45, 77, 130, 45, 200, 61, 99, 77, 250, 140)


@pytest.fixture(scope="module")
def event(pair):
    return load_drafter(str(pair.event), "cpu", "float64", packed=False).model


@pytest.fixture
def question(clip):
    request = Request("What is ahead?", str(clip.video), str(clip.events), max_new_tokens=24)
    return replace(request, visual_features=lambda: FRAMES)


@pytest.fixture
def drafter_of(pair, event):
    def make(network, alone=0, words=1, **more):
        adapter = some_adapter(network, pair.target, pair.event, event, **more)
        return aligned_drafter(event, adapter, AlignedOptions(alone=alone, words=words))

    return make


@torch.inference_mode()
def trained_logits(drafter, event, question, text=TEXT, frames=2):
    """(Predictions of the training forward, where the answer starts), the text being read in one plain forward.

    Of the two frames, the first and the last of the clip, the first `frames` are seen.
    """
    prompt = event.prepare(question)
    ids = prompt.input_ids.tolist()
    cut = max(i for i, token in enumerate(ids) if token in event.traits.visual_ids) + 1
    out = event.model.model(
        input_ids=torch.tensor([[*ids, *text]]),
        pixel_values_videos=prompt.features["pixel_values_videos"].double(),
        output_hidden_states=True,
    )
    hidden = {layer: out.hidden_states[layer][:, cut:] for layer in drafter.capture}
    tokens = torch.tensor([[*ids[cut:], *text]])
    start = len(ids) - cut
    hidden[TARGET] = torch.nn.functional.pad(said(drafter, len(text)), (0, 0, start - 1, 1))[None]
    seen = {0: torch.cat((FRAMES[:5], FRAMES[15:]))[None, : 5 * frames]} if drafter.adapter.visual_reads else {}
    seen = seen if frames else {}
    batch = TrainBatch(tokens, hidden, torch.tensor([start]), torch.tensor([tokens.shape[1]]), seen)
    return {one.offset: one.logits[0] for one in drafter.adapter(batch)}, start


def said(drafter, count):
    """[n, H] features of the target, one before each token of a text of n."""
    generator = torch.Generator().manual_seed(3)
    shape = len(TEXT) + 4, drafter.adapter.config.hidden_size
    return torch.randn(shape, generator=generator, dtype=torch.double)[:count]


def output(drafter, at, tokens):
    """What the target makes of a round that adds these tokens to an answer of `at`: all but the last were drafted."""
    features, layer = said(drafter, at + len(tokens))[at:], drafter.adapter.config.num_layers
    prompt = None if at else PromptFeatures((1, 2, 3))
    question = features.new_full((0 if at else 2, features.shape[1]), 9.0)  # of its tokens but the last
    return VerifyOutput(tuple(range(len(tokens) - 1)), tuple(tokens), {layer: torch.cat((question, features))}, prompt)


@torch.inference_mode()
def read_on(drafter, state, at, tokens):
    """Commit tokens that follow an answer of `at`; the model reads them."""
    if tokens:
        drafter.commit([state], [output(drafter, at, tokens)])
        drafter._read_on(state, 0)


def committed(drafter, question, text):
    """A state whose committed text this is, verified token by token, and read by the model."""
    (state,) = drafter.begin([question])
    for at, token in enumerate(text):
        read_on(drafter, state, at, (token,))
    return state


def check_consistency(drafter, event, question, pieces):
    """Logits of training and of drafting after every token of a text; returns how many were compared.

    The text is verified in pieces; within one, a fork of the state reads the tokens up to there.
    """
    expected, start = trained_logits(drafter, event, question)
    (state,), read = drafter.begin([question]), 0
    for count in range(len(TEXT) + 1):
        if count - read == pieces:
            read_on(drafter, state, read, TEXT[read:count])
            read = count
        (fork,) = drafter.fork([state])
        read_on(drafter, fork, read, TEXT[read:count])
        own = fork.logits[-1][list(IDS)]
        assert torch.allclose(own, expected[0][start - 1 + count].float(), atol=1e-5), count
    return count + 1


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("network", [name for name in ADAPTERS if name != "token"])
def test_drafts_are_as_trained(drafter_of, event, question, network, pieces):
    assert check_consistency(drafter_of(network), event, question, pieces) == 11


@pytest.mark.parametrize("network", ["l4", "l5"])
def test_a_past_that_is_forgotten_would_be_noticed(drafter_of, event, question, network, monkeypatch):
    """The planted bug: new positions that do not see the earlier ones."""
    drafter = drafter_of(network)
    predictions = trained_logits(drafter, event, question)
    monkeypatch.setattr("tests.align.test_drafter.trained_logits", lambda *_: predictions)
    monkeypatch.setattr(attention, "PastAttention", lambda past: PastAttention(()))
    with pytest.raises(AssertionError):
        check_consistency(drafter, event, question, 1)


def test_l4v_drafts_by_what_it_sees(drafter_of, event, question):
    """The planted bug: another clip's frames."""
    other = replace(question, visual_features=lambda: FRAMES.flip(0))
    with pytest.raises(AssertionError):
        check_consistency(drafter_of("l4v"), event, other, 1)
    with pytest.raises(CrossdraftError, match="reads 2 frames of 5 features, 10 x 12 in all; got 7 x 12"):
        drafter_of("l4v").begin([replace(question, visual_features=lambda: FRAMES[:7])])
    with pytest.raises(CrossdraftError, match="needs the target's visual features"):
        drafter_of("l4v").begin([replace(question, visual_features=None)])


@torch.inference_mode()
def test_what_it_drafts_alone_is_as_trained(drafter_of, event, question):
    """Predictions of offsets 1, 2, 3 of the training-time test, after tokens that the drafter did not read."""
    drafter = drafter_of("l5", alone=3)
    adapter = drafter.adapter
    state = committed(drafter, question, TEXT[:4])
    (draft,) = drafter.propose([state], [Budget(4)])
    assert len(draft.tree) == 4
    expected, start = trained_logits(drafter, event, question, (*TEXT[:4], *draft.tree.tokens))
    for offset, token in enumerate(draft.tree.tokens):
        assert adapter.config.draft_ids[int(expected[offset][start - 1 + 4].argmax())] == token, offset


@torch.inference_mode()
@pytest.mark.parametrize("network", ["b1", "l5f"])
@pytest.mark.parametrize("known", [0, 4])
def test_what_is_drafted_after_the_targets_features_is_as_trained(drafter_of, event, question, network, known):
    """Without any, in a hidden draft, and after four verified tokens: the rollout of training."""
    drafter = drafter_of(network)
    state = committed(drafter, question, TEXT[:known])
    (draft,) = drafter.propose([state], [Budget(4)])
    text = (*TEXT[:known], *draft.tree.tokens)
    expected, start = trained_logits(drafter, event, question, text)
    ids = drafter.adapter.config.draft_ids
    assert [ids[int(expected[step][start - 1 + known].argmax())] for step in range(4)] == list(draft.tree.tokens)


@torch.inference_mode()
@pytest.mark.parametrize("network", ["b1", "l5f"])
def test_the_targets_features_decide_what_follows(drafter_of, event, question, network, monkeypatch):
    """The planted bug: verified tokens whose features are not read any more."""
    drafter = drafter_of(network)
    monkeypatch.setattr(FusedDrafter, "_commit", AlignedDrafter._commit)
    with pytest.raises(AssertionError):
        check_consistency(drafter, event, question, 1)


@torch.inference_mode()
@pytest.mark.parametrize("accepted", [0, 2])
def test_l5f_after_a_rejection_drafts_as_a_fresh_state(drafter_of, question, accepted):
    """What was drafted on its own outputs is read again with the target's features; a fork does the same."""
    drafter = drafter_of("l5f")
    (state,) = drafter.begin([question])
    (draft,) = drafter.propose([state], [Budget(6)])
    result = output(drafter, 0, (*draft.tree.tokens[:accepted], 77))
    (fork,) = drafter.fork([state])
    (fresh,) = drafter.begin([question])
    for one in (fork, state, fresh):
        drafter.commit([one], [result])
    own = [drafter.propose([one], [Budget(6)])[0].tree.tokens for one in (state, fork, fresh)]
    assert own[0] == own[1] == own[2]
    assert state.settled == fresh.settled == accepted + 1
    assert torch.allclose(state.aligned[: accepted + 2], fresh.aligned[: accepted + 2])


@torch.inference_mode()
@pytest.mark.parametrize("alone", [0, 2])
def test_a_fork_and_a_rejection_leave_nothing_behind(drafter_of, question, alone):
    """What is drafted after a verification is what a fresh state drafts after the same text."""
    drafter = drafter_of("l5", alone=alone)
    (state,) = drafter.begin([question])
    (draft,) = drafter.propose([state], [Budget(6)])
    output = VerifyOutput((0, 1), (*draft.tree.tokens[:2], 77))
    (fork,) = drafter.fork([state])
    drafter.commit([fork], [output])
    (forked,) = drafter.propose([fork], [Budget(6)])
    drafter.commit([state], [output])
    (own,) = drafter.propose([state], [Budget(6)])
    assert own.tree.tokens == forked.tree.tokens
    if not alone:  # where the adapter begins to draft alone depends on what was read
        (fresh,) = drafter.begin([question])
        drafter.commit([fresh], [VerifyOutput((), output.tokens)])
        assert drafter.propose([fresh], [Budget(6)])[0].tree.tokens == own.tree.tokens


def test_without_an_adapter_the_target_head_reads_the_padded_feature(drafter_of, event, question):
    drafter = drafter_of("none")
    with torch.no_grad():
        drafter.adapter.project.weight.copy_(torch.eye(*drafter.adapter.project.weight.shape))
        drafter.adapter.project.bias.zero_()
    (state,) = drafter.begin([question])
    _, _, out = read_prompt(event, question, 8, drafter.capture)
    own = out.hidden[0][0][-1] @ drafter.adapter.lm_head.weight.T
    assert torch.allclose(state.logits[-1][list(IDS)], own.float(), atol=1e-5)


@pytest.fixture(scope="module")
def alone(pair, clip):
    """The target's own answer."""
    request = cd.Request(video=str(clip.video), events=str(clip.events), prompt="What is ahead?", max_new_tokens=16)
    with cd.Engine.load(str(pair.target), None, cd.Options(adaptive=False, dtype="float32")) as engine:
        return engine.generate(request)


def seen_by(target, clip, network):
    """Sizes of the target's visual features, for an adapter that reads them."""
    if network != "l4v":
        return {}
    host = load_target(str(target), "cpu", "float32", packed=False)
    prompt = host.prepare(Request("?", str(clip.video)))
    count = sum(token in host.traits.visual_ids for token in prompt.input_ids.tolist())
    return {"visual_size": host.text_config.hidden_size, "patches": count // prompt.features[PIXELS].shape[1]}


@pytest.mark.parametrize(
    ("network", "spec"),
    [
        ("l5", "aligned:dir={},model={}"),
        ("l5", "aligned:dir={},model={},alone=2"),
        ("l5", "union:(aligned:dir={},model={}),ngram"),
        ("b1", "aligned:dir={},model={},alone=1"),
        ("l5f", "aligned:dir={},model={}"),
        ("l5f", "union:(aligned:dir={},model={}),ngram"),
        pytest.param("l4v", "aligned:dir={},model={}", marks=encodes_clips),
        ("token", "union:(aligned:dir={},model={}),ngram"),
    ],
)
@pytest.mark.usefixtures("one_target")
def test_answers_are_the_targets_own(pair, event, clip, tmp_path, alone, network, spec):
    adapter = some_adapter(network, pair.target, pair.event, event, **seen_by(pair.target, clip, network))
    save_head(tmp_path, adapter, network, target_fingerprint(str(pair.target)), torch.float32)
    request = cd.Request(video=str(clip.video), events=str(clip.events), prompt="What is ahead?", max_new_tokens=16)
    options = cd.Options(adaptive=False, dtype="float32", placement="inline")
    with cd.Engine.load(str(pair.target), spec.format(tmp_path, pair.event), options) as engine:
        answers = [engine.generate(request) for _ in range(2)]  # the second from its prefix cache
        warm = engine.generate(cd.Request(
            video=str(clip.video), events=str(clip.events), prompt="What is ahead?", max_new_tokens=8,
            sampling=Sampling(temperature=1.0, seed=3),
        ))  # fmt: skip
    assert [answer.tokens for answer in answers] == [alone.tokens] * 2
    assert all(answer.stats.drafted and not answer.other_notes for answer in (*answers, warm))


def test_what_does_not_belong_together_is_refused(pair, event, tmp_path):
    adapter = some_adapter("l1", pair.target, pair.event, event)
    save_head(tmp_path, adapter, "l1", target_fingerprint(str(pair.target)))
    with pytest.raises(CrossdraftError, match="reads another event model than"):
        load_adapter(tmp_path, str(pair.target), str(pair.blind))
    with pytest.raises(CrossdraftError, match="trained for another target"):
        load_adapter(tmp_path, "reference", str(pair.event))
    with pytest.raises(CrossdraftError, match="Only the adapters l5 and b1 draft alone"):
        AlignedDrafter(event, adapter, AlignedOptions(alone=2))
    with pytest.raises(CrossdraftError, match="reads layers 2 of 16 features; the event model has 2 of 32"):
        AlignedDrafter(event, some_adapter("l1", pair.target, pair.event, event, source_size=16))
    with pytest.raises(CrossdraftError, match="needs the folder of an adapter"):
        cd.Engine.load(str(pair.target), "aligned")
    with pytest.raises(CrossdraftError, match="ascend"):
        some_adapter("l1", pair.target, pair.event, event, source_layers=(2, 1))
