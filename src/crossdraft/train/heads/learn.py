"""A head's loss on a step's answers, and its figures on validation answers."""

from dataclasses import dataclass

import torch
from torch import Tensor

from crossdraft.models.heads.base import Head, positions_of
from crossdraft.models.heads.lesson import Lesson
from crossdraft.models.heads.objective import Objective, counted, score, teacher
from crossdraft.train.core.share import WHOLE, LossOf, Share
from crossdraft.train.heads.lessons import Lessons, noisy
from crossdraft.train.heads.recipe import HeadRecipe


@dataclass(frozen=True)
class Teaching:
    """A head, and what it is taught by.

    Args:
        head: the network.
        rows: [D, H] the target's output rows of the draft vocabulary.
        recipe: weights of losses, noise.
    """

    head: Head
    rows: Tensor
    recipe: HeadRecipe

    def loss_of(self, lessons: Lessons) -> LossOf:
        """The loss of a step's share."""
        objective = self._objective()
        extra = {name: weight for name, weight in self.recipe.loss.items() if name in self.head.extras}

        def loss_of(step: int, share: Share) -> tuple[Tensor, dict[str, float]]:
            lesson = lessons.lesson(step, self.recipe.optim.clips, share).to(self.rows.device)
            logits, labels = self._teacher(lesson)
            first = share.take(range(self.recipe.optim.clips))[0]
            heard = noisy(lesson, self.recipe.noise, self.recipe.seed, step, first)
            guesses = self.head(heard)
            loss, figures = score(objective, guesses, lesson, logits, labels, self.head.last(lesson.hidden))
            for name, value in self.head.extra_losses(lesson, guesses).items() if extra else ():
                loss = loss + extra[name] * value
                figures[name] = float(value.detach())
            return loss, figures

        return loss_of

    @torch.inference_mode()
    def figures(self, lessons: Lessons, steps: int) -> dict[str, float]:
        """τ of chains and the share right at each offset, teacher-forced, over all places of `steps` batches.

        What no place was judged at is left out.
        """
        totals: dict[str, tuple[int, int]] = {}
        for step in range(steps):
            lesson = lessons.lesson(step, self.recipe.optim.clips, WHOLE).to(self.rows.device)
            _, labels = self._teacher(lesson)
            guesses = sorted(self.head(lesson), key=lambda guess: guess.offset)
            for name, (right, count) in counted(guesses, lesson, labels).items():
                known = totals.get(name, (0, 0))
                totals[name] = known[0] + right, known[1] + count
        return {name: right / count for name, (right, count) in totals.items()}

    def _teacher(self, lesson: Lesson) -> tuple[Tensor, Tensor]:
        config = self.head.config
        lookup = positions_of(config.draft_ids, config.vocab_size)
        return teacher(lesson, self.rows, config.num_layers, lookup)

    def _objective(self) -> Objective:
        """The losses of guesses: all but those that the network gives itself."""
        weights = {name: w for name, w in self.recipe.loss.items() if name not in self.head.extras}
        return Objective(weights, self.recipe.step_weight)
