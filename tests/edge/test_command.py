"""`crossdraft edge`, what it says: notes of the edge's own reader, and what was answered when Ctrl-C ends it."""

import json

import numpy as np

from crossdraft.cli.main import app, run, with_flags
from crossdraft.edge.client import _EdgeQuestion
from crossdraft.events import read_events
from tests.edge.conftest import QUESTION, TOKENS
from tests.edge.test_edge import at
from tests.streams.live.test_source import until

CLIP = ["--video", "file:clip.mp4", "--max-new-tokens", str(TOKENS)]


def test_a_note_of_the_edge_s_reader_is_with_the_answer(start, media, alone, tmp_path, capsys, monkeypatch):
    first = _EdgeQuestion.first

    def once_drafted(self):
        """The question is sent once a draft is there: else a busy machine may answer it before."""
        until(lambda: self.drafting.notes)
        return first(self)

    monkeypatch.setattr(_EdgeQuestion, "first", once_drafted)
    events, path = read_events(media / "clip.h5"), tmp_path / "clip.npz"
    np.savez(path, x=events.x, y=events.y, t=events.t / 1e6, p=events.p)
    more = ["--events", str(path), "--sensor", f"{events.width}x{events.height}", "--prompt", QUESTION]
    command = ["edge", "--server", at(start()), *CLIP, *more]
    assert run(app, [*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert tuple(answer["tokens"]) == alone
    (note,) = (one for one in answer["notes"] if one.startswith("Times are read as seconds: "))
    assert set(answer["report"]["notes"]) < set(answer["notes"])
    assert run(app, command) == 0
    assert with_flags(note) in " ".join(capsys.readouterr().out.split())


def test_ctrl_c_says_what_was_answered(start, media, alone, capsys, monkeypatch):
    commit, commits = _EdgeQuestion.commit, []

    def interrupted(self, frame):
        commit(self, frame)
        commits.append(self)
        if self is not commits[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(_EdgeQuestion, "commit", interrupted)
    prompts = [word for question in (QUESTION, QUESTION, "Why?") for word in ("--prompt", question)]
    command = ["edge", "--server", at(start()), *CLIP, "--events", str(media / "clip.h5"), *prompts, "--json"]
    assert run(app, command) == 130
    shown = capsys.readouterr()
    part = commits[-1].answer.tokens
    assert part == alone[: len(part)] != ()
    assert f"Interrupted: 1 of 3 questions were answered; {len(part)} tokens of the next came.\n" in shown.err
    whole, rest = map(json.loads, shown.out.splitlines())
    assert (tuple(whole["tokens"]), whole["finish"]) == (alone, "length")
    assert (tuple(rest["tokens"]), rest["finish"]) == (part, "interrupted")


def test_ctrl_c_before_the_first_question(start, media, capsys, monkeypatch):
    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("crossdraft.cli.edge._drafter", interrupted)
    assert run(app, ["edge", "--server", at(start()), "--events", str(media / "clip.h5"), "--prompt", "?"]) == 130
    assert capsys.readouterr().err.endswith("Interrupted: 0 of 1 questions were answered.\n")
