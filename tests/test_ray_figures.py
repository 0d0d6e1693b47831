"""What docs/ray.md says was run: rows by hand, and words that follow the figures."""

import copy
import doctest

import pytest

import docs.ray_figures
from docs.ray_figures import interop, replicas

KILL = {"broken": 0, "refused": 0, "retried": 0, "broken_after_s": [], "later": 3, "by_two": 3}
INTEROP = {
    "versions": {"ray": "2.60.0", "torch": "2.13.0+cpu", "transformers": "5.23.0"},
    "python": "3.11.7",
    "cpus": 2,
    "clients": 6,
    "cases": {
        "questions": {"clips": 3, "answers": 9, "tokens": 200, "later": 6, "cached": 6},
        "sessions": {"sessions": 24, "by_replica": [9, 15]},
        "kills": [KILL | {"whole": 28}, KILL | {"whole": 24}],
        "left": {"streams": 10},
        "capture": {"workers": 2, "clips": 6, "shards": 3, "clips_of_the_resumed": 4},
        "autoscaling": {"answers": 65, "by_replica": [4, 61], "seconds": 48},
    },
}


def of_blocks(value: float) -> dict[str, object]:
    return {"value": value, "ci95": [0.9 * value, 1.1 * value], "n": 8}


def row(p50: float, added: float, rate: float, share: float) -> dict[str, object]:
    added_ms = {"value": added, "ci95": [added - 1, added + 1], "n": 24}
    figures = {"added_ms_p50": added_ms, "tokens_per_s": of_blocks(rate), "of_the_server": of_blocks(share)}
    return {"e2e_ms": {"p50": p50}, "statuses": {"200": 192}, "wrong_answers": 0, **figures}


@pytest.fixture
def run():
    """A copy of what `crossdraft bench replicas` writes."""
    return {
        "environment": {"cpus": 2},
        "clients": 8,
        "pairs": 24,
        "repeats": 8,
        "contestants": {
            "server": row(66.4, 0, 600, 1),
            "replicas-1": row(72.2, 5.25, 570, 0.95),
            "replicas-2": row(66.1, -0.5, 840, 1.4),
        },
        "fewest_replicas": "replicas-1",
        "of_the_fewest": {"replicas-2": of_blocks(1.47)},
    }


def test_what_happened_to_streams_is_said_where_it_happened():
    run = copy.deepcopy(INTEROP)
    intro, *_ = interop(run)
    assert intro.startswith("Ray 2.60, Python 3.11, PyTorch 2.13, 2 CPU cores.")

    def killed() -> str:
        (found,) = (one for one in interop(run) if "SIGKILL" in one)
        return found

    later = "the 6 later answers are the other node's, and right |"
    begin = "| one node killed (SIGKILL) under 6 clients' streams, 2 runs | of"
    assert (
        killed() == f"{begin} 28 and 24 streams 28 and 24 came whole and 0 and 0 ended with an error; 0 wrong; {later}"
    )
    run["cases"]["kills"][1] |= {"broken": 2, "refused": 1, "retried": 3, "broken_after_s": [0.04, 0.125]}
    assert killed() == (
        f"{begin} 28 and 27 streams 28 and 24 came whole, some of them asked again (0, 3), and 0 and 2 ended with an "
        f"error, at most 0.12 s after the kill; 0 and 1 were refused with 503; 0 wrong; {later}"
    )


def test_rows_of_replicas_have_their_intervals(run):
    said = [*replicas(run, run)]
    assert "`OMP_NUM_THREADS=1 crossdraft bench replicas --pairs 24 --clients 8 --repeats 8`" in said[0]
    assert said[3:6] == [
        "| server alone | 66 ms | | 600 [540, 660] | 1 |",
        "| 1 replica | 72 ms | 5.2 [4.2, 6.2] ms | 570 [513, 627] | 0.95 [0.85, 1.04] |",
        "| 2 replicas | 66 ms | −0.5 [−1.5, 0.5] ms | 840 [756, 924] | 1.40 [1.26, 1.54] |",
    ]
    assert said[6].startswith("| without a drafter: server alone | 66 ms | |")
    assert said[-1] == (
        "0 wrong answers of 1,152, all 200. 2 replicas answer 1.47 [1.32, 1.62] times as many tokens a second as "
        "1 replica, and without a drafter 1.47 [1.32, 1.62]."
    )


def test_answers_that_are_wrong_or_refused_are_said(run):
    run["contestants"]["replicas-2"] |= {"statuses": {"200": 190, "503": 2}, "wrong_answers": 1}
    assert [*replicas(run, run)][-1].startswith("2 wrong answers of 1,152, 4 × 503. ")


def test_the_examples():
    ran = doctest.testmod(docs.ray_figures)
    assert (ran.attempted, ran.failed) == (3, 0)
