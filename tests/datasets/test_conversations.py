"""EventGPT's instructions, EventBench, Talk2Event, EventDrive, MMSpec."""

import json

import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import read_events
from crossdraft_lab.datasets.catalogue import dataset_in, open_dataset
from crossdraft_lab.datasets.instructions import origin_of
from crossdraft_lab.datasets.recorded import ClipPlan
from tests.datasets.helpers import eventgpt, film, write_json
from tests.events.helpers import made_up


def samples(root, plan=None):
    name = dataset_in(root)
    reader = open_dataset(root, name, plan)
    return name, [sample for part in reader.parts() for sample in reader.samples(part)]


def test_turns_become_questions_without_placeholders(tmp_path):
    name, found = samples(eventgpt(tmp_path))
    assert name == "eventgpt"
    assert [(one.question, one.answers) for one in found] == [
        ("What is ahead?", ("A car.",)),
        ("Is it dark?", ("No.",)),
        ("What is ahead?", ("A car.",)),
    ]
    assert {one.kept_together for one in found} == {"interlaken_00"}, "numbered clips of a drive overlap"
    assert [one.missing for one in found] == ["", "", "interlaken_00_c/000079.npy"]
    assert len(read_events(found[0].events)) == 50


def test_the_origins_subset_has_empty_conversations_and_films(tmp_path):
    eventgpt(tmp_path)
    film(tmp_path / "mp4" / "interlaken_00_c" / "000069.mp4")
    row = {
        "id": "u", "split": "test", "event_data": "interlaken_00_c/000069.npy",
        "mp4_data": "mp4/interlaken_00_c/000069.mp4", "event_image": ["x.png"],
        "conversations": [{"from": "human", "value": ""}, {"from": "gpt", "value": ""}],
    }  # fmt: skip
    write_json(tmp_path / "EventGPT_Instruction_Subset.json", [row])
    found = samples(tmp_path, ClipPlan(questions=("What is ahead?",)))[1]
    assert [(one.question, one.answers, one.video.name) for one in found] == [("What is ahead?", (), "000069.mp4")]


def test_eventbench_recordings_get_their_sensor(tmp_path):
    events = made_up(40, 300, 200)
    folder = tmp_path / "data" / "events"
    folder.mkdir(parents=True)
    columns = {name: getattr(events, name) for name in "xytp"}
    np.savez(folder / "5SjV5j8f6rw_000009_000019.npz", **columns)
    turns = [{"from": "human", "value": "<event>\nWho runs?"}, {"from": "gpt", "value": "A child."}]
    rows = [
        {"id": i, "event_data": "events/5SjV5j8f6rw_000009_000019.npz", "task": task, "conversations": turns}
        for i, task in enumerate(("v2e", "action_recognition"))
    ]
    write_json(tmp_path / "data" / "eventbench.json", rows[:1])
    name, found = samples(tmp_path / "data", ClipPlan(tmp_path / "out"))
    assert name == "eventbench"
    assert (found[0].kept_together, found[0].start_s, found[0].kind) == ("5SjV5j8f6rw", 9, "v2e")
    read = read_events(found[0].events)
    assert (read.width, read.height, len(read)) == (320, 240, 40)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("zurich_city_09_a/000001.npy", ("zurich_city_09_a", "zurich_city_09")),
        ("event_npy/interlaken_00_d/000069.npy", ("interlaken_00_d", "interlaken_00")),
        ("n_imagenet/n01440764_10026.npz", ("n01440764_10026", "n01440764_10026")),
        ("a_1_2.npy", ("a_1_2", "a")),
    ],
)
def test_what_a_recording_was_taken_from(name, expected):
    assert origin_of(name)[:2] == expected


def test_a_name_that_leaves_the_folder_is_missing(tmp_path):
    eventgpt(tmp_path / "data")
    (tmp_path / "secret.npy").write_bytes(b"x")
    turns = [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "Me."}]
    write_json(
        tmp_path / "data" / "EventGPT_Instruction_Subset.json",
        [{"event_data": "../secret.npy", "conversations": turns}],
    )
    assert samples(tmp_path / "data")[1][0].missing == "../secret.npy"


def test_a_name_that_no_file_can_have_is_missing(tmp_path):
    row = {"event_data": f"{'e' * 400}.npy", "conversations": [{"from": "human", "value": "Who?"}]}
    write_json(eventgpt(tmp_path) / "EventGPT_Instruction_Subset.json", [row])
    assert samples(tmp_path)[1][0].missing == f"{'e' * 400}.npy"


def test_talk2event_asks_where(tmp_path):
    row = {
        "id": 3, "image_path": "images/thun_00_a/000004.jpg", "event_path": "events/thun_00_a/000004.npz",
        "bbox": {"x": 10, "y": 20, "w": 30.5, "h": 40}, "class": "car", "number of other objects": 2,
        "captions": ["the red car", "a car on the left", "the nearest car"], "attributes": [{}, {}, {}],
    }  # fmt: skip
    write_json(tmp_path / "meta_data_v10" / "test" / "thun_00_a.json", [row])
    name, found = samples(tmp_path)
    assert name == "talk2event"
    assert [one.question for one in found][1] == "Where is this: a car on the left"
    assert found[0].answers == ("[10, 20, 40.5, 60]",)
    assert (found[0].kind, found[0].kept_together, found[0].missing) == (
        "car",
        "thun_00",
        "images/thun_00_a/000004.png",
    )
    write_json(tmp_path / "meta_data_v10" / "test" / "thun_00_a.json", [{**row, "bbox": [1, 2, 3, 4]}])
    with pytest.raises(CrossdraftError, match="no box"):
        samples(tmp_path)


def test_real_recordings_under_a_list(tmp_path, shared):
    recordings = shared / "data" / "events"
    if not recordings.is_dir():
        pytest.skip("no real recordings here")
    folder = tmp_path / "interlaken_00_d"
    folder.mkdir()
    for number in ("000069", "000099"):
        (folder / f"{number}.npy").symlink_to(recordings / f"dsec_interlaken_00_d_{number}.npy")
    rows = [{"event_data": f"interlaken_00_d/{number}.npy", "conversations": []} for number in ("000069", "000099")]
    write_json(tmp_path / "EventGPT_Instruction_Subset.json", rows)
    name, found = samples(tmp_path, ClipPlan(questions=("What is ahead?",)))
    assert (name, {one.kept_together for one in found}) == ("eventgpt", {"interlaken_00"})
    read = [read_events(one.events) for one in found]
    assert all((one.width, one.height) == (640, 480) and len(one) > 100_000 for one in read)


def eventdrive(root):
    """A row of each form, of a drive of DSEC in two pieces, of M3ED, and one whose image is missing."""
    pieces = [f"perception/dsec/train/zurich_city_09_{piece}" for piece in "ab"]
    for name in (*pieces, "perception/m3ed/car_urban_day", "planning/x"):
        for folder, suffix in (("image", "png"), ("event", "npy")):
            (root / "data" / name / folder).mkdir(parents=True)
            (root / "data" / name / folder / f"000012.{suffix}").write_bytes(b"-")
    said = [{"from": "human", "value": "<image>\n<event>\nHow is the weather?"}, {"from": "gpt", "value": "Sunny."}]
    files = [{"image": f"{name}/image/000012.png", "event": f"{name}/event/000012.npy"} for name in pieces]
    write_json(root / "json/perception/dsec/train.json", [{**one, "conversations": said} for one in files])
    asked = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Is it dark?"}]}
    messages = [{"role": "system", "content": "Short."}, asked, {"role": "assistant", "content": "No."}]
    row = {"images": ["data/perception/m3ed/car_urban_day/image/000012.png"], "messages": messages}
    write_json(root / "json/perception/m3ed/test.json", [row])
    plain = {"image_path": "x/image/000012.png", "question": "What next?", "answer": "B", "task": "speed"}
    write_json(root / "json/planning/test.json", [plain, {**plain, "image_path": "x/image/000013.png"}])
    return root


def test_eventdrive_asks_about_moments(tmp_path):
    name, found = samples(eventdrive(tmp_path))
    assert name == "eventdrive"
    assert [(one.question, one.answers, one.kind) for one in found] == [
        ("How is the weather?", ("Sunny.",), "perception"),
        ("How is the weather?", ("Sunny.",), "perception"),
        ("Is it dark?", ("No.",), "perception"),
        ("What next?", ("B",), "speed"),
        ("What next?", ("B",), "speed"),
    ]
    assert [one.kept_together for one in found] == ["zurich_city_09", "zurich_city_09", "car_urban_day", "x", "x"]
    assert [one.video is None for one in found] == [False, False, False, False, True]
    assert (found[0].events.parent.name, found[0].sequence) == ("event", "zurich_city_09_a")
    assert [one.missing for one in found][-2:] == ["", "x/image/000013.png"]
    write_json(tmp_path / "json/planning/test.json", [{"image": "a.png", "waypoints": [1]}])
    with pytest.raises(CrossdraftError, match="neither conversations nor messages nor a question: image, waypoints"):
        samples(tmp_path)


def mmspec(root):
    turns = [["What is written here?"], ["What is it?", "And why?"]]
    for split, numbers in (("testmini", (101, 501)), ("test", (101,))):
        folder = root / "MMSpec" / split
        (folder / "images").mkdir(parents=True)
        (folder / "images" / "mmspec_101.jpg").write_bytes(b"-")
        rows = [
            {"id": f"mmspec_{one}", "image": f"mmspec_{one}.jpg", "turns": said, "category": "default", "topic": topic}
            for one, said, topic in zip(numbers, turns, ("text vqa", "multi-turn conversation"), strict=False)
        ]
        (folder / "mmspec.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def test_mmspec_asks_in_turns(tmp_path):
    name, found = samples(mmspec(tmp_path))
    assert name == "mmspec"
    assert [(one.id, one.question, one.kind) for one in found] == [
        ("test/mmspec_101/0", "What is written here?", "text vqa"),
        ("testmini/mmspec_101/0", "What is written here?", "text vqa"),
        ("testmini/mmspec_501/0", "What is it?", "multi-turn conversation"),
        ("testmini/mmspec_501/1", "And why?", "multi-turn conversation"),
    ]
    assert [one.missing for one in found] == ["", "", "mmspec_501.jpg", "mmspec_501.jpg"]
    assert {one.kept_together for one in found[:2]} == {"mmspec_101.jpg"}, "a sample of both splits stays together"
    assert found[0].video.is_file()
    (tmp_path / "MMSpec/test/mmspec.jsonl").write_text('{"id": "a", "image": "a.jpg", "turns": "What?"}')
    with pytest.raises(CrossdraftError, match="'a' has no list of turns"):
        samples(tmp_path)
