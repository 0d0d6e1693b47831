"""Shell completion: bash sources what `--show-completion` shows and completes lines by it, soon, without torch."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from crossdraft.cli.main import COMMANDS, main

HEAVY = {"torch", "transformers", "numpy"}
# Completes a line as bash's own Tab does: by the function that is registered for the line's first word.
COMPLETE = """
source "$1"; shift
function_of() { complete -p "$1" | sed -E 's/.* -F ([^ ]+) .*/\\1/'; }
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMP_LINE="$*"
"$(function_of crossdraft)" crossdraft "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program `crossdraft`, and the script that bash sources."""
    folder = tmp_path_factory.mktemp("completion")
    program = folder / "crossdraft"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m crossdraft "$@"\n')
    program.chmod(0o755)
    (folder / "script").write_text(script("bash"))
    return folder


def script(shell: str) -> str:
    """What `crossdraft --show-completion` shows; without detection, which finds the shell that runs the tests."""
    code = f"import sys; from crossdraft.cli.main import main; sys.exit(main(['--show-completion', {shell!r}]))"
    return run([sys.executable, "-c", code], _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")


def run(arguments: list[str], path: str = "", **more: str) -> str:
    environment = os.environ | {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}"} | more
    return subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment, timeout=60).stdout


def completed(home: Path, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    return run(
        ["bash", "--norc", "-c", COMPLETE, "bash", str(home / "script"), "crossdraft", *words], str(home)
    ).split()


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@needs_bash
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("",), set(COMMANDS)),
        (("sc",), {"scenes", "scale"}),
        (("ask", "--pl"), {"--placement", "--plot"}),
        (("ask", "--placement", ""), {"auto", "inline", "process"}),
        (("ask", "--drafter", "event_m"), {"event_medusa"}),
        (("serve", "--drain"), {"--drain-seconds"}),
        (("serve", "--log-format", ""), {"text", "json"}),
        (("serve", "--drafter", "au"), {"auto"}),
        (("watch", "--frame-format", ""), {"png", "jpeg"}),
        (("train", "eagle"), {"eagle", "eagle3", "eagle_fusion", "eaglevlm"}),
        (("ask", "--nothing-like-it"), set()),
    ],
)
def test_bash_completes(home, words, offered):
    assert set(completed(home, *words)) == offered


def test_it_is_the_whole_program_s(capsys):
    assert main(["ask", "--help"]) == 0
    assert "--install-completion" not in capsys.readouterr().out


@pytest.mark.parametrize(("shell", "calls"), [("zsh", "compdef"), ("fish", "complete --command crossdraft")])
def test_other_shells_have_a_script(shell, calls):
    text = script(shell)
    assert calls in text
    assert "_CROSSDRAFT_COMPLETE=" in text


@pytest.mark.parametrize("line", ["crossdraft ", "crossdraft ask --dr", "crossdraft serve --por"])
def test_it_loads_nothing_heavy(line):
    code = (
        "import sys\nfrom crossdraft.cli.main import main\nsys.argv = ['crossdraft']\nmain()\n"
        "print('LOADED', *{name.partition('.')[0] for name in sys.modules})"
    )
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_CROSSDRAFT_COMPLETE": "complete_bash"}
    offered, _, loaded = run([sys.executable, "-c", code], **words).partition("LOADED")
    assert offered.strip()
    assert "typer" in loaded.split()
    assert not HEAVY & set(loaded.split())


@needs_bash
def test_bash_finds_it_once_it_is_installed(home, tmp_path):
    code = "import sys; from crossdraft.cli.main import main; sys.exit(main(['--install-completion', 'bash']))"
    settled = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    run([sys.executable, "-c", code], **settled)
    assert "crossdraft" in run(["bash", "-ic", "complete -p crossdraft"], str(home), **settled)
