"""Sets of clips that share one: by scene, by the content of a file, by the time of a sequence."""

import json
import shutil
from pathlib import Path

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.capture.overlap import BLOCK, refuse_overlap
from crossdraft_lab.train.capture.sources import ListSource, SceneSource
from tests.support import ClipPaths


@pytest.fixture
def folder(tmp_path: Path, clip: ClipPaths) -> Path:
    """Two clips of different content, and two recordings."""
    shutil.copy(clip.video, tmp_path / "a.mp4")
    (tmp_path / "b.mp4").write_bytes(clip.video.read_bytes() + b"\0")
    for name in ("a", "b"):
        line = f"{'ab'.index(name)}.0 3 4 1\n"
        (tmp_path / f"{name}.txt").write_text("8 8\n" + line * (3 * BLOCK // len(line)))
    return tmp_path


def splits(folder: Path, *lines: dict[str, object]) -> dict[str, ListSource]:
    """A list of one line for each split; clips are of different files unless a line says otherwise."""
    made = {}
    for number, line in enumerate(lines):
        path = folder / f"{number}.jsonl"
        entry = {"video": f"{'ab'[number]}.mp4", "events": f"{'ab'[number]}.txt", "prompt": "What is ahead?"} | line
        path.write_text(json.dumps(entry) + "\n")
        made[str(path)] = ListSource(path)
    return made


def test_clips_of_their_own_are_let_through(folder: Path) -> None:
    refuse_overlap(splits(folder, {}, {}))
    refuse_overlap({**splits(folder, {}, {}), "scenes": SceneSource("train", 10)})


@pytest.mark.parametrize(("kind", "name"), [("video", "a.mp4"), ("recording", "a.txt")])
def test_one_file_and_a_copy_of_it_are_refused(folder: Path, kind: str, name: str) -> None:
    key = "video" if kind == "video" else "events"
    copy = shutil.copy(folder / name, folder / f"copy-of-{name}")
    for other in (name, Path(copy).name):
        with pytest.raises(CrossdraftError, match=rf"Line 1 of .*1\.jsonl and Line 1 of .*0\.jsonl .* the same {kind}"):
            refuse_overlap(splits(folder, {}, {key: other}))


def test_prompts_in_words_alone_are_compared_by_their_wording(tmp_path: Path) -> None:
    for name, prompts in (("a", ["Who?", "Why so?"]), ("b", ["why  SO"]), ("c", ["How?"])):
        (tmp_path / name).write_text(json.dumps({"prompt": prompts}))
    lists = {name: ListSource(tmp_path / name) for name in "abc"}
    refuse_overlap({name: lists[name] for name in "ac"})
    with pytest.raises(CrossdraftError, match=r"Line 1 of b and Line 1 of a ask the same"):
        refuse_overlap(lists)


def test_files_that_differ_in_the_middle_alone_are_two(folder: Path) -> None:
    bytes_of_a = bytearray((folder / "a.txt").read_bytes())
    bytes_of_a[bytes_of_a.index(b"3", len(bytes_of_a) // 2)] = ord("5")
    (folder / "b.txt").write_bytes(bytes_of_a)
    refuse_overlap(splits(folder, {}, {}))


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ({"sequence": "s", "start_s": 0, "end_s": 10}, {"sequence": "s", "start_s": 5, "end_s": 15}, True),
        ({"sequence": "s", "start_s": 5, "end_s": 15}, {"sequence": "s", "start_s": 0, "end_s": 10}, True),
        ({"sequence": "s", "start_s": 0, "end_s": 30}, {"sequence": "s", "start_s": 5, "end_s": 6}, True),
        ({"sequence": "s", "start_s": 0, "end_s": 10}, {"sequence": "s", "start_s": 10, "end_s": 20}, False),
        ({"sequence": "s", "start_s": 0, "end_s": 10}, {"sequence": "t", "start_s": 0, "end_s": 10}, False),
        ({"sequence": "s", "start_s": 0, "end_s": 10}, {"sequence": "s"}, True),  # it may be any part
        ({"sequence": "s", "start_s": 0, "end_s": 10}, {"sequence": "s", "dataset": "other"}, False),
    ],
)
def test_parts_of_a_sequence(folder: Path, one: dict[str, object], other: dict[str, object], overlap: bool) -> None:
    made = splits(folder, one, other)
    if not overlap:
        refuse_overlap(made)
        return
    with pytest.raises(CrossdraftError, match=r"parts of the sequence s that overlap in time; leave it in one only"):
        refuse_overlap(made)


def test_parts_of_one_split_may_overlap(folder: Path) -> None:
    part = {"video": "a.mp4", "prompt": "Who?", "sequence": "s"}
    lines = [part | {"start_s": start, "end_s": start + 10} for start in (0, 5)]
    (folder / "long.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = ListSource(folder / "long.jsonl")
    refuse_overlap({"long": source})
    later = splits(folder, {}, {"sequence": "s", "start_s": 12, "end_s": 20})
    with pytest.raises(CrossdraftError, match=r"Line 1 of .*1\.jsonl and Line 2 of long"):
        refuse_overlap({"long": source, **dict([list(later.items())[1]])})


def test_scenes_of_one_split_that_meet_are_refused() -> None:
    refuse_overlap({"a": SceneSource("train", 10), "b": SceneSource("train", 5, 10), "c": SceneSource("validation", 9)})
    with pytest.raises(CrossdraftError, match="b and a both hold scene 9 of the train split"):
        refuse_overlap({"a": SceneSource("train", 10), "b": SceneSource("train", 5, 9)})


@pytest.mark.parametrize(
    "wrong",
    [
        {"sequence": 7},
        {"sequence": "s", "start_s": "0"},
        {"sequence": "s", "start_s": True},
        {"sequence": "s", "start_s": 5, "end_s": 4},
        {"sequence": "s", "end_s": float("nan")},
        {"sequence": "s", "end_s": 10**400},
    ],
)
def test_a_part_that_is_none_is_one_sentence(folder: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(CrossdraftError, match=r'Line 1 of .*: "sequence" must be a name') as caught:
        splits(folder, wrong)
    assert "\n" not in str(caught.value)
