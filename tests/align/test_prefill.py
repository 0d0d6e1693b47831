"""A target that reads predicted tokens: what it reads, where, and when it does not. Lossy."""

import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from crossdraft.compressions import CHECK, compressed
from crossdraft.edge.events import EdgeEvents
from crossdraft.edge.remote import EdgeLink
from crossdraft.engine.arrivals import evenly
from crossdraft.engine.encoded import visual_rows
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import save_head
from crossdraft.load import load_target, target_fingerprint
from crossdraft.video.clip import FrameSampling, read_clip
from crossdraft_lab.align import prefill
from crossdraft_lab.align.checked import Read
from crossdraft_lab.align.gate import GATE, PrefillGate, load_gate, save_gate
from crossdraft_lab.align.predicted import encoder_features
from crossdraft_lab.align.prefill import PrefillSettings, layout, speculative, speculative_target
from tests.align.test_vision import some_vision
from tests.support import encodes_clips

FRAMES, TOKENS = 8, 5  # of a clip, and of each of them


@pytest.fixture(scope="module")
def target(pair):
    return load_target(str(pair.target), "cpu", "float64", packed=False)


@pytest.fixture
def folder(pair, target, tmp_path):
    """An adapter with a gate that is sure of nothing: 0.5 everywhere."""
    adapter = some_vision("vision_queries", target, pair.event)
    save_head(tmp_path, adapter, "vision_queries", target_fingerprint(str(pair.target)), torch.float32)
    gate = PrefillGate(5, 16)
    torch.nn.init.zeros_(gate.out.weight)
    torch.nn.init.zeros_(gate.out.bias)
    gate.calibrate(torch.tensor([0.5]), torch.tensor([1.0]))
    save_gate(gate, tmp_path)
    return tmp_path


@pytest.fixture
def question(clip):
    return Request("What is ahead?", str(clip.video), str(clip.events), max_new_tokens=16)


@pytest.fixture
def predicting(pair, target, folder):
    def make(**more):
        return speculative_target(target, PrefillSettings(folder, str(pair.event), **more))

    return make


def test_key_frames_stand_at_their_own_places_by_hand(pair, target):
    """Of 40 tokens, two a frame, frame 5 has 10 and 11, frame 15 30 and 31.

    Two predicted ones stand at 10 and 30 of 40 places, and at 9 and 28 of the 38 that a key frame leaves, which are 9
    and 30 without frame 5, 9 and 28 without frame 15. Without both, those at 9 and 27 of 36: 9 and 29.
    """
    config = some_vision("vision_linear", target, pair.event, tokens=2).config
    found = {frames: [part.tolist() for part in layout(config, list(frames))] for frames in ((), (5,), (15,), (5, 15))}
    assert found == {
        (): [[10, 30], [0, 1]],
        (5,): [[9, 10, 11, 30], [0, 2, 3, 1]],
        (15,): [[9, 28, 30, 31], [0, 1, 2, 3]],
        (5, 15): [[9, 10, 11, 29, 30, 31], [0, 2, 3, 1, 4, 5]],
    }


@pytest.mark.parametrize("tokens", [1, 2, 4, 5, 8, 10])
@pytest.mark.parametrize("predicted", [1, 2, 3])
def test_no_two_tokens_share_a_place_and_all_keep_their_order(pair, target, tokens, predicted):
    """For every choice of evenly spread key frames that leaves room."""
    config = some_vision("vision_linear", target, pair.event, tokens=tokens, frames=predicted).config
    total = config.length // tokens
    for count in range(total - predicted + 1):
        frames = evenly(total, count) if count else []
        places, order = layout(config, frames)
        assert (places.diff() > 0).all()
        assert order[order < config.predicted].tolist() == list(range(config.predicted))
        own = places[order >= config.predicted].tolist()
        assert own == [frame * tokens + at for frame in frames for at in range(tokens)]
        assert 0 <= int(places[0]) <= int(places[-1]) < config.length
    with pytest.raises(CrossdraftError, match=f"places for {config.predicted} predicted tokens; name fewer"):
        layout(config, list(range(total - predicted + 1)))


@encodes_clips
def test_it_reads_the_predicted_tokens_and_nothing_of_the_clip(predicting, target, question):
    made = predicting()
    whole, prompt = target.prepare(question), made.prepare(question)
    assert len(whole) - len(prompt) == FRAMES * TOKENS - TOKENS
    assert not any(name.startswith("pixel") for name in prompt.features)
    own = speculative(made).predicting
    events, adapter = own.events, own.adapter
    with torch.inference_mode():
        wanted = adapter.predict(encoder_features(events, events.prepare(question))[None].to(adapter.mean))
    (found,) = made.encode(prompt).values()
    assert torch.equal(visual_rows(found), wanted[0].double())
    positions, delta = prompt.positions(None)
    assert delta == len(whole) - len(prompt)
    assert positions[-1] == len(whole) - 1  # text after the clip stands where it would


@encodes_clips
def test_key_frames_are_those_of_the_target(predicting, target, question):
    """With 3 of 8: frames 0, 3 and 7 as the target's encoder has them, in order with the predicted tokens."""
    made = predicting(frames=3)
    prompt = made.prepare(question)
    rows = visual_rows(next(iter(made.encode(prompt).values())))
    true = visual_rows(next(iter(target.encode(target.prepare(question)).values()))).view(FRAMES, TOKENS, -1)
    assert len(rows) == 4 * TOKENS
    own = [int(at) for at in speculative(made).order.argsort()[TOKENS:]]  # where they went
    assert torch.allclose(rows[own], true[[0, 3, 7]].flatten(0, 1), atol=1e-9)
    places = speculative(made).places[own].tolist()
    assert places == [50 // 10 * frame + at for frame in (0, 3, 7) for at in range(TOKENS)]


@encodes_clips
def test_with_the_right_tokens_it_says_what_the_target_says(pair, target, folder, question, monkeypatch):
    """An adapter of eight frames that predicts the target's own tokens: nothing is lost."""
    adapter = some_vision("vision_linear", target, pair.event, frames=8)
    save_head(folder, adapter, "vision_linear", target_fingerprint(str(pair.target)), torch.float32)
    made = speculative_target(target, PrefillSettings(folder, str(pair.event)))
    true = target.visual_features(target.encode(target.prepare(question)))
    monkeypatch.setattr(speculative(made).predicting.adapter, "predict", lambda source: true[None])
    assert (
        DecodeLoop(made, None).generate([question])[0].tokens == DecodeLoop(target, None).generate([question])[0].tokens
    )


@encodes_clips
def test_positions_that_close_up_would_be_noticed(predicting, question, monkeypatch):
    """The planted bug: predicted tokens stand side by side."""
    monkeypatch.setattr(prefill, "spread", lambda count, length: torch.arange(count))
    made = predicting()
    assert made.prepare(question).positions(None)[0].tolist() != predicting_positions(made, question)


def predicting_positions(made, question):
    """As the drafter `predicted` has them."""
    return speculative(made).predicting.prompt(question).positions(None)[0].tolist()


@encodes_clips
def test_positions_are_those_of_the_drafter(predicting, question):
    made = predicting()
    assert made.prepare(question).positions(None)[0].tolist() == predicting_positions(made, question)


@encodes_clips
@pytest.mark.parametrize(("confidence", "predicted"), [(0.0, True), (0.49, True), (0.51, False)])
def test_the_gate_decides(predicting, target, question, confidence, predicted):
    made = predicting(confidence=confidence)
    prompt, whole = made.prepare(question), target.prepare(question)
    assert (len(prompt) < len(whole)) == predicted
    answer = DecodeLoop(made, None).generate([question])[0]
    if not predicted:
        assert "Read whole: the gate was not confident." in answer.other_notes
        assert answer.tokens == DecodeLoop(target, None).generate([question])[0].tokens


class Noted:
    """Who asks for an answer, and keeps what is to be checked."""

    def __init__(self):
        self.started = []

    def start(self, prepared):
        self.started.append(prepared)


@encodes_clips
def test_who_asks_sees_to_a_check_and_events_are_encoded_once(predicting, target, question, monkeypatch):
    """The whole clip is read; the request that is handed on has what the gate read."""
    made, encoded, asker = predicting(budget=0.1, check=1.0, confidence=0.4), [], Noted()
    own = DecodeLoop(predicting(), None).generate([question])[0].tokens
    events = speculative(made).predicting.events
    encode = events.encode
    monkeypatch.setattr(events, "encode", lambda prompt: encoded.append(1) or encode(prompt))
    answer = DecodeLoop(made, None).generate([replace(question, extras={CHECK: asker})])[0]
    assert answer.tokens == DecodeLoop(target, None).generate([question])[0].tokens
    assert "Read whole: this request is a check." in answer.other_notes
    (prepared,) = asker.started
    lossy = DecodeLoop(made, None).generate([replace(prepared, extras=prepared.extras | {CHECK: Read.PREDICTED})])[0]
    assert lossy.tokens == own != answer.tokens
    assert len(encoded) == 1
    assert speculative(made).status.reads[Read.CHECKED] == 1


@encodes_clips
@pytest.mark.parametrize(("first", "predicted"), [(0.4, True), (0.6, False)])
def test_who_asks_for_no_check_reads_by_the_threshold_and_moves_nothing(predicting, question, first, predicted):
    """A request by itself, and one of which nothing is to be learned, even if all that are predicted are checked."""
    made, asker = predicting(budget=0.1, check=1.0, rate=1.0, confidence=first), Noted()
    before = speculative(made).status
    for request in (question, replace(question, extras={CHECK: asker}, namespace=None)):
        assert ("predicted" in made.prepare(request).features) == predicted
    assert (speculative(made).status, asker.started) == (before, [])


@encodes_clips
def test_a_request_may_say_how_it_is_read(predicting, question):
    for made in (predicting(), predicting(budget=0.1, check=1.0, confidence=0.9)):
        read = {way: "predicted" in made.prepare(replace(question, extras={CHECK: way})).features for way in Read}
        assert (read[Read.PREDICTED], read[Read.WHOLE]) == (True, False)


@encodes_clips
def test_the_threshold_of_a_budget_begins_where_the_gate_says(predicting):
    """It was judged by one clip, of which all was lost, and of which it was sure by 0.5."""
    found = {loss: speculative(predicting(budget=loss)).status.threshold for loss in (1.0, 0.5)}
    assert found == {1.0: 0.5, 0.5: math.nextafter(0.5, 1)}
    assert speculative(predicting(budget=0.5, confidence=0.3)).status.threshold == 0.3
    assert speculative(predicting(confidence=0.3)).status is None


@encodes_clips
def test_what_cannot_be_predicted_is_read_whole(predicting, target, question, clip):
    made, own = predicting(), DecodeLoop(target, None)
    other = {"type": "video", "video": str(clip.video)}, {"type": "text", "text": "What is ahead?"}
    said = [{"role": "user", "content": list(other)}, {"role": "assistant", "content": "A car."},
            {"role": "user", "content": "Which colour?"}]  # fmt: skip
    talk = Request(messages=said, events=str(clip.events), max_new_tokens=8)
    for request in (replace(question, events=None), talk):
        answer = DecodeLoop(made, None).generate([request])[0]
        assert answer.tokens == own.generate([request])[0].tokens
        assert any("Read whole: it takes one clip with events" in note for note in answer.other_notes)


@encodes_clips
@pytest.mark.parametrize("budget", [{}, {"budget": 0.5, "check": 1.0, "confidence": 0.4}])
def test_events_that_cannot_be_read_cost_no_answer(predicting, target, question, tmp_path, budget):
    """A recording that is missing, one that is damaged, and one at an edge; nothing is learned of them."""
    damaged = tmp_path / "damaged.h5"
    damaged.write_bytes(b"no recording")
    made, asker, own = predicting(**budget), Noted(), DecodeLoop(target, None).generate([question])[0].tokens
    before, why = speculative(made).status, "Read whole: its events cannot be read."
    for path in (tmp_path / "missing.h5", damaged):
        answer = DecodeLoop(made, None).generate([replace(question, events=str(path), extras={CHECK: asker})])[0]
        assert answer.tokens == own
        assert answer.other_notes[0] == why
        assert path.name in answer.other_notes[1]
    remote = EdgeEvents(EdgeLink(b"session", replies=False))
    answer = DecodeLoop(made, None).generate([replace(question, events=remote, extras={CHECK: asker})])[0]
    assert answer.tokens == own
    assert answer.other_notes == ("Read whole: its events lie at an edge, and are not sent.",)
    assert (speculative(made).status, asker.started) == (before and replace(before, unpredictable=3), [])


@encodes_clips
@pytest.mark.parametrize("budget", [{}, {"budget": 0.5, "check": 1.0, "confidence": 0.4}])
@pytest.mark.parametrize("found", [6, 9])
def test_key_frames_of_a_clip_with_another_number_of_frames_cost_no_answer(predicting, target, question, budget, found):
    """It is counted, but for a warm-up and a request by itself; nothing is learned of it."""
    made, asker = predicting(frames=2, **budget), Noted()
    before, frames = speculative(made).status, read_clip(question.clip, FrameSampling(found)).frames.numpy()
    other = replace(question, video=frames)
    answer = DecodeLoop(made, None).generate([replace(other, extras={CHECK: asker})])[0]
    assert answer.tokens == DecodeLoop(target, None).generate([other])[0].tokens
    assert answer.other_notes == (f"Read whole: its clip gives {found} frames, and the adapter learned of 8.",)
    assert (speculative(made).status, asker.started) == (before and replace(before, unpredictable=1), [])
    for uncounted in (
        other,
        replace(other, extras={CHECK: asker}, namespace=None),
        replace(other, extras={CHECK: Read.PREDICTED}),
    ):
        assert "predicted" not in made.prepare(uncounted).features
    assert speculative(made).status == (before and replace(before, unpredictable=1))
    plain = predicting()
    assert "predicted" in plain.prepare(other).features  # without key frames nothing of the clip is read
    assert "predicted" in made.prepare(replace(question, video=frames[[0, 0, 1, 2, 3, 4, 5, 5]])).features


@encodes_clips
def test_a_target_that_takes_another_number_of_frames_of_every_clip_reads_all_of_them_whole(pair, folder, question):
    own = load_target(str(pair.target), "cpu", "float64", num_frames=4, packed=False)
    made = speculative_target(own, PrefillSettings(folder, str(pair.event), frames=2))
    answer = DecodeLoop(made, None).generate([question])[0]
    assert answer.tokens == DecodeLoop(own, None).generate([question])[0].tokens
    assert answer.other_notes == ("Read whole: its clip gives 4 frames, and the adapter learned of 8.",)


@encodes_clips
def test_the_answer_says_that_it_is_lossy(pair, target, folder, question):
    made = compressed(target, f"predicted:dir={folder},model={pair.event},frames=1")
    answer = DecodeLoop(made, None).generate([question])[0]
    assert (
        answer.other_notes[0] == "Lossy: the target reads its clip compressed (predicted:frames=1)."
    )  # without its folders
    assert answer.stats.lossy_prefill == "predicted:frames=1"
    assert answer.stats.prompt_tokens == len(target.prepare(question)) - (FRAMES - 2) * TOKENS


@encodes_clips
def test_what_does_not_fit_is_refused(pair, target, folder, predicting, tmp_path_factory):
    with pytest.raises(CrossdraftError, match="is the reference target's; write predicted:dir=FOLDER"):
        compressed(target, "predicted")
    with pytest.raises(CrossdraftError, match="8 key frames leave nothing to predict"):
        predicting(frames=8)
    with pytest.raises(CrossdraftError, match="a number from 0 to 1"):
        predicting(confidence=1.5)
    with pytest.raises(CrossdraftError, match="got budget=2; budget must be a number from 0 to 1"):
        predicting(budget=2)
    with pytest.raises(CrossdraftError, match="checks requests to keep a budget, and none is named"):
        predicting(check=0.5)
    with pytest.raises(CrossdraftError, match="reads another event model"):
        speculative_target(target, PrefillSettings(folder, str(pair.blind)))
    bare = tmp_path_factory.mktemp("bare")
    with pytest.raises(CrossdraftError, match="has no gate; train it again"):
        load_gate(bare, 5, 16)
    with pytest.raises(CrossdraftError, match="cannot be read as the gate"):
        load_gate(folder, 5, 8)
    weights = load_file(folder / GATE)
    save_file({name: value for name, value in weights.items() if name != "lost"}, bare / GATE)
    with pytest.raises(CrossdraftError, match="of an earlier version; train it again"):
        load_gate(bare, 5, 16)
    weights["out.bias"][0] = torch.nan
    save_file(weights, bare / GATE)
    with pytest.raises(CrossdraftError, match="not finite"):
        load_gate(bare, 5, 16)
