"""The wheel of crossdraft without the laboratory: it answers, serves, and says what is missing."""

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[1]
MOST_BYTES = 50_000_000
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
STARTED = re.compile(r"reference is ready on (http://127\.0\.0\.1:\d+) ")

pytestmark = pytest.mark.slow  # it packs 40 MB, and loads the models three times


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, as `make dist` builds it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """An environment with the wheel, and of this one all packages but ours."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    for packages in (Path(entry) for entry in sys.path if entry.endswith("site-packages")):
        for path in packages.iterdir():
            ours = path.name.startswith("crossdraft") or path.suffix == ".pth" or path.name == "__pycache__"
            if not ours and not (site / path.name).exists():
                (site / path.name).symlink_to(path)
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    return folder / "bin" / "python"


@pytest.fixture
def run(python, tmp_path):
    """`python -m crossdraft` there, outside the checkout."""

    def run(*arguments):
        command = [python, "-m", "crossdraft", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300
        )

    return run


@pytest.fixture(scope="module")
def clip(python):
    """The shipped clip and its events, in the installed package."""
    (folder,) = python.parents[1].glob("lib/python3*/site-packages/crossdraft/reference/clip")
    return folder / "road.mp4", folder / "road.h5"


def test_the_wheel_is_small(wheel):
    assert wheel.stat().st_size <= MOST_BYTES
    with zipfile.ZipFile(wheel) as packed:
        assert not [name for name in packed.namelist() if not name.startswith(("crossdraft/", "crossdraft-"))]


def test_help_lists_what_is_there(run):
    done = run("--help")
    assert done.returncode == 0, done.stderr
    commands = re.findall(r"^│ (\w+) ", done.stdout, re.MULTILINE)
    assert {"ask", "chat", "serve", "demo"} <= set(commands)
    assert not {"bench", "train", "scenes"} & set(commands)


def test_a_question_about_the_shipped_clip_is_answered(run, clip):
    video, events = map(str, clip)
    done = run("ask", "What is ahead?", "--video", video, "--events", events, "--json")
    assert done.returncode == 0, done.stderr
    drafted = json.loads(done.stdout)
    alone = json.loads(run("ask", "What is ahead?", "--video", video, "--drafter", "none", "--json").stdout)
    assert drafted["tokens"] == alone["tokens"]
    assert "truck" in drafted["text"]
    assert drafted["drafter"] in ("glance", "event")
    assert drafted["stats"]["tau"] > 1


@pytest.mark.parametrize("arguments", [["bench"], ["ask", "?", "--drafter", "aligned:dir=x"], ["demo", "--seed", "2"]])
def test_what_the_laboratory_has_is_refused_by_its_name(run, clip, arguments):
    done = run(*arguments, *(["--video", str(clip[0])] if arguments[0] == "ask" else []))
    assert done.returncode == 2
    assert "pip install -e './lab[all]' in the checkout" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_server_answers(python, clip, tmp_path):
    command = [python, "-m", "crossdraft", "serve", "--port", "0", "--media-root", str(clip[0].parent)]
    with subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            started = STARTED.match(server.stdout.readline())
            assert started
            parts = [
                {"type": "video_url", "video_url": {"url": "file:road.mp4"}},
                {"type": "event_url", "event_url": {"url": "file:road.h5"}},
                {"type": "text", "text": "What is ahead?"},
            ]
            asked = {"model": "reference", "messages": [{"role": "user", "content": parts}]}
            answer = httpx.post(f"{started[1]}/v1/chat/completions", json=asked, timeout=60)
            assert answer.status_code == 200, answer.text
            assert "truck" in answer.json()["choices"][0]["message"]["content"]
        finally:
            server.terminate()
            assert server.wait(60) == 0
