import json
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft_lab.datasets.index import PairIndex
from crossdraft_lab.datasets.pairs import export, fill
from crossdraft_lab.datasets.sample import DatasetSample, Problem
from crossdraft_lab.datasets.split import SplitPlan, count_splits, divide, leaks


class Made:
    """A data set of `rows` questions, ten about a clip, a hundred of a group; it stops at `stop`, as Ctrl-C does."""

    def __init__(self, rows: int, stop: int | None = None) -> None:
        self.rows, self.stop, self.given = rows, stop, 0

    def parts(self) -> list[str]:
        return ["all"]

    def samples(self, part: str) -> Iterator[DatasetSample]:
        for number in range(self.rows):
            if number == self.stop:
                raise KeyboardInterrupt
            self.given += 1
            clip = number // 10
            yield DatasetSample(
                f"q{number}", f"s{number // 100}", f"Question {number % 37}?", ("yes",), Path(f"/data/{clip}.mp4"),
                start_s=clip % 10, end_s=clip % 10 + 2,
            )  # fmt: skip

    def problems(self, part: str) -> Iterator[Problem]:
        yield from ()


def indexed(folder, reader) -> PairIndex:
    index = PairIndex(folder, create=True)
    for part in reader.parts():
        index.add(reader, part)
    return index


def test_thirty_thousand_rows_take_little_time(tmp_path):
    started = time.process_time()
    with indexed(tmp_path, Made(30_000)) as index:
        assert index.counts().samples == 30_000
        assert sum(divide(index, SplitPlan(0.1, 0.1)).samples.values()) == 30_000
        assert export(index, tmp_path / "all.jsonl") == (3000, 0)
    assert time.process_time() - started < 9


def test_memory_does_not_grow_with_the_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("crossdraft_lab.datasets.index.ROWS_AT_ONCE", 200)

    class Pathless(Made):  # pathlib interns every name, in a table that grows in leaps
        def samples(self, part):
            for sample in super().samples(part):
                yield replace(sample, video=None)

    peaks = []
    for rows in (1000, 1000, 8000):  # the first run also loads what is loaded once
        tracemalloc.start()
        with indexed(tmp_path / f"{len(peaks)}", Pathless(rows)) as index:
            divide(index, SplitPlan(0.1, 0.1))
            export(index, tmp_path / "all.jsonl")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.5 * peaks[1]


def test_an_interrupted_part_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr("crossdraft_lab.datasets.index.ROWS_AT_ONCE", 100)
    with PairIndex(tmp_path, create=True) as index:
        with pytest.raises(KeyboardInterrupt):
            index.add(Made(1000, stop=555), "all")
        assert index.counts().samples == 500
        assert index.counts().open_parts == 1
    with PairIndex(tmp_path, create=True) as index:
        index.add(Made(1000), "all")
        assert index.counts().open_parts == 0
        assert [row["id"] for row in index.samples()] == [f"q{number}" for number in range(1000)]
        again = Made(1000)
        index.add(again, "all")
        assert again.given == 0, "a part that is done is not opened again"


@pytest.mark.parametrize(("good", "at_once"), [(7, 5000), (7, 7), (7, 3), (0, 5000)])
def test_rows_before_a_broken_one_are_kept(tmp_path, monkeypatch, good, at_once):
    monkeypatch.setattr("crossdraft_lab.datasets.index.ROWS_AT_ONCE", at_once)

    class Broken(Made):
        def samples(self, part):
            for sample in super().samples(part):
                if sample.id == f"q{good}":
                    raise CrossdraftError("A row is no object.")
                yield sample

    with PairIndex(tmp_path, create=True) as index:
        assert fill(index, Broken(100), ["all"]).broken == {"all": "A row is no object."}
        assert (index.counts().samples, index.counts().open_parts) == (good, 1)
        assert fill(index, Made(100), ["all"]).broken == {}, "once it is mended, the rest is read"
        assert [row["id"] for row in index.samples()] == [f"q{number}" for number in range(100)]


def test_a_limit_can_be_raised_later(tmp_path):
    with PairIndex(tmp_path, create=True) as index:
        for most, held in ((30, 30), (30, 30), (50, 50), (None, 200)):
            index.add(Made(200), "all", most)
            assert index.counts().samples == held


def test_an_index_of_something_else_is_not_mixed(tmp_path):
    with PairIndex(tmp_path, create=True) as index:
        index.expect(dataset="dsec", clips={"seconds": 1})
        index.expect(dataset="dsec", clips={"seconds": 1})
        with pytest.raises(CrossdraftError, match="made with clips"):
            index.expect(dataset="dsec", clips={"seconds": 2})
    with pytest.raises(CrossdraftError, match="no index of pairs"):
        PairIndex(tmp_path / "gone")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "pairs.sqlite").write_bytes(b"x" * 5000)
    with pytest.raises(CrossdraftError, match="cannot be used"):
        PairIndex(tmp_path / "broken")


def test_missing_files_are_counted_not_kept(tmp_path):
    class Gone(Made):
        def samples(self, part):
            for sample in super().samples(part):
                yield replace(sample, video=None, missing="x.mp4") if sample.id.endswith("3") else sample

    with indexed(tmp_path, Gone(100)) as index:
        assert (index.counts().samples, index.counts().missing) == (90, 10)


def test_two_questions_of_one_id(tmp_path):
    class Twice(Made):
        def samples(self, part):
            yield from super().samples(part)
            yield from super().samples(part)

    with pytest.raises(CrossdraftError, match="same id"):
        indexed(tmp_path, Twice(3))


def test_what_is_no_text_and_what_is_no_file_have_a_sentence(tmp_path):
    class Halves(Made):
        def samples(self, part):
            yield replace(next(super().samples(part)), question="\ud800?")

    with pytest.raises(CrossdraftError, match="is no text"):
        indexed(tmp_path, Halves(1))
    (tmp_path / "other" / "pairs.sqlite").mkdir(parents=True)
    with pytest.raises(CrossdraftError, match="cannot be used"):
        PairIndex(tmp_path / "other", create=True)


def test_the_list_groups_the_questions_of_a_clip(tmp_path):
    with indexed(tmp_path, Made(25)) as index:
        index.describe(dataset="made", licence="none")
        assert export(index, tmp_path / "a.jsonl") == (3, 0)
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").open()]
    assert [len(line["prompt"]) for line in lines] == [10, 10, 5]
    assert lines[2]["ids"] == ["q20", "q21", "q22", "q23", "q24"]
    assert lines[0]["licence"] == "none"
    assert (tmp_path / lines[0]["video"]).resolve() == Path("/data/0.mp4")


@settings(max_examples=15, deadline=None)
@given(
    st.integers(300, 1500),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.1, 0.35]),
    st.sampled_from([0.0, 0.07, 0.4]),
    st.sampled_from([0.0, 0.3]),
)
def test_no_split_leaks_and_shares_are_as_asked(tmp_path_factory, rows, seed, validation, test, questions):
    with indexed(tmp_path_factory.mktemp("index"), Made(rows)) as index:
        refused, counts = "", None
        try:
            counts = divide(index, SplitPlan(validation, test, questions, seed))
        except CrossdraftError as error:
            refused = str(error)
            event("refused")
        if refused:
            assert any(why in refused for why in ("too few", "nothing is left", "there is none"))
            assert ("there is none" in refused) == bool(questions and not test)
            return
        assert list(leaks(index)) == []
        found = {split: set() for split in ("train", "validation", "test", "unused")}
        asked = {split: set() for split in found}
        for row in index.samples():
            found[row["split"]].add(row["kept_together"])
            asked[row["split"]].add(row["wording"])
        assert not found["train"] & found["test"]
        assert not found["train"] & found["validation"]
        assert not found["validation"] & found["test"]
        if questions:
            assert not (asked["train"] | asked["validation"]) & asked["test"] or not test
        else:
            assert test * rows <= counts.samples.get("test", 0) <= test * rows + 100, "at most a group too many"


def test_the_same_seed_gives_the_same_split(tmp_path):
    splits = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        with indexed(tmp_path / name, Made(2000)) as index:
            divide(index, SplitPlan(seed=seed))
            splits.append([row["split"] for row in index.samples()])
    assert splits[0] == splits[1] != splits[2]


def plant(index: PairIndex, statement: str) -> list[str]:
    with index.writing() as db:
        db.execute(statement)
    return sorted({leak.what for leak in leaks(index)})


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE samples SET split = 'test' WHERE id = 'q0'", ["clip", "group", "overlap"]),
        ("UPDATE samples SET split = 'test' WHERE id BETWEEN 'q0' AND 'q09' OR id LIKE 'q_'", ["group", "overlap"]),
        ("UPDATE samples SET split = 'test', kept_together = 'other' WHERE id LIKE 'q_'", ["overlap"]),
    ],
)
def test_a_planted_leak_is_found(tmp_path, statement, found):
    with indexed(tmp_path, Made(1000)) as index:
        divide(index, SplitPlan(validation=0, test=0))
        assert list(leaks(index)) == []
        assert plant(index, statement) == found


def test_a_planted_question_is_found(tmp_path):
    with indexed(tmp_path, Made(2000)) as index:
        divide(index, SplitPlan(test=0.3, questions=0.3))
        (asked,) = next(index.rows("SELECT wording FROM samples WHERE split = 'test'"))
        first = "(SELECT MIN(number) FROM samples WHERE split = 'train')"
        planted = f"UPDATE samples SET wording = '{asked}' WHERE number = {first}"
        assert plant(index, planted) == ["question"]


def test_the_data_sets_own_split(tmp_path):
    class Parts(Made):
        def parts(self):
            return ["train", "val", "test"]

        def samples(self, part):
            for sample in super().samples(part):
                name = f"{part}{sample.sequence}"
                video = Path(f"/data/{part}{sample.video.name}")
                yield replace(sample, id=f"{part}/{sample.id}", group=name, sequence=name, video=video)

    with indexed(tmp_path / "a", Parts(300)) as index:
        assert divide(index, SplitPlan(by_part=True)).samples == {"test": 300, "train": 300, "validation": 300}
        assert count_splits(index).groups["validation"] == 3
    with indexed(tmp_path / "b", Made(300)) as index, pytest.raises(CrossdraftError, match="not called train"):
        divide(index, SplitPlan(by_part=True))


def test_an_official_split_that_leaks_is_refused(tmp_path):
    class Leaky(Made):
        def parts(self):
            return ["train", "test"]

        def samples(self, part):
            for sample in super().samples(part):
                yield replace(sample, id=f"{part}/{sample.id}")

    with indexed(tmp_path, Leaky(300)) as index, pytest.raises(CrossdraftError, match="The split leaks"):
        divide(index, SplitPlan(by_part=True))


def test_a_split_follows_its_own_plan_and_a_refused_one_leaves_what_was_there(tmp_path):
    with indexed(tmp_path, Made(2000)) as index:
        divide(index, SplitPlan(test=0.3, questions=0.3))
        divide(index, SplitPlan(test=0.3))  # whose test may ask what the training asks
        before, meta = [row["split"] for row in index.samples()], index.meta
        assert meta["split"]["questions"] == 0
        with index.writing() as db:
            db.execute("UPDATE samples SET video = 'one.mp4'")
        with pytest.raises(CrossdraftError, match="The split leaks: the clip"):
            divide(index, SplitPlan(test=0.2, seed=5))
        assert ([row["split"] for row in index.samples()], index.meta) == (before, meta)


def test_splits_that_cannot_be(tmp_path):
    for settings_, words in (
        ({"test": 1.0}, "--test"),
        ({"test": 0.6, "validation": 0.5}, "nothing to train on"),
        ({"questions": -0.1}, "--questions"),
    ):
        with pytest.raises(CrossdraftError, match=words):
            SplitPlan(**settings_)
    with indexed(tmp_path, Made(100)) as index, pytest.raises(CrossdraftError, match="1 group"):
        divide(index, SplitPlan())
