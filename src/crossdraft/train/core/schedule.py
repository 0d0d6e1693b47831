"""The learning rate of a step."""

import math

from crossdraft.train.core.recipe import Optim


def learning_rate(optim: Optim, step: int) -> float:
    """Linear warm-up times the schedule's fall, from the rate to `final` times it; `step` counts from 0.

    - `wsd`: constant, then linear over the last `decay_steps`;
    - `linear` and `cosine`: over all steps, warm-up included, half a wave for the cosine;
    - `constant`: no fall.
    """
    warm = min(1.0, (step + 1) / optim.warmup_steps) if optim.warmup_steps else 1.0
    return optim.learning_rate * warm * (optim.final + (1 - optim.final) * _left(optim, step))


def _left(optim: Optim, step: int) -> float:
    """How much of the fall is still to come, 1 to 0."""
    ahead = optim.steps - step
    match optim.schedule:
        case "wsd":
            return min(1.0, ahead / optim.decay_steps) if optim.decay_steps else 1.0
        case "linear":
            return ahead / optim.steps
        case "cosine":
            return (1 - math.cos(math.pi * ahead / optim.steps)) / 2
        case "constant":
            return 1.0
