"""Faults planted in methods that really answer: what is 3 % slower is found, and one wrong token ends with status 1."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from typer.testing import CliRunner

from crossdraft.engine.request import Request
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.experiments import registry
from crossdraft_lab.bench.experiments.drafters import DRAFTERS, studies
from crossdraft_lab.bench.experiments.runner import run_experiment
from crossdraft_lab.bench.measure import BenchMethod, Run, measure
from crossdraft_lab.bench.significance import compare_paired
from crossdraft_lab.bench.study import pooled
from crossdraft_lab.bench.workload import Item
from crossdraft_lab.cli.experiment import app
from tests.bench.experiments.planted import block, run


class Clock:
    """Advanced by whoever works, and disturbed as a shared machine's is."""

    def __init__(self):
        self.now = 0.0
        self.random = np.random.default_rng(0)

    def work(self, seconds):
        self.now += seconds * self.random.normal(1.0, 0.01)


@dataclass
class Working:
    """Answers each scene in a time of its own, the scenes far apart; measured by the clock."""

    clock: Clock
    slower: float = 1.0
    cores = None
    workers = ()

    def answer(self, item: Item) -> Run:
        start = self.clock.now
        self.clock.work(0.5 + 1.5 * np.random.default_rng(item.seed).random())
        self.clock.work((self.slower - 1) * (self.clock.now - start))  # sleeps so long once more
        return run(self.clock.now - start)

    def close(self):
        pass


@pytest.mark.parametrize(("slower", "found"), [(1.03, True), (1.0, False)])
def test_a_method_that_sleeps_three_percent_is_found_by_what_measures_it(slower, found):
    clock = Clock()
    methods = {"target": Working(clock), "slow": Working(clock, slower)}
    asked = [Item(seed, "layout", Request("?")) for seed in range(32)]
    group = pooled([block("pairs 0", measure(methods, asked, 2).runs)])
    assert (group.speedup("slow").high < 1) is found
    assert group.speedup("slow").value == pytest.approx(1 / slower, abs=0.006)
    times = {name: group.results.seconds(name) for name in methods}
    (one,) = compare_paired(times["target"], {"slow": times["slow"]}, range(32)).values()
    assert one.differs is found
    assert one.detectable < 0.03, "so much would be seen"


@dataclass
class Leaking:
    """A method whose answers are those of another but for their last token."""

    own: BenchMethod

    @property
    def cores(self):
        return self.own.cores

    @property
    def workers(self):
        return self.own.workers

    def answer(self, item: Item) -> Run:
        found = self.own.answer(item)
        return replace(found, tokens=(*found.tokens[:-1], found.tokens[-1] - 1))

    def close(self):
        self.own.close()


def drafters(models: Models, leaks: str):
    """The experiment `drafters` on other models, with a leak in one of its rows."""

    def measured(config, keys, setting) -> Iterator:
        for plan in studies(config, setting.work):
            with replace(plan, models=models).loaded(setting) as (target, made):
                methods = {name: Leaking(one) if name == leaks else one for name, one in made.items()}
                for key in plan.keys:
                    yield plan.answer_block(key, list(plan.asked(plan.work_of(key))), methods, target, [], setting.tick)

    tiny = replace(DRAFTERS.quick, methods=("hf", "ngram"), pairs=1, block=1, max_new_tokens=6)
    return replace(DRAFTERS, quick=tiny, measure=measured)


@pytest.mark.parametrize(("leaks", "status"), [("ngram", 1), ("hf", 0)])
def test_one_wrong_token_of_a_row_of_ours_ends_with_status_1(pair, monkeypatch, tmp_path, leaks, status):
    planted = drafters(Models(str(pair.target), str(pair.event), str(pair.blind), device="cpu", dtype="float32"), leaks)
    monkeypatch.setattr(registry, "EXPERIMENTS", {planted.name: planted})
    ran = CliRunner().invoke(app, ["drafters", "--quick", "--out", str(tmp_path)])
    assert ran.exit_code == status, ran.output
    summary = run_experiment(planted, planted.quick, tmp_path, None).summary  # of the same runs
    assert summary.faults.unequal == ((leaks,) if status else ())
    assert leaks in summary.found
