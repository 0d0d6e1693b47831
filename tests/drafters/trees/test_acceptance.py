import pytest

from crossdraft.drafters.trees.static import PRIOR, RankCounts
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.heads.ranks import MeasuredRanks

#  root ─┬─ 0 ─┬─ 2 ── 4
#        └─ 1  └─ 3
TREE = DraftTree((5, 6, 7, 8, 9), (-1, -1, 0, 0, 2))


def counted():
    counts = MeasuredRanks()
    counts.observe(TREE, (0, 3))  # first guess, then the second; after it nothing was offered
    counts.observe(TREE, (1,))
    counts.observe(TREE, ())
    return counts


def test_only_what_stood_after_an_accepted_node_was_verified():
    counts = counted()
    assert counts.offered == [[3, 3], [1, 1]]
    assert counts.accepted == [[1, 1], [0, 1]]


def test_given_ranks_count_instead_of_positions():
    counts = MeasuredRanks()
    counts.observe(DraftTree((5, 6), (-1, -1)), (1,), ranks=(0, 3))
    assert counts.offered == [[1, 0, 0, 1]]
    assert counts.accepted == [[0, 0, 0, 1]]


def test_shares_are_drawn_towards_refusal_and_towards_those_of_all_depths():
    first, second = 1 / (4 + PRIOR), 2 / (4 + PRIOR)
    assert counted().by_rank() == pytest.approx((first, second))
    assert counted().by_depth() == [
        pytest.approx([(1 + PRIOR * first) / (3 + PRIOR), (1 + PRIOR * second) / (3 + PRIOR)]),
        pytest.approx([PRIOR * first / (1 + PRIOR), (1 + PRIOR * second) / (1 + PRIOR)]),
    ]
    assert RankCounts().by_rank() == ()
    assert RankCounts().by_depth() == []


def test_one_lucky_hit_is_no_proof():
    counts = RankCounts([[100, 1]], [[60, 1]])
    first, second = counts.by_rank()
    assert first > 2 * second


def test_saved_and_loaded(tmp_path):
    counted().save(tmp_path / "counts.json")
    assert MeasuredRanks.load(tmp_path / "counts.json") == counted()


OTHERS = {
    "nothing": "",
    "a list": "[]",
    "no tables": "{}",
    "more accepted than offered": '{"offered": [[1]], "accepted": [[2]]}',
    "tables of two forms": '{"offered": [[1, 1]], "accepted": [[1]]}',
    "text": '{"offered": [["1"]], "accepted": [[1]]}',
    "numbers": '{"offered": [1], "accepted": [1]}',
    "counts below 0": '{"offered": [[-1]], "accepted": [[-2]]}',
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_files_are_refused_in_one_sentence(tmp_path, kind):
    path = tmp_path / "counts.json"
    path.write_text(OTHERS[kind], encoding="utf-8")
    with pytest.raises(CrossdraftError, match="measured acceptance"):
        RankCounts.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CrossdraftError, match=r"none\.json cannot be read"):
        RankCounts.load(tmp_path / "none.json")
