"""What an aligned pair is measured on: a split that it has never seen, with controls made of what it learned from."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crossdraft.bench.align import HELD_OUT, TRAINED, KnownAnswers, SceneQuestions, Tick
from crossdraft.bench.assembly import Models
from crossdraft.bench.specs import spec_of
from crossdraft.bench.workload import Item, Workload
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target

Learned = Sequence[tuple[str, Sequence[int]]]
"""(kind of question, the target's answer) about training clips."""


@dataclass(frozen=True, slots=True)
class TaughtQuestions:
    """Questions beside answers that are known already.

    Args:
        tests: as `align.AlignQuestions`.
        learned: of which constant sentence and template are made.
        seed: the capture that `memory` begins with.
        about: the test split in plain values.
    """

    tests: Mapping[str, Sequence[Item]]
    learned: Learned
    seed: Path
    about: Mapping[str, object] = field(default_factory=dict)

    @property
    def ticks(self) -> int:
        """Nothing is generated but the rows."""
        return 0

    @property
    def count(self) -> int:
        """Questions in all."""
        return sum(map(len, self.tests.values()))

    def learn(self, models: Models, target: Target, nodes: int, tick: Tick) -> KnownAnswers:
        """Nothing new."""
        return KnownAnswers(self.learned, lambda: models.build(spec_of(f"memory:seed={self.seed}"), target))

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {**self.about, "learned": len(self.learned)}


def scene_tests(clips: int, each: int, max_new_tokens: int) -> tuple[dict[str, Sequence[Item]], dict[str, object]]:
    """Test scenes in both wordings, and what they are."""
    questions = SceneQuestions(Workload(clips * each, max_new_tokens=max_new_tokens, questions=each), 1)
    return {name: list(items) for name, items in questions.tests.items()}, {"workload": questions.to_json()["workload"]}


def list_tests(requests: Iterable[Request], trained: Collection[str]) -> dict[str, Sequence[Item]]:
    """Questions of a test list: those that no training clip was asked, and the others; what is empty is left out.

    Args:
        requests: the questions.
        trained: questions about training clips.
    """
    found: dict[str, list[Item]] = {HELD_OUT: [], TRAINED: []}
    for number, request in enumerate(requests):
        known = request.question in trained
        found[TRAINED if known else HELD_OUT].append(Item(number, request.question, request))
    return {name: items for name, items in found.items() if items}
