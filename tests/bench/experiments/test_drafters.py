"""Experiment 0 on planted runs: what its tables say of each kind of question."""

from crossdraft_lab.bench.experiments.drafters import COLUMNS, DraftersConfig, summarise
from crossdraft_lab.scenes import KINDS as ALL_KINDS
from tests.bench.experiments.planted import block, run

KINDS = ("weather", "layout", "weather", "layout")


def test_each_kind_has_a_column_with_its_own_baseline_and_scenes():
    """The faster target alone takes 12 s for the weather and 2 s for the layout, elsewhere; `ngram` 6 s and 4 s."""
    seconds = {"target": (4.0, 2.0, 8.0, 2.0), "target-all": (6.0, 1.0, 12.0, 1.0), "ngram": (2.0, 2.0, 4.0, 2.0)}
    methods = {name: [[run(total)] for total in totals] for name, totals in seconds.items()}
    config = DraftersConfig(methods=("ngram",), group=1, pairs=4, block=4)
    found = summarise(config, [block("group 0, pairs 0", methods, kinds=KINDS)])
    everything, by_kind = found.tables
    assert by_kind.heads == ("", "layout", "weather")
    assert [row[0] for row in by_kind.rows] == [row[0] for row in everything.rows]
    rows = {name: cells for name, *cells in by_kind.rows}
    assert rows["ngram"] == ["0.50 [0.50, 0.50; n=2]", "2.00 [2.00, 2.00; n=2]"]
    assert rows["target"] == ["0.50 [0.50, 0.50; n=2]", "1.00 [1.00, 1.00; n=2]"]
    assert "narrower than the truth" in by_kind.note
    kinds = found.figures["ngram"]["by_kind"]
    assert kinds["weather"] == {"value": 2.0, "ci95": [2.0, 2.0], "n": 2}
    assert found.figures["ngram"]["speedup"]["value"] == 16 / 10  # of both kinds, the target on its own core


def test_questions_about_one_scene_are_one_of_a_kind():
    methods = {name: [[run(2.0)]] * 3 for name in ("target", "target-all", "ngram")}
    config = DraftersConfig(methods=("ngram",), group=1, pairs=3, block=3)
    unit = block("group 0, pairs 0", methods, scenes=(7, 7, 8), kinds=("layout",) * 3)
    kinds = summarise(config, [unit]).figures["ngram"]["by_kind"]
    assert kinds["layout"]["n"] == 2


def test_all_kinds_have_a_column_and_no_table_more_than_fit_a_page():
    methods = {name: [[run(2.0)]] * len(ALL_KINDS) for name in ("target", "target-all", "ngram")}
    config = DraftersConfig(methods=("ngram",), group=1, pairs=len(ALL_KINDS), block=len(ALL_KINDS))
    _, *by_kind = summarise(config, [block("group 0, pairs 0", methods, kinds=ALL_KINDS)]).tables
    assert [kind for table in by_kind for kind in table.heads[1:]] == sorted(ALL_KINDS)
    assert all(len(table.heads) <= 1 + COLUMNS for table in by_kind)
    assert all(len(row) == len(table.heads) for table in by_kind for row in table.rows)
