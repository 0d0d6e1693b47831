"""Adapters on the vision side: predicted tokens, where they stand, and what the target's decoder says after them."""

import re
from dataclasses import replace
from typing import cast

import pytest
import torch

import crossdraft as cd
from crossdraft.drafters.event.load import load_drafter
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.drafter import VerifyOutput
from crossdraft.engine.prefill import prefill
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import make, save_head
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.registry import NETWORKS
from crossdraft.load import event_fingerprint, load_target, target_fingerprint, tokenizer_of
from crossdraft_lab.align import predicted
from crossdraft_lab.align.networks.vision import VisionAdapter, spread
from crossdraft_lab.align.predicted import (
    PredictedPrefill,
    encoder_features,
    load_predicted_drafter,
    predicted_target,
    stretched_positions,
)
from crossdraft_lab.networks import VISION_ADAPTERS
from crossdraft_lab.train.heads.vision_task import FrozenDecoder
from tests.align.small import IDS
from tests.engine.late_target import wait_for
from tests.support import encodes_clips

TEXT = (45, 77, 130, 45, 200, 61, 99)
SIZES = {"source_size": 16, "source_frames": 5, "source_tokens": 5, "tokens": 5, "length": 40, "width": 64, "layers": 1}


def some_vision(network, target, event, **more):
    """A random adapter for the tiny pair, in double precision, whose every weight matters."""
    vocabulary, size = target.vocab_size, target.text_config.hidden_size
    values = {"hidden_size": size, "vocab_size": vocabulary, "num_layers": 2, "draft_ids": IDS, "scale": 2.0,
              "drafter": event_fingerprint(str(event)), **SIZES, **more}  # fmt: skip
    kind = NETWORKS[network].config_class
    names = kind.__dataclass_fields__
    torch.manual_seed(0)
    config = kind(**{name: value for name, value in values.items() if name in names})
    adapter = cast("VisionAdapter", make(network, config, SharedWeights.of(target.model)).double())
    with torch.no_grad():
        for weight in adapter.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.3)
    return adapter.eval()


@pytest.fixture(scope="module")
def models(pair):
    events = load_drafter(str(pair.event), "cpu", "float64", packed=False).model
    return load_target(str(pair.target), "cpu", "float64", packed=False), events, tokenizer_of(str(pair.target))


@pytest.fixture
def question(clip):
    return Request("What is ahead?", str(clip.video), str(clip.events), max_new_tokens=16)


@pytest.mark.parametrize(("count", "length"), [(1, 1), (5, 5), (5, 40), (7, 40), (50, 400)])
def test_predicted_tokens_stand_evenly_where_the_clip_would(count, length):
    found = spread(count, length)
    assert found.tolist() == sorted(set(found.tolist()))
    assert 0 <= found[0] <= found[-1] < length
    assert abs(found[0] - (length - 1 - found[-1])) <= 1  # as far from the first as from the last


def test_text_after_the_clip_keeps_its_position():
    positions, delta = stretched_positions(torch.tensor([1, 4, 9, 9, 9, 5, 6]), frozenset({9}), spread(3, 12), 12)
    assert positions.tolist() == [0, 1, 2 + 2, 2 + 6, 2 + 10, 14, 15]
    assert delta == 9


@encodes_clips
def test_a_conversation_is_read_however_it_is_given(models, pair, clip):
    target, events, tokenizer = models
    prompt = PredictedPrefill(target, events, some_vision("vision_queries", target, pair.event), tokenizer).prompt
    shown = [{"type": "video", "video": str(clip.video)}, {"type": "text", "text": "What is ahead?"}]
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": shown}]
    ids = prompt.ids(Request("What is ahead?", str(clip.video), system="Be brief.")).tolist()
    assert prompt.ids(Request(messages=said)).tolist() == ids
    more = [*said, {"role": "assistant", "content": "A car."}, {"role": "user", "content": "Is it red?"}]
    written = tokenizer.decode([i for i in prompt.ids(Request(messages=more)).tolist() if i not in target.reserved])
    assert re.search("Be brief.*What is ahead.*A car.*Is it red", written, re.DOTALL)


@pytest.mark.parametrize("network", VISION_ADAPTERS)
def test_an_adapter_begins_at_the_mean_and_every_weight_learns(models, pair, network):
    target, _, _ = models
    adapter = some_vision(network, target, pair.event, frames=2)
    source = torch.randn(3, 5, 5, 16, dtype=torch.double)
    tokens = torch.randn(6, 10, 32, dtype=torch.double)
    adapter.begin_at(tokens)
    found = adapter.predict(source)
    assert found.shape == (3, 10, 32)
    assert torch.allclose(found - adapter.config.scale * adapter.deviation(source), tokens.mean(0).expand(3, -1, -1))
    found.square().sum().backward()
    learning = {name: weight for name, weight in adapter.named_parameters() if weight.requires_grad}
    assert "lm_head.weight" not in learning
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in learning.values())


def drafted_logits(drafter, question, count, pieces):
    """The drafter's [D] logits after `count` tokens of the text, read in pieces."""
    (state,) = drafter.begin([question])
    with torch.inference_mode():
        for at in range(0, count, pieces):
            drafter.commit([state], [VerifyOutput((), TEXT[at : min(at + pieces, count)])])
            drafter._read_on(state, 0)
    return state.logits[-1][list(IDS)]


@torch.no_grad()
def check_consistency(models, adapter, question, pieces):
    """What the frozen decoder is trained with is what the drafter computes; returns how many tokens were compared."""
    target, events, tokenizer = models
    model = predicted_target(target, events, adapter, tokenizer)
    prompt = model.prepare(question)
    ids, visual = prompt.input_ids.tolist(), target.traits.visual_ids
    first = next(i for i, token in enumerate(ids) if token in visual)
    asked = ids[first + adapter.config.predicted :]
    rows = target.model.lm_head.weight[list(IDS)]
    length = adapter.config.length
    places = spread(adapter.config.predicted, length)
    decoder = FrozenDecoder(target.model.model.language_model, prompt.input_ids[:first], places, length, rows)
    seen = encoder_features(events, events.prepare(question))[None].double().clone()
    expected = decoder.logits(adapter.predict(seen), torch.tensor([[*asked, *TEXT]]))[0]
    drafter = IndependentDrafter(model)
    for count in range(len(TEXT) + 1):
        own = drafted_logits(drafter, question, count, pieces)
        assert torch.allclose(own.double(), expected[len(asked) - 1 + count], atol=1e-6), count
    return count + 1


@encodes_clips
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("network", VISION_ADAPTERS)
def test_drafts_are_as_trained(models, pair, question, network, pieces):
    adapter = some_vision(network, models[0], pair.event)
    assert check_consistency(models, adapter, question, pieces) == len(TEXT) + 1


@encodes_clips
def test_text_that_moves_up_to_the_predicted_tokens_would_be_noticed(models, pair, question, monkeypatch):
    """The planted bug: positions count on from the predicted tokens, as if there were no more of the clip."""
    adapter = some_vision("vision_linear", models[0], pair.event)
    monkeypatch.setattr(predicted, "stretched_positions", lambda ids, *_: (torch.arange(len(ids)), 0))
    with pytest.raises(AssertionError):
        check_consistency(models, adapter, question, 1)


@encodes_clips
def test_predicting_the_targets_own_tokens_it_says_what_the_target_says(models, pair, question, monkeypatch):
    """As many predicted tokens as the clip has, and the right ones: the decoder is the target's own."""
    target, events, tokenizer = models
    adapter = some_vision("vision_linear", target, pair.event, frames=8)
    prompt = target.prepare(question)
    true = target.visual_features(target.encode(prompt))
    monkeypatch.setattr(adapter, "predict", lambda source: true[None])
    drafter = IndependentDrafter(predicted_target(target, events, adapter, tokenizer))
    cache = target.new_cache(capacity=len(prompt) + 4)
    own = prefill(target, cache, prompt, target.encode(prompt), len(prompt) + 4).logits[0][-1]
    assert torch.allclose(drafted_logits(drafter, question, 0, 1), own[list(IDS)], atol=1e-9)


@encodes_clips
@pytest.mark.parametrize(
    "spec",
    ["predicted:dir={},model={}", "predicted:dir={},model={}@process", "union:(predicted:dir={},model={}),ngram"],
)
def test_answers_are_the_targets_own(pair, models, clip, tmp_path, spec, monkeypatch):
    adapter = some_vision("vision_queries", models[0], pair.event)
    save_head(tmp_path, adapter, "vision_queries", target_fingerprint(str(pair.target)), torch.float32)
    request = cd.Request(video=str(clip.video), events=str(clip.events), prompt="What is ahead?", max_new_tokens=16)
    options = cd.Options(adaptive=False, dtype="float32", placement="inline")
    with cd.Engine.load(str(pair.target), None, options) as engine:
        alone = engine.generate(request)
    with cd.Engine.load(str(pair.target), spec.format(tmp_path, pair.event), options) as engine:
        for worker in engine.drafter.workers:
            wait_for(monkeypatch, worker)
        answers = [engine.generate(request) for _ in range(2)]  # the second from its prefix cache
        warm = engine.generate(replace(request, max_new_tokens=8, sampling=Sampling(temperature=1.0, seed=3)))
    assert [answer.tokens for answer in answers] == [alone.tokens] * 2
    assert all(answer.stats.drafted and not answer.other_notes for answer in (*answers, warm))


@encodes_clips
def test_it_drafts_for_a_clip_of_any_number_of_frames(pair, models, clip, tmp_path):
    """It reads none of them, though the text stands where it would after as many as it learned of."""
    adapter = some_vision("vision_queries", models[0], pair.event)
    save_head(tmp_path, adapter, "vision_queries", target_fingerprint(str(pair.target)), torch.float32)
    request = cd.Request(video=str(clip.video), events=str(clip.events), prompt="What is ahead?", max_new_tokens=16)
    options = cd.Options(adaptive=False, dtype="float32", placement="inline", num_frames=4)
    with cd.Engine.load(str(pair.target), f"predicted:dir={tmp_path},model={pair.event}", options) as engine:
        answer, alone = engine.generate(request), engine.alone(request)
    assert answer.tokens == alone.tokens
    assert answer.stats.drafted
    assert not answer.other_notes


@encodes_clips
def test_what_does_not_belong_together_is_refused(pair, models, tmp_path):
    target, events, tokenizer = models
    adapter = some_vision("vision_linear", target, pair.event)
    save_head(tmp_path, adapter, "vision_linear", target_fingerprint(str(pair.target)))
    with pytest.raises(CrossdraftError, match="reads another event model than"):
        load_predicted_drafter(tmp_path, target, str(pair.target), str(pair.blind), tokenizer)
    with pytest.raises(CrossdraftError, match="trained for another target"):
        load_predicted_drafter(tmp_path, target, "reference", str(pair.event), tokenizer)
    with pytest.raises(CrossdraftError, match="reads 8 features of an event encoder, this one has 16"):
        PredictedPrefill(target, events, some_vision("vision_linear", target, pair.event, source_size=8), tokenizer)
    with pytest.raises(CrossdraftError, match="visual tokens of 16 features, this target reads 32"):
        some = some_vision("vision_linear", target, pair.event)
        some.config = replace(some.config, hidden_size=16)
        PredictedPrefill(target, events, some, tokenizer)
    with pytest.raises(CrossdraftError, match="9 frames of 5 tokens of a clip that has 40"):
        some_vision("vision_linear", target, pair.event, frames=9)
    with pytest.raises(CrossdraftError, match="positive number; it is nan"):
        some_vision("vision_linear", target, pair.event, scale=float("nan"))
    with pytest.raises(CrossdraftError, match="is the reference target's; write predicted:dir=FOLDER"):
        cd.Engine.load(str(pair.target), "predicted")
    with pytest.raises(CrossdraftError, match="multiple of 64; 40 is none"):
        some_vision("vision_queries", target, pair.event, width=40)


@encodes_clips
def test_a_clip_without_events_and_weights_that_are_not_finite_cost_the_draft_alone(pair, models, clip, tmp_path):
    """The answer is the target's, and says why nothing was drafted."""
    adapter = some_vision("vision_linear", models[0], pair.event)
    fingerprint = target_fingerprint(str(pair.target))
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
    save_head(tmp_path / "good", adapter, "vision_linear", fingerprint, torch.float32)
    with torch.no_grad():
        adapter.project.bias[0] = torch.nan
    save_head(tmp_path / "bad", adapter, "vision_linear", fingerprint, torch.float32)
    options = cd.Options(adaptive=False, dtype="float32", placement="inline")
    request = cd.Request(video=str(clip.video), events=str(clip.events), prompt="What is ahead?", max_new_tokens=8)
    with cd.Engine.load(str(pair.target), None, options) as engine:
        alone = engine.generate(request)
    spec = f"predicted:dir={{}},model={pair.event}"
    for folder, events, note in (("good", None, "event"), ("bad", str(clip.events), "not finite")):
        with cd.Engine.load(str(pair.target), spec.format(tmp_path / folder), options) as engine:
            answer = engine.generate(replace(request, events=events))
        assert answer.tokens == alone.tokens
        assert any(note in line for line in answer.other_notes), (folder, answer.other_notes)
