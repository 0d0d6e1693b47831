"""The scribe writes down what the target alone says, and what it thinks meanwhile, whatever it drafts."""

import pytest
import torch

from crossdraft.engine.decode import Decoder
from crossdraft.engine.request import Request
from crossdraft.engine.target import Prompt, Target
from crossdraft.errors import CrossdraftError
from crossdraft.train.capture import recorder as module
from crossdraft.train.capture.check import plain_pass
from crossdraft.train.capture.clip import Clip
from crossdraft.train.capture.recorder import Scribe
from crossdraft.train.capture.shard import ClipRecord, Told, Wanted
from tests.engine.zoo import VIDEO, ZOO
from tests.train.capture.given import some_clips, zoo_target

ALL = Wanted((0, 1, 2, 3), (0, 3), top_k=3, max_new_tokens=14)
NEAR = 2**-7  # bfloat16 has 8 bits: half a unit in the last place is 2^-9 of a number's own power of two


def answers_of(records: list[list[ClipRecord]]) -> list[Told]:
    return [told for some in records for record in some for told in record.told]


def said(told: Told) -> tuple[int, ...]:
    return tuple(told.tokens[told.start :].tolist())


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
    scribe = Scribe(target, ALL)
    scribe.write(clips)  # now it remembers these answers: the second time whole paths are accepted
    records = scribe.write(clips)
    requests = [request for clip in clips for request in clip.requests(ALL.max_new_tokens)]
    alone = Decoder(target).generate(requests)
    told = answers_of(records)
    assert [said(one) for one in told] == [answer.tokens for answer in alone]
    behind = [record for some in records for record in some for _ in record.told]
    compared = 0
    for request, one, record in zip(requests, told, behind, strict=True):
        prompt = target.prepare(request)
        if VIDEO in said(one)[:-1]:
            continue  # a random model may say a placeholder, for which the plain pass has no pixels
        compared += 1
        logits, states = plain_pass(target, prompt, said(one)[:-1])
        first = len(prompt) - one.start
        assert torch.equal(torch.cat([record.visual_ids, one.tokens[: one.start]]), prompt.input_ids)
        assert all(near(one.hidden[layer], states[layer][first:]) for layer in ALL.layers)
        assert all(near(record.visual[layer], states[layer][:first]) for layer in ALL.visual_layers)
        top = logits[-len(said(one)) :].topk(3)
        assert torch.equal(one.top_ids, top.indices)
        torch.testing.assert_close(one.top_logits.double(), top.values, rtol=1e-5, atol=1e-5)
    assert compared >= 3


def test_drafts_make_passes_fewer_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    target, clips = zoo_target(), some_clips(2)
    passes = 0
    extend = Target.extend

    def counted(*args: object) -> object:
        nonlocal passes
        passes += 1
        return extend(*args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Target, "extend", counted)
    plain = [said(one) for one in answers_of(Scribe(target, ALL, nodes=0).write(clips))]
    without, passes = passes, 0
    scribe = Scribe(target, ALL)
    scribe.write(clips)
    passes = 0
    assert [said(one) for one in answers_of(scribe.write(clips))] == plain
    assert passes < 0.7 * without


def test_the_first_piece_is_read_once_for_all_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    target, clip = zoo_target(), some_clips(1, prompts=4)[0]
    encoded = []
    encode = target.encode
    monkeypatch.setattr(target, "encode", lambda prompt: encoded.append(prompt) or encode(prompt))
    records = Scribe(target, ALL).write([clip])
    assert len(encoded) == 1
    assert [len(record.told) for record in records[0]] == [4]


def test_prompts_that_begin_otherwise_are_read_apart_and_keep_their_order() -> None:
    """A model may put the question in front of the clip: then nothing is shared."""
    target = zoo_target()
    prepare = target.prepare

    def asked_first(request: Request) -> Prompt:
        prompt = prepare(request)
        ids = prompt.input_ids.clone()
        ids[1] = 20 + len(request.prompt) // 2
        return Prompt(ids, prompt.features)

    target.prepare = asked_first
    clip = Clip("clip", None, ("?", "??", "???", "??????"))
    (records,) = Scribe(target, ALL).write([clip])
    assert [len(record.told) for record in records] == [1, 2, 1]
    alone = Decoder(target).generate(clip.requests(ALL.max_new_tokens))
    assert [said(one) for one in answers_of([records])] == [answer.tokens for answer in alone]


def test_other_pixels_are_another_first_piece() -> None:
    target = zoo_target()
    prepare = target.prepare

    def darker(request: Request) -> Prompt:
        prompt = prepare(request)
        pixels = prompt.features["pixel_values_videos"] / len(request.prompt)
        return Prompt(prompt.input_ids, {"pixel_values_videos": pixels})

    target.prepare = darker
    clip = Clip("clip", None, ("?", "??"))
    (records,) = Scribe(target, ALL).write([clip])
    assert len(records) == 2
    alone = Decoder(target).generate(clip.requests(ALL.max_new_tokens))
    assert [said(one) for one in answers_of([records])] == [answer.tokens for answer in alone]


def test_a_prompt_with_nothing_visual_has_an_empty_first_piece() -> None:
    target = zoo_target()
    target.prepare = lambda request: Prompt(torch.tensor([1, 5, 6, 10 + len(request.prompt)]))
    clip = Clip("clip", None, ("?", "??"))
    (records,) = Scribe(target, ALL).write([clip])
    assert [len(record.visual_ids) for record in records] == [0, 0]
    assert records[0].told[0].start == 4
    alone = Decoder(target).generate(clip.requests(ALL.max_new_tokens))
    assert [said(one) for one in answers_of([records])] == [answer.tokens for answer in alone]


def test_an_answer_ends_with_its_end_token() -> None:
    target, clip = zoo_target(), some_clips(1)[0]
    longest = said(answers_of(Scribe(target, ALL).write([clip]))[0])
    target.eos = frozenset({longest[4]})
    scribe = Scribe(target, ALL)
    for _ in range(2):  # drafted and not
        told = answers_of(scribe.write([clip]))
        assert said(told[0]) == longest[: longest.index(longest[4]) + 1]
        assert all(len(one.hidden[3]) == len(one.tokens) - 1 for one in told)
        assert all(len(one.top_ids) == len(said(one)) for one in told)


def test_without_learning_a_call_is_a_function_of_its_clips_to_the_last_bit() -> None:
    target, clips = zoo_target(), some_clips(3)
    scribe = Scribe(target, ALL, learns=False)
    once = answers_of(scribe.write(clips[:1]))
    scribe.write(clips[1:])
    again = answers_of(scribe.write(clips[:1]))
    assert all(torch.equal(a.top_logits, b.top_logits) for a, b in zip(once, again, strict=True))


def test_a_prompt_beyond_the_context_is_one_sentence_and_leaves_the_scribe_whole() -> None:
    target, clips = zoo_target(), some_clips(1)
    scribe = Scribe(target, ALL)
    target.context = 50
    with pytest.raises(CrossdraftError, match=r"A prompt about clip 0 has 46 tokens, .* room for 4, not for 14"):
        scribe.write(clips)
    target.context = 512
    assert len(answers_of(scribe.write(clips))) == 3
