"""Mutated requests to a server of their own: `python -m tests.serve.fuzzing.server 10000 [--json-out FILE]`.

Exit status 1 if one of them failed, something of them is left, or memory grew.
"""

import argparse
import itertools
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from crossdraft.api import default_drafter
from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.resources import flatness, part_medians
from crossdraft_lab.bench.serving import load
from crossdraft_lab.bench.serving.plan import ServePlan
from crossdraft_lab.bench.serving.process import ServerProcess, serving
from crossdraft_lab.bench.workload import Workload, items
from crossdraft_lab.outputs import write_json
from tests.serve.fuzzing.edges import edge_status, whole_edge, wire
from tests.serve.fuzzing.fuzz import ANSWERED, Mutant, Seeds, outcome, run_fuzz, sent_to

CACHE_BYTES = 32 << 20  # of prompts and of media: full after some hundred mutants, so they are not what grows then
MOST_FUZZED = 0.1  # of resident memory as `MOST_GROWTH`, under mutants, whose media are of all sizes
WARM = 0.25  # memory is compared after this share of the mutants: the server has just started, and its caches fill
SAMPLES = 200  # of memory, among the mutants


def fuzz_server(folder: Path, count: int, *, seed: int = 0) -> dict[str, Any]:
    """Start a server for whose answers edges may draft, send it mutants, and read its log when it has ended."""
    plan = ServePlan(folder, seed=seed)
    list(items(Workload(1, files=folder / "clips")))
    drafter = f"union:edge,({default_drafter(plan.target)})"
    flags = plan.flags(drafter=drafter, cache_bytes=CACHE_BYTES, media_cache_bytes=CACHE_BYTES)
    with serving(flags, folder) as server:
        found = fuzz(plan, server, count)
    errors = server.logged_errors()
    return found | {"passed": found["passed"] and not errors, "logged_errors": errors}


def fuzz(plan: ServePlan, server: ServerProcess, count: int) -> dict[str, Any]:
    """Send mutants: answered, refused or no room, and nothing failed; memory flat once the server is warm.

    Afterwards nothing of them may be there, and an edge in which nothing is changed is answered: where rows or places
    leak, later mutants find no room, which is no failure of theirs.
    """
    clips = plan.folder / "clips"
    seeds = Seeds.read(plan.settings.model, plan.target, min(clips.glob("*.mp4")), min(clips.glob("*.h5")))
    memory, every, sent = list[float](), max(1, count // SAMPLES), itertools.count()
    with server.connection() as connection:

        def send(one: Mutant) -> int:
            if next(sent) % every == 0:
                memory.append(server.resident_mib())
            return _status(lambda: sent_to(server.port, connection, one))

        start = time.monotonic()
        found = run_fuzz(send, seeds, count, plan.seed)
        seconds = time.monotonic() - start
    left, last = load.left_soon(server), outcome(_whole_edge_status(plan, server, seeds))
    warm = memory[int(WARM * len(memory)) :]
    growth = flatness(part_medians(warm))
    kept = last == ANSWERED and not any(left.values()) and not any("!" in name for name in found)
    return {
        "passed": kept and growth <= MOST_FUZZED,
        "mutants": count,
        "seconds": round(seconds, 1),
        "outcomes": dict(sorted(found.items())),
        "left": left,
        "whole_edge": last,
        "resident_mib": {"first": round(warm[0], 1), "last": round(warm[-1], 1), "most": round(max(memory), 1)},
        "warm_after": WARM,
        "growth": round(growth, 4),
        "most_growth": MOST_FUZZED,
    }


def _whole_edge_status(plan: ServePlan, server: ServerProcess, seeds: Seeds) -> int:
    """Ask as an edge in which nothing is changed, and return the status."""
    draw = random.Random(plan.seed)
    sent = wire(whole_edge(seeds.fingerprint, seeds.question(), draw))
    return _status(lambda: edge_status(server.port, sent, load.SOON_S))


def _status(asked: Callable[[], int]) -> int:
    """Return the status; 0 where the server hung up without a word, or hangs."""
    try:
        return asked()
    except (OSError, EOFError):
        return 0


def main(arguments: Sequence[str]) -> int:
    """Send mutants and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mutants", type=int, help="how many")
    parser.add_argument("--json-out", type=Path, metavar="FILE", help="write the result there, too")
    parser.add_argument("--seed", type=int, default=0, help="of the random changes")
    options = parser.parse_args(arguments)
    with TemporaryDirectory(prefix="crossdraft-") as folder:
        found = fuzz_server(Path(folder), options.mutants, seed=options.seed)
    sys.stdout.write(f"{found}\n")
    if options.json_out is not None:
        write_json({"environment": environment(), "passed": found["passed"], "mutants": found}, options.json_out)
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
