import json

import pytest

from crossdraft.datasets.catalogue import dataset_in, open_dataset
from crossdraft.errors import CrossdraftError
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
