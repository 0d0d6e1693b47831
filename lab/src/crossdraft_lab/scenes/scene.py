"""Scenes of the road world, and how a seed becomes one."""

from dataclasses import dataclass

import numpy as np

from crossdraft.errors import CrossdraftError

DURATION_S = 1.0

_MILLION = 1_000_000
_STARTS = {"train": 0, "validation": _MILLION, "test": 2 * _MILLION}
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
    (house heights, positions of trees, raindrops). 'none' stands for what is absent.
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

    def thing_at(self, side: str) -> str:
        """Return the thing on the "left" or "right", one of STATIONS."""
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


def split_seeds(split: str) -> range:
    """Seeds of "train", "validation" or "test": a million each, never shared."""
    if split not in _STARTS:
        raise CrossdraftError(f"There is no split {split!r}; choose one of {', '.join(_STARTS)}.")
    return range(_STARTS[split], _STARTS[split] + _MILLION)


ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "layout": LAYOUTS,
    "ego": EGO,
    "lead.type": ("none", *VEHICLES),
    "lead.colour": ("none", *COLOURS),
    "lead.motion": ("none", *LEAD_MOTIONS),
    "left": STATIONS,
    "right": STATIONS,
    "people.count": ("0", "1", "2", "3"),
    "people.action": ("none", *PEOPLE_ACTIONS),
    "people.colour": ("none", *COLOURS),
    "cyclist": ("none", *CYCLIST),
    "light": LIGHTS,
    "light.side": ("none", "left", "right"),
    "sign": SIGNS,
    "weather": WEATHERS,
    "time": TIMES,
    "side": SIDES,
    "driver": ("stop", "brake", "give way", "slow down", "keep going"),
}


def driver_action(scene: Scene) -> tuple[str, str]:
    """The driver's right action, and the attribute that is the reason ("none": nothing is in the way)."""
    rules = (
        (scene.light == "red", "stop", "light"),
        (scene.lead_motion == "closer", "brake", "lead.motion"),
        (scene.people_action in ("to the left", "to the right"), "give way", "people.action"),
        (scene.sign == "stop", "stop", "sign"),
        (scene.light == "yellow", "slow down", "light"),
        (scene.sign == "yield", "give way", "sign"),
        (scene.weather == "fog", "slow down", "weather"),
    )
    return next(((action, reason) for holds, action, reason in rules if holds), ("keep going", "none"))


def attributes(scene: Scene) -> dict[str, str]:
    """The categories of a scene, one value of `ATTRIBUTES` each; 'none' where there is nothing."""
    return {
        "layout": scene.layout,
        "ego": scene.ego,
        "lead.type": scene.lead,
        "lead.colour": scene.lead_colour,
        "lead.motion": scene.lead_motion,
        "left": scene.left,
        "right": scene.right,
        "people.count": str(scene.people),
        "people.action": scene.people_action,
        "people.colour": scene.people_colour,
        "cyclist": scene.cyclist,
        "light": scene.light,
        "light.side": scene.light_side if scene.light != "none" else "none",
        "sign": scene.sign,
        "weather": scene.weather,
        "time": scene.time,
        "side": scene.side,
        "driver": driver_action(scene)[0],
    }
