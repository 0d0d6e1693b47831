"""The command line's frame: lazy commands, one sentence for bad input, exit statuses, a clean terminal."""

import errno
import io
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import typer

import crossdraft
from crossdraft.cli.main import COMMANDS, RED, SHOW_CURSOR, app, main, run
from crossdraft.errors import CrossdraftError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def raising(error: BaseException) -> typer.Typer:
    """A program whose one command raises `error`."""
    program = typer.Typer()

    @program.command()
    def command() -> None:
        raise error

    return program


def test_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f" {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_as_the_list_does(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"crossdraft {name}" in shown
    group = typer.main.get_command(app)
    _, command, _ = group.resolve_command(typer.Context(group), [name])
    assert " ".join(command.help.split("\n\n")[0].split()) == COMMANDS[name]


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"crossdraft {crossdraft.__version__}\n"


def test_a_mistyped_command_is_refused_and_the_nearest_named(capsys):
    assert main(["benhc"]) == 2
    assert "Did you mean 'bench'?" in capsys.readouterr().err


def test_bad_input_is_one_sentence_and_status_2(capsys):
    assert run(raising(CrossdraftError("The clip is empty; name another.")), []) == 2
    captured = capsys.readouterr()
    assert captured.err == "crossdraft: The clip is empty; name another.\n"
    assert captured.out == ""


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("top_k is -1; give more.", "--top-k is -1; give more."),
        ("The top_k is -1; give more.", "The top_k is -1; give more."),
        ("num_frames is 4 and fps is 2.0; give one.", "--frames is 4 and --fps is 2.0; give one."),
        ("device and device_map exclude each other.", "--device and --device-map exclude each other."),
        ("kv_bytes and compile exclude each other: …", "--kv-bytes and --compile exclude each other: …"),
        (
            "try dtype=bfloat16 (1.3 GB), quantize=int8 or int4.",
            "try --dtype bfloat16 (1.3 GB), --quantize int8 or int4.",
        ),
        ("say so (sensor=…, format=…), else", "say so (--sensor, --format), else"),
        (
            "take a part (start_us=…, end_us=…), or fewer frames (fps=…).",
            "take a part (--start, --end), or fewer frames (--fps).",
        ),
        ("give num_frames=… in place of fps=….", "give --frames in place of --fps."),
        ("or clock=own if; or raise EventLimits.scanned.", "or --clock own if; or raise --max-events."),
        # What a spec sets, and a word that is none of ours, stay as they are.
        ("The drafter event:windows=3,format=x has many.", "The drafter event:windows=3,format=x has many."),
        ("optim.drafter=3, the sensor is small.", "optim.drafter=3, the sensor is small."),
        ("The clip is long and black is its colour.", "The clip is long and black is its colour."),
    ],
)
def test_a_keyword_of_the_library_is_shown_as_the_option_that_sets_it(sentence, shown, capsys):
    assert run(raising(CrossdraftError(sentence)), []) == 2
    assert capsys.readouterr().err == f"crossdraft: {shown}\n"


LIBRARY = [
    "engine",
    "events",
    "video",
    "drafters",
    "models",
    "checkpoints",
    "api.py",
    "options.py",
    "load.py",
    "assembly.py",
    "video_prompt.py",
]
SAID = re.compile(r"^(?!\s*(?:#|>>>)).*[\"' (]--[a-z]+(?:-[a-z]+)*(?![\w-])")
OF_A_COMMAND = re.compile(r"crossdraft [a-z-]+ |--vision-config")  # a command line; the converter's


def test_the_library_names_keywords_and_no_options():
    root = Path(crossdraft.__file__).parent
    files = [
        file for name in LIBRARY for file in ((root / name).rglob("*.py") if (root / name).is_dir() else [root / name])
    ]
    assert len(files) > 150
    lines = [(file.name, line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert [found for found in lines if SAID.match(found[1]) and not OF_A_COMMAND.search(found[1])] == []


def test_a_terminal_shows_it_in_red_unless_colour_is_unwanted(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stderr", coloured := Terminal())
    run(raising(CrossdraftError("No.")), [])
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", plain := Terminal())
    run(raising(CrossdraftError("No.")), [])
    assert RED in coloured.getvalue()
    assert RED not in plain.getvalue()


def test_a_missing_extra_says_how_to_install_it(capsys):
    assert run(raising(ModuleNotFoundError("No module named 'h5py'", name="h5py")), []) == 2
    assert "pip install h5py" in capsys.readouterr().err


def helps(command, path=()):
    """Every help text: of the commands, their options and arguments."""
    context = command.make_context("x", [], resilient_parsing=True)
    for parameter in command.get_params(context):
        if getattr(parameter, "help", None):
            yield (*path, parameter.name), parameter.help
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from helps(command.resolve_command(context, [name])[1], (*path, name))


def test_help_texts_can_be_understood_without_the_option_s_name():
    found = dict(helps(typer.main.get_command(app)))
    assert len(found) > 150
    for where, text in found.items():
        assert not text.startswith(("Of ", "And ", "As ", "So ")), where


PRIVATE = re.compile(r"\b(law|verdict|purse|frailty|wear|kept back|die|twin|told|beside it)\b")


def test_help_uses_the_field_s_words():
    for where, text in helps(typer.main.get_command(app)):
        assert not PRIVATE.search(text), (where, text)


@pytest.mark.parametrize("bug", [ModuleNotFoundError("x", name="crossdraft.nowhere"), ZeroDivisionError()])
def test_a_bug_stays_a_traceback(bug):
    with pytest.raises(type(bug)):
        run(raising(bug), [])


def test_a_full_disk_is_one_sentence(capsys):
    assert run(raising(OSError(errno.ENOSPC, "No space left on device")), []) == 2
    assert capsys.readouterr().err == "crossdraft: The disk is full (standard output); make room, or write elsewhere.\n"
    with pytest.raises(OSError, match="denied"):
        run(raising(OSError(errno.EACCES, "denied")), [])


def test_ctrl_c_leaves_with_130_and_the_cursor_visible(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert run(raising(KeyboardInterrupt()), []) == 130
    assert terminal.getvalue().endswith(SHOW_CURSOR)


def test_ctrl_c_during_an_import_counts_when_it_is_over(tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nDONE = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    program = typer.Typer()

    @program.command()
    def command() -> None:
        import slow_to_import  # type: ignore[import-not-found]

        assert slow_to_import.DONE
        time.sleep(10)
        pytest.fail("the interrupt was lost")

    monkeypatch.setattr("crossdraft.cli.main.app", program)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has jobs in the background ignore it
    assert main([]) == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
