"""Where and when a figure was measured, and by which commit."""

import shutil
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from crossdraft_lab.bench import environment as module


def test_a_figure_knows_its_time():
    found = module.environment()
    assert abs(datetime.fromisoformat(str(found["time"])) - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_figure_knows_its_commit_and_that_files_differ_from_it(tmp_path, monkeypatch):
    def git(*arguments):
        names = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        return subprocess.run(
            ["git", "-C", tmp_path, *names, *arguments], check=True, capture_output=True, text=True
        ).stdout

    source = tmp_path / "lab" / "src" / "crossdraft_lab" / "bench" / "environment.py"
    source.parent.mkdir(parents=True)
    source.write_text("")
    monkeypatch.setattr(module, "__file__", str(source))
    assert module.environment()["commit"] is None, "no checkout"
    git("init", "-q")
    assert module.environment()["commit"] is None, "no commit yet"
    git("add", ".")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "--short=8", "HEAD").strip()
    assert module.environment()["commit"] == commit
    source.write_text("changed")
    assert module.environment()["commit"] == f"{commit}-dirty"
