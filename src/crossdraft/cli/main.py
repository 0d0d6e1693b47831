"""`crossdraft`: finds the command, and turns an error into one sentence and an exit status.

Exit status: 0 done, 1 answers differ from the target's own (`bench identity`, `check`) or lines have none (`batch`),
2 bad input or a broken environment, 130 interrupted with Ctrl-C.
"""

import errno
import logging
import os
import re
import signal
import sys
from collections.abc import Container, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from crossdraft import __version__
from crossdraft.engine.fast.cores import spin_shortly
from crossdraft.errors import CrossdraftError
from crossdraft.options import OPTIONS, flag_of
from crossdraft.plugins import LAB, Table
from crossdraft.signals import after_imports, handled

# Every command, in the order in which a newcomer needs them, with the first sentence of its help: our own commands are
# the `app` of the module of that name in this folder, those of crossdraft-lab are named by its entry points.
COMMANDS = {
    "ask": "Answer a question about clips and images by speculative decoding; the answer is the target's own.",
    "chat": "Answer questions, about clips, images or in words, one a line, until the input ends; /help lists the "
    "commands.",
    "watch": "Answer standing questions about a sliding window of a clip, which is replayed in real time, until it "
    "ends.",
    "serve": "Serve a pair over HTTP, as OpenAI's API.",
    "batch": "Answer the lines of an OpenAI batch file into another file; what that holds already is not asked again.",
    "edge": "Ask a server about a clip, and draft here from what an event camera saw: what is drafted is on its way at "
    "once.",
    "check": "Try a model's class on a small random model, then its weights, beside Hugging Face's own.",
    "drafters": "List every drafter: what it drafts from, whether it needs training, drafts trees and sees the clip.",
    "bench": "Measure the speed against other methods, and check that the text is the same.",
    "experiment": "Run experiments: raw runs, a table, a figure and a summary each, in OUT/NAME; after 'all' the "
    "report of them.",
    "plan": "Draft or not, and how much: break-even points, best budgets, the most that hiding can reach, where the "
    "time goes.",
    "replay": "Run a drafter on recorded answers: tokens per pass exactly, times simulated.",
    "demo": "Ask questions about a clip, and compare each answer with the target alone.",
    "capture": "Let a target answer questions about clips; store its tokens and hidden states.",
    "train": "Train models from recipes; export heads.",
    "align": "Capture a target's answers, tune an EventGPT on them, measure it beside controls; every stage is "
    "resumed.",
    "head": "Show heads, and convert those of other projects.",
    "events": "Look at, convert and draw event recordings.",
    "scenes": "Make clips of the synthetic road world, or look at one.",
    "data": "Check data sets, index their clips and questions, divide them; simulate recordings.",
    "convert": "Convert checkpoints of other projects.",
    "scale": "Checkpoints of any size with random weights, for trying what fits.",
}
OF_LAB = frozenset(("align", "bench", "capture", "data", "experiment", "plan", "replay", "scale", "scenes", "train"))
INSTALLED: Table[typer.Typer] = Table("crossdraft.commands", typer.Typer, "command", {})

# Optional dependencies: from imported names to those that `pip install` takes. crossdraft itself is not on PyPI.
PACKAGE_OF = {
    "av": "av", "cv2": "opencv-python-headless", "faery": "faery", "h5py": "h5py", "hdf5plugin": "hdf5plugin",
    "fastapi": "fastapi", "jinja2": "jinja2", "matplotlib": "matplotlib", "msgpack": "msgpack",
    "lz4": "lz4", "rosbags": "rosbags", "zstandard": "zstandard",
    "prometheus_client": "prometheus-client", "pydantic": "pydantic", "pydantic_settings": "pydantic-settings",
    "python_multipart": "python-multipart", "rouge_score": "rouge-score",
    "sacrebleu": "sacrebleu", "scipy": "scipy", "tokenizers": "tokenizers", "uvicorn": "uvicorn",
    "websockets": "websockets", "yaml": "pyyaml",
}  # fmt: skip

# Keywords of the library besides the engine's: those whose option has another name, and those whose has the same one.
FLAGS = {"start_us": "--start", "end_us": "--end", "windows": "--events-windows"}
PLAIN = frozenset(("temperature", "seed"))
SUBJECT = re.compile(r"(?:^|(?<= and )|(?<=^Unknown ))\w+(?= is | exclude | and \w+ (?:is|exclude) | ')")
# A keyword with its value, or with … for a value of the reader's; not a spec's setting, as in event:windows=3.
KEYWORD = re.compile(
    r"(?<![\w:,.])(num_frames|fps|sensor|format|time_unit|clock|start_us|end_us|windows|dtype|quantize|cache_bytes|drafter)=(…|\w+)"
)
LIMIT = re.compile(r"EventLimits\.(events|scanned|lines)\b")

RED, NO_COLOUR, SHOW_CURSOR = "\x1b[31m", "\x1b[0m", "\x1b[?25h"


class LazyGroup(TyperGroup):
    """Imports a command's module only when that command is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all installed commands."""
        here = [name for name in COMMANDS if name not in OF_LAB or name in INSTALLED]
        return [*here, *(name for name in INSTALLED if name not in COMMANDS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, or `None`; a listed command that is not loaded is a stub with its help sentence alone."""
        if cmd_name not in self.commands and cmd_name in self.list_commands(ctx):
            said = COMMANDS.get(cmd_name)
            self.commands[cmd_name] = _loaded(cmd_name) if said is None else TyperCommand(name=cmd_name, help=said)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that is called; for an unknown one, suggest the nearest names."""
        name, known = args[0], self.list_commands(ctx)
        if name in OF_LAB and name not in known:
            raise CrossdraftError(f"The command '{name}' comes with {LAB}.")
        if name in known:
            self.commands[name] = _loaded(name)
        else:
            self.commands = {one: self.get_command(ctx, one) for one in known}
        return super().resolve_command(ctx, args)


def _loaded(name: str) -> Any:
    own = name in COMMANDS and name not in OF_LAB
    command = typer.main.get_command(import_module(f"crossdraft.cli.{name}").app if own else INSTALLED[name])
    command.name = name  # a group has no name of its own
    return command


class PrefixFormatter(logging.Formatter):
    """Formats a warning like the command's errors: the name of the package that warns, and the sentence."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the sentence, with the traceback of an error."""
        return f"{record.name.partition('.')[0]}: {with_flags(super().format(record))}"


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"crossdraft {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
    ),
) -> None:
    """Speculative decoding for video VLMs: a drafter proposes tokens, also while the target reads; the target verifies.

    Answers are the target's own, token for token. Begin with `crossdraft demo`.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own) and return its exit status."""
    spin_shortly(os.environ)
    handler = logging.StreamHandler()
    handler.setFormatter(PrefixFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])  # does nothing if logging is configured already
    with _whole_imports():
        return run(app, argv)


def run(program: typer.Typer, argv: Sequence[str] | None) -> int:
    """Run a typer program; bad input becomes one sentence on stderr, a programming error stays a traceback."""
    try:
        typer.main.get_command(program)(args=argv, prog_name="crossdraft")
    except SystemExit as leaving:  # typer ends every command in this way
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except CrossdraftError as error:
        return complain(with_flags(str(error)))
    except ModuleNotFoundError as error:
        package = PACKAGE_OF.get((error.name or "").partition(".")[0])
        if package is None:
            raise
        return complain(f"Package '{error.name}' is missing; install it: pip install {package}.")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return complain(f"The disk is full ({error.filename or 'standard output'}); make room, or write elsewhere.")
    except KeyboardInterrupt:
        return 130
    finally:
        _show_cursor()
    return 0


def _whole_imports() -> AbstractContextManager[None]:
    """Delay Ctrl-C during an import until it is over, unless the caller has a handler of its own."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return nullcontext()
    return handled(after_imports(signal.default_int_handler), signal.SIGINT)


def with_flags(sentence: str, given: Container[str] | None = None) -> str:
    """Replace the keywords in a sentence of the library by the names of the options.

    With `given`, a keyword that a sentence is about stays unless it is among them; advice names flags always.

    >>> with_flags("num_frames is 4 and fps is 2.0; give one of them.")
    '--frames is 4 and --fps is 2.0; give one of them.'
    >>> with_flags("lossy_prefill and compile exclude each other; try dtype=bfloat16 (2 GB), or say sensor=….")
    '--lossy-prefill and --compile exclude each other; try --dtype bfloat16 (2 GB), or say --sensor.'
    """

    def named(found: re.Match[str]) -> str:
        is_field = "_" in found[0] or found[0] in PLAIN or found[0] in OPTIONS
        return _flag(found[0]) if is_field and (given is None or found[0] in given) else found[0]

    sentence = SUBJECT.sub(named, sentence)
    sentence = KEYWORD.sub(lambda found: " ".join((_flag(found[1]), found[2])).removesuffix(" …"), sentence)
    return LIMIT.sub("--max-events", sentence)


def _flag(keyword: str) -> str:
    return FLAGS.get(keyword, flag_of(keyword))


def complain(sentence: str) -> int:
    """Print an error on stderr; return the exit status for it."""
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    red, plain = (RED, NO_COLOUR) if coloured else ("", "")
    print(f"{red}crossdraft: {sentence}{plain}", file=sys.stderr)
    return 2


def _show_cursor() -> None:
    """Show the terminal's cursor again, which a progress bar that was cut short may have hidden."""
    if sys.stderr.isatty():
        print(SHOW_CURSOR, end="", file=sys.stderr, flush=True)
