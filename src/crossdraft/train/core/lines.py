"""Files that grow by a line at a time, read after an interruption."""

from pathlib import Path


def whole_lines(path: Path) -> list[str]:
    r"""Lines written so far, each with its end; none if there is no file. A last one that was cut off is left out.

    Example: a file of `a\nb\nc` holds `["a\n", "b\n"]`.
    """
    if not path.exists():
        return []
    # A kill cuts anywhere, even within a letter: only what stands before the last line end is text for sure.
    written = path.read_bytes()
    return written[: written.rfind(b"\n") + 1].decode("utf-8").splitlines(keepends=True)
