"""What is made of an answer's figures."""

import pytest

from crossdraft.engine.stats import Stats
from crossdraft.serve.convert import metrics, speculative_decoding, usage


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
