"""What is made of an answer's figures."""

import pytest

from crossdraft.engine.request import Origin, Piece
from crossdraft.engine.stats import Stats
from crossdraft.load import load_target
from crossdraft.serve.convert import logprobs, metrics, speculative_decoding, usage


def test_speculative_decoding_has_vllms_shape_and_values():
    """vLLM's own example: four steps of three drafts each, which accept 1, 2, 2 and 3."""
    stats = Stats()
    for accepted in (1, 2, 2, 3):
        stats.count_round(3, 3, accepted, accepted + 1, hidden=False)
    assert speculative_decoding(stats) == {
        "mean_acceptance_length": 3.0,
        "draft_acceptance_rate": pytest.approx(0.6667),
        "acceptance_histogram": [0, 1, 2, 1],
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 8,
        "num_draft_tokens": 12,
        "num_spec_tokens": 3,
    }


def test_passes_without_a_draft_are_no_steps():
    stats = Stats()
    stats.count_round(0, 0, 0, 1, hidden=False)
    assert speculative_decoding(stats) is None
    stats.count_round(2, 2, 0, 1, hidden=False)
    found = speculative_decoding(stats)
    assert (found["num_spec_steps"], found["acceptance_histogram"], found["mean_acceptance_length"]) == (
        1,
        [1, 0, 0],
        1,
    )


@pytest.fixture(scope="module")
def target():
    return load_target()


def test_bytes_of_logprobs_are_those_of_a_text_that_nothing_is_left_out_of(target):
    """A car is four bytes, and here several tokens, none of which is a character."""
    text, tokenizer = "A 🚗, naïve.", target.prepare.tokenizer
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    ended = (*tokens, *target.eos)
    tops = tuple(((token, -1.0),) for token in ended)
    found = logprobs(Piece(ended, text, Origin.TARGET, 0, (-1.0,) * len(ended), tops), target)["content"]
    assert b"".join(bytes(one["bytes"]) for one in found) == text.encode()
    parts = [one for one in found if one["token"] == "\ufffd"]
    assert len(parts) > 1
    assert all(len(one["bytes"]) < 4 and bytes(one["bytes"]) != "\ufffd".encode() for one in parts)
    assert [one["top_logprobs"][0] for one in found] == [
        {key: one[key] for key in ("token", "logprob", "bytes")} for one in found
    ]


def test_usage_and_times():
    stats = Stats(prompt_tokens=10, cached_tokens=4, new_tokens=5, queued_s=0.5, ttft_s=0.1, total_s=0.3)
    assert usage(stats) == {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    found = metrics(stats)
    times = [found[f"{name}_ms"] for name in ("time_to_first_token", "generation_time", "queue_time", "mean_itl")]
    assert times == pytest.approx([100, 200, 500, 50])
