"""Pictures as files, by the ending of their name."""

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from crossdraft.drawing.figures import Baseline
from crossdraft.drawing.render import to_png, to_svg
from crossdraft.drawing.timeline import timeline_drawing
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path

if TYPE_CHECKING:
    from crossdraft.engine.request import Answer

ENDINGS = (".svg", ".png")


def check_picture(path: Path) -> None:
    """Refuse what could not be drawn, before time is spent on what it should show.

    Raises:
        CrossdraftError: the name ends in neither .svg nor .png.
        ModuleNotFoundError: a PNG, and matplotlib is not installed.
    """
    if path.suffix.lower() not in ENDINGS:
        raise CrossdraftError(f"A picture is written as .svg or .png; name such a file, not {path}.")
    if path.suffix.lower() == ".png":
        import_module("matplotlib.figure")


def save_timeline(
    path: str | os.PathLike[str], question: str, answer: "Answer", baseline: Baseline | None = None
) -> None:
    """Write the picture of an answer as SVG or PNG, whole or not at all.

    Raises:
        CrossdraftError: another ending, or the file cannot be written.
        ModuleNotFoundError: a PNG, and matplotlib is not installed.
    """
    check_picture(Path(path))
    drawing = timeline_drawing(question, answer, baseline)
    as_png = Path(path).suffix.lower() == ".png"
    content = to_png(drawing) if as_png else to_svg(drawing).encode()
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
