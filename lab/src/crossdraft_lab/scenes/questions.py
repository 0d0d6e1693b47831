"""Questions about a scene, their answers, and the facts an answer must state.

The wordings are read from `train_wordings.txt` and `held_out_wordings.txt`. Under `[kind]`, a line is
`style | item | question`; the style decides how the answer is phrased, the item what a question of presence or colour
is about. Questions with "can you", "could you", "would you" or "do we" get style b, so that the style of an unseen
wording can be guessed. Held-out wordings are sentences of their own: whoever wrote the bulk of the training wordings
had not read them, and what came too close to one of them was left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType

from crossdraft.errors import CrossdraftError
from crossdraft_lab.scenes.answers import ANSWERS, AnswerTable
from crossdraft_lab.scenes.scene import Scene
from crossdraft_lab.scenes.sentences import Style, facts_of

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
    return parse((resources.files("crossdraft_lab.scenes") / name).read_text(encoding="utf-8"), name)


TRAIN = _shipped("train_wordings.txt")
HELD_OUT = _shipped("held_out_wordings.txt")
KINDS: tuple[str, ...] = tuple(ANSWERS)


@dataclass(frozen=True, slots=True)
class QA:
    """A question, its right answer, and what the answer states: slot -> value, for `score`."""

    kind: str
    question: str
    answer: str
    facts: Mapping[str, str]


def wordings(kind: str, held_out: bool = False) -> tuple[str, ...]:
    """The ways to put a kind of question: those for training, or those kept for tests."""
    return tuple(wording.question for wording in _wordings(kind, held_out))


def ask(scene: Scene, kind: str, wording_index: int, held_out: bool = False, answers: AnswerTable = ANSWERS) -> QA:
    """Ask a question of the scene.

    Args:
        scene: what it is about.
        kind: one of `KINDS`.
        wording_index: which of `wordings(kind, held_out)`.
        held_out: take it from the wordings that no training has seen.
        answers: in whose words to answer: `ANSWERS`, or `captions.CAPTIONS`.

    Returns:
        The question and its answer, both pure functions of the arguments.

    Raises:
        CrossdraftError: an unknown kind or wording.
    """
    choices = _wordings(kind, held_out)
    if not 0 <= wording_index < len(choices):
        raise CrossdraftError(f"{kind!r} has wordings 0..{len(choices) - 1}; there is no {wording_index}.")
    wording = choices[wording_index]
    sentences = answers[kind](scene, wording.style, wording.item)
    facts = facts_of(scene, sentences, wording.item)
    return QA(kind, wording.question, " ".join(sentence.text for sentence in sentences), facts)


def _wordings(kind: str, held_out: bool) -> tuple[Wording, ...]:
    if kind not in ANSWERS:
        raise CrossdraftError(f"There is no kind of question {kind!r}; choose one of {', '.join(KINDS)}.")
    return (HELD_OUT if held_out else TRAIN)[kind]
