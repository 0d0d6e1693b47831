"""`crossdraft data` on miniature data sets."""

import json

import pytest

from crossdraft.cli.main import main
from crossdraft_lab.train.capture.sources import ListSource
from tests.datasets.helpers import activitynet, dsec, msvd


def run(capsys, *arguments) -> tuple[int, str, str]:
    status = main(["data", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_whole_data_set(tmp_path, capsys):
    status, out, err = run(capsys, "check", dsec(tmp_path), "--json")
    found = json.loads(out)
    assert (status, err, found["dataset"], found["parts"], found["problems"]) == (0, "", "dsec", 2, [])
    assert "CC BY-SA" in found["licence"]


def test_a_data_set_with_holes_is_refused_after_the_report(tmp_path, capsys):
    status, out, err = run(capsys, "check", activitynet(tmp_path))
    assert status == 2
    assert "v_v2.mp4: the video is missing" in out
    assert "Licence: MIT" in out
    assert err.count("\n") == 1
    assert "is not whole" in err


def test_pairs_of_dsec_are_what_capture_reads(tmp_path, capsys):
    (tmp_path / "asked.txt").write_text("What is ahead?\n\nIs it dark?\n")
    out_folder = tmp_path / "out"
    command = (
        "pairs", dsec(tmp_path / "data"), "--out", out_folder, "--seconds", 0.2, "--questions", tmp_path / "asked.txt",
        "--json",
    )  # fmt: skip
    status, out, _ = run(capsys, *command)
    found = json.loads(out)
    assert status == 0
    assert (found["samples"], found["clips"], found["groups"], found["lines"]) == (8, 4, 1, 4)
    source = ListSource(out_folder / "pairs.jsonl")
    assert (len(source), source.answers) == (4, 8)
    assert source.questions(0) == ("What is ahead?", "Is it dark?")
    assert source.read(0).events.endswith("zurich_city_09_a/000000.h5")
    first = (out_folder / "pairs.jsonl").read_bytes()
    assert run(capsys, *command)[0] == 0, "again: nothing is read twice"
    assert (out_folder / "pairs.jsonl").read_bytes() == first
    status, _, err = run(capsys, "pairs", tmp_path / "data", "--out", out_folder, "--seconds", 0.1)
    assert status == 2
    assert "was made with clips" in err


def test_split_by_group_and_by_question(tmp_path, capsys):
    names = tuple(f"zurich_city_{number:02d}_{piece}" for number in range(5) for piece in "ab")
    (tmp_path / "asked.txt").write_text("".join(f"Question {number}?\n" for number in range(5)))
    dsec(tmp_path / "data", names, seconds=0.2)
    out_folder = tmp_path / "out"
    pairs = ("pairs", tmp_path / "data", "--out", out_folder, "--seconds", 0.2, "--questions", tmp_path / "asked.txt")
    assert run(capsys, *pairs)[0] == 0
    shares = ("--validation", 0.2, "--test", 0.2, "--questions", 0.4, "--json")
    status, out, _ = run(capsys, "split", out_folder, *shares)
    found = json.loads(out)
    assert status == 0
    assert found["samples"] == {"train": 18, "validation": 6, "test": 4, "unused": 22}
    read = {name: [json.loads(line) for line in (out_folder / f"{name}.jsonl").open()] for name in found["files"]}
    drives = {name: {line["sequence"][:-2] for line in lines} for name, lines in read.items()}
    asked = {name: {question for line in lines for question in line["prompt"]} for name, lines in read.items()}
    assert [len(drives[name]) for name in ("train", "validation", "test")] == [3, 1, 1]
    assert not drives["train"] & drives["test"]
    assert asked["train"] == asked["validation"]
    assert not asked["train"] & asked["test"]
    assert run(capsys, "check", out_folder)[0] == 0
    assert run(capsys, "split", out_folder, "--validation", 0)[0] == 0, "other shares"
    assert not (out_folder / "validation.jsonl").exists(), "its clips may be in the training now"
    assert run(capsys, "check", out_folder)[0] == 0


def test_a_broken_recording_does_not_keep_the_others_from_being_indexed(tmp_path, capsys):
    dsec(tmp_path / "data", ("thun_00_a", "zurich_city_09_a", "zurich_city_09_b"))
    (tmp_path / "data/train/zurich_city_09_a/images/timestamps.txt").write_text("x")
    status, out, _ = run(capsys, "pairs", tmp_path / "data", "--out", tmp_path / "out", "--seconds", 0.2)
    assert status == 1, "not all was read"
    assert "Not read to its end: zurich_city_09_a: The times of the frames in " in out
    read = [json.loads(line)["sequence"] for line in (tmp_path / "out" / "pairs.jsonl").open()]
    assert set(read) == {"thun_00_a", "zurich_city_09_b"}, "the one behind it, too"
    status, out, _ = run(capsys, "check", tmp_path / "out")
    assert status == 2
    assert "zurich_city_09_a: was not read to its end" in out


def test_recordings_that_are_shorter_than_a_clip_are_said(tmp_path, capsys):
    dsec(tmp_path / "data", ("thun_00_a", "zurich_city_09_a"))
    status, out, _ = run(capsys, "pairs", tmp_path / "data", "--out", tmp_path / "out", "--seconds", 100)
    assert status == 1
    assert "0 questions, 0 clips, 0 groups." in out
    assert "thun_00_a and 1 other part have no clip of 100 s with frames and events; with shorter ones" in out
    found = json.loads(
        run(capsys, "pairs", tmp_path / "data", "--out", tmp_path / "out", "--seconds", 100, "--json")[1]
    )
    assert found["empty"] == ["thun_00_a", "zurich_city_09_a"]


def test_one_of_a_thing_is_one(tmp_path, capsys):
    (tmp_path / "asked.txt").write_text("What is ahead?")
    dsec(tmp_path / "data", ("thun_00_a",), seconds=0.2)
    given = (
        "pairs",
        tmp_path / "data",
        "--out",
        tmp_path / "out",
        "--seconds",
        0.2,
        "--questions",
        tmp_path / "asked.txt",
    )
    assert "1 question, 1 clip, 1 group." in run(capsys, *given)[1]
    assert "1 question about 1 clip: 1 part, whole" in run(capsys, "check", tmp_path / "out")[1]
    _, out, _ = run(capsys, "pairs", activitynet(tmp_path / "qa"), "--out", tmp_path / "other")
    assert "1 question is about a file that is missing." in out


def test_two_processes_do_not_fill_one_folder(tmp_path, capsys):
    from crossdraft.files import only_process

    dsec(tmp_path / "data", ("thun_00_a",))
    pairs = ("pairs", tmp_path / "data", "--out", tmp_path / "out", "--seconds", 0.2)
    (tmp_path / "out").mkdir()
    with only_process(tmp_path / "out"):
        for given in (pairs, ("split", tmp_path / "out")):
            status, out, err = run(capsys, *given)
            assert (status, out) == (2, "")
            assert "Another process fills" in err
    assert run(capsys, *pairs)[0] == 0, "the lock is gone with its holder"


def test_an_edited_index_is_caught(tmp_path, capsys):
    import sqlite3

    out_folder = tmp_path / "out"
    assert run(capsys, "pairs", msvd(tmp_path / "data"), "--out", out_folder)[0] == 0
    status, _, err = run(capsys, "split", out_folder, "--by-part")
    assert status == 2, "the official parts hold clips of one YouTube video"
    assert "The split leaks: the group 'abc_-1' is in train and validation" in err
    assert run(capsys, "split", out_folder, "--validation", 0, "--test", 0.3)[0] == 0
    assert run(capsys, "check", out_folder)[0] == 0
    with sqlite3.connect(out_folder / "pairs.sqlite") as db:
        db.execute("UPDATE samples SET split = 'test' WHERE sequence = 'vid1'")
        db.execute("UPDATE samples SET split = 'train' WHERE sequence = 'vid2'")
    status, out, err = run(capsys, "check", out_folder)
    assert status == 2
    assert "the group 'abc_-1' is in test and train" in out


def test_the_list_of_data_sets(capsys):
    status, out, _ = run(capsys, "check", ".", "--dataset", "help", "--json")
    assert status == 0
    assert {"dsec", "mvsec", "m3ed", "eventbench", "talk2event", "activitynet-qa"} <= set(json.loads(out))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("check", "{}/gone"), "no folder"),
        (("check", "{}/empty"), "layout of no data set"),
        (("pairs", "{}/data", "--out", "{}/out", "--dataset", "dsecc"), "did you mean 'dsec'"),
        (("split", "{}"), "no index of pairs"),
        (("split", "{}", "--test", "2"), "give a share"),
        (("pairs", "{}/data", "--out", "{}/out", "--part", "bern"), "no part 'bern'"),
        (("pairs", "{}/data", "--out", "{}/out", "--seconds", "0"), "--seconds"),
        (("pairs", "{}/data", "--out", "{}/out", "--questions", "{}/gone.txt"), "cannot be read"),
    ],
)
def test_refusals_are_one_sentence(tmp_path, capsys, arguments, words):
    dsec(tmp_path / "data", ("thun_00_a",))
    (tmp_path / "empty").mkdir()
    status, _, err = run(capsys, *(argument.format(tmp_path) for argument in arguments))
    assert status == 2
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_answers_are_joined_on_ids_and_scored_with_n(tmp_path, capsys):
    out_folder = tmp_path / "out"
    assert run(capsys, "pairs", msvd(tmp_path / "data"), "--out", out_folder)[0] == 0
    rows = [{"id": "test/3", "text": "A car."}, {"id": "train/1", "text": "a dog"}, {"id": "val/2", "text": "Car"}]
    (tmp_path / "answers.jsonl").write_text("\n".join(map(json.dumps, rows)))
    status, out, _ = run(capsys, "score", out_folder, tmp_path / "answers.jsonl", "--json")
    found = {figure["name"]: figure for figure in json.loads(out)["figures"]}
    assert status == 0
    assert found["normalised match"]["value"] == 0.666667
    assert found["normalised match"]["n"] == 2, "two YouTube videos, not three questions"
    assert found["exact match"]["value"] == 0
    assert {"BLEU-4", "ROUGE-L", "CIDEr"} <= set(found)
    assert run(capsys, "split", out_folder, "--validation", 0, "--test", 0.3)[0] == 0
    shown = [json.loads(line) for line in (out_folder / "test.jsonl").open()]
    keys = [key for line in shown for key in line["ids"]]
    (tmp_path / "some.jsonl").write_text(json.dumps({"id": keys[0], "text": "car"}))
    status, out, _ = run(capsys, "score", out_folder, tmp_path / "some.jsonl", "--split", "test", "--json")
    assert json.loads(out)["unanswered"] == len(keys) - 1
    for rows, words in (
        ([{"id": "x", "text": "a"}], "no such question"),
        ([{"id": keys[0], "text": "a"}] * 2, "twice"),
        ([], "nothing to score"),
    ):
        (tmp_path / "bad.json").write_text(json.dumps(rows))
        status, _, err = run(capsys, "score", out_folder, tmp_path / "bad.json")
        assert (status, err.count("\n")) == (2, 1)
        assert words in err
