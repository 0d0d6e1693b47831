"""`bench frames`: the figures, and short runs on the tiny pair."""

import json

import pytest

from crossdraft.cli.main import main
from crossdraft.errors import CrossdraftError
from crossdraft.streams import Windowing
from crossdraft_lab.bench.encode import EncodeBench
from crossdraft_lab.bench.frames import FrameBench, FrameTimes, lines, time_shifts
from tests.support import encodes_clips


def test_figures_worked_by_hand():
    encode = {"whole": [0.008, 0.008], "reused": [0.006, 0.002]}
    answer = {"whole": [0.1, 0.14], "reused": [0.1, 0.1]}
    found = FrameTimes(encode, answer, 2, 10, 6)
    assert found.to_json()["encode_speedup"]["value"] == 2.0
    assert found.to_json()["speedup"]["value"] == 1.2
    assert found.to_json()["identical"] == "2/2"
    bench = FrameBench("reference", "none", Windowing(0.5, 1.0), 2, ("What is ahead?",))
    assert bench.runs == 6  # of three windows, both ways
    assert "10 frames encoded, 6 reused" in "\n".join(lines(bench, found))


@encodes_clips
def test_both_ways_give_the_same_answers(pair, tmp_path, capsys):
    models = ["--target", str(pair.target), "--drafter", "union:memory,ngram", "--device", "cpu"]
    stream = ["--seconds", "2", "--every", "250ms", "--window", "500ms", "--ask", "What is ahead?"]
    file = tmp_path / "found.json"
    assert main(["bench", "frames", *models, *stream, "--max-new-tokens", "4", "--json-out", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["identical"] == "7/7"
    assert found["frames_encoded"] + found["frames_reused"] == 7 * 8
    assert found["frames_reused"] >= 6 * 4
    assert "7 windows of 0.5 s each 250 ms" in capsys.readouterr().out


@encodes_clips
def test_clips_that_move_on_are_encoded_in_part_with_the_same_bits(pair):
    bench = EncodeBench(str(pair.target), repeats=2, device="cpu", dtype="float32")
    done = []
    found = time_shifts(bench, (2, 8), done.append)
    assert [(one.frames, one.new, one.same_bits) for one in found] == [(8, 2, True), (8, 8, True)]
    assert len(done) == 2 * 2 * (3 + 2)
    assert "2 of 8 frames new" in str(found[0])


def test_a_clip_has_no_more_new_frames_than_frames():
    with pytest.raises(CrossdraftError, match="has 9, and a clip has 8"):
        time_shifts(EncodeBench(), (9,))
