"""The course of PaSS's look-ahead embeddings: captured answers, which the target itself reads again (`pass_`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from crossdraft.drafters.pass_ import PassDrafter
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.models.heads.base import Head, HeadConfig, TargetTables
from crossdraft.models.heads.objective import Objective
from crossdraft.models.heads.pass_ import LookaheadRows
from crossdraft.train.capture.store import Store
from crossdraft.train.core.share import LossOf
from crossdraft.train.heads.asked import draft_ids_of, kept_back_requests, source_behind
from crossdraft.train.heads.course import Given, Lectures, check_of
from crossdraft.train.heads.measure import figures_of, measure
from crossdraft.train.heads.pass_ import Passage, PassagesOf, pass_loss
from crossdraft.train.heads.seen import Walk


@dataclass(frozen=True)
class PassCourse:
    """See `course.Course`.

    Args:
        given: what the training begins with.
        store: its capture.
    """

    given: Given
    store: Store

    @classmethod
    def of(cls, given: Given) -> "PassCourse":
        """The course.

        Raises:
            CrossdraftError: there is no capture.
        """
        if given.store is None:
            raise CrossdraftError(
                "PaSS learns from answers that have been given; give --capture FOLDER instead of --online."
            )
        return cls(given, given.store)

    @property
    def host(self) -> Target:
        return self.given.target

    @property
    def fingerprint(self) -> str:
        return self.given.fingerprint

    @property
    def draft_ids(self) -> Sequence[int]:
        return draft_ids_of(self.store, self.given.recipe.vocabulary.most, sorted(self.host.reserved))

    @property
    def about(self) -> str:
        return (
            f"Tokens a verify pass under the engine, bonus included, on {self.given.questions} questions about "
            "validation clips; chains as long as there are embeddings."
        )

    def measured_sizes(self, kind: type[HeadConfig], settings: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def tables(self) -> TargetTables:
        return TargetTables.of(self.host.model)

    def lectures(self, head: Head) -> Lectures:
        back = self.given.kept_back
        walk, order = self._walk(self.store)

        def describe(step: int) -> str:
            return f"answers {', '.join(map(str, order(step)))} of {self.store.folder}"

        check = None if back is None else check_of(self._loss(head, self._walk(back)[0]))
        return Lectures(self._loss(head, walk), describe, check)

    def measured(self, head: Head, folder: Path) -> dict[str, object]:
        requests = kept_back_requests(self.given.kept_back, self.given.recipe.measure.pairs)
        if not requests:
            return {}
        rows = cast("LookaheadRows", head)
        drafter = PassDrafter(rows, sorted(self.host.reserved))
        return figures_of({"pass": measure(self.host, drafter, requests, rows.config.steps)})

    def _walk(self, store: Store) -> tuple[PassagesOf, Callable[[int], list[int]]]:
        """What a step learns from: answers, each to a clip of its own more often than not, and their numbers."""
        source, recipe = source_behind(store), self.given.recipe
        walk = Walk(len(store), recipe.seed)

        def order(step: int) -> list[int]:
            return walk.clips(step, recipe.optim.clips)

        def passage(number: int) -> Passage:
            clip, prompt = source.locate(number)
            lesson = store.lesson([number], ())
            request = source.read(clip).requests(1)[prompt]
            answer = lesson.tokens[0, int(lesson.starts[0]) :]
            return Passage(self.host.prepare(request), tuple(answer.tolist()))

        return lambda step: [passage(number) for number in order(step)], order

    def _loss(self, head: Head, passages_of: PassagesOf) -> LossOf:
        recipe = self.given.recipe
        objective = Objective(recipe.loss, recipe.step_weight)
        return pass_loss(self.host, cast("LookaheadRows", head), passages_of, objective, seed=recipe.seed)
