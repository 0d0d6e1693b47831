"""Who races under which name, and where it runs."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from crossdraft import api
from crossdraft.cli.cores import Cores
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.errors import CrossdraftError
from crossdraft.specs import parse
from crossdraft_lab.bench.assembly import EngineMethod, Models, cores_of
from crossdraft_lab.bench.experiments.record import Setting
from crossdraft_lab.bench.measure import measure
from crossdraft_lab.bench.specs import (
    ALL_METHODS,
    ALWAYS,
    ON_ALL_CORES,
    check_methods,
    is_blind,
    needs_no_process,
    spec_of,
    usual_methods,
)
from crossdraft_lab.bench.study import Study
from crossdraft_lab.bench.suite import Suite, placement_of
from crossdraft_lab.bench.variants import Variant
from crossdraft_lab.bench.workload import Workload, items


@pytest.fixture(scope="module")
def models(pair):
    return Models(str(pair.target), str(pair.event), str(pair.blind), device="cpu", dtype="float32")


@pytest.mark.parametrize(
    ("spec", "cheap"),
    [
        ("memory:capacity=1000", True),
        ("union:ngram,(phased:memory,ngram)", True),
        ("union:ngram,(phased:memory,event)", False),
        ("blind", False),
        ("eagle2", True),  # it looks into the target, whose process it shares
        ("union:glance,eagle2", False),
    ],
)
def test_what_has_no_model_needs_no_process(spec, cheap):
    assert needs_no_process(parse(spec)) is cheap


def test_only_a_drafter_without_the_event_drafter_is_blind():
    assert is_blind(parse("blind"))
    assert is_blind(parse("union:blind,memory"))
    assert not is_blind(parse("phased:event,blind"))
    assert not is_blind(parse("memory"))


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (["union:ngram,memry"], "no drafter 'memry' \\(did you mean 'memory'"),
        (["union:(ngram"], "brackets"),
        (["event"], "named twice"),
        (["ngram", "ngram"], "named twice"),
        (["nowhere"], "no drafter 'nowhere'"),
        (["memory:size=3"], "no setting 'size'"),
    ],
)
def test_a_spec_that_makes_no_comparison_is_refused_before_anything_is_loaded(specs, message):
    with pytest.raises(CrossdraftError, match=message):
        check_methods(["target", "event"], specs)


def test_specs_race_under_their_own_names_and_are_counted(models):
    suite = Suite(models, Workload(pairs=2), ("target",), 3, warm_ups=1, drafters=("union:ngram,memory",))
    assert suite.runs == 2 * (1 + 1 + 2 * 3)
    assert replace(suite, memory=False).runs == 2 * (1 + 2 * 3)


def test_every_name_says_which_cores_of_the_pair_are_its():
    pair = Cores((0, 2), (1,))
    assert pair.pair == (0, 1, 2)
    more = "union:ngram,memory", "union:event,ngram", "eagle2", "medusa"
    every = {name: cores_of(name, pair) for name in (*ALL_METHODS, *more)}
    assert {name for name, own in every.items() if own == Cores((0, 2))} == {"target", "hf"}, (
        "others have a twin on all"
    )
    in_process = {name for name, own in every.items() if own == pair}
    assert {"blind", "event", "glance", "union:event,ngram"} <= in_process
    here = {"target-all", "hf-all", "hf-lookup", "event-inline", "memory", "eagle2", "medusa", "union:ngram,memory"}
    assert all(every[name] == Cores((0, 1, 2)) for name in here), "equal hardware: it has every core of the pair"
    assert cores_of("target-all", None) is None


def test_the_usual_methods_hold_what_every_comparison_should():
    usual = usual_methods(shipped=True, more_cores=True)
    assert {*ALWAYS, "event", "glance"} <= set(usual)
    assert "glance" not in usual_methods(shipped=False, more_cores=True)
    assert not ON_ALL_CORES & set(usual_methods(shipped=True, more_cores=False))


def loaded(models, names, target, cores=None):
    """Methods by name, as a study has them."""
    study = Study(tuple(map(Variant, names)), Workload(pairs=1), models=models)
    return study.loaded(Setting(cores, Path()), target)


def test_all_methods_compute_in_one_thread(models, monkeypatch):
    """A pool of OpenMP threads for each of them would make a second core worthless to all."""
    target = models.load_target()
    names, threads = ["target", "target-all", "hf", "event-inline", "ngram"], set()
    extend = type(target).extend

    def watched(self, *arguments, **named):
        threads.add(threading.get_ident())
        return extend(self, *arguments, **named)

    monkeypatch.setattr(type(target), "extend", watched)
    with loaded(models, names, target) as (_, methods):
        measure(methods, list(items(Workload(pairs=1, max_new_tokens=4))), 1)
    assert threads == {threading.get_ident()}


def test_each_runs_on_its_own_cores_and_with_as_many_threads(models):
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("needs two cores")
    cores, used = Cores((allowed[0],), (allowed[1],)), {}
    target = models.load_target()
    threads = torch.get_num_threads()
    with loaded(models, ["target", "target-all", "hf", "hf-all"], target, cores) as (_, methods):
        for name, method in methods.items():
            whole = method.answer

            def watched(item, name=name, whole=whole):
                used[name] = (sorted(os.sched_getaffinity(0)), torch.get_num_threads())
                return whole(item)

            method.answer = watched
        results = measure(methods, list(items(Workload(pairs=1, max_new_tokens=4))), 1)
    one, both = (allowed[:1], 1), (allowed[:2], 2)
    assert used == {"target": one, "target-all": both, "hf": one, "hf-all": both}
    assert len({run.tokens for name in methods for run in results.of(name)}) == 1
    assert (sorted(os.sched_getaffinity(0)), torch.get_num_threads()) == (allowed, threads)


def test_passes_are_timed_on_the_cores_that_they_run_on(models, monkeypatch):
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("needs two cores")
    timed = []
    monkeypatch.setattr(api, "calibrate", lambda *_: timed.append(os.sched_getaffinity(0)))
    with loaded(models, ["event"], models.load_target(), Cores((allowed[0],), (allowed[1],))):
        assert timed == [{allowed[0]}]


def test_cheap_drafters_race_inline_and_give_the_targets_tokens(models):
    target = models.load_target()
    with loaded(models, ["target", "ngram", "union:ngram,memory"], target) as (_, methods):
        assert list(methods) == ["target", "ngram", "union:ngram,memory"]
        engines = [c.engine for c in methods.values() if isinstance(c, EngineMethod)]
        assert [type(engine.drafter) for engine in engines] == [type(None), DraftRunner, DraftRunner]
        for item in items(Workload(pairs=2, max_new_tokens=24)):
            assert len({method.answer(item).tokens for method in methods.values()}) == 1


def test_a_folder_is_a_drafter_too(pair):
    assert spec_of(str(pair.event)).name == str(pair.event)


def test_a_folder_of_the_same_name_hides_no_drafter(tmp_path, monkeypatch):
    (tmp_path / "union").mkdir()
    monkeypatch.chdir(tmp_path)
    assert str(spec_of("union")) == "union:event,memory"


def test_the_report_says_which_drafters_raced(models):
    names = ("target", "event-inline", "event", "memory")
    drafters = ("union:blind,ngram",)
    suite = Suite(models, Workload(pairs=1), names, cores=Cores((0,), (1,)), drafters=drafters)
    found = placement_of(suite)
    assert found["drafters"] == {"event": "event", "memory": "memory"}
