"""`crossdraft ask` from end to end on the tiny pair: in this process, in a terminal, interrupted."""

import json
import os
import pty
import re
from base64 import b64encode
from xml.etree import ElementTree as ET

import pytest

from crossdraft import api
from crossdraft.cli.main import main
from tests.forked import interrupt, start_command
from tests.support import CONTEXT

pytestmark = pytest.mark.usefixtures("one_target")

QUESTION = "What is the car in front doing?"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture(scope="module")
def models(pair):
    return ["--target", str(pair.target), "--drafter", str(pair.event), "--device", "cpu"]


@pytest.fixture(scope="module")
def files(clip):
    return ["--video", str(clip.video), "--events", str(clip.events)]


@pytest.fixture
def ask(models, files, capsys):
    """Run `ask` in this process; returns its status, standard output and standard error."""

    def run(*arguments: str, question: str = QUESTION) -> tuple[int, str, str]:
        inline = ["ask", *files, *models, "--placement", "inline", "--max-new-tokens", "24"]
        status = main([*inline, *arguments, question])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_text_figures_and_timeline_without_escape_codes(ask):
    status, shown, errors = ask("--hidden", "before")
    assert (status, errors) == (0, "")
    assert "\x1b" not in shown
    answer, *below = shown.split("\n")
    assert answer.strip()
    for label in (
        "first provisional text",
        "TTFT",
        "tokens/s",
        "mean acceptance length τ",
        "hidden draft",
        "tokens by origin",
        "drafter  ",
        "target   ",
    ):
        assert any(label in line for line in below), label


def test_json_holds_everything_and_stands_alone(ask):
    status, shown, errors = ask("--json", "--compare", "--logprobs", "--hidden", "before")
    assert (status, errors) == (0, "")
    found = json.loads(shown)
    assert found["question"] == QUESTION
    assert len(found["tokens"]) == len(found["logprobs"]) == len(found["words"]) == found["stats"]["new_tokens"]
    assert "".join(piece["text"] for piece in found["pieces"]) == found["text"]
    assert {piece["origin"] for piece in found["pieces"]} <= {"hidden", "drafted", "target"}
    # The policy lets a drafter whose reading does not pay, as on a busy machine, sit out the run that is shown.
    drafted = {"drafter"} if found["stats"]["drafted"] else set()
    assert drafted | {"target"} <= {span["lane"] for span in found["timeline"]} <= {"drafter", "target"}
    assert 0 <= found["stats"]["accepted"] <= found["stats"]["drafted"]
    assert sum(piece["origin"] != "target" for piece in found["pieces"]) <= found["stats"]["accepted"]
    assert found["compare"]["identical"] is True
    assert found["compare"]["difference"] is None
    assert found["compare"]["speedup"] > 0


def test_the_report_names_the_drafter_and_why_it_is_not_the_usual_one(clip, ask, pair, capsys, monkeypatch):
    monkeypatch.setattr(api.transformers, "__version__", "5.18.0")
    shown = ["ask", "--video", str(clip.video), "--device", "cpu", "--placement", "inline", "--max-new-tokens", "4"]
    why = "there is no event recording (--events), which glance reads"
    assert main([*shown, QUESTION]) == 0
    below = capsys.readouterr().out.splitlines()
    assert next(line.split(None, 1)[1] for line in below if line.startswith("drafter  ")) == f"eagle2, for {why}"
    assert main([*shown, "--json", QUESTION]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["drafter"], found["drafter_reason"]) == ("eagle2", why)
    named = json.loads(ask("--json")[1])
    assert (named["drafter"], named["drafter_reason"]) == (str(pair.event), None)


def test_the_target_alone_says_the_same(ask):
    _, shown, _ = ask("--json", "--hidden", "before")
    _, alone, _ = ask("--json", "--drafter", "none")
    assert json.loads(alone)["tokens"] == json.loads(shown)["tokens"]
    assert json.loads(alone)["stats"]["drafted"] == 0


def test_trace_and_plot_are_written(ask, tmp_path):
    status, _, _ = ask("--trace", str(tmp_path / "t.json"), "--plot", str(tmp_path / "p.svg"))
    assert status == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {"prefill", "ride-along", "verify"} <= {event["name"] for event in events}
    assert QUESTION in "".join(ET.parse(tmp_path / "p.svg").getroot().itertext())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.svg", "t.json"]


def test_a_file_is_overwritten_only_by_force(ask, tmp_path):
    (tmp_path / "p.svg").write_text("mine")
    status, shown, errors = ask("--plot", str(tmp_path / "p.svg"))
    assert (status, shown) == (2, "")
    assert "--force" in errors
    assert (tmp_path / "p.svg").read_text() == "mine"
    assert ask("--plot", str(tmp_path / "p.svg"), "--force")[0] == 0
    assert "target alone" in (tmp_path / "p.svg").read_text()


def test_all_times_of_a_comparison_are_of_the_same_runs(ask):
    _, shown, _ = ask("--compare")
    total = next(line for line in shown.splitlines() if line.startswith("total time"))
    drafted, alone = re.search(r"(\d+) ms \(target alone (\d+) ms\)", total).groups()
    assert f"({alone} ms alone" in shown
    assert f", {drafted} ms with the drafter; median of 3 runs each)" in shown


def test_drafters_are_listed_where_one_would_be_named(capsys):
    assert main(["ask", "--drafter", "help"]) == 0
    assert "Which drafter should I take?" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "matches"),
    [
        (["--choice", "two cars", "--choice", "no"], "two cars|no"),
        (["--regex", "[a-c]{3}"], "[a-c]{3}"),
        (["--json-schema", '{"enum": [1, "a"]}'], '1|"a"'),
        (["--json-schema", "schema.json"], '1|"a"'),
        (["--grammar", "yes.lark"], "yes"),
    ],
)
def test_an_answer_has_the_structure_that_is_asked_for(ask, tmp_path, monkeypatch, options, matches):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.json").write_text('{"enum": [1, "a"]}')
    (tmp_path / "yes.lark").write_text('start: "yes"')
    status, shown, _ = ask("--json", *options)
    assert status == 0
    assert re.fullmatch(matches, json.loads(shown)["text"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--regex", "a", "--choice", "b"], "--regex and --choice both say"),
        (["--json-schema", "nowhere.json"], "Cannot read nowhere.json: No such file"),
        (["--json-schema", '{"type": '], "The JSON schema cannot be read"),
        (["--grammar", "nowhere"], "Cannot read nowhere"),
        (["--regex", "(a"], "regex cannot be used: unclosed group."),
        (["--json-schema", '{"type": "objekt"}'], "json cannot be used: Invalid type: objekt."),
    ],
)
def test_a_structure_that_cannot_be_used_is_refused_before_a_model_is_loaded(ask, options, sentence, monkeypatch):
    monkeypatch.setattr("crossdraft.cli.reporting.import_engine", None)
    status, shown, errors = ask(*options)
    assert (status, shown) == (2, "")
    assert sentence in errors.splitlines()[-1]


def test_a_seed_decides_what_the_target_draws(ask):
    drawn = ("--json", "--drafter", "none", "--temperature", "0.8", "--top-k", "40", "--min-p", "0.01")
    first, again, other = (json.loads(ask(*drawn, "--seed", seed)[1])["tokens"] for seed in ("7", "7", "8"))
    assert first == again
    assert first != other


def test_a_comparison_of_sampled_answers_claims_no_identity(ask):
    _, shown, _ = ask("--json", "--compare", "--temperature", "0.8", "--top-p", "0.95")
    assert json.loads(shown)["compare"]["identical"] is None


def test_a_stop_string_and_a_penalty_change_the_answer(ask):
    text = json.loads(ask("--json")[1])["text"]
    stop = text[3:6]
    stopped = json.loads(ask("--json", "--stop", stop)[1])
    assert stopped["text"] == text[: text.index(stop)]
    assert stopped["finish"] == "stop"
    for penalty in ("--repetition-penalty=2", "--presence-penalty=-2", "--frequency-penalty=-2"):
        assert json.loads(ask("--json", penalty)[1])["text"] != text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--video", "nowhere.mp4"], "nowhere.mp4"),
        (["--events", "nowhere.h5"], "nowhere.h5"),
        (["--drafter", "none", "--compare"], "--compare runs the target alone"),
        (["--max-new-tokens", "0"], "--max-new-tokens is 0"),
        (["--nodes", "0"], "--nodes is 0; it must be at least 1"),
        (["--max-new-tokens", "9999"], "--max-new-tokens is 9999"),
        (["--temperature", "-1"], "temperature is -1"),
        (["--hidden", "sometimes"], "Unknown --hidden 'sometimes'"),
        (["--placement", "orbit"], "Unknown --placement 'orbit'"),
        (["--target-cores", "zero"], "is no list of cores"),
        (["--target-cores", ""], "is no list of cores"),
        (["--target-cores", "9999"], "names core"),
        (["--target", "no/such/folder"], "no/such/folder"),
        (["--drafter", "no/such/folder"], "no/such/folder"),
        (["--drafter", "glanse"], "did you mean 'glance'?"),
        (["--plot", "/nonexistent/x.svg"], "no folder /nonexistent"),
        (["--plot", "x.gif"], ".svg or .png"),
        (["--trace", "/proc/x.json"], "Cannot write /proc/x.json"),
        (["--trace", "x.svg"], "--trace writes JSON"),
        (["--dtype", "int3"], "Unknown --dtype 'int3'"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(ask, arguments, sentence):
    status, shown, errors = ask(*arguments)
    assert status == 2
    assert shown == ""
    assert sentence in errors
    assert len(errors.splitlines()) == 1


def test_a_question_longer_than_the_context_is_refused(ask):
    status, shown, errors = ask(question="why? " * CONTEXT)
    assert (status, shown) == (2, "")
    assert re.search(rf"the model's context (holds )?{CONTEXT}\b", errors)


def test_an_event_drafter_without_events_is_refused(clip, capsys):
    assert main(["ask", "--video", str(clip.video), "--drafter", "glance", QUESTION]) == 2
    assert "--events" in capsys.readouterr().err


@pytest.mark.parametrize("drafter", ["event_medusa", "glance", "union:glance,memory"])
def test_another_vocabulary_is_reported_before_a_recording_is_required(pair, clip, capsys, drafter):
    arguments = ["--video", str(clip.video), "--target", str(pair.target), "--drafter", drafter, QUESTION]
    assert main(["ask", *arguments]) == 2
    printed = capsys.readouterr().err
    assert "another vocabulary" in printed
    assert "union:memory,ngram" in printed


def test_the_shipped_drafter_asks_for_a_recording(clip, capsys):
    assert main(["ask", "--video", str(clip.video), "--drafter", "glance", QUESTION]) == 2
    printed = capsys.readouterr().err
    assert "glance needs an event recording; give one with --events" in printed
    assert main(["ask", QUESTION]) == 2
    assert "There is nothing to ask about" in capsys.readouterr().err
    assert "--drafter union:memory,ngram" in printed


@pytest.mark.parametrize(
    "option",
    ["--events-start=0.1", "--events-end=1", "--events-windows=2", "--clock=own", "--sensor=4x4", "--time-unit=ns"],
)
def test_options_about_a_recording_need_one(clip, capsys, option):
    assert main(["ask", "--video", str(clip.video), option, QUESTION]) == 2
    assert f"{option.split('=')[0]} is about an event recording" in capsys.readouterr().err


def test_frames_are_an_option(ask):
    status, _, errors = ask("--frames", "400")
    assert (status, "give at most" in errors, "--frames" in errors) == (2, True, True)
    assert ask("--fps", "3", "--max-new-tokens", "2")[0] == 0
    status, _, errors = ask("--fps", "3", "--frames", "2")
    assert (status, "give one of them" in errors) == (2, True)


def test_piped_with_the_drafter_in_a_process_of_its_own(ask):
    _, expected, _ = ask("--json")
    status, shown, errors = ask("--placement", "process", "--compare")
    assert (status, errors) == (0, "")
    assert "\x1b" not in shown
    assert shown.startswith(json.loads(expected)["text"].lstrip() + "\n")
    assert "the tokens are identical" in shown


def test_ctrl_c_stops_the_answer_and_leaves_the_terminal_clean(patient, files, ask):
    begun = json.loads(ask("--json")[1])["text"].strip()[:8]
    status, text = interrupted(begun, *files, "--target", str(patient), "--drafter", "none", "--device", "cpu")
    assert status == 130
    assert "total time" not in text  # the figures of a whole answer
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)
    assert "\x1b" not in ESCAPE.sub("", text)


def interrupted(begun, *arguments):
    """Ask in a terminal, press Ctrl-C once the answer has begun: exit status, and what the terminal showed."""
    ours, theirs = pty.openpty()
    long = ["ask", *arguments, "--max-new-tokens", "18000", QUESTION]
    process, shown = start_command(long, [theirs] * 3, TERM="xterm"), b""
    while begun not in ESCAPE.sub("", shown.decode(errors="replace")):
        shown += os.read(ours, 4096)
    interrupt(process)
    shown += read_rest(ours)
    process.join()
    return process.exitcode, shown.decode()


def read_rest(terminal: int) -> bytes:
    """What the terminal shows until nobody writes to it any more."""
    rest = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # Linux: the other side was closed
            part = b""
        if not part:
            os.close(terminal)
            return rest
        rest += part


@pytest.fixture
def ask_anything(pair, capsys):
    """Run `ask` with the tiny target alone and nothing else given."""

    def run(*arguments: str) -> tuple[int, str, str]:
        target = ["--target", str(pair.target), "--drafter", "none", "--device", "cpu", "--max-new-tokens", "6"]
        status = main(["ask", *target, *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_a_conversation_and_its_images_come_from_a_file(ask_anything, clip, tmp_path):
    from tests.test_conversations import IMAGE

    pil = pytest.importorskip("PIL.Image")
    pil.fromarray(IMAGE).save(tmp_path / "i.png")
    shown = [{"type": "video", "video": str(clip.video)}, {"type": "image", "image": str(tmp_path / "i.png")}]
    messages = [
        {"role": "user", "content": [*shown, {"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": "A car."},
        {"role": "user", "content": QUESTION},
    ]
    (tmp_path / "m.json").write_text(json.dumps(messages))
    status, answered, errors = ask_anything("--messages", str(tmp_path / "m.json"), "--json")
    assert (status, errors) == (0, "")
    found = json.loads(answered)
    assert (found["question"], found["video"], found["image"]) == (QUESTION, str(clip.video), str(tmp_path / "i.png"))
    address = "data:image/png;base64," + b64encode((tmp_path / "i.png").read_bytes()).decode()
    (tmp_path / "m.json").write_text(json.dumps(messages).replace(str(tmp_path / "i.png"), address))
    status, answered, errors = ask_anything("--messages", str(tmp_path / "m.json"), "--json")
    assert (status, errors) == (0, "")
    assert json.loads(answered)["text"] == found["text"]
    assert json.loads(answered)["image"] == f"{(tmp_path / 'i.png').stat().st_size:,} bytes"
    paths = ["--video", str(clip.video), "--image", str(tmp_path / "i.png"), "--system", "Be brief."]
    status, answered, _ = ask_anything(QUESTION, *paths, "--video", str(clip.video), "--json")
    assert json.loads(answered)["video"] == [str(clip.video)] * 2


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["--video", "VIDEO"], "no question"),
        (["Why", "so?"], 'came as 2 words; quote it: "Why so?"'),
        (["Why?", "--messages", "m.json"], "whole conversation"),
        (["--messages", "missing.json"], "Cannot read missing.json"),
        (["--messages", "VIDEO"], "it is no text"),
    ],
)
def test_what_is_asked_about_is_named_once(given, complaint, ask_anything, clip):
    status, shown, errors = ask_anything(*(str(clip.video) if one == "VIDEO" else one for one in given))
    assert (status, shown) == (2, "")
    assert complaint in " ".join(errors.split())


def test_texts_change_nothing_but_what_is_drafted(ask, tmp_path):
    _, shown, _ = ask("--json", "--drafter", "none")
    truth = json.loads(shown)
    files = {name: tmp_path / f"{name}.txt" for name in ("prediction", "hint")}
    for path in files.values():
        path.write_text(truth["text"])
    given = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    status, shown, errors = ask("--json", "--drafter", "none", *given)
    found = json.loads(shown)
    assert (status, errors, found["tokens"]) == (0, "", truth["tokens"])
    assert found["stats"]["predicted"] > 0 == truth["stats"]["predicted"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--prediction", "missing.txt"], "Cannot read missing.txt"),
        (["--hint", "missing.pdf"], "missing.pdf|pypdf"),
        (["--ocr", "tesseract"], "--ocr reads the words in images"),
    ],
)
def test_texts_that_cannot_be_had_are_refused(ask, options, said):
    status, _, errors = ask(*options)
    assert status == 2
    assert re.search(said, errors)
