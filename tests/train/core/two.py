"""Two ranks, as `torchrun` starts them."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]  # scripts import their neighbours from there


def run_two(script: Path, folder: Path, *trainings: tuple[str, dict[str, object]]) -> None:
    """Train in two ranks, all of them in one run: most of the time goes into starting.

    Args:
        script: takes the folder, and `NAME:SETTINGS` of each training, settings as JSON.
        trainings: names and settings.
    """
    arguments = [f"{name}:{json.dumps(changes)}" for name, changes in trainings]
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    # What torchrun sets; it would start a third interpreter, for seconds.
    environment = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(folder), *arguments],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    for rank in ranks:
        complaint = rank.communicate(timeout=120)[1]
        assert rank.returncode == 0, complaint[-3000:]
