"""Learning rates, step by step."""

import math

import pytest

from crossdraft.train.core.recipe import Optim
from crossdraft.train.core.schedule import learning_rate


def rates(*steps: int, **settings: object) -> list[float]:
    given = {"steps": 10, "warmup_steps": 2, "learning_rate": 0.5, "clips": 1}
    optim = Optim.model_validate(given | settings)
    return [learning_rate(optim, step) for step in steps]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"schedule": "wsd", "decay_steps": 4}, [0.25, 0.5, 0.5, 0.25, 0.125, 0.0]),
        ({"schedule": "wsd"}, [0.25, 0.5, 0.5, 0.5, 0.5, 0.5]),
        ({"schedule": "constant", "decay_steps": 4}, [0.25, 0.5, 0.5, 0.5, 0.5, 0.5]),
        ({"schedule": "linear"}, [0.25, 0.45, 0.25, 0.1, 0.05, 0.0]),
        ({"schedule": "linear", "final": 0.5}, [0.25, 0.475, 0.375, 0.3, 0.275, 0.25]),
        ({"schedule": "wsd", "decay_steps": 4, "final": 0.5}, [0.25, 0.5, 0.5, 0.375, 0.3125, 0.25]),
    ],
)
def test_rates_by_hand(settings, expected):
    assert rates(0, 1, 5, 8, 9, 10, **settings) == pytest.approx(expected)


def test_a_cosine_is_half_a_wave():
    expected = [0.25, 0.25 * (1 + math.cos(math.pi / 4)), 0.25, 0.0]
    assert rates(0, 2, 4, 8, schedule="cosine", steps=8) == pytest.approx([0.25, expected[1], 0.25, 0.0])
    assert rates(10, schedule="cosine", final=0.33) == pytest.approx([0.165])  # Hydra++'s end


def test_without_warm_up_the_first_step_has_the_whole_rate():
    assert rates(0, warmup_steps=0) == [0.5]
