"""`crossdraft bench replicas`: what it says, and a small run where Ray is."""

import importlib.util
from collections import Counter

import pytest
from typer.testing import CliRunner

from crossdraft.bench.serving.plan import ServePlan
from crossdraft.bench.serving.replicas import ServerReplies, against, lines, run_replicas
from crossdraft.cli.main import app
from crossdraft.errors import CrossdraftError


def test_what_is_said_names_every_server_and_what_is_wrong():
    alone = ServerReplies([0.07] * 4, [100, 100, 100], [0.2, 0.2, 0.2], Counter({200: 4}))
    other = ServerReplies([0.0725] * 4, [90, 90, 90], [0.1, 0.1, 0.1], Counter({200: 4}), wrong=1)
    one, two = (found.to_json() | against(found, alone) for found in (alone, other))
    assert two["of_the_server"] == {"value": 1.8, "ci95": [1.8, 1.8], "n": 3}
    said = lines({"passed": False, "clients": 8, "contestants": {"server": one, "replicas-2": two}})
    assert "replicas-2: 72.5 ms" in said[1]
    assert "2.5 [2.5, 2.5; n=4 requests] ms more than of the server alone" in said[1]
    assert "1.80 [1.80, 1.80; n=3 blocks] of its; {'200': 4}, 1 wrong answers" in said[1]
    assert said[-1] == "Not all is as it should be."


@pytest.mark.parametrize("counts", ["0", "x", ""])
def test_numbers_of_replicas_are_checked(counts):
    found = CliRunner().invoke(app, ["bench", "replicas", "--replicas", counts])
    assert isinstance(found.exception, CrossdraftError)
    assert "--replicas" in str(found.exception)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: make interop-ray has it")
def test_a_small_run(tmp_path):
    report = run_replicas(ServePlan(tmp_path, pairs=2, repeats=1, max_new_tokens=8), (1,), clients=2)
    assert report["passed"]
    assert report["contestants"]["replicas-1"]["statuses"] == {"200": 4}
