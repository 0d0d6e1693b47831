"""`--ray` without Ray, which no environment has by default."""

import importlib.util

import pytest

from crossdraft.cli.main import main

WITHOUT_RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed here")


@WITHOUT_RAY
@pytest.mark.parametrize(
    "command", [("serve", "--ray", "--port", "0"), ("capture", "OUT", "--ray", "2", "--clips", "1")]
)
def test_ray_is_named_where_it_is_missing(command, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # so that what the command sets goes again
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    out = tmp_path / "capture"
    assert main([str(out) if part == "OUT" else part for part in command]) == 2
    assert "Package 'ray' is missing; install it: pip install 'ray[serve]>=2.60,<3'." in capsys.readouterr().err
    assert not out.exists()
