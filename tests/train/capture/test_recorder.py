"""The recorder keeps what the target alone says, and its features, whatever is drafted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from crossdraft.drafters.memory.drafter import MemoryDrafter
from crossdraft.engine.cache import KVCache
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.passes import Chunk, PassRow, TargetOut
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.capture import recorder as module
from crossdraft_lab.train.capture.check import plain_pass
from crossdraft_lab.train.capture.recorder import FeatureRecorder
from crossdraft_lab.train.capture.shard import CapturedAnswer, CaptureSpec, write_shard
from crossdraft_lab.train.capture.sources import PromptedClip
from tests.engine.zoo import VIDEO, ZOO
from tests.train.capture.helpers import some_clips, zoo_target

ALL = CaptureSpec((0, 1, 2, 3), (0, 3), max_new_tokens=14)
NEAR = 2**-7  # bfloat16 has 8 bits: half a unit in the last place is 2^-9 of a number's own power of two


def flat(recorded: list[list[CapturedAnswer]]) -> list[CapturedAnswer]:
    return [answer for some in recorded for answer in some]


def answer_tokens(answer: CapturedAnswer) -> tuple[int, ...]:
    return tuple(answer.tokens[answer.start :].tolist())


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    scale = expected.abs().amax(-1, keepdim=True)
    return bool(((found.double() - expected).abs() <= NEAR * scale).all())


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts everything it can think of, so that trees branch, and much of them is refused."""
    monkeypatch.setattr(module, "CONFIDENCE", 0.0)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", list(ZOO))
def test_tokens_and_features_are_those_of_the_model_alone(name: str) -> None:
    target, clips = zoo_target(name), some_clips(2)
    recorder = FeatureRecorder(target, ALL)
    recorder.record(clips)  # now it learns these answers: the second time whole paths are accepted
    recorded = flat(recorder.record(clips))
    requests = [request for clip in clips for request in clip.requests(ALL.max_new_tokens)]
    alone = DecodeLoop(target).generate(requests)
    assert [answer_tokens(one) for one in recorded] == [answer.tokens for answer in alone]
    compared = 0
    for request, one in zip(requests, recorded, strict=True):
        prompt = target.prepare(request)
        if VIDEO in answer_tokens(one)[:-1]:
            continue  # a random model may say a placeholder, for which the plain pass has no pixels
        compared += 1
        _, states = plain_pass(target, prompt, answer_tokens(one)[:-1])
        first = len(prompt) - one.start
        assert torch.equal(torch.cat([one.visual_ids, one.tokens[: one.start]]), prompt.input_ids)
        assert all(near(one.hidden[layer], states[layer][first:]) for layer in ALL.layers)
        assert all(near(one.visual[layer], states[layer][:first]) for layer in ALL.visual_layers)
    assert compared >= 3


def test_drafts_make_passes_fewer_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    target, clips = zoo_target(), some_clips(2)
    passes = 0
    extend = Target.extend

    def acceptance_counts(*args: object) -> object:
        nonlocal passes
        passes += args[0] is target
        return extend(*args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Target, "extend", acceptance_counts)
    plain = [answer_tokens(one) for one in flat(FeatureRecorder(target, ALL, nodes=0).record(clips))]
    without, passes = passes, 0
    recorder = FeatureRecorder(target, ALL)
    recorder.record(clips)
    passes = 0
    assert [answer_tokens(one) for one in flat(recorder.record(clips))] == plain
    assert passes < 0.7 * without


@pytest.mark.parametrize("name", ["video_llava", "qwen2_5_vl"])
def test_a_clip_is_encoded_and_read_once_for_all_its_questions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, clips = zoo_target(name), some_clips(2, prompts=4)
    done = []
    encode, extend = Target.encode, Target.extend

    def read(*args: Any) -> TargetOut:
        done.extend("read" for row in args[2] if args[0] is target and row.chunk.skip_logits)
        return extend(*args)

    def encoded(*args: Any) -> Any:
        done.extend(["encoded"] if args[0] is target else [])
        return encode(*args)

    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # enough to read two prompts at once
    monkeypatch.setattr(Target, "encode", encoded)
    monkeypatch.setattr(Target, "extend", read)
    recorded = flat(FeatureRecorder(target, ALL, batch=3).record([clips[0]]))
    assert sorted(done) == ["encoded", "read"]
    assert len(recorded) == 4
    assert all(one.visual[3] is recorded[0].visual[3] for one in recorded)  # and held in memory once


def test_prompts_that_begin_otherwise_are_read_separately_and_keep_their_order(tmp_path: Path) -> None:
    """A model may put the question in front of the clip: then nothing is shared."""
    target = zoo_target()
    prepare = target.prepare

    def asked_first(request: Request) -> Prompt:
        prompt = prepare(request)
        ids = prompt.input_ids.clone()
        ids[1] = 20 + len(request.prompt) // 2
        return Prompt(ids, prompt.features)

    target.prepare = asked_first
    clip = PromptedClip("clip", None, ("?", "??", "???", "??????"))
    (recorded,) = FeatureRecorder(target, ALL).record([clip])
    assert pieces(tmp_path, recorded) == [1, 2, 1]
    alone = DecodeLoop(target).generate(clip.requests(ALL.max_new_tokens))
    assert [answer_tokens(one) for one in recorded] == [answer.tokens for answer in alone]


def test_a_piece_is_copied_to_the_beginning_of_a_row_alone() -> None:
    """Equal tokens at other positions have other keys and values: the chunks of a prompt of 3,300 tokens."""
    target, chunk = zoo_target(), Chunk(torch.full((1100,), 5), skip_logits=True)
    last = []
    for one in (target, module.capture_target(target, ALL)):
        cache = KVCache(target.text_config.num_hidden_layers)
        cache.add_row(3301)
        for _ in range(3):
            one.extend(cache, [PassRow(0, chunk)])
        last.append(one.extend(cache, [PassRow(0, Chunk(torch.tensor([7])))]).logits[0])
    torch.testing.assert_close(last[1], last[0])


def test_a_request_without_a_number_is_refused() -> None:
    with pytest.raises(CrossdraftError, match=r"PromptedClip\.requests"):
        module.RecordingDrafter(MemoryDrafter(), ALL).begin([Request("?")])


def test_other_pixels_are_another_first_piece(tmp_path: Path) -> None:
    target = zoo_target()
    prepare = target.prepare

    def darker(request: Request) -> Prompt:
        prompt = prepare(request)
        pixels = prompt.features["pixel_values_videos"] / len(request.prompt)
        return Prompt(prompt.input_ids, {"pixel_values_videos": pixels})

    target.prepare = darker
    clip = PromptedClip("clip", None, ("?", "??"))
    (recorded,) = FeatureRecorder(target, ALL).record([clip])
    assert pieces(tmp_path, recorded) == [1, 1]
    alone = DecodeLoop(target).generate(clip.requests(ALL.max_new_tokens))
    assert [answer_tokens(one) for one in recorded] == [answer.tokens for answer in alone]


def pieces(folder: Path, recorded: list[CapturedAnswer]) -> list[int]:
    """How many answers stand after each first piece of a shard."""
    write_shard(folder / "shard", recorded, ALL)
    return torch.bincount(load_file(folder / "shard")["piece.of"]).tolist()


def test_a_prompt_with_nothing_visual_has_an_empty_first_piece(tmp_path: Path) -> None:
    target = zoo_target()
    target.prepare = lambda request: Prompt(torch.tensor([1, 5, 6, 10 + len(request.prompt)]))
    clip = PromptedClip("clip", None, ("?", "??"))
    (recorded,) = FeatureRecorder(target, ALL).record([clip])
    assert [len(one.visual_ids) for one in recorded] == [0, 0]
    assert recorded[0].start == 4
    write_shard(tmp_path / "shard", recorded, ALL)
    assert load_file(tmp_path / "shard")["piece.3"].shape == (0, target.text_config.hidden_size)
    alone = DecodeLoop(target).generate(clip.requests(ALL.max_new_tokens))
    assert [answer_tokens(one) for one in recorded] == [answer.tokens for answer in alone]


def test_an_answer_ends_with_its_end_token() -> None:
    target, clip = zoo_target(), some_clips(1)[0]
    longest = answer_tokens(flat(FeatureRecorder(target, ALL).record([clip]))[0])
    target.eos = frozenset({longest[4]})
    recorder = FeatureRecorder(target, ALL)
    for _ in range(2):  # drafted and not
        recorded = flat(recorder.record([clip]))
        assert answer_tokens(recorded[0]) == longest[: longest.index(longest[4]) + 1]
        assert all(len(one.hidden[3]) == len(one.tokens) - 1 for one in recorded)


def test_answers_are_greedy_whatever_the_checkpoint_asks_for() -> None:
    target, clip = zoo_target(), some_clips(1)[0]
    plain = [answer_tokens(one) for one in flat(FeatureRecorder(target, ALL).record([clip]))]
    target.defaults = replace(target.defaults, sampling=Sampling(repetition_penalty=1.8), max_new_tokens=3)
    assert [answer.tokens for answer in DecodeLoop(target).generate(clip.requests(14))] != plain
    assert [answer_tokens(one) for one in flat(FeatureRecorder(target, ALL).record([clip]))] == plain


def test_without_learning_a_call_is_a_function_of_its_clips_to_the_last_bit() -> None:
    target, clips = zoo_target(), some_clips(3)
    target.model.float()  # where passes of other shapes round otherwise
    recorder = FeatureRecorder(target, ALL, learns=False)
    once = flat(recorder.record(clips[:1]))
    recorder.record(clips[1:])
    again = flat(recorder.record(clips[:1]))
    for a, b in zip(once, again, strict=True):
        assert torch.equal(a.tokens, b.tokens)
        assert all(torch.equal(a.hidden[layer], b.hidden[layer]) for layer in ALL.layers)


def test_a_drafter_that_fails_ends_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine goes on without a drafter that failed; a capture without its recorder would have holes."""
    monkeypatch.setattr(MemoryDrafter, "commit", lambda *args: 1 / 0)
    with pytest.raises(CrossdraftError, match=r"An answer was not recorded whole \(.*division by zero"):
        FeatureRecorder(zoo_target(), ALL).record(some_clips(1))


def test_a_prompt_beyond_the_context_is_one_sentence_and_leaves_the_recorder_whole() -> None:
    target, clips = zoo_target(), some_clips(1)
    recorder = FeatureRecorder(target, ALL)
    target.context = 50
    with pytest.raises(CrossdraftError, match=r"A prompt about clip 0 has 46 tokens, .* room for 4, not for 14"):
        recorder.record(clips)
    target.context = 512
    assert len(flat(recorder.record(clips))) == 3
