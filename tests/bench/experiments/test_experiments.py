"""Every experiment: its sizes are valid, and the slow test runs each for real, at a tiny size, up to the report."""

from dataclasses import replace
from html import unescape

import pytest

from crossdraft.cli.cores import choose_cores
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.experiments import ablations, alignment, breakdown, drafters, prefill_hiding, quality
from crossdraft_lab.bench.experiments.prefill_hiding import lengthen
from crossdraft_lab.bench.experiments.record import Setting
from crossdraft_lab.bench.experiments.registry import EXPERIMENTS, chosen
from crossdraft_lab.bench.experiments.report import write_report
from crossdraft_lab.bench.experiments.runner import run_experiment
from crossdraft_lab.bench.experiments.runs import plain, typed
from crossdraft_lab.bench.heads_select import is_here
from crossdraft_lab.bench.specs import HUGGING_FACE, spec_of
from crossdraft_lab.bench.study import Study
from crossdraft_lab.bench.variants import Variant
from crossdraft_lab.bench.workload import Workload, items
from crossdraft_lab.networks import ALIGNED
from crossdraft_lab.train.heads.recipe import load_head_recipe

TINY = {
    "drafters": {"methods": ("hf", "memory", "eagle2"), "pairs": 1, "block": 1, "max_new_tokens": 12},
    "prefill-hiding": {"frames": (1, 16), "drafters": ("event",), "pairs": 1, "block": 1, "max_new_tokens": 12},
    "breakdown": {"pairs": 1, "block": 1, "max_new_tokens": 12},
    "alignment": {"rungs": ("linear",), "clips": 2, "validation_clips": 1, "prompts": 1, "steps": 2, "test_clips": 1,
                  "learned": 2, "pairs": 1, "block": 1, "max_new_tokens": 12},
    "streaming": {"seconds": 2, "questions": 1, "max_new_tokens": 8, "fps": 4.0, "rates": (2, 4), "rate_seconds": 2},
    "quality": {"drafters": ("memory",), "compressions": ("frames:count=1",), "rules": ("typical:eps=0.09",),
                "pairs": 1, "block": 1, "max_new_tokens": 12},
    "ablations": {"groups": ("placement", "cache", "elastic", "ride-along", "temperature 0.7"), "pairs": 1, "block": 1,
                  "max_new_tokens": 12},
    "utilisation": {"methods": ("target", "target-all", "event"), "pairs": 1, "block": 1, "max_new_tokens": 12},
}  # fmt: skip


@pytest.mark.parametrize("one", EXPERIMENTS.values(), ids=list(EXPERIMENTS))
def test_both_sizes_are_valid(one):
    for config in (one.full, one.quick):
        keys = list(one.units(config))
        assert keys
        assert len(set(keys)) == len(keys)
        assert typed(type(config), plain(config)) == config
    assert len(one.units(one.quick)) <= len(one.units(one.full))


def test_numbers_and_names_are_unique_and_ordered():
    numbers = [one.number for one in EXPERIMENTS.values()]
    assert numbers == sorted(set(numbers)) == list(range(8))
    assert [one.name for one in chosen(("quality", "breakdown"))] == ["breakdown", "quality"]
    assert chosen(("all",)) == list(EXPERIMENTS.values())
    with pytest.raises(CrossdraftError, match="Unknown experiment 'ablation'"):
        chosen(("ablation",))


def test_a_rung_watches_a_figure_that_its_checks_have():
    for rung, (recipe, more) in alignment.LADDER.items():
        if recipe == "l6":  # no adapter: it always drafts by itself
            assert alignment.watched(rung) == "prefix"
            continue
        network = ALIGNED[load_head_recipe(recipe, more).network].network_class
        assert alignment.watched(rung) == ("tau" if network.reads_target else "prefix")


def test_every_row_can_be_named_and_has_its_weights():
    config = quality.QualityConfig()
    variants: list[Variant] = [variant for plan in quality.studies(config) for variant in plan.variants]
    variants += [variant for group in ablations.GROUPS.values() for variant in group.variants]
    variants += prefill_hiding.studies(prefill_hiding.PrefillConfig())[0].variants
    variants += breakdown.studies(breakdown.BreakdownConfig())[0].variants
    variants += [Variant(name) for name in drafters.DraftersConfig().methods if name not in HUGGING_FACE]
    for variant in variants:
        if variant.drafts not in ("target", "target-all"):
            assert is_here(spec_of(variant.drafts))  # a full run is not to end at a drafter without weights
        assert variant.lossless == (variant.compress is None and "rule" not in variant.options)


def test_a_rung_that_is_none_is_refused():
    with pytest.raises(CrossdraftError, match="Unknown rung 'l9'"):
        alignment.AlignmentConfig(rungs=("l9",))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TINY))
def test_it_runs_for_real_and_is_reported(name, tmp_path):
    one = EXPERIMENTS[name]
    config = replace(one.quick, **TINY[name])
    found = run_experiment(one, config, tmp_path, choose_cores())
    assert found.summary.found
    assert found.summary.tables
    assert (tmp_path / name / "figure.png").stat().st_size > 1000
    pages = write_report(tmp_path).files
    assert one.title in unescape(pages[0].read_text())
    runs = (tmp_path / name / "runs.jsonl").read_bytes()
    again = run_experiment(one, config, tmp_path, choose_cores())
    assert again.summary.found == found.summary.found
    assert (tmp_path / name / "runs.jsonl").read_bytes() == runs


def test_a_head_that_has_too_few_positions_says_so_and_drafts_once_it_is_lengthened(tmp_path):
    (item,) = items(Workload(1, frames=2, max_new_tokens=8))
    study = Study((Variant("target"), Variant("eaglevlm")), Workload(1))
    with study.loaded(Setting(None, tmp_path)) as (_, made):
        made["eaglevlm"].engine.drafter.drafter.max_positions = 64  # fewer than the prompt takes
        own, short = (made[name].answer(item) for name in ("target", "eaglevlm"))
        assert own.prompt_tokens > 64
        assert sum(short.offered_at) == 0
        assert any("none of the head's 64 positions" in note for note in short.notes)
        lengthen(4096, made["eaglevlm"])
        long = made["eaglevlm"].answer(item)
        assert sum(long.offered_at) > 0
        assert long.notes == ()
        assert own.tokens == short.tokens == long.tokens
