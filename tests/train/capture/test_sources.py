"""Clips and prompts by their number, the same every time."""

import json
from pathlib import Path

import numpy as np
import pytest

from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError
from crossdraft_lab import scenes
from crossdraft_lab.train.capture.run import prefetch
from crossdraft_lab.train.capture.sources import ListSource, PromptedClip, SceneSource, grouped, source_of
from tests.support import ClipPaths

# -- scenes ------------------------------------------------------------------------------------------------------------


def test_a_scene_is_a_function_of_the_seed_and_its_number_alone() -> None:
    source = SceneSource("validation", clips=3, prompts=5, seed=4)
    clip = source.read(2)
    assert len(set(clip.prompts)) == 5
    same = SceneSource("validation", clips=1, first=2, prompts=5, seed=4).read(0)
    assert same.prompts == clip.prompts
    assert same.name == clip.name == "validation-0000002"
    assert np.array_equal(np.asarray(same.video), np.asarray(clip.video))
    assert np.asarray(clip.video).shape == (8, scenes.VIDEO_SIZE, scenes.VIDEO_SIZE, 3)
    assert SceneSource("validation", clips=3, prompts=5, seed=5).read(2).prompts != clip.prompts
    assert (source.answers, source.locate(11)) == (15, (2, 1))


def test_prompts_are_of_the_training_unless_there_is_noise() -> None:
    known = {wording for kind in scenes.KINDS for wording in scenes.wordings(kind)}
    assert set(SceneSource(prompts=20).read(0).prompts) <= known
    assert len(set(SceneSource(prompts=20, prompt_noise=0.5).read(0).prompts) - known) > 5


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"split": "test"}, "no learning from the split 'test'"),
        ({"clips": 0}, "0 from 0 on are not"),
        ({"clips": 2, "first": 999_999}, "2 from 999999 on are not"),
        ({"prompts": 0}, "0 prompts a clip"),
        ({"seed": -1}, "seed .--seed. is -1"),
        ({"prompt_noise": 1.0}, "prompt noise .--prompt-noise. is 1.0"),
    ],
)
def test_scenes_that_are_not_there_are_refused(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(CrossdraftError, match=sentence):
        SceneSource(**settings)  # pyright: ignore[reportArgumentType]


def test_a_source_comes_back_from_its_description() -> None:
    source = SceneSource("validation", 3, 7, 5, 4, 0.25)
    assert source.settings["wear"] == 0.25  # the key that captures of every version have
    assert source_of(json.loads(json.dumps(source.settings)), 3) == source
    with pytest.raises(CrossdraftError, match="neither scenes nor a list"):
        source_of({"kind": "dreams"}, 3)
    with pytest.raises(CrossdraftError, match="does not describe its source"):
        source_of({"kind": "scenes", "colour": "red"}, 3)


def test_kinds_are_those_that_were_drawn_whatever_noise_makes_of_the_words() -> None:
    plain, noisy = (SceneSource("train", 4, prompts=6, seed=3, prompt_noise=noise) for noise in (0.0, 0.5))
    by_wording = {wording: kind for kind in scenes.KINDS for wording in scenes.wordings(kind)}
    for clip in range(4):
        assert plain.kinds(clip) == noisy.kinds(clip) == tuple(by_wording[one] for one in plain.questions(clip))
    assert any(one not in by_wording for clip in range(4) for one in noisy.questions(clip))


# -- lists -------------------------------------------------------------------------------------------------------------


def write_list(folder: Path, *lines: object) -> Path:
    path = folder / "clips.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


@pytest.fixture
def clip_folder(tmp_path: Path, clip: ClipPaths) -> Path:
    """A folder with the clip in it."""
    (tmp_path / "a.mp4").write_bytes(clip.video.read_bytes())
    whole = clip.events.read_bytes()
    (tmp_path / "a.h5").write_bytes(whole)
    (tmp_path / "cut.h5").write_bytes(whole[: len(whole) // 2])
    return tmp_path


def test_a_list_is_read_line_by_line_relative_to_its_folder(clip_folder: Path) -> None:
    one = {"video": "a.mp4", "prompt": "What is ahead?"}
    two = {"video": "a.mp4", "prompt": ["Is it dark?", "Who walks?"], "events": "a.h5"}
    source = ListSource(write_list(clip_folder, one, "", two))
    assert len(source) == 2
    video, events = str(clip_folder / "a.mp4"), str(clip_folder / "a.h5")
    assert source.read(0) == PromptedClip("line 1", video, ("What is ahead?",))
    assert source.read(1) == PromptedClip("line 3", video, ("Is it dark?", "Who walks?"), events)
    assert [source.locate(i) for i in range(source.answers)] == [(0, 0), (1, 0), (1, 1)]
    assert len(ListSource(source.path, 1)) == 1
    assert source_of(source.settings, 2).read(1) == source.read(1)
    write_list(clip_folder, one)
    with pytest.raises(CrossdraftError, match="has changed since it was captured"):
        source_of(source.settings, 1)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "Line 1 of .* is no JSON"),
        ("7", 'Line 1 of .* must be an object with "prompt", with "video" if'),
        ({"video": "a.mp4"}, "Line 1 of .* must be an object"),
        ({"prompt": "Who?", "events": "a.h5"}, "Line 1 of .* must be an object"),
        ({"prompt": "Who?", "temperature": "hot"}, 'Line 1 of .*: "temperature" must be a number'),
        ({"prompt": "Who?", "temperature": -1}, "Line 1 of .*: temperature is"),
        ({"video": "a.mp4", "prompt": "Who?", "evnts": "a.h5"}, r"Line 1 of .* unknown key 'evnts' .*mean 'events'\?"),
        ({"video": "a.mp4", "prompt": []}, 'Line 1 of .*: "prompt" must be a question'),
        ({"video": "a.mp4", "prompt": ["Who?", " "]}, 'Line 1 of .*: "prompt" must be a question'),
        ({"video": "b.mp4", "prompt": "Who?"}, "Line 1 of .*: the video 'b.mp4' is no file; paths are relative"),
        ({"video": "a.mp4", "prompt": "Who?", "events": "b.h5"}, "Line 1 of .*: the events 'b.h5' is no file"),
        ({"video": "a.h5", "prompt": "Who?"}, "Line 1 of .*a.h5"),
        ({"video": "a.mp4", "prompt": "Who?", "events": "cut.h5"}, "Line 1 of .*cut.h5 cannot be read as HDF5"),
    ],
)
def test_a_bad_line_is_one_sentence(clip_folder: Path, line: object, sentence: str) -> None:
    with pytest.raises(CrossdraftError, match=sentence) as caught:
        ListSource(write_list(clip_folder, line))
    assert "\n" not in str(caught.value)


def test_without_a_video_a_line_is_asked_in_words_and_may_be_sampled(tmp_path: Path) -> None:
    source = ListSource(
        write_list(tmp_path, {"prompt": "Who?"}, {"prompt": ["A?", "B?"], "kind": "x", "temperature": 1})
    )
    greedy, sampled = (source.read(number).requests(5) for number in (0, 1))
    assert (greedy[0].video, greedy[0].sampling.greedy, source.kinds(0)) == (None, True, ("who",))
    assert [one.sampling for one in sampled] == [Sampling(temperature=1.0, seed=2)] * 2
    assert source.kinds(1) == ("x", "x")


def test_an_empty_or_missing_list_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CrossdraftError, match=r"The list .* is empty; write a line such as"):
        ListSource(write_list(tmp_path, "", " "))
    with pytest.raises(CrossdraftError, match=r"The list .*nothing.jsonl cannot be read"):
        ListSource(tmp_path / "nothing.jsonl")


def test_more_clips_than_the_list_has_are_refused(clip_folder: Path) -> None:
    path = write_list(clip_folder, {"video": "a.mp4", "prompt": "Who?"})
    with pytest.raises(CrossdraftError, match="has 1 clips, not 2"):
        ListSource(path, 2)


# -- in what order -----------------------------------------------------------------------------------------------------


def clip_of(name: str, prompts: int) -> PromptedClip:
    return PromptedClip(name, None, tuple(f"{name}{i}" for i in range(prompts)))


def test_groups_are_neighbouring_clips_with_enough_questions() -> None:
    clips = [clip_of("a", 2), clip_of("b", 2), clip_of("c", 1), clip_of("d", 6), clip_of("e", 2)]
    assert [[clip.name for clip in group] for group in grouped(clips, 4)] == [["a", "b"], ["c", "d"], ["e"]]
    assert list(grouped([], 4)) == []


@pytest.mark.slow
def test_workers_give_the_same_clips_in_the_same_order() -> None:
    source = SceneSource(clips=4, prompts=2)
    inline, prefetched = (list(prefetch(source, range(1, 4), workers)) for workers in (0, 2))
    assert [clip.prompts for clip in prefetched] == [clip.prompts for clip in inline]
    assert all(np.array_equal(a.video, b.video) for a, b in zip(prefetched, inline, strict=True))  # pyright: ignore[reportArgumentType]
