"""Two captures that stand beside each other: one to learn from, and one of validation scenes."""

from pathlib import Path

from crossdraft.cli.main import main
from tests.support import PairPaths


def capture_both(pair: PairPaths, out: Path, settings: str) -> Path:
    """Write `out`, and the other one; returns the first."""
    for folder, split in ((out, "train"), (out.with_name("validation"), "validation")):
        line = ["capture", str(folder), "--split", split, "--target", str(pair.target), *settings.split()]
        assert main(line) == 0
    return out


def both_captures(out: Path) -> list[str]:
    """Both, as `crossdraft train` is told of them."""
    return ["--capture", str(out), "--validation", str(out.with_name("validation"))]
