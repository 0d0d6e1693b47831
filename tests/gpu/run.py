"""`make gpu`: all that is measured on a GPU, in parts, with random weights of any shape.

Each part takes at most nine minutes, and its result goes into one JSON at once, beside those of earlier calls:

    make gpu PARTS=tests,scale ARGS="--json-out gpu.json"

Needs torch, transformers, numpy and pytest, no network and no trained weights. On a CPU (`--device cpu`) it runs small
shapes, to try out the script itself.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NO_DEVICE = "no CUDA device here; nothing was run"
LIMIT_S = 520  # seconds of a part
TESTS = "tests"
PROGRAMS = {
    "scale": "scale --config {config} --drafter {drafter} --drafter small --budget 1",
    "attention": "scale_parts attention --config {config} --drafter {drafter}",
    "cudnn": "scale_parts attention --config {config} --drafter {drafter} --cudnn",
    "decode": "compiled --config {config} --repeats 50",
    "gaps": "scale_parts gaps --config {config} --compile",
    "concurrent": "scale --config {config} --drafter 1b --budget 1 --compile",
    "recurrent": "recurrent",
    **{name: f"scale_parts {name} --config {{config}}" for name in ("heads", "training", "throughput")},
}
PARTS = (TESTS, *PROGRAMS)
SMALL = {  # settings for a CPU
    "recurrent": "--repeats 5",
    "scale": "--budget 0.05",
    "scale_parts": "--budget 0.05 --tokens 16 --answer 12 --repeats 1 --sizes 1 2",
}


def run_tests(device: str, only: str, folder: Path) -> dict[str, Any]:
    """Run the tests; what each of them told, and how many passed."""
    report = folder / "report"
    report.touch()
    environment = {**os.environ, "CROSSDRAFT_TEST_REPORT": str(report), "CROSSDRAFT_TEST_DEVICE": device}
    environment["PYTHONPATH"] = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(entry_points(folder))])
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "tests/gpu", "-k", only]
    ended = _run(command, environment)
    cases = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    counts = {name: sum(case["outcome"] == name for case in cases) for name in ("passed", "failed", "skipped")}
    return {**counts, "exit": ended, "identity": identity(cases), "cases": cases}


def entry_points(folder: Path) -> Path:
    """A folder for `PYTHONPATH` that holds the laboratory's entry points, as pip would install them."""
    project = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = folder / "packages"
    info = packages / "crossdraft_lab-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n", encoding="utf-8")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    return packages


def identity(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """For each dtype how many answers were the target's own, and the top-2 logit gaps where one was not."""
    found: dict[str, Any] = {}
    for case in cases:
        if "identical" in case and "planted" not in case["test"]:
            entry = found.setdefault(case["dtype"], {"identical": 0, "answers": 0, "divergences": []})
            entry["identical"] += case["identical"][0]
            entry["answers"] += case["identical"][1]
            entry["divergences"] += [{"test": case["test"], **gap} for gap in case["divergences"]]
    return found


def run_program(name: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run a module of the laboratory; its JSON, or how it ended."""
    module, *words = [word.format(**vars(given)) for word in PROGRAMS[name].split()]
    out, small = folder / "out.json", SMALL.get(module, "").split() if given.device == "cpu" else []
    command = [sys.executable, "-m", f"crossdraft_lab.bench.{module}", *words, *small, "--device", given.device]
    ended = _run([*command, "--json-out", str(out)], dict(os.environ))
    return json.loads(out.read_text(encoding="utf-8")) if ended == 0 else {"exit": ended}


def _run(command: list[str], environment: dict[str, str]) -> int | str:
    """Exit status, or why there is none."""
    try:
        return subprocess.run(command, cwd=ROOT, env=environment, timeout=LIMIT_S, check=False).returncode
    except subprocess.TimeoutExpired:
        return f"stopped after {LIMIT_S} s"


def main() -> int:
    """Exit status: 0 if everything passed, or if there is no device to run anything on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=f"comma-separated: {', '.join(PARTS)}; all by default")
    parser.add_argument("--json-out", type=Path, default=Path("gpu.json"), help="where results are kept, part by part")
    parser.add_argument("--device", default="cuda", help="cpu tries out the script itself, with small settings")
    parser.add_argument("--config", default="video-llava-7b", help="shape of the target")
    parser.add_argument("--drafter", default="eventgpt-7b", help="shape of the drafter of its size")
    parser.add_argument("-k", dest="only", default="", help="only tests whose names contain this")
    given = parser.parse_args()
    parts = given.parts.split(",")
    if unknown := [name for name in parts if name not in PARTS]:
        parser.error(f"there is no part '{unknown[0]}'; choose among {', '.join(PARTS)}")
    try:
        import torch
    except ImportError:
        sys.stdout.write(f"{NO_DEVICE} (PyTorch is not installed)\n")
        return 0
    if given.device != "cpu" and not torch.cuda.is_available():
        sys.stdout.write(f"{NO_DEVICE}\n")
        return 0
    from crossdraft_lab.bench.environment import environment

    kept = json.loads(given.json_out.read_text(encoding="utf-8")) if given.json_out.is_file() else {}
    found: dict[str, Any] = {**kept, "environment": environment()}
    for name in parts:
        with tempfile.TemporaryDirectory() as folder:
            start = time.monotonic()
            run = partial(run_tests, given.device, given.only) if name == TESTS else partial(run_program, name, given)
            found[name] = run(Path(folder))
        given.json_out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        ended = f"failed ({found[name]['exit']})" if found[name].get("exit") else "done"
        sys.stdout.write(f"{name}: {ended} in {time.monotonic() - start:.0f} s; {given.json_out}\n")
    return int(any(found[name].get("exit") for name in parts))


if __name__ == "__main__":
    sys.exit(main())
