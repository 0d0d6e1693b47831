"""`crossdraft scenes`."""

import json
import resource
import signal

import cv2
import pytest

from crossdraft.cli.main import main
from crossdraft_lab.scenes import split_seeds


def test_make_writes_clips_and_says_where(tmp_path, capsys):
    assert main(["scenes", "make", "--count", "2", "--split", "validation", "--out", str(tmp_path), "--json"]) == 0
    clips = json.loads(capsys.readouterr().out)["clips"]
    assert [clip["seed"] for clip in clips] == [1_000_000, 1_000_001]
    assert {path.name for path in tmp_path.iterdir()} == {
        clip[part].rsplit("/", 1)[-1] for clip in clips for part in ("video", "events", "meta")
    }


def test_make_takes_a_seed(tmp_path, capsys):
    assert main(["scenes", "make", "--seed", "7", "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "scene-0000007.mp4" in captured.out
    assert captured.err == ""


def test_an_unknown_split_is_one_sentence(tmp_path, capsys):
    assert main(["scenes", "make", "--split", "dev", "--out", str(tmp_path / "clips")]) == 2
    assert "no split 'dev'" in capsys.readouterr().err
    assert not (tmp_path / "clips").exists()


def test_show_draws_a_picture(tmp_path, capsys):
    assert main(["scenes", "show", "7", "--out", str(tmp_path / "scene.png"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attributes"]["layout"] == "crossroads"
    picture = cv2.imread(str(tmp_path / "scene.png"))
    assert picture is not None
    assert picture.shape[1] > 8 * 224


def test_show_as_json_draws_nothing_unless_a_picture_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["scenes", "show", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["picture"] is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "name"),
    [(["show", "7", "--out", "scene.png"], "scene.png"), (["make", "--seed=7", "--out=."], "scene-0000007.h5")],
)
def test_files_are_overwritten_only_by_force(tmp_path, capsys, monkeypatch, command, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("mine")
    assert main(["scenes", *command]) == 2
    assert "--force" in capsys.readouterr().err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
    assert main(["scenes", *command, "--force"]) == 0
    assert (tmp_path / name).stat().st_size > 4


def test_show_makes_no_folder(tmp_path, capsys):
    assert main(["scenes", "show", "7", "--out", str(tmp_path / "new" / "scene.png")]) == 2
    assert "make it first" in " ".join(capsys.readouterr().err.split())


def test_show_refuses_other_kinds_of_file(tmp_path, capsys):
    assert main(["scenes", "show", "7", "--out", str(tmp_path / "scene.gif")]) == 2
    assert "must be a .png file" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_show_says_when_the_disk_is_full(tmp_path, capsys):
    """A limit on the size of files stands for it: the picture is larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    try:
        assert main(["scenes", "show", "7", "--out", str(tmp_path / "scene.png")]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert f"Cannot write {tmp_path / 'scene.png'}" in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["make", "--out"], ["show", "7", "--out"]])
def test_a_path_inside_a_file_is_one_sentence(tmp_path, capsys, command):
    (tmp_path / "file").touch()
    assert main(["scenes", *command, str(tmp_path / "file" / "scene.png")]) == 2
    captured = capsys.readouterr()
    assert "Cannot write" in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_a_split_that_is_named_is_kept_to(tmp_path, capsys):
    last = split_seeds("train").stop - 1
    for seed, count in ((2000003, 1), (last, 2)):
        arguments = ["scenes", "make", "--split", "train", "--seed", str(seed), "--count", str(count)]
        assert main([*arguments, "--out", str(tmp_path)]) == 2
        assert "train split" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
