"""A server without its network: what it holds, it lets go of, also when it cannot be made whole."""

import os
import tempfile
import threading
from pathlib import Path

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.serve import service as module
from crossdraft.serve.service import Service
from crossdraft_lab.bench.resources import descendants
from tests.serve.conftest import settings


@pytest.mark.parametrize("fails", ["Uploads", "MediaLoader", "Metrics"])
def test_a_service_that_cannot_be_made_leaves_nothing(runner, tmp_path, monkeypatch, fails):
    def refuse(*given, **named):
        raise CrossdraftError("no")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module, fails, refuse)
    threads, children = set(threading.enumerate()), descendants(os.getpid()).keys()
    with pytest.raises(CrossdraftError, match="no"):
        Service(settings(), runner.engine)
    assert not [one for one in threading.enumerate() if one not in threads and one.name.startswith(("decode", "upl"))]
    assert descendants(os.getpid()).keys() <= children
    assert not [*Path(tmp_path).iterdir()]
