"""Elements of a picture: boxes, lines and text in pixels, coloured by the names of a palette."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

ADVANCE = 0.61  # width of a character of a monospaced face over its size: DejaVu, Menlo, SF Mono 0.60, Consolas 0.55

# style: colour on a light and on a dark page
PALETTE = {
    "card": ("#ffffff", "#0d1117"),
    "border": ("#d0d7de", "#30363d"),
    "ink": ("#1f2328", "#e6edf3"),
    "faint": ("#59636e", "#8d96a0"),
    "label": ("#ffffff", "#ffffff"),
    "hidden": ("#1a7f37", "#3fb950"),
    "drafted": ("#0969da", "#58a6ff"),
    "target": ("#1f2328", "#e6edf3"),
    "preprocess": ("#8c959f", "#6e7681"),
    "encoder": ("#6e7781", "#848d97"),
    "prefill": ("#424a53", "#57606a"),
    "hidden-draft": ("#1a7f37", "#238636"),
    "draft": ("#0969da", "#1f6feb"),
    "parallel-draft": ("#8250df", "#8957e5"),
    "ride-along": ("#953800", "#9e4c12"),
    "verify": ("#c4500b", "#bd561d"),
    "decode": ("#9a6700", "#9e6a03"),
    "other": ("#a40e26", "#b62324"),
}


@dataclass(frozen=True)
class TextRun:
    """Characters of one colour."""

    text: str
    style: str


@dataclass(frozen=True)
class TextLine:
    """Runs on one line; `y` is the baseline, `anchor` says which end of the text is at `x`: start, middle or end."""

    x: float
    y: float
    runs: tuple[TextRun, ...]
    size: float = 14
    bold: bool = False
    anchor: str = "start"

    @property
    def text(self) -> str:
        """The characters of all runs."""
        return "".join(run.text for run in self.runs)


@dataclass(frozen=True)
class Box:
    """A filled rectangle; `tip` is shown by a browser when the pointer rests on it."""

    x: float
    y: float
    width: float
    height: float
    style: str
    tip: str = ""


@dataclass(frozen=True)
class Line:
    """A thin line."""

    x1: float
    y1: float
    x2: float
    y2: float
    style: str = "border"
    dashed: bool = False


@dataclass(frozen=True)
class Drawing:
    """Shapes on a card of `width` x `height` pixels, drawn in their order."""

    title: str
    width: float
    height: float
    shapes: tuple[Box | Line | TextLine, ...]


def columns(text: str) -> int:
    """Width of a text in characters of a monospaced face: 2 for wide (CJK, emoji), 0 for combining ones.

    >>> columns("ab"), columns("語"), columns("é")
    (2, 2, 1)
    """
    return sum(
        0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text
    )


def width_of(text: str, size: float = 14) -> float:
    """Width of a text in pixels, at least what the usual monospaced faces need."""
    return columns(text) * ADVANCE * size


def clean(text: str) -> str:
    r"""The text as an SVG may hold it: a blank for white space, a mark for other control characters.

    >>> clean("a\n\x07b")
    'a �b'
    """
    return "".join(
        " " if letter.isspace() else "�" if unicodedata.category(letter) in ("Cc", "Cs") else letter for letter in text
    )


def wrap(runs: Sequence[TextRun], width: int) -> list[tuple[TextRun, ...]]:
    """Runs as lines of at most `width` columns, broken at blanks; a word that is longer than a line is cut.

    >>> [[run.text for run in line] for line in wrap([TextRun("a red ", "x"), TextRun("car", "y")], 6)]
    [['a red'], ['car']]
    """
    letters = [replace(run, text=letter) for run in runs for letter in clean(run.text)]
    while letters and letters[0].text == " ":
        del letters[0]
    lines: list[tuple[TextRun, ...]] = []
    while letters:
        end, room = 0, width
        while end < len(letters) and (room := room - columns(letters[end].text)) >= 0:
            end += 1
        end = max(end, 1)
        if end < len(letters):
            blank = next((at for at in range(end, 0, -1) if letters[at].text == " "), None)
            end = blank or end
        lines.append(_joined(letters[:end]))
        letters = letters[end + (letters[end : end + 1] != [] and letters[end].text == " ") :]
    return lines


def flow(
    items: Sequence[tuple[TextRun, ...]], x: float, y: float, right: float, line: float, size: float, gap: float = 24
) -> tuple[list[TextLine], float]:
    """Items from left to right between `x` and `right`, in as many lines as they need.

    Returns:
        The texts, and the baseline of the last line.
    """
    texts: list[TextLine] = []
    at = x
    for item in items:
        wide = sum(width_of(run.text, size) for run in item)
        if at > x and at + wide > right:
            at, y = x, y + line
        texts.append(TextLine(at, y, item, size))
        at += wide + gap
    return texts, y


def _joined(letters: Sequence[TextRun]) -> tuple[TextRun, ...]:
    """Neighbouring characters of one style as one run."""
    runs: list[TextRun] = []
    for letter in letters:
        if runs and runs[-1].style == letter.style:
            runs[-1] = replace(runs[-1], text=runs[-1].text + letter.text)
        else:
            runs.append(letter)
    return tuple(runs)
