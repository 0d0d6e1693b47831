import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.datasets import video_qa
from crossdraft_lab.datasets.catalogue import dataset_in, open_dataset
from crossdraft_lab.datasets.index import PairIndex
from tests.datasets.helpers import activitynet, film, msrvtt, msvd, write_json

WHOLE_ROW = '[{"video_name": "v1", "question": "what?", "question_id": "1"}'


def samples(root):
    name = dataset_in(root)
    reader = open_dataset(root, name)
    return name, [sample for part in reader.parts() for sample in reader.samples(part)]


def test_activitynet_joins_on_question_id_and_knows_types(tmp_path):
    name, found = samples(activitynet(tmp_path))
    assert name == "activitynet-qa"
    assert [(one.sequence, one.question, one.answers, one.kind) for one in found] == [
        ("v1", "what is moving?", ("car",), "motion"),
        ("v1", "Is it dark?", ("no",), "spatial"),
        ("v2", "what is moving?", ("dog",), "temporal"),
    ]
    assert [one.video and one.video.name for one in found] == ["v_v1.mp4", "v_v1.mp4", None]
    assert [one.missing for one in found] == ["", "", "v_v2.mp4"]


def test_a_video_of_another_suffix_is_found(tmp_path):
    activitynet(tmp_path)
    (tmp_path / "videos" / "v_v2.mkv").write_bytes(b"x")
    assert samples(tmp_path)[1][2].video.name == "v_v2.mkv"


def test_answers_that_are_held_back(tmp_path):
    activitynet(tmp_path)
    (tmp_path / "dataset" / "test_a.json").unlink()
    assert [one.answers for one in samples(tmp_path)[1]] == [(), (), ()]
    problems = [problem.what for problem in open_dataset(tmp_path, "activitynet-qa").problems("test")]
    assert sum("no answer" in what for what in problems) == 3


def test_a_missing_answer_is_of_the_file_that_should_have_it(tmp_path):
    activitynet(tmp_path)
    folder = tmp_path / "dataset"
    for name, rows in (("test_a.json", []), ("test_qa.json", json.loads((folder / "test_q.json").read_text()))):
        write_json(folder / name, rows)
        found = [
            one.path for one in open_dataset(tmp_path, "activitynet-qa").problems("test") if "no answer" in one.what
        ]
        assert set(found) == {name}


def test_of_several_answers_the_last_counts_and_others_change_nothing(tmp_path):
    activitynet(tmp_path)
    rows = [
        {"answer": "van", "type": 2, "question_id": "v1_0"},
        {"answer": "no", "question_id": "nobody asked"},
        {"answer": "half a pair: \ud83d", "question_id": "v1_1"},
        {"answer": "car", "question_id": "v1_0"},
    ]
    write_json(tmp_path / "dataset" / "test_a.json", rows)
    found = samples(tmp_path)[1]
    assert [one.answers for one in found] == [("car",), ("half a pair: \ud83d",), ()]
    assert [one.kind for one in found] == [
        "",
        "",
        "",
    ]  # the last answer has no type, and an earlier one's is not its own


def open_temporaries() -> list[str]:
    """SQLite's temporary files that this process has open, as Linux names them."""
    return [target for handle in Path("/proc/self/fd").iterdir() if "etilqs_" in (target := _target(handle))]


def _target(handle: Path) -> str:
    try:
        return str(handle.readlink())
    except OSError:  # it was that of the listing itself
        return ""


@pytest.fixture
def many(tmp_path, monkeypatch) -> Iterator[Path]:
    """A data set with more answers than are kept in memory, in reverse order; nothing is open before and after."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("only Linux says which files are open")
    monkeypatch.setattr(video_qa, "CACHE_KIB", 64)
    root = activitynet(tmp_path)
    rows = [{"video_name": "v1", "question": "what?", "question_id": str(number)} for number in range(5000)]
    write_json(root / "dataset" / "test_q.json", rows)
    answers = [{"answer": f"it is {number}", "question_id": row["question_id"]} for number, row in enumerate(rows)]
    write_json(root / "dataset" / "test_a.json", answers[::-1])
    assert open_temporaries() == []
    yield root
    assert open_temporaries() == []


def test_more_answers_than_fit_into_memory_are_joined_through_a_file_that_leaves_nothing(many):
    reading = open_dataset(many, "activitynet-qa").samples("test")
    assert next(reading).answers == ("it is 0",)
    (held,) = open_temporaries()
    assert held.endswith("(deleted)"), "whoever is killed leaves nothing either"
    assert [one.answers for one in reading] == [(f"it is {number}",) for number in range(1, 5000)]


def test_the_file_is_gone_where_nobody_reads_on(many):
    reading = open_dataset(many, "activitynet-qa").samples("test")
    next(reading)
    assert open_temporaries()
    reading.close()


def test_the_file_is_gone_where_an_answer_is_broken(many):
    path = many / "dataset" / "test_a.json"
    path.write_text(path.read_text().replace('"question_id": "3"', '"question_id": null'))
    with pytest.raises(CrossdraftError, match="lacks 'question_id'"):
        next(open_dataset(many, "activitynet-qa").samples("test"))


def test_no_room_for_the_join_is_one_sentence(many, monkeypatch):
    connect = video_qa.sqlite3.connect

    def full(*given, **more):
        database = connect(*given, **more)
        database.execute("PRAGMA max_page_count = 8")
        return database

    monkeypatch.setattr(video_qa.sqlite3, "connect", full)
    with pytest.raises(CrossdraftError, match=r"cannot be joined .* full") as caught:
        list(open_dataset(many, "activitynet-qa").samples("test"))
    assert "\n" not in str(caught.value)


def test_clips_of_one_youtube_video_are_a_group(tmp_path):
    name, found = samples(msvd(tmp_path))
    assert name == "msvd-qa"
    by_name = {one.sequence: (one.kept_together, one.start_s, one.end_s) for one in found}
    assert by_name == {"vid1": ("abc_-1", 5, 15), "vid2": ("abc_-1", 10, 20), "vid3": ("xyz", 0, 9)}
    assert found[0].kind == "what"


def test_msrvtt_names_the_source_where_the_data_info_is_there(tmp_path):
    name, found = samples(msrvtt(tmp_path))
    assert name == "msrvtt-qa"
    assert [(one.sequence, one.kept_together, one.start_s) for one in found] == [
        ("video7", "https://y/one", 1.5),
        ("video8", "https://y/one", 3.0),
    ]
    (tmp_path / "test_videodatainfo.json").unlink()
    assert samples(tmp_path)[1][0].kept_together == "video7"


def test_msrvtt_in_two_files_as_some_release_it(tmp_path):
    write_json(tmp_path / "test_q.json", [{"video_name": "video9", "question": "who?", "question_id": "9_0"}])
    write_json(tmp_path / "test_a.json", [{"answer": "man", "question_id": "9_0"}])
    film(tmp_path / "all" / "video9.mp4")
    film(tmp_path / "video9.mp4")
    name, found = samples(tmp_path)
    assert (name, found[0].sequence, found[0].answers) == ("msrvtt-qa", "video9", ("man",))


def test_a_name_that_leaves_the_folder_finds_nothing(tmp_path):
    activitynet(tmp_path / "data")
    film(tmp_path / "secret.mp4")
    rows = [{"video_name": "../secret", "question": "what?", "question_id": "0"}]
    write_json(tmp_path / "data" / "dataset" / "test_q.json", rows)
    assert samples(tmp_path / "data")[1][0].video is None


def test_a_name_that_no_file_can_have_finds_nothing(tmp_path):
    rows = [{"video_name": "v" * 400, "question": "what?", "question_id": "0"}]
    write_json(activitynet(tmp_path) / "dataset" / "test_q.json", rows)
    assert samples(tmp_path)[1][0].missing.endswith("v.mp4")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[1]", "no object"),
        ('[{"video_name": "a"', "no whole JSON"),
        ('[{"question": 3}]', "lacks"),
        ('[{"video_name": "v1", "question": 3}]', "lacks 'question', or it is no text"),
        (WHOLE_ROW, "does not end"),
    ],
)
def test_broken_annotations_are_one_sentence(tmp_path, content, words):
    activitynet(tmp_path)
    (tmp_path / "dataset" / "test_q.json").write_text(content)
    with pytest.raises(CrossdraftError, match=words) as caught:
        list(open_dataset(tmp_path, "activitynet-qa").samples("test"))
    assert "\n" not in str(caught.value)


def test_what_is_no_data_set(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps([{"a": 1}]))
    for folder, name, words in (
        (tmp_path, None, "layout of no data set"),
        (tmp_path, "activitynet", "did you mean 'activitynet-qa'"),
        (tmp_path / "gone", None, "no folder"),
    ):
        with pytest.raises(CrossdraftError, match=words):
            dataset_in(folder, name)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"question": "  "}, "the question 'test/1' is empty"),
        ({"question": "\ud800?"}, "the question 'test/1', or what belongs to it, is no text"),
        ({"question_id": "\ud800"}, r"the question 'test/\ud800', or what"),
        ({"question_id": "0"}, "two questions have the id 'test/0'"),
        ({"question": 3}, "lacks 'question', or it is no text"),
    ],
)
def test_what_check_finds_is_what_an_index_refuses(tmp_path, changes, words):
    root = activitynet(tmp_path)
    rows = [{"video_name": "v1", "question": "what?", "question_id": str(number)} for number in range(3)]
    rows[1] |= changes
    write_json(root / "dataset" / "test_q.json", rows)
    write_json(root / "dataset" / "test_a.json", [{"answer": "a", "question_id": row["question_id"]} for row in rows])
    try:
        found = [one.what for one in open_dataset(root, "activitynet-qa").problems("test")]
    except CrossdraftError as error:
        found = [str(error)]
    assert [words in what for what in found] == [True]
    with PairIndex(tmp_path / "index", create=True) as index, pytest.raises(CrossdraftError) as caught:
        index.add(open_dataset(root, "activitynet-qa"), "test")
    assert "UNIQUE" not in str(caught.value)
    assert words.removeprefix("two questions have the ").removeprefix("id ") in str(caught.value)


def test_a_line_of_the_mapping_that_is_none_is_named(tmp_path):
    path = msvd(tmp_path) / "youtube_mapping.txt"
    number = len(path.read_text().splitlines()) + 1
    path.write_text(path.read_text() + "one two three\n")
    with pytest.raises(CrossdraftError, match=rf"youtube_mapping.txt, line {number}: 'one two three' is no"):
        open_dataset(tmp_path, "msvd-qa")
