"""Flat building blocks: polygons in metres, and the list of things to paint."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crossdraft.scenes.camera import Camera, Floats, on_road, project, turned
from crossdraft.scenes.palette import RGB, Air


def quads(*corners: tuple[float, float, float, float], depth: float = 0.0) -> Floats:
    """Upright rectangles (left, bottom, right, top) at one depth: [P, 4, 3]."""
    return np.array(
        [[(l, b, depth), (r, b, depth), (r, t, depth), (l, t, depth)] for l, b, r, t in corners],
        dtype=np.float32,
    )


def outline(*points: tuple[float, float], depth: float = 0.0) -> Floats:
    """One upright polygon from its (across, height) corners: [1, V, 3]."""
    return np.array([[(x, y, depth) for x, y in points]], dtype=np.float32)


def disc(across: float, height: float, radius: float, corners: int = 12, depth: float = 0.0) -> Floats:
    """An upright regular polygon: [1, corners, 3]."""
    angle = (np.arange(corners) + 0.5) * (2 * np.pi / corners)
    ring = np.stack(
        [across + radius * np.cos(angle), height + radius * np.sin(angle), np.full(corners, depth)], -1
    )
    return ring[None].astype(np.float32)


def limb(start: ArrayLike, end: ArrayLike, width: float) -> Floats:
    """Bars of a width from start to end, (across, height) each [T, 2] or [2]: [T, 1, 4, 3]."""
    a, b = np.broadcast_arrays(np.atleast_2d(start), np.atleast_2d(end))
    along = b - a
    normal = np.stack([-along[:, 1], along[:, 0]], -1)
    normal *= 0.5 * width / np.maximum(np.linalg.norm(along, axis=-1, keepdims=True), 1e-6)
    corners = np.stack([a + normal, b + normal, b - normal, a - normal], axis=1)
    return np.concatenate([corners, np.zeros((*corners.shape[:2], 1))], -1)[:, None].astype(np.float32)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thing's foot is: its track [T, 3] in camera axes, and where it is at mid-clip, whatever T is."""

    track: Floats
    across_m: float
    ahead_m: float


@dataclass(frozen=True, slots=True)
class Paint:
    """Polygons that share a colour, in picture axes: corners [T, P, V, 2]."""

    corners: Floats
    colour: RGB


@dataclass(slots=True)
class Sketch:
    """Collects things in painting order (what is added later covers what was added before)."""

    camera: Camera
    air: Air
    _points: list[Floats] = field(default_factory=list)
    _places: list[Floats | None] = field(default_factory=list)
    _colours: list[RGB] = field(default_factory=list)

    def road(self, polygons: Floats, colour: RGB, distance_m: float = 12.0, glow: bool = False) -> None:
        """Add polygons [P, V, 3] that are fixed to the road; they bend and flow with it."""
        self._points.append(polygons)
        self._places.append(None)
        self._colours.append(self.air.shade(colour, distance_m, 1.0 if glow else self.air.ambient))

    def body(self, polygons: Floats, place: Place, colour: RGB, glow: bool = False) -> None:
        """Add polygons [P, V, 3] or [T, P, V, 3] of a thing that stands at `place`."""
        self._points.append(polygons)
        self._places.append(place.track)
        self._colours.append(self.air.shade(colour, place.ahead_m, 1.0 if glow else self.air.headlit))

    def paints(self) -> list[Paint]:
        """Everything projected, in painting order. One pass over all points: this is the hot part."""
        shapes = [points.shape[-3:-1] for points in self._points]
        ends = np.cumsum([polygons * corners for polygons, corners in shapes])
        space = np.empty((self.camera.count, int(ends[-1]), 3), dtype=np.float32)
        fixed: list[Floats] = []
        where: list[NDArray[np.int64]] = []
        for points, place, end, (polygons, corners) in zip(
            self._points, self._places, ends, shapes, strict=True
        ):
            span = slice(int(end) - polygons * corners, int(end))
            if place is None:
                fixed.append(points.reshape(-1, 3))
                where.append(np.arange(span.start, span.stop))
            else:
                flat = points.reshape(*points.shape[:-3], polygons * corners, 3)
                np.add(flat, place[:, None, :], out=space[:, span])
        if fixed:
            space[:, np.concatenate(where)] = turned(self.camera, on_road(self.camera, np.concatenate(fixed)))
        picture = project(self.camera, space)
        return [
            Paint(picture[:, end - p * v : end].reshape(-1, p, v, 2), colour)
            for end, (p, v), colour in zip(ends.tolist(), shapes, self._colours, strict=True)
        ]
