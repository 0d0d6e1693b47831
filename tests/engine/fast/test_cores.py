"""Cores are numbered, and asked for, on systems that can bind a thread and on those that cannot."""

import os

import pytest

import crossdraft as cd
from crossdraft.engine.fast.cores import available_cores, bind_cores
from crossdraft.engine.fast.pinning import pinned


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


def test_an_engine_answers_without_affinity(bare, pair, clip):
    request = cd.Request("why?", str(clip.video), str(clip.events), max_new_tokens=4)
    with cd.Engine.load(pair.target, pair.event, cd.Options(placement="process", target_cores=(0,))) as engine:
        assert len(engine.generate(request).tokens) == 4
