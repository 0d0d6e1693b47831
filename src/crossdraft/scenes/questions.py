"""Questions about a scene, their answers, and the facts an answer must state."""

from collections.abc import Mapping
from dataclasses import dataclass

from crossdraft.errors import CrossdraftError
from crossdraft.scenes.answers import ANSWERS
from crossdraft.scenes.scene import Scene
from crossdraft.scenes.sentences import facts_of
from crossdraft.scenes.wordings import HELD_OUT, TRAIN, Wording

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


def ask(scene: Scene, kind: str, wording_index: int, held_out: bool = False) -> QA:
    """Ask a question of the scene.

    Args:
        scene: what it is about.
        kind: one of `KINDS`.
        wording_index: which of `wordings(kind, held_out)`.
        held_out: take it from the wordings that no training has seen.

    Returns:
        The question and its answer, both pure functions of the arguments.

    Raises:
        CrossdraftError: an unknown kind or wording.
    """
    choices = _wordings(kind, held_out)
    if not 0 <= wording_index < len(choices):
        raise CrossdraftError(f"{kind!r} has wordings 0..{len(choices) - 1}; there is no {wording_index}.")
    wording = choices[wording_index]
    told = ANSWERS[kind](scene, wording.style, wording.item)
    facts = facts_of(scene, told, wording.item)
    return QA(kind, wording.question, " ".join(sentence.text for sentence in told), facts)


def _wordings(kind: str, held_out: bool) -> tuple[Wording, ...]:
    if kind not in ANSWERS:
        raise CrossdraftError(f"There is no kind of question {kind!r}; choose one of {', '.join(KINDS)}.")
    return (HELD_OUT if held_out else TRAIN)[kind]
