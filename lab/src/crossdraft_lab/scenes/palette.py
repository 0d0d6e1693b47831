"""Colours, and how time of day and fog change them.

Paint and lamps are *isoluminant*: every paint colour has exactly the Rec.601 luma PAINT_LUMA and every lamp
exactly LAMP_LUMA. Light and fog act as `k * colour + b` with the same k and b for all, so equal luma stays
equal. A colour is therefore visible in RGB only; a luma picture, and an event camera, cannot tell.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossdraft_lab.scenes.scene import Scene

RGB = tuple[float, float, float]

REC601 = (0.299, 0.587, 0.114)
PAINT_LUMA = 115.0
LAMP_LUMA = 140.0


def luma(colour: RGB) -> float:
    """Rec.601 luma of an RGB colour, 0..255."""
    return sum(weight * part for weight, part in zip(REC601, colour, strict=True))


def scaled(colour: RGB, factor: float) -> RGB:
    """A colour, darker or brighter by a factor."""
    red, green, blue = colour
    return red * factor, green * factor, blue * factor


def _at_luma(colour: RGB, wanted: float) -> RGB:
    """The colour with its green moved so that its luma is exactly `wanted`."""
    red, green, blue = colour
    return (red, green + (wanted - luma(colour)) / REC601[1], blue)


PAINT: dict[str, RGB] = {
    name: _at_luma(colour, PAINT_LUMA)
    for name, colour in {
        "red": (245, 58, 58),
        "orange": (208, 90, 0),
        "green": (25, 170, 70),
        "blue": (40, 122, 255),
        "purple": (185, 60, 215),
    }.items()
}
LAMP: dict[str, RGB] = {
    name: _at_luma(colour, LAMP_LUMA)
    for name, colour in {
        "red": (255, 95, 70),
        "yellow": (185, 144, 0),
        "green": (15, 211, 95),
        "unlit": (140, 140, 140),
    }.items()
}

_SKY: dict[str, tuple[RGB, RGB]] = {
    "day": ((92, 152, 226), (206, 226, 242)),
    "dusk": ((86, 66, 122), (240, 160, 104)),
    "night": ((10, 14, 34), (40, 48, 78)),
}
_GREY_SKY: dict[str, float] = {"rain": 0.72, "fog": 1.06, "snow": 1.0}
_AMBIENT = {"day": 1.0, "dusk": 0.78, "night": 0.5}
# Things near the lane stand in our headlights.
_HEADLIT = {"day": 1.0, "dusk": 0.85, "night": 0.78}


@dataclass(frozen=True, slots=True)
class Air:
    """Light and haze of a scene: `shade` turns a thing's own colour into what arrives at the camera."""

    ambient: float
    headlit: float
    haze: RGB
    haze_per_m: float
    sky_top: RGB
    sky_bottom: RGB

    def shade(self, colour: RGB, distance_m: float, light: float) -> RGB:
        """Colour as seen at a distance under a light of `ambient`, `headlit`, or 1 (for what glows itself)."""
        clear = float(np.exp(-self.haze_per_m * distance_m))
        lit = clear * light
        red, green, blue = (lit * part + (1 - clear) * haze for part, haze in zip(colour, self.haze, strict=True))
        return red, green, blue


def air_of(scene: Scene) -> Air:
    """The air of a scene's time of day and weather."""
    top, bottom = _SKY[scene.time]
    if scene.weather != "clear":
        grey = 0.6 * luma(bottom) + 0.4 * luma(top)
        grey = min(225.0, grey * _GREY_SKY[scene.weather] + (26 if scene.weather in ("fog", "snow") else 0))
        # A little of the sky's own tint stays, so that a grey dusk is not a grey day.
        top, bottom = _mix(top, _grey(grey * 0.86), 0.62), _mix(bottom, _grey(grey), 0.62)
    per_m = {"clear": 0.003, "rain": 0.012, "fog": 0.052, "snow": 0.014}[scene.weather]
    if scene.time == "night" and scene.weather == "fog":
        bottom = (92.0, 96.0, 108.0)
    return Air(_AMBIENT[scene.time], _HEADLIT[scene.time], bottom, per_m, top, bottom)


def _grey(level: float) -> RGB:
    return level, level, level


def _mix(a: RGB, b: RGB, part: float) -> RGB:
    red, green, blue = (x + (y - x) * part for x, y in zip(a, b, strict=True))
    return red, green, blue


def sky(air: Air, rows: int, horizon_row: float) -> NDArray[np.float32]:
    """Sky colours from the top row to the horizon, and the horizon's colour below: [rows, 3]."""
    down = np.clip(np.arange(rows) / max(horizon_row, 1.0), 0, 1)[:, None]
    return ((1 - down) * np.array(air.sky_top) + down * np.array(air.sky_bottom)).astype(np.float32)
