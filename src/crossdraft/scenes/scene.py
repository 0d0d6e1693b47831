"""What a scene is, and how a seed becomes one."""

from dataclasses import dataclass

import numpy as np

from crossdraft.errors import CrossdraftError

DURATION_S = 1.0

LAYOUTS = ("two-lane", "three-lane", "crossroads", "left bend", "right bend")
EGO = ("stopped", "slow", "fast", "turning left", "turning right")
VEHICLES = ("car", "truck", "bus", "van")
LEAD_MOTIONS = ("keeping", "closer", "away", "left lane", "right lane")
COLOURS = ("red", "orange", "green", "blue", "purple")
PEOPLE_ACTIONS = ("to the right", "to the left", "standing", "waving")
CYCLIST = ("to the left", "to the right")
LIGHTS = ("none", "red", "yellow", "green")
SIGNS = ("none", "stop", "yield", "speed limit")
WEATHERS = ("clear", "rain", "fog", "snow")
TIMES = ("day", "dusk", "night")
SIDES = ("buildings", "trees", "fields")

# What stands left and right of the lane. An ordered pair of different things, so that nothing hides anything;
# weighted so that people (who carry the most questions) are there in two scenes of three, the rest in half.
STATIONS = ("people", "cyclist", "vehicle", "empty")
_STATION_WEIGHTS = {"people": 1.6, "cyclist": 1.1, "vehicle": 1.0, "empty": 0.8}


@dataclass(frozen=True, slots=True)
class Scene:
    """One second on the road, seen from a car's front camera.

    Every field is a value that a question may ask for, except `seed`, which also draws the unasked details
    (house heights, places of trees, raindrops). 'none' stands for what is absent.
    """

    seed: int
    layout: str
    ego: str
    lead: str
    lead_colour: str
    lead_motion: str
    left: str
    right: str
    people: int
    people_action: str
    people_colour: str
    cyclist: str
    light: str
    light_side: str
    sign: str
    weather: str
    time: str
    side: str

    def beside(self, side: str) -> str:
        """What stands on the "left" or "right": one of STATIONS."""
        return self.left if side == "left" else self.right


def _station_pairs() -> tuple[list[tuple[str, str]], np.ndarray]:
    pairs = [(a, b) for a in STATIONS for b in STATIONS if a != b]
    weights = np.array([_STATION_WEIGHTS[a] * _STATION_WEIGHTS[b] for a, b in pairs])
    return pairs, weights / weights.sum()


_PAIRS, _PAIR_WEIGHTS = _station_pairs()


def make_scene(seed: int) -> Scene:
    """The scene of a seed: pure, the same on every machine.

    Values are drawn nearly uniformly and independently of each other, so that knowing the question, or one
    part of the answer, tells little about the rest: a model that sees nothing cannot do well.

    Raises:
        CrossdraftError: a negative seed.
    """
    if seed < 0:
        raise CrossdraftError(f"A scene's seed must be zero or positive, not {seed}.")
    rng = np.random.default_rng([seed, 0])

    def one_of(values: tuple[str, ...]) -> str:
        return values[int(rng.integers(len(values)))]

    left, right = _PAIRS[int(rng.choice(len(_PAIRS), p=_PAIR_WEIGHTS))]
    has_lead = bool(rng.random() < 0.86)
    has_people = "people" in (left, right)
    has_cyclist = "cyclist" in (left, right)
    return Scene(
        seed=seed,
        layout=one_of(LAYOUTS),
        ego=one_of(EGO),
        lead=one_of(VEHICLES) if has_lead else "none",
        lead_colour=one_of(COLOURS) if has_lead else "none",
        lead_motion=one_of(LEAD_MOTIONS) if has_lead else "none",
        left=left,
        right=right,
        people=int(rng.integers(1, 4)) if has_people else 0,
        people_action=one_of(PEOPLE_ACTIONS) if has_people else "none",
        people_colour=one_of(COLOURS) if has_people else "none",
        cyclist=one_of(CYCLIST) if has_cyclist else "none",
        light=one_of(LIGHTS),
        light_side=one_of(("left", "right")),
        sign=one_of(SIGNS),
        weather=one_of(WEATHERS),
        time=one_of(TIMES),
        side=one_of(SIDES),
    )
