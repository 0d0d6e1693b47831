"""A drafter that knows the answers, by recording and question, so that the number of passes is known beforehand.

Or it is always wrong, from a token of the answer on. The drafter's own process finds this module by an entry point.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.tree import DraftTree
from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Spec


@dataclass
class KnownState:
    """One request: its whole answer, and how much of it is committed."""

    answer: list[int]
    committed: int = 0


def key_of(request: Request) -> str:
    """By which an answer is found."""
    return f"{Path(str(request.events)).name} {request.question}"


@dataclass
class KnownAnswers:
    """Drafts what the file says; see the module's text."""

    answers: dict[str, list[int]]
    wrong_from: int
    needs: Needs = field(default_factory=Needs)

    def begin(self, requests: Sequence[Request]) -> list[KnownState]:
        return [KnownState(self._changed(self.answers.get(key_of(request), []))) for request in requests]

    def _changed(self, answer: list[int]) -> list[int]:
        return [token if i < self.wrong_from else token ^ 1 for i, token in enumerate(answer)]

    def propose(self, states: Sequence[KnownState], budgets: Sequence[Budget]) -> list[Draft]:
        rests = (state.answer[state.committed :] for state in states)
        return [Draft(DraftTree.chain(rest[: b.nodes])) for rest, b in zip(rests, budgets, strict=True)]

    def commit(self, states: Sequence[KnownState], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            state.committed += len(output.tokens)

    def fork(self, states: Sequence[KnownState]) -> list[KnownState]:
        return [KnownState(state.answer, state.committed) for state in states]

    def end(self, states: Sequence[KnownState]) -> None:
        pass


@dataclass(frozen=True)
class KnownSettings:
    """`known:file=answers.json,wrong=3`."""

    file: str
    wrong: int = 10**9


def build(spec: Spec, options: Any, context: DrafterContext) -> KnownAnswers:
    answers = json.loads(Path(options.file).read_text(encoding="utf-8"))
    return KnownAnswers(answers, options.wrong)


KNOWN = Method("known", "knows the answers", "", build, settings=KnownSettings, has_network=False)


def install_known(folder: Path) -> None:
    """Make the drafter known to every process that has the folder on its path: vLLM's, and the drafter's own."""
    package = folder / "known-1.dist-info"
    package.mkdir(exist_ok=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: known\nVersion: 1\n", encoding="utf-8")
    entry = f"[crossdraft.drafters]\nknown = {__name__}:KNOWN\n"
    (package / "entry_points.txt").write_text(entry, encoding="utf-8")
