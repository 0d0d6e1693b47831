"""`crossdraft bench replicas`: what it says, and a small run where Ray is."""

import importlib.util
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from typer.testing import CliRunner

from crossdraft.cli.main import app
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.serving.plan import ServePlan
from crossdraft_lab.bench.serving.replicas import ServerReplies, against, lines, run_replicas, throughput_ratio


def replies(singles: list[list[float]], tokens: list[int], seconds: list[float], wrong: int = 0) -> ServerReplies:
    return ServerReplies(singles, tokens, seconds, Counter({200: 4}), wrong)


def test_what_is_said_names_every_server_and_what_is_wrong():
    alone = replies([[0.07, 0.07]] * 2, [100, 100, 100], [0.2, 0.2, 0.2])
    other = replies([[0.0725, 0.0725]] * 2, [90, 90, 90], [0.1, 0.1, 0.1], wrong=1)
    one, two = (found.to_json() | against(found, alone) for found in (alone, other))
    assert two["of_the_server"] == {"value": 1.8, "ci95": [1.8, 1.8], "n": 3}
    report = {
        "passed": False,
        "clients": 8,
        "contestants": {"server": one, "replicas-2": two},
        "fewest_replicas": "replicas-1",
        "of_the_fewest": {"replicas-2": throughput_ratio(other, alone).to_json()},
    }
    said = lines(report)
    assert "replicas-2: 72.5 ms" in said[1]
    assert "2.5 [2.5, 2.5; n=2 questions] ms more than of the server alone" in said[1]
    assert "900 [900, 900; n=3 blocks] tokens/s of 8 clients" in said[1]
    assert "1.80 [1.80, 1.80; n=3 blocks] of its; {'200': 4}, 1 wrong answers" in said[1]
    assert said[2] == "replicas-2: 1.80 [1.80, 1.80; n=3 blocks] times the tokens/s of replicas-1."
    assert said[-1] == "Not all is as it should be."


def test_what_a_replica_adds_is_paired_and_drawn_over_questions():
    """Questions take 10 to 90 ms, and each of them 1, 2 or 6 ms longer, in its blocks 1 ms less and more."""
    alone = [[0.010, 0.050, 0.090], [0.020, 0.060, 0.100], [0.015, 0.055, 0.095]]
    more = [[0.000, 0.001, 0.005], [0.002, 0.003, 0.007], [0.001, 0.002, 0.006]]
    own = [[before + added for before, added in zip(*block, strict=True)] for block in zip(alone, more, strict=True)]
    found = against(replies(own, [1], [1.0]), replies(alone, [1], [1.0]))["added_ms_p50"]
    assert found["n"] == 3  # not the nine requests
    assert found["value"] == pytest.approx(2)  # of 0, 1, 1, 2, 2, 3, 5, 6, 7
    # One draw of 27 is of the first question alone, whose three are 0, 1 and 2, and one of the last.
    assert found["ci95"] == pytest.approx([1, 6])


@pytest.mark.parametrize("counts", ["0", "x", ""])
def test_numbers_of_replicas_are_checked(counts):
    found = CliRunner().invoke(app, ["bench", "replicas", "--replicas", counts])
    assert isinstance(found.exception, CrossdraftError)
    assert "--replicas" in str(found.exception)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: make interop-ray has it")
def test_a_small_run():
    with TemporaryDirectory(prefix="cd-") as folder:  # as the command: `tmp_path` is too long for Ray's sockets
        report = run_replicas(ServePlan(Path(folder), pairs=2, repeats=1, max_new_tokens=8), (1,), clients=2)
    assert report["passed"]
    one = report["contestants"]["replicas-1"]
    assert one["statuses"] == {"200": 4}
    assert (one["added_ms_p50"]["n"], one["tokens_per_s"]["n"]) == (2, 1)
    assert (report["fewest_replicas"], report["of_the_fewest"]) == ("replicas-1", {})
