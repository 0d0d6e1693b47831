"""`crossdraft bench replicas`: what it says, and a small run where Ray is."""

import importlib.util

import pytest
from typer.testing import CliRunner

from crossdraft.bench.serving.plan import ServePlan
from crossdraft.bench.serving.replicas import lines, run_replicas
from crossdraft.cli.main import app
from crossdraft.errors import CrossdraftError


def test_what_is_said_names_every_server_and_what_is_wrong():
    one = {"e2e_ms": {"p50": 70.0}, "added_ms_p50": 0.0, "tokens_per_s": 500.0, "of_the_server": 1.0}
    one |= {"statuses": {"200": 4}, "wrong_answers": 0}
    two = one | {"added_ms_p50": 2.5, "of_the_server": 1.8, "wrong_answers": 1}
    said = lines({"passed": False, "clients": 8, "contestants": {"server": one, "replicas-2": two}})
    assert "replicas-2: 70.0 ms" in said[1]
    assert "+2.5 ms" in said[1]
    assert "1.80 of its; {'200': 4}, 1 wrong answers" in said[1]
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
