"""How long answers take in the real vLLM, with our drafts and without, in turn: the first token, and the whole answer.

One engine for each case, vLLM on one core and the drafter on another, one request at a time; on a quiet machine, after
`make interop-vllm` has made its environment:

    PYTHONPATH=src:lab/src:plugins/vllm/src:. .venv-vllm/bin/python tests/interop/vllm_times.py --json-out FILE
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.statistics import quartiles, ratio
from tests.interop.vllm_hosted import CUT, Case, Hosted, in_a_process, keep, make, read, report, say

CASES: Mapping[str, Case] = {
    "event": Case("event", timed=True),
    "event, riding": Case("event", CUT, timed=True),
    "known": Case("known:file=known.json", timed=True),
    "known, riding": Case("known:file=known.json", CUT, timed=True),
}
WARM_UPS, RUNS = 1, 8  # of each question, with a draft and without


def run(folder: Path, name: str) -> bool:
    """One case; whether all answers were our own engine's."""
    asked, hosted = read(folder), Hosted(CASES[name], folder)
    taken: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    same = 0
    for number in range(WARM_UPS + RUNS):
        for which, one in enumerate(asked):
            for drafted in (False, True) if (number + which) % 2 else (True, False):
                start = time.perf_counter()
                (tokens,) = hosted.answer([one], f"{number}-{which}-{drafted}", drafted=drafted)
                whole = time.perf_counter() - start
                if number >= WARM_UPS:
                    taken[drafted].append((hosted.first_s - start, whole))
                    same += tokens == one.tokens
    answers = sum(map(len, taken.values()))
    found: dict[str, object] = {"identical": same, "answers": answers, "questions": len(asked), "runs": RUNS}
    for at, what in enumerate(("first", "whole")):
        alone, drafted = ([seconds[at] for seconds in taken[way]] for way in (False, True))
        sums = ([sum(each[which :: len(asked)]) for which in range(len(asked))] for each in (alone, drafted))
        sooner = ratio(*sums)  # over questions: runs of one are no evidence of another
        times = {"alone_ms": quartiles(alone).ms(), "drafted_ms": quartiles(drafted).ms()}
        found[what] = {**times, "speedup": sooner.to_json()}
        say(
            f"{name:16} {what:6} {times['alone_ms']['median']:.0f} ms alone, {times['drafted_ms']['median']:.0f} ms "
            f"with drafts, {sooner.shown('questions')} times as fast; identical {same}/{answers}"
        )
    keep(folder, name, {**found, "passed": same == answers})
    hosted.scheduler.shutdown()
    return same == answers


def main() -> None:
    """Run all cases, or those that are named; exit status 1 if an answer differs."""
    if len(sys.argv) > 2 and sys.argv[1] == "case":
        os._exit(not run(Path(sys.argv[2]), sys.argv[3]))  # vLLM's own ending takes long
    parser = argparse.ArgumentParser(description="How long answers take in the real vLLM, with drafts and without.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"out of {', '.join(CASES)}; all by default")
    parser.add_argument("--json-out", type=Path, metavar="FILE", help="write what was found")
    given = parser.parse_args()
    chosen: Sequence[str] = given.cases or list(CASES)
    machine = environment()
    with tempfile.TemporaryDirectory() as room:
        folder = Path(room)
        make(folder)
        failed = [name for name in chosen if not in_a_process(folder, name, __file__)]
        if given.json_out is not None:
            found = {"environment": machine, **report(folder, chosen)}
            given.json_out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if failed:
        raise SystemExit(f"Failed: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
