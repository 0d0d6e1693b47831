"""Held-out scenes and wordings, the same every time; and what the report says of them."""

from pathlib import Path

import numpy as np
import pytest

from crossdraft.cli.cores import Cores
from crossdraft.errors import CrossdraftError
from crossdraft.events import Events
from crossdraft_lab import scenes
from crossdraft_lab.bench.suite import cores_in_words
from crossdraft_lab.bench.workload import Workload, describe, items, workload_in_words
from crossdraft_lab.scenes.render import simulate_events


@pytest.fixture
def not_rendered(monkeypatch):
    monkeypatch.setattr("crossdraft_lab.bench.workload._clip", lambda scene, work: (None, None))


def test_scenes_and_wordings_are_held_out(not_rendered):
    found = list(items(Workload(pairs=4, answers="any")))
    assert [pair.seed for pair in found] == list(scenes.split_seeds("test")[:4])
    for pair in found:
        assert pair.request.prompt in scenes.wordings(pair.kind, held_out=True)
        assert pair.request.prompt not in scenes.wordings(pair.kind, held_out=False)


def test_the_same_workload_is_the_same_on_any_machine(monkeypatch):
    monkeypatch.setattr(scenes, "simulate_events", simulate_events)  # each time anew
    first, second = (next(items(Workload(pairs=1))).request for _ in range(2))
    assert first.prompt == second.prompt
    assert isinstance(first.video, np.ndarray)
    assert isinstance(second.video, np.ndarray)
    assert isinstance(first.events, Events)
    assert isinstance(second.events, Events)
    assert np.array_equal(first.video, second.video)
    assert np.array_equal(first.events.t, second.events.t)
    assert first.video.shape == (8, scenes.VIDEO_SIZE, scenes.VIDEO_SIZE, 3)


def test_long_answers_are_the_longest_of_their_scene(not_rendered):
    for pair in items(Workload(pairs=3, answers="long")):
        scene = scenes.make_scene(pair.seed)
        longest = sorted(
            (
                max(
                    len(scenes.ask(scene, kind, wording, held_out=True).answer)
                    for wording in range(len(scenes.wordings(kind, held_out=True)))
                )
                for kind in scenes.KINDS
            ),
            reverse=True,
        )
        wording = scenes.wordings(pair.kind, held_out=True).index(pair.request.prompt)
        assert len(scenes.ask(scene, pair.kind, wording, held_out=True).answer) in longest[:3]


def test_any_answers_take_the_kinds_in_turn(not_rendered):
    chosen = ("count", "colour")
    assert [pair.kind for pair in items(Workload(4, "any", chosen))] == ["count", "colour", "count", "colour"]


def test_clips_as_files(tmp_path):
    pair = next(items(Workload(pairs=1, files=tmp_path)))
    assert str(pair.request.video).endswith(".mp4")
    assert str(pair.request.events).endswith(".h5")
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        ({"pairs": 0}, "pairs is 0"),
        ({"answers": "lnog"}, "did you mean 'long'"),
        ({"kinds": ("colur",)}, "did you mean 'colour'"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"split": "tset"}, "There is no split"),
    ],
)
def test_bad_input(wrong, part):
    with pytest.raises(CrossdraftError, match=part):
        Workload(**wrong)


@pytest.mark.parametrize(("first", "pairs"), [(-1, 1), (1_000_000, 1), (999_999, 2), (0, 10**12)])
def test_scenes_beyond_the_split_are_refused(first, pairs):
    with pytest.raises(CrossdraftError, match=f"The test split has scenes 0 to 999999, and {pairs} from {first} on"):
        Workload(pairs=pairs, first=first)


def test_the_last_scene_of_the_split_can_be_used(not_rendered):
    assert next(items(Workload(pairs=1, first=999_999))).seed == scenes.split_seeds("test")[-1]


def test_frames_in_memory_are_as_many_as_requested():
    (item,) = items(Workload(1, frames=3))
    assert len(item.request.video) == 3
    with pytest.raises(CrossdraftError, match="number of frames is 0"):
        Workload(1, frames=0)


def in_words(pairs, **options):
    return " ".join(workload_in_words(Workload(len(pairs), **options), pairs, 38.66))


PAIRS = ("count", "layout", "count")


def test_all_kinds_from_files_differs_from_the_favourable_workload():
    usual = in_words(PAIRS, files=Path("clips"))
    assert "2 of 16 kinds of question in turn; greedy" in usual
    assert "38.7 tokens on average" in usual
    assert "files are read inside the clock" in usual
    assert "no training has seen" in usual
    favourable = in_words(PAIRS, answers="long", split="validation", temperature=0.5)
    assert "the longest answers, which favours drafting" in favourable
    assert "beforehand, outside the clock" in favourable
    assert "sampled at temperature 0.5" in favourable
    assert "wordings as in training" in favourable


def test_plain_values_agree():
    work = Workload(3, files=Path("clips"))
    assert describe(work)["files"] is True
    assert describe(Workload(3))["files"] is False
    assert "inside the clock" in str(describe(work)["timed"])


def test_who_has_which_cores():
    sentence, elastic = cores_in_words(["target", "target-all", "hf", "event"], Cores((0,), (1,)))
    assert "serve its target as well" in elastic
    assert len(cores_in_words(["target", "hf"], Cores((0,), (1,)))) == 1
    assert "0: target, hf; 0-1: target-all; 0 + 1: event" in sentence
    assert "not restricted" in cores_in_words(["target"], None)[0]
