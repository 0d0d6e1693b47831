"""`make gpu`: the tests for a GPU, identity in float32 and bfloat16 among them, `bench scale` and `bench compiled`.

Leaves one JSON. Needs torch, transformers, numpy and pytest, no network and no other package; takes at most fifteen
minutes, of which compiling a 7B target's passes takes up to five:

    PYTHONPATH=src:lab/src:. python tests/gpu/run.py --json-out gpu.json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NO_DEVICE = "no CUDA device here; nothing was run"
TESTS_S, SCALE_S, COMPILED_S = 400, 170, 300


def run_tests(device: str, only: str, folder: Path) -> dict[str, Any]:
    """Run the tests; what each of them told, and how many passed."""
    report = folder / "report"
    report.touch()
    environment = {**os.environ, "CROSSDRAFT_TEST_REPORT": str(report), "CROSSDRAFT_TEST_DEVICE": device}
    environment["PYTHONPATH"] = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(entry_points(folder))])
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "tests/gpu", "-k", only]
    ended = _run(command, environment, TESTS_S)
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


def run_scale(device: str, config: str, drafters: list[str], folder: Path) -> dict[str, Any]:
    """`bench scale`; its JSON, or how it ended."""
    out = folder / "scale.json"
    command = [sys.executable, "-m", "crossdraft_lab.bench.scale", "--config", config, "--device", device]
    command += [word for drafter in drafters for word in ("--drafter", drafter)]
    ended = _run([*command, "--budget", "1", "--json-out", str(out)], dict(os.environ), SCALE_S)
    return json.loads(out.read_text(encoding="utf-8")) if ended == 0 else {"exit": ended}


def run_compiled(device: str, config: str, folder: Path) -> dict[str, Any]:
    """`bench compiled`: V(n) of graph-captured passes against the executor `fast`; its JSON, or how it ended."""
    out = folder / "compiled.json"
    command = [sys.executable, "-m", "crossdraft_lab.bench.compiled", "--config", config, "--device", device]
    ended = _run([*command, "--repeats", "50", "--json-out", str(out)], dict(os.environ), COMPILED_S)
    return json.loads(out.read_text(encoding="utf-8")) if ended == 0 else {"exit": ended}


def _run(command: list[str], environment: dict[str, str], limit_s: int) -> int | str:
    """Exit status, or why there is none."""
    try:
        return subprocess.run(command, cwd=ROOT, env=environment, timeout=limit_s, check=False).returncode
    except subprocess.TimeoutExpired:
        return f"stopped after {limit_s} s"


def main() -> int:
    """Exit status: 0 if everything passed, or if there is no device to run anything on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json-out", type=Path, default=Path("gpu.json"), help="where the result goes")
    parser.add_argument("--device", default="cuda", help="cpu tries out the tests themselves")
    parser.add_argument("--config", default="video-llava-7b", help="the target that bench scale measures")
    parser.add_argument("--drafter", action="append", help="its drafters; eventgpt-7b and small by default")
    parser.add_argument("-k", dest="only", default="", help="only tests whose names contain this")
    given = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.stdout.write(f"{NO_DEVICE} (PyTorch is not installed)\n")
        return 0
    if given.device != "cpu" and not torch.cuda.is_available():
        sys.stdout.write(f"{NO_DEVICE}\n")
        return 0
    from crossdraft_lab.bench.environment import environment

    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {"environment": environment()}
        found["tests"] = run_tests(given.device, given.only, Path(folder))
        found["scale"] = run_scale(given.device, given.config, given.drafter or ["eventgpt-7b", "small"], Path(folder))
        found["compiled"] = run_compiled(given.device, given.config, Path(folder))
    given.json_out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    tests = found["tests"]
    sys.stdout.write(
        f"{tests['passed']} passed, {tests['failed']} failed, {tests['skipped']} skipped; "
        f"scale {'failed' if 'exit' in found['scale'] else 'measured'}, "
        f"compiled passes {'failed' if 'exit' in found['compiled'] else 'measured'}; {given.json_out}\n"
    )
    return int(tests["exit"] != 0 or "exit" in found["scale"])


if __name__ == "__main__":
    sys.exit(main())
