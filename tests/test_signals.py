"""Handlers of signals."""

import importlib
import os
import signal
import threading
import time

import pytest

from crossdraft.signals import Terminated, after_imports, handled, terminate

IMPORTED = """
import os, signal
os.kill(os.getpid(), signal.SIGUSR1)
for number in range(100_000):  # long enough for a signal to be seen
    pass
from tests.test_signals import NOTED
NOTED.append("imported")
"""
NOTED: list[str] = []


def test_a_signal_during_an_import_is_handled_after_it(tmp_path, monkeypatch):
    (tmp_path / "interrupted_while_imported.py").write_text(IMPORTED)
    monkeypatch.syspath_prepend(tmp_path)
    noted = importlib.import_module("tests.test_signals").NOTED
    noted.clear()
    with handled(after_imports(lambda number, frame: noted.append("handled")), signal.SIGUSR1):
        importlib.import_module("interrupted_while_imported")
        until = time.monotonic() + 20
        while len(noted) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    assert noted == ["imported", "handled"]


def test_handlers_are_those_of_before_again():
    before = signal.getsignal(signal.SIGUSR1)
    with handled(terminate, signal.SIGUSR1), pytest.raises(Terminated):
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(20)
    assert signal.getsignal(signal.SIGUSR1) is before


def test_other_threads_change_no_handlers():
    before, found = signal.getsignal(signal.SIGUSR1), []

    def run() -> None:
        with handled(terminate, signal.SIGUSR1):
            found.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before]
