"""What the experiment `ablations` says of planted times: which parts help, which harm, and what too few scenes show."""

import pytest

from crossdraft_lab.bench.experiments.ablations import (
    FASTER,
    GROUPS,
    NOT_SEEN,
    QUESTIONS,
    SLOWER,
    UNTESTED,
    AblationsConfig,
    studies,
    summarise,
)
from tests.bench.experiments.planted import block, run

PAIRS = 16
SECONDS = {
    "eagle2, chain": 1.0, "eagle2, static": 1.1, "eagle2, beams": 1.2, "eagle2, dynamic": 0.5,
    "event, cache": 0.5,
}  # fmt: skip
WITHOUT = (
    "eagle2, chain", "event, keeps its core", "glance, keeps its core", "target", "event, no cache",
)  # fmt: skip


def planted(config: AblationsConfig, *, level: tuple[str, ...] = ()):
    """Blocks in which scene i takes 1 + i/10 times as long; rows of `level` differ from others in every other scene."""
    units = []
    for plan in studies(config):
        for key in plan.keys:
            first, work = int(key.rsplit(" ", 1)[1]), plan.work_of(key)
            scenes = [(first + pair) // work.questions for pair in range(work.pairs)]
            runs = {
                one.name: [[run(_seconds(one.name, scene, level))] * config.repeats for scene in scenes]
                for one in plan.variants
            }
            units.append(block(key, runs, scenes=scenes))
    return units


def _seconds(name, scene, level):
    wave = 1.05 if name in level and scene % 2 else 1 / 1.05 if name in level else 1.0
    own = 1.0 if name in WITHOUT else 1 + 0.001 * scene  # no two ratios are tied
    return SECONDS.get(name, 1.0) * (1 + scene / 10) * wave * own


@pytest.fixture(scope="module")
def found():
    config = AblationsConfig(groups=("trees", "elastic", "cache"), pairs=PAIRS)
    return summarise(config, planted(config, level=("glance, lends its core",)))


def directions(found):
    return {part: one["direction"] for parts in found.figures["parts"].values() for part, one in parts.items()}


def test_every_part_is_of_two_rows_of_its_group():
    for plan, group in zip(studies(AblationsConfig()), GROUPS.values(), strict=True):
        rows = {one.name for one in plan.variants}
        for on, off in group.parts:
            assert {on, off} <= rows
            assert on != off
        assert bool(group.parts) == (not group.temperature), "sampled answers differ; nothing is a part of them"
    assert set(GROUPS["cache"].parts) == {("target, cache", "target"), ("event, cache", "event, no cache")}


def test_parts_that_help_harm_and_do_neither(found):
    assert directions(found) == {
        "eagle2, static / eagle2, chain": SLOWER,
        "eagle2, beams / eagle2, chain": SLOWER,
        "eagle2, dynamic / eagle2, chain": FASTER,
        "event, lends its core / event, keeps its core": SLOWER,  # by 1 %, in 15 of 16 scenes, and in none faster
        "glance, lends its core / glance, keeps its core": NOT_SEEN,
        "target, cache / target": UNTESTED,
        "event, cache / event, no cache": UNTESTED,
    }
    assert "Of 5 parts that were tested scene by scene" in found.found
    assert "faster with 1 (trees 1 of 3)" in found.found
    slower = "slower with 3 (trees 2 of 3, elastic 1 of 2)"
    assert f"{slower}, and of 1 (elastic 1 of 2) no difference" in found.found
    title = GROUPS["trees"].title
    assert (
        f"{title}: eagle2, beams is slower than eagle2, chain (0.83 [0.82, 0.83; n=16] times as fast, p = "
        in "".join(found.negative)
    )
    assert sum("is not seen to be faster than" in sentence for sentence in found.negative) == 1
    assert not any("eagle2, dynamic" in sentence for sentence in found.negative)


def test_a_part_is_a_ratio_of_sums_tested_with_all_others(found):
    parts = found.figures["parts"]
    dynamic = parts["trees"]["eagle2, dynamic / eagle2, chain"]
    assert (dynamic["value"], dynamic["n"]) == (pytest.approx(2.0, rel=0.02), PAIRS)
    assert dynamic["p_wilcoxon"] == pytest.approx(2 / 2**PAIRS), "all scenes say the same"
    tested = [one for each in parts.values() for one in each.values() if one["p_wilcoxon"] is not None]
    assert dynamic["p_holm"] == pytest.approx(5 * 2 / 2**PAIRS), "the smallest of five"
    assert len(tested) == 5
    rows = {row[1:3]: row for row in found.tables[0].rows}
    row = rows["glance, lends its core", "glance, keeps its core"]
    assert row[-1] == NOT_SEEN
    assert row[-2].endswith("%"), "what would be seen stands beside it"


def test_where_the_scenes_are_too_few_it_is_said(found):
    cache = found.figures["parts"]["cache"]["event, cache / event, no cache"]
    assert (cache["value"], cache["n"]) == (pytest.approx(2.0, rel=0.02), PAIRS // QUESTIONS)
    assert cache["p_holm"] is cache["minimum_detectable"] is None
    for text in (found.sure, found.tables[0].note):
        assert "Too few scenes to show any difference of 7 parts (cache: 4); 9 can." in text
    config = AblationsConfig(groups=("trees", "temperature 0.3"), pairs=2, block=2, repeats=1)
    few = summarise(config, planted(config))
    assert few.found.startswith("The scenes are too few to test any of 3 parts. The fastest of each group.")
    assert "(trees: 2)" in few.sure
    assert not any("eagle2, chain" in sentence for sentence in few.negative), "of two scenes nothing is said"


def test_groups_without_parts_have_no_table_of_them():
    config = AblationsConfig(groups=("temperature 0.3",), pairs=2, block=2, repeats=1)
    alone = summarise(config, planted(config))
    assert [table.title for table in alone.tables] == ["Temperature 0.3"]
    assert alone.found.startswith("The fastest of each group.")
    assert alone.figures["parts"] == {}
