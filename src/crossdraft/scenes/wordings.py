"""How each kind of question may be put, read from `train_wordings.txt` and `held_out_wordings.txt`.

Under `[kind]`, a line is `style | item | question`; the style decides how the answer is phrased, the item what a
question of presence or colour is about. Questions with "can you", "could you", "would you" or "do we" get style b, so
that the style of an unseen wording can be guessed. Held-out wordings are sentences of their own: whoever wrote the
bulk of the training wordings had not read them, and what came too close to one of them was left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType

from crossdraft.errors import CrossdraftError
from crossdraft.scenes.sentences import Style

Wordings = Mapping[str, tuple["Wording", ...]]
STYLES: dict[str, Style] = {"a": "a", "b": "b"}


@dataclass(frozen=True, slots=True)
class Wording:
    """One way to ask."""

    style: Style
    item: str
    question: str


def parse(text: str, name: str) -> Wordings:
    """The wordings of each kind, in the order of the text; empty lines and lines after `#` are passed over.

    Raises:
        CrossdraftError: a line of another form, a question or kind that is there twice, or a kind without any.
    """
    table: dict[str, list[Wording]] = {}
    asked: set[str] = set()
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]") and line[1:-1] not in table:
            table[line[1:-1]] = []
            continue
        wording = _wording(line)
        if wording is None or not table or wording.question in asked:
            raise CrossdraftError(
                f"Line {number} of {name} is wrong ({line!r}): under [a kind] there are lines "
                "`style | item | question`, each kind and question once."
            )
        table[next(reversed(table))].append(wording)
        asked.add(wording.question)
    empty = [kind for kind, found in table.items() if not found]
    if empty:
        raise CrossdraftError(f"{name} has no question of the kind [{empty[0]}]; write one below it.")
    return MappingProxyType({kind: tuple(found) for kind, found in table.items()})


def _wording(line: str) -> Wording | None:
    parts = [part.strip() for part in line.split("|")]
    if len(parts) != 3 or parts[0] not in STYLES or not parts[2]:
        return None
    return Wording(STYLES[parts[0]], parts[1], parts[2])


def _shipped(name: str) -> Wordings:
    return parse((resources.files("crossdraft.scenes") / name).read_text(encoding="utf-8"), name)


TRAIN = _shipped("train_wordings.txt")
HELD_OUT = _shipped("held_out_wordings.txt")
