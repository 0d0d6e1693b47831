"""Fields that contradict each other are refused by name, in one sentence; those that agree are taken."""

import pytest
from pydantic import ValidationError

from crossdraft import Request, Sampling
from crossdraft.engine.generation import GenerationDefaults
from crossdraft.errors import CrossdraftError
from crossdraft.serve.errors import from_validation
from crossdraft.serve.schema import ChatRequest, WatchRequest
from tests.serve.conftest import body


def part(kind: str, **fields) -> dict:
    shown = {"type": kind, kind: {"url": "file:x", **fields}}
    return {"messages": [{"role": "user", "content": [shown, {"type": "text", "text": "What?"}]}]}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"min_tokens": 6, "max_tokens": 5}, ("min_tokens is 6", "5")),
        ({"min_tokens": 6, "max_completion_tokens": 5}, ("min_tokens is 6", "5")),
        ({"max_tokens": 5, "max_completion_tokens": 6}, ("max_tokens", "max_completion_tokens")),
        ({"top_logprobs": 2}, ("top_logprobs", "logprobs")),
        ({"top_logprobs": 2, "logprobs": False}, ("top_logprobs", "logprobs")),
        ({"stream_options": {"include_usage": True}}, ("stream_options", "stream")),
        ({"crossdraft": {"provisional": True}}, ("provisional", "stream")),
        (part("video_url", num_frames=4, fps=2), ("num_frames", "fps")),
        (part("video_url", num_frames=4, max_frames=8), ("num_frames", "max_frames")),
        (part("video_url", max_frames=8), ("max_frames", "fps")),
        ({"media_io_kwargs": {"video": {"num_frames": 4, "fps": 2}}}, ("num_frames", "fps")),
        (part("event_url", start_s=2, end_s=1), ("end_s is 1", "start_s")),
        (part("event_url", start_s=2, end_s=2), ("end_s is 2", "start_s")),
        (part("event_url", end_s=0), ("end_s is 0", "start_s")),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(fields, named):
    with pytest.raises(ValidationError) as error:
        ChatRequest.model_validate({**body(), "max_tokens": None, **fields})
    refused = from_validation(error.value)
    assert refused.status == 400
    assert all(name in refused.message for name in named)
    assert refused.message.count(". ") == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"min_tokens": 5, "max_tokens": 5},
        {"min_tokens": 0, "max_tokens": 1},
        {"max_tokens": 5, "max_completion_tokens": 5},
        {"top_logprobs": 0},
        {"top_logprobs": 2, "logprobs": True},
        part("video_url", fps=2, max_frames=8),
        part("event_url", start_s=1, end_s=2),
    ],
)
def test_one_that_agrees_with_itself_is_taken(fields):
    ChatRequest.model_validate({**body(), "max_tokens": None, **fields})


def test_a_stream_has_its_sensor_where_its_events_are():
    with pytest.raises(ValidationError, match="sensor"):
        WatchRequest.model_validate({"questions": ["What?"], "sensor": [4, 4], "replay": {"video_url": "file:x"}})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_new_tokens": 3, "sampling": Sampling(min_new_tokens=50)}, "min_new_tokens is 50.*max_new_tokens, 3"),
        ({"top_logprobs": 2}, "top_logprobs is 2 without logprobs"),
    ],
)
def test_from_python_too(fields, named):
    with pytest.raises(CrossdraftError, match=named):
        Request("What?", **fields)


def test_what_a_checkpoint_asks_for_contradicts_no_request():
    """Nobody who asks for three tokens knows how many the checkpoint wants at least."""
    checkpoint = GenerationDefaults(sampling=Sampling(min_new_tokens=50))
    resolved = checkpoint.resolve(Request("What?", max_new_tokens=3))
    assert (resolved.max_new_tokens, resolved.sampling.min_new_tokens) == (3, 3)


def test_a_seed_beyond_the_bound_hears_the_bound():
    with pytest.raises(ValidationError) as error:
        ChatRequest.model_validate(body(seed=2**63))
    assert from_validation(error.value).message == "seed: Input should be less than 9223372036854775808."
    assert ChatRequest.model_validate(body(seed=2**63 - 1)).seed == 2**63 - 1


def test_an_answer_that_is_shorter_by_the_servers_limit_than_it_must_be_is_refused(start):
    found = start(max_new_tokens=8).post(body(max_tokens=None, min_tokens=9)).json()["error"]["message"]
    assert "min_tokens is 9, more than max_tokens, 8" in found
