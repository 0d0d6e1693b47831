"""A target that is slower than its drafter's process, as one of a real size is: whatever a drafter can do, it has."""

import time

import pytest

from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.engine.target import Target


def wait_for(monkeypatch: pytest.MonkeyPatch, drafter: ProcessDrafter) -> None:
    """Hold every pass of a target until the drafter's process has done all that it was asked."""

    def held(work):
        def late(*args, **more):
            until = time.monotonic() + 60
            while drafter._handled.get() != drafter._sent:
                assert time.monotonic() < until, "the drafter's process does not come to an end"
                time.sleep(0.001)
            return work(*args, **more)

        return late

    monkeypatch.setattr(Target, "extend", held(Target.extend))
