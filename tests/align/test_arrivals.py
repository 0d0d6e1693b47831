"""`l4v` with frames as they come: it begins without them, and with all of them it drafts what it always did."""

import os
import signal
import threading
from collections import deque
from dataclasses import replace
from functools import partial

import pytest
import torch

import crossdraft as cd
from crossdraft.drafters.base import Draws
from crossdraft.engine.arrivals import ArrivedFeatures, FrameFeatures
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Origin, Request
from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.engine.runner.runner import STILL_READING, DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import read_config, save_head
from crossdraft.load import load_target, target_fingerprint
from crossdraft_lab.align.load import load_aligned_drafter
from crossdraft_lab.align.visual_drafter import VisualDrafter
from tests.align import test_drafter as whole
from tests.align.small import IDS, some_adapter
from tests.align.test_drafter import FRAMES, TEXT, output, seen_by, trained_logits
from tests.engine.late_target import wait_for

drafter_of, event, question = whole.drafter_of, whole.event, whole.question

SIX = Budget(6)
FIRST, LAST = (FrameFeatures(number, 4, FRAMES[5 * number : 5 * number + 5]) for number in (0, 3))


class Coming(ArrivedFeatures):
    """Features that come one by one while somebody waits; then nothing more does."""

    def __init__(self, *later):
        super().__init__()
        self.later = deque(later)

    def wait(self):
        if not self.later:
            return False
        self.add_frame(self.later.popleft())
        return True


@pytest.fixture
def drafter(drafter_of):
    return drafter_of("l4v", frames_dropped=0.5)


def begun(drafter, question, coming):
    return drafter.begin([replace(question, visual_features=coming)])[0]


def draft(drafter, question, *frames, budget=SIX, later=()):
    """What is drafted with these frames there from the beginning."""
    coming = Coming(*later)
    for frame in frames:
        coming.add_frame(frame)
    return drafter.propose([begun(drafter, question, coming)], [budget])[0].tree


def test_it_waits_for_nothing_and_others_for_all(drafter, drafter_of, question):
    assert (drafter.needs.visual, drafter.needs.visual_frames, drafter.needs.nothing) == (False, (2,), True)
    assert drafter_of("l4v").needs.visual
    assert not drafter_of("l4v").needs.visual_frames
    assert len(draft(drafter, replace(question, visual_features=None))) == 6


def check_logits(drafter, event, question, counts):
    """Logits of drafting after each token of a text are those of training with as many frames.

    `counts[i]`: frames that are there before token i is read.
    """
    coming = Coming(FIRST, LAST)
    state = begun(drafter, question, coming)
    with torch.inference_mode():
        for at, count in enumerate(counts):
            while len(coming.frames) < count:
                coming.wait()
            if at:
                drafter.commit([state], [output(drafter, at - 1, TEXT[at - 1 : at])])
            drafter._see_more(state)
            drafter._read_on(state, 0)
            expected, start = trained_logits(drafter, event, question, TEXT[:at], count)
            own = state.logits[-1][list(IDS)]
            assert torch.allclose(own, expected[0][start - 1 + at].float(), atol=1e-5), at


@pytest.mark.parametrize("counts", [[0] * 4, [1] * 4, [2] * 4, [0, 0, 1, 1, 2, 2], [0, 2, 2], [1, 1, 1, 2]])
def test_with_the_frames_that_are_there_it_drafts_as_trained_with_so_many(drafter, event, question, counts):
    check_logits(drafter, event, question, counts)


def test_what_was_read_with_fewer_frames_and_not_anew_would_be_noticed(drafter, event, question, monkeypatch):
    """The planted bug."""
    monkeypatch.setattr(VisualDrafter, "_read_anew", lambda self, state: None)
    with pytest.raises(AssertionError):
        check_logits(drafter, event, question, [0, 0, 1, 1, 2, 2])


def test_before_the_target_has_said_anything_it_drafts_again_with_more(drafter, question):
    none, first, both = (draft(drafter, question, *frames) for frames in ((), (FIRST,), (FIRST, LAST)))
    assert none != both
    assert first != both
    coming = Coming(FIRST, LAST)
    state = begun(drafter, question, coming)
    assert drafter.propose([state], [Budget(6)])[0].tree == none
    coming.wait()
    coming.wait()
    assert drafter.propose([state], [Budget(6)])[0].tree == both
    assert state.arriving is None


def test_what_was_drafted_stays_once_the_target_has_answered(drafter, question):
    coming = Coming(FIRST, LAST)
    state = begun(drafter, question, coming)
    tokens = drafter.propose([state], [Budget(6)])[0].tree.tokens
    drafter.commit([state], [VerifyOutput((0, 1), (*tokens[:2], tokens[2]))])
    coming.wait()
    coming.wait()
    assert drafter.propose([state], [Budget(3)])[0].tree.tokens == tokens[3:]
    assert drafter.propose([state], [Budget(4)])[0].tree.tokens[:3] == tokens[3:]
    assert state.frames == 2


def test_a_hidden_draft_ends_with_all_frames_or_when_it_is_wanted(drafter, question):
    none, both = draft(drafter, question), draft(drafter, question, FIRST, LAST)
    hidden = Budget(6, stop=lambda: False)
    assert draft(drafter, question, budget=hidden, later=(FIRST, LAST)) == both
    assert draft(drafter, question, budget=hidden) == none  # nothing more will come
    stopped = iter([False] * 7)
    wanted = Budget(6, stop=lambda: next(stopped, True))
    assert draft(drafter, question, budget=wanted, later=(FIRST, LAST)) == none


class Watching(Coming):
    """Who watches; frames that come when so many tokens have been shown, and not while somebody waits."""

    def __init__(self, count):
        super().__init__(FIRST, LAST)
        self.count, self.tokens = count, []

    def tell(self, token):
        self.tokens.append(token)
        while self.later and len(self.tokens) == self.count:
            super().wait()

    def wait(self):
        return False


def watched_draft(drafter, question, count, budget=SIX):
    """What is drafted, and shown, where both frames come after so many tokens; and the state."""
    coming = Watching(count)
    state = begun(drafter, question, coming)
    found = drafter.propose([state], [replace(budget, stop=lambda: False, on_token=coming.tell)])[0].tree
    return found, coming.tokens, state


def test_who_watches_never_sees_two_drafts_as_one(drafter, question):
    """What is shown is the beginning of one draft: of the first, or of the second where that says the same so far."""
    none, both = (draft(drafter, question, *frames).main_path_tokens for frames in ((), (FIRST, LAST)))
    assert both[:2] != none[:2]
    for count in range(1, 7):
        found, shown, _ = watched_draft(drafter, question, count)
        assert found.main_path_tokens == both
        assert tuple(shown) == (both if both[:count] == none[:count] else none[:count]), count


def test_a_draft_that_says_the_same_is_shown_on(drafter, question, monkeypatch):
    coming, anew = Watching(7), []

    def take_up(state):
        """Once, after three tokens: as if a frame had come that changes nothing."""
        if anew or len(coming.tokens) < 3:
            return False
        anew.append(state.pending)
        return True

    none, state = draft(drafter, question).main_path_tokens, begun(drafter, question, coming)
    monkeypatch.setattr(drafter, "_take_up", take_up)
    drafter.propose([state], [Budget(6, stop=lambda: False, on_token=coming.tell)])
    assert anew == [list(none[:3])]
    assert tuple(coming.tokens) == none


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [1, 3, 5])
def test_what_was_drawn_independently_is_never_drawn_anew(drafter, question, seed, count, monkeypatch):
    """Else what is sent could be chosen by its value: here the frames come only where the draft is not over by then."""

    class Repeating(Draws):
        def __init__(self, sampling, device):
            super().__init__(sampling, device)
            self.generator.manual_seed(seed)

    monkeypatch.setattr("crossdraft_lab.align.drafter.Draws", Repeating)
    asked = replace(question, sampling=Sampling(temperature=1.0))
    expected = draft(drafter, asked, budget=Budget(5))
    assert expected.tokens != draft(drafter, asked, FIRST, LAST, budget=Budget(5)).tokens
    waited = draft(drafter, asked, budget=Budget(5, stop=lambda: False), later=(FIRST, LAST))
    found, shown, state = watched_draft(drafter, asked, count, Budget(5))
    for one in (waited, found):
        assert one.tokens == expected.tokens
        assert torch.equal(one.dists, expected.dists)
    assert tuple(shown) == expected.tokens
    assert state.frames == 0
    drafter.commit([state], [VerifyOutput((), ((expected.tokens[0] + 1) % 200,))])
    drafter.propose([state], [Budget(2)])
    assert state.frames == 2


def test_what_was_drawn_with_the_noise_of_a_seed_is_drawn_again(drafter, question):
    """The noise is the same, and a token counts as chosen: the frames that come are taken up."""
    asked = replace(question, sampling=Sampling(temperature=1.0, seed=3))
    found = draft(drafter, asked, budget=Budget(5, stop=lambda: False), later=(FIRST, LAST))
    assert found.dists is None
    assert found.tokens == draft(drafter, asked, FIRST, LAST, budget=Budget(5)).tokens


def test_before_anything_is_drawn_frames_are_taken_up(drafter, question):
    asked = replace(question, sampling=Sampling(temperature=1.0, seed=3))
    coming = Coming(FIRST, LAST)
    state = begun(drafter, asked, coming)
    coming.wait()
    coming.wait()
    found = drafter.propose([state], [Budget(5)])[0].tree
    assert found.tokens == draft(drafter, asked, FIRST, LAST, budget=Budget(5)).tokens


def test_copies_see_what_comes_each_for_itself(drafter, question):
    coming = Coming(FIRST, LAST)
    state = begun(drafter, question, coming)
    none = drafter.propose([state], [Budget(6)])[0].tree
    (fork,) = drafter.fork([state])
    coming.wait()
    coming.wait()
    assert drafter.propose([fork], [Budget(6)])[0].tree == draft(drafter, question, FIRST, LAST)
    assert state.pending == list(none.main_path_tokens)


def test_frames_of_another_size_are_refused(drafter, question):
    for rows in (FRAMES[:7], FRAMES[:5, :6]):
        coming = Coming()
        coming.end(rows)
        with pytest.raises(CrossdraftError, match=r"reads \d frames of 5 features"):
            begun(drafter, question, coming)


# -- in a process of its own, while the target encodes ----------------------------------------------------------------


@pytest.fixture(scope="module")
def host(pair):
    return load_target(str(pair.target), "cpu", "float32", packed=False)


@pytest.fixture(scope="module")
def folder(pair, event, clip, tmp_path_factory):
    folder = tmp_path_factory.mktemp("arriving")
    sizes = seen_by(pair.target, clip, "l4v")
    adapter = some_adapter("l4v", pair.target, pair.event, event, frames=3, frames_dropped=0.5, **sizes)
    save_head(folder, adapter, "l4v", target_fingerprint(str(pair.target)), torch.float32)
    assert read_config(folder).config.frames_dropped == 0.5
    return folder


@pytest.fixture(scope="module")
def process(pair, folder):
    drafter = start_process(pair, folder)
    yield drafter
    drafter.close()


def start_process(pair, folder):
    factory = partial(load_aligned_drafter, folder, str(pair.target), str(pair.event), "cpu", "float32")
    return ProcessDrafter(factory, [max(os.sched_getaffinity(0))], drafter_timeout_s=60, drain_timeout_s=60)


@pytest.fixture
def asked(clip):
    request = Request("What is ahead?", str(clip.video), str(clip.events), max_new_tokens=16)
    return [
        request,
        replace(request, prompt="is there a red light?"),
        replace(request, video=None, messages=[{"role": "user", "content": "What is ahead?"}], prompt=""),
    ]


class Encoder:
    """A vision encoder that does something before each of its passes."""

    def __init__(self, target, monkeypatch):
        (self.encode,) = [one for one in target._frames if one._kind == "video"]
        self.function, self.before, self.sizes = self.encode._function, {}, []
        monkeypatch.setattr(self.encode, "_function", self)

    def __call__(self, pixel_values_videos, **more):
        self.before.get(len(self.sizes), lambda: None)()
        self.sizes.append(pixel_values_videos.shape[1])
        return self.function(pixel_values_videos=pixel_values_videos, **more)


def tried(decoder, request, encoder):
    """The decoder, which knows that such a clip may be encoded in parts."""
    decoder.generate([request])
    encoder.encode._splits = dict.fromkeys(encoder.encode._splits, True)  # else a machine's kernels decide
    encoder.encode._join(decoder.target.prepare(request).features["pixel_values_videos"])
    encoder.sizes.clear()
    return decoder


def test_it_drafts_before_the_last_frame_is_encoded(host, process, asked, monkeypatch):
    """Frames 0 and 3 of eight come; the encoder is held at 7 until a token was drafted, and goes on with the others."""
    encoder, drafted, pieces = Encoder(host, monkeypatch), threading.Event(), []

    def on_piece(piece):
        pieces.append(piece)
        if piece.origin is Origin.PROVISIONAL:
            drafted.set()

    alone = DecodeLoop(host).generate(asked[:1])[0].tokens
    runner = DraftRunner(process, workers=[process])
    decoder = tried(DecodeLoop(host, runner, adaptive=False, on_piece=on_piece), asked[0], encoder)
    held = []
    pieces.clear()
    drafted.clear()
    encoder.before[2] = lambda: held.append(drafted.wait(60))
    answer = decoder.generate(asked[:1])[0]
    assert held == [True]
    assert encoder.sizes == [1, 1, 1, 5]
    assert answer.tokens == alone
    assert answer.stats.drafted
    assert not answer.other_notes


@pytest.mark.parametrize("batch", [1, 3])
def test_answers_are_the_targets_own_with_a_clip_and_without(host, process, asked, batch, monkeypatch):
    alone = [answer.tokens for answer in DecodeLoop(host).generate(asked)]
    runner = DraftRunner(process, workers=[process])
    wait_for(monkeypatch, process)
    decoder = DecodeLoop(host, runner, max_batch=batch, adaptive=False)
    for _ in range(2):  # whole, then in parts where that is found to have the same bits
        found = decoder.generate(asked)
        assert [answer.tokens for answer in found] == alone
        assert all(answer.stats.drafted and not answer.other_notes for answer in found)


def test_after_its_answers_a_loop_finds_out_whether_such_clips_may_be_encoded_in_parts(
    host, process, asked, monkeypatch
):
    """So a warm-up of a benchmark covers it."""
    encoder = Encoder(host, monkeypatch)
    monkeypatch.setattr(encoder.encode, "_splits", {})
    encoder.encode._join(host.prepare(asked[0]).features["pixel_values_videos"])  # tries two frames
    encoder.sizes.clear()
    decoder = DecodeLoop(host, DraftRunner(process, workers=[process]), adaptive=False)
    decoder.generate(asked[:1])
    (known,) = encoder.encode._splits.values()
    assert known is not None
    assert encoder.sizes[0] == 8  # whole, as nothing was known; what is tried comes behind it
    encoder.sizes.clear()
    decoder.generate(asked[:1])
    assert encoder.sizes == ([1, 1, 1, 5] if known else [8])


def test_a_drafter_that_dies_while_frames_come_costs_its_drafts(host, pair, folder, asked, monkeypatch, request):
    process = start_process(pair, folder)
    request.addfinalizer(process.close)
    encoder = Encoder(host, monkeypatch)
    alone = DecodeLoop(host).generate(asked[:1])[0].tokens
    decoder = tried(DecodeLoop(host, DraftRunner(process, workers=[process]), adaptive=False), asked[0], encoder)

    def kill():
        os.kill(process.pid, signal.SIGKILL)
        process._child.wait()

    encoder.before[1] = kill
    answer = decoder.generate(asked[:1])[0]
    assert answer.tokens == alone
    assert "was lost" in answer.other_notes[0]


def test_a_known_clip_is_there_at_once(pair, folder, clip):
    request = cd.Request(video=str(clip.video), events=str(clip.events), prompt="What is ahead?", max_new_tokens=16)
    options = cd.Options(adaptive=False, dtype="float32", placement="process")
    with cd.Engine.load(str(pair.target), None, cd.Options(dtype="float32")) as engine:
        alone = engine.generate(request).tokens
    with cd.Engine.load(str(pair.target), f"aligned:dir={folder},model={pair.event}", options) as engine:
        answers = [engine.generate(request) for _ in range(2)]
    assert [answer.tokens for answer in answers] == [alone] * 2
    assert [answer.stats.cached_tokens > 0 for answer in answers] == [False, True]
    assert {note for answer in answers for note in answer.other_notes} <= {STILL_READING}  # nothing was refused
