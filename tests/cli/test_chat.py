"""`crossdraft chat` on the tiny pair: loaded once, many questions; piped, as JSON, in a terminal, Ctrl-C and Ctrl-D."""

import io
import json
import os
import pty
import sys

import pytest
from PIL import Image

from crossdraft.api import Engine
from crossdraft.cli.main import main
from tests.forked import interrupt, start_command


@pytest.fixture
def chat(pair, clip, capsys, monkeypatch):
    """Pipe lines into `chat`; returns its status, standard output and standard error."""

    def run(*lines: str, arguments=(), events=True, drafter=str(pair.event)) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        files = ["--video", str(clip.video), *(["--events", str(clip.events)] if events else [])]
        models = ["--target", str(pair.target), "--placement", "inline", "--device", "cpu"]
        named = ["--drafter", drafter] if drafter else []
        status = main(["chat", *files, *models, *named, "--max-new-tokens", "12", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_the_models_are_loaded_once_and_each_question_is_answered(chat, monkeypatch):
    loads = []
    load = Engine.load.__func__
    monkeypatch.setattr(Engine, "load", classmethod(lambda cls, *args: loads.append(args) or load(cls, *args)))
    status, shown, errors = chat("What is ahead?", "", "Describe the road.")
    assert (status, errors, len(loads)) == (0, "", 1)
    assert shown.count("TTFT") == 2
    assert "\x1b" not in shown


def test_json_is_one_line_an_answer_and_equals_what_ask_says(chat, pair, clip, capsys):
    status, shown, _ = chat("What is ahead?", "/nothing", "What is ahead?", arguments=["--json"])
    first, error, again = map(json.loads, shown.splitlines())
    assert status == 2
    assert "no command /nothing" in error["error"]
    assert first["tokens"] == again["tokens"]
    models = ["--target", str(pair.target), "--drafter", "none", "--device", "cpu", "--max-new-tokens", "12"]
    assert main(["ask", "--video", str(clip.video), *models, "--json", "What is ahead?"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == first["tokens"]


def test_with_json_commands_answer_in_json_too(chat):
    status, shown, _ = chat("/help", "/drafter", arguments=["--json"])
    helped, drafter = map(json.loads, shown.splitlines())
    assert status == 0
    assert "/quit" in helped["commands"]
    assert "in the target's process" in drafter["described"]


def test_a_bad_question_or_file_costs_a_sentence_and_nothing_else(chat):
    status, shown, errors = chat("why? " * 2000, "/video nowhere.mp4", "/events", "/video", "What is ahead?")
    assert status == 2
    assert len(errors.splitlines()) == 4
    assert "nowhere.mp4" in errors
    assert shown.count("TTFT") == 1


def test_the_clip_can_be_changed(chat, clip, tmp_path):
    (tmp_path / "other clip.mp4").write_bytes(clip.video.read_bytes())
    lines = (f"/video {tmp_path / 'other clip.mp4'}", f"/events {clip.events}", "What is ahead?")
    status, shown, _ = chat(*lines, arguments=["--json"])
    assert status == 0
    found = json.loads(shown)
    assert found["video"].endswith("other clip.mp4")
    assert str(clip.events) in found["events"]


def test_an_image_is_shown_and_left_out_again(chat, pair, clip, capsys, tmp_path):
    for name, colour in (("red.png", (250, 0, 0)), ("grey.png", (90, 90, 90))):
        Image.new("RGB", (40, 30), colour).save(tmp_path / name)
    (tmp_path / "no.png").write_text("no")
    lines = ("/image", f"/image {tmp_path / 'no.png'}", "Is it?", f"/image {tmp_path / 'grey.png'}", "Is it?")
    named = ["--json", "--image", str(tmp_path / "red.png")]
    status, shown, errors = chat(*lines, "/image none", "Is it?", arguments=named, events=False, drafter="memory")
    assert (status, len(errors.splitlines())) == (2, 2)
    found = [one for one in map(json.loads, shown.splitlines()) if "question" not in one or "error" not in one]
    assert [answer.get("image", "").rpartition("/")[2] for answer in found] == ["red.png", "grey.png", ""]
    models = ["--target", str(pair.target), "--drafter", "none", "--device", "cpu", "--max-new-tokens", "12", "--json"]
    for image, answer in zip((["--image", str(tmp_path / "red.png")], []), found[::2], strict=True):
        assert main(["ask", "--video", str(clip.video), *image, *models, "Is it?"]) == 0
        assert json.loads(capsys.readouterr().out)["tokens"] == answer["tokens"]


def test_commands_explain_themselves_and_quit_leaves(chat):
    status, shown, _ = chat("/help", "/drafter", "/quit", "What is ahead?")
    assert status == 0
    for command in ("/help", "/image FILE", "/video FILE", "/events FILE", "/drafter", "/quit"):
        assert command in shown
    assert "in the target's process" in shown
    assert "TTFT" not in shown


def test_a_target_of_ones_own_gets_a_drafter_that_works_and_is_named(chat):
    status, shown, errors = chat("What is ahead?", "/drafter", drafter=None, events=False)
    assert status == 0
    assert errors.startswith("Drafter: union:memory,ngram, because the target is your own")
    assert "union:memory,ngram" in shown


def test_a_target_that_is_not_there_is_refused_before_a_drafter_is_chosen_for_it(clip, capsys):
    assert main(["chat", "--video", str(clip.video), "--target", "referense"]) == 2
    assert capsys.readouterr().err.startswith(
        "crossdraft: 'referense' is neither the name of a shipped model (reference) nor a folder (did you mean"
    )


@pytest.mark.parametrize("arguments", [[], ["--drafter", "none"], ["--events", "a.h5"]])
def test_without_a_clip_one_sentence_says_what_to_give_and_what_answers_without(arguments, capsys):
    assert main(["chat", *arguments]) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert said == (
        "crossdraft: There is nothing to ask about; name a clip with --video, or an image with --image. "
        "Conversations in text alone are for crossdraft ask.\n"
    )


def test_in_a_terminal_ctrl_c_ends_the_answer_and_ctrl_d_the_chat(patient, clip):
    models = ["--target", str(patient), "--drafter", "none", "--device", "cpu", "--max-new-tokens", "18000"]
    ours, theirs = pty.openpty()
    process = start_command(["chat", "--video", str(clip.video), *models], [theirs] * 3, TERM="xterm")
    read_until(ours, b"/help lists the commands")
    read_until(ours, b"> ")
    os.write(ours, b"What is ahead?\n")
    read_until(ours, b"\n")
    read_until(ours, b"\x1b[?25l")  # the answer is being shown
    interrupt(process)
    read_until(ours, b"(cancelled)")
    read_until(ours, b"> ")
    os.write(ours, b"\x04")
    read_until(ours, None)
    process.join()
    assert process.exitcode == 0


def read_until(terminal: int, end: bytes | None) -> bytes:
    """What the terminal shows up to `end`, or to its closing."""
    shown = b""
    while end is None or end not in shown:
        try:
            part = os.read(terminal, 1)
        except OSError:  # Linux: the other side was closed
            part = b""
        if not part:
            os.close(terminal)
            assert end is None, shown
            return shown
        shown += part
    return shown
