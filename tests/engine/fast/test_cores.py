"""Cores are numbered, and asked for, on systems that can bind a thread and on those that cannot."""

import os
import subprocess
import sys

import pytest

from crossdraft.engine.fast.cores import available_cores, bind_cores
from crossdraft.engine.fast.pinning import pinned

HIDE = "import os\ndel os.sched_getaffinity, os.sched_setaffinity\n"


@pytest.fixture
def bare(monkeypatch):
    """A system such as macOS: it neither tells a process's cores nor binds to them."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not tell")
def test_the_cores_are_those_of_the_thread():
    before = available_cores()
    assert set(before) == os.sched_getaffinity(0)
    try:
        assert bind_cores(before[:1])
        assert available_cores() == before[:1]
    finally:
        bind_cores(before)


def test_without_affinity_they_are_counted(bare):
    assert available_cores() == tuple(range(os.cpu_count() or 1))
    assert not bind_cores((0,))


def test_without_affinity_pinning_sets_the_threads_alone(bare):
    import torch

    before = torch.get_num_threads()
    with pinned((0,)):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_an_engine_answers_without_affinity(pair, clip):
    script = HIDE + (
        "import crossdraft as cd\n"
        f"with cd.Engine.load({str(pair.target)!r}, {str(pair.event)!r},\n"
        "                    cd.Options(placement='process', target_cores=(0,))) as engine:\n"
        f"    print(len(engine.generate(cd.Request('why?', {str(clip.video)!r}, {str(clip.events)!r},\n"
        "                               max_new_tokens=4)).tokens))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "4", done.stderr
