"""Collects coloured polygons in painting order, and projects them all at once."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from crossdraft_lab.scenes.camera import Camera, Floats, on_road, project, turned
from crossdraft_lab.scenes.palette import RGB, Air


@dataclass(frozen=True, slots=True)
class Anchor:
    """Position of a thing's foot: its track [T, 3] in camera axes, and its place at mid-clip, whatever T is."""

    track: Floats
    across_m: float
    depth_m: float


@dataclass(frozen=True, slots=True)
class Paint:
    """Some polygons of one colour: how many, of how many corners each."""

    polygons: int
    corners: int
    colour: RGB


@dataclass(frozen=True, slots=True)
class Painting:
    """Polygons to paint, back to front: the corners of all `paints` in sequence, [T, N, 2] in picture axes."""

    points: Floats
    paints: tuple[Paint, ...]


@dataclass(slots=True)
class Sketch:
    """Collects things in painting order: what is added later covers what was added before."""

    camera: Camera
    air: Air
    _road: list[tuple[slice, Floats]] = field(default_factory=list)
    _bodies: list[tuple[slice, Floats, Floats]] = field(default_factory=list)
    _flat: list[tuple[slice, Floats]] = field(default_factory=list)
    _paints: list[Paint] = field(default_factory=list)
    _count: int = 0

    def road(self, polygons: Floats, colour: RGB, distance_m: float = 12.0, glow: bool = False) -> None:
        """Add polygons [P, V, 3] (across, height, ahead at mid-clip) fixed to the road: they bend and flow with it."""
        shaded = self.air.shade(colour, distance_m, 1.0 if glow else self.air.ambient)
        self._road.append((self._add(polygons, shaded), polygons.reshape(-1, 3)))

    def body(self, polygons: Floats, anchor: Anchor, colour: RGB, glow: bool = False) -> None:
        """Add polygons [P, V, 3], or [T, P, V, 3] where they move, of a thing that stands at `anchor`."""
        shaded = self.air.shade(colour, anchor.depth_m, 1.0 if glow else self.air.headlit)
        span = self._add(polygons, shaded)
        self._bodies.append((span, polygons.reshape(*polygons.shape[:-3], -1, 3), anchor.track))

    def flat(self, polygons: Floats, colour: RGB) -> None:
        """Add polygons [T, P, V, 2] that are in picture axes already."""
        self._flat.append((self._add(polygons, colour), polygons.reshape(len(polygons), -1, 2)))

    def _add(self, polygons: Floats, colour: RGB) -> slice:
        count, corners = polygons.shape[-3:-1]
        self._paints.append(Paint(count, corners, colour))
        start, self._count = self._count, self._count + count * corners
        return slice(start, self._count)

    def painting(self) -> Painting:
        """Project everything in one call for all points: the number of NumPy calls, not of points, costs the time."""
        space = np.zeros((self.camera.count, self._count, 3), dtype=np.float32)
        for span, points, track in self._bodies:
            np.add(points, track[:, None, :], out=space[:, span])
        moved = turned(self.camera, on_road(self.camera, np.concatenate([points for _, points in self._road])))
        start = 0
        for span, points in self._road:
            space[:, span] = moved[:, start : start + len(points)]
            start += len(points)
        picture = project(self.camera, space)
        for span, points in self._flat:
            picture[:, span] = points
        return Painting(picture, tuple(self._paints))


def quads(*corners: tuple[float, float, float, float]) -> Floats:
    """Rectangles (left, bottom, right, top) at depth 0: [P, 4, 3]."""
    return np.array(
        [[(left, low, 0), (right, low, 0), (right, high, 0), (left, high, 0)] for left, low, right, high in corners],
        dtype=np.float32,
    )


def outline(*points: tuple[float, float]) -> Floats:
    """One polygon from its (across, height) corners: [1, V, 3]."""
    return np.array([[(x, y, 0) for x, y in points]], dtype=np.float32)


def disc(across: float, height: float, radius: float, corners: int = 12) -> Floats:
    """A regular polygon: [1, corners, 3]."""
    angle = (np.arange(corners) + 0.5) * (2 * np.pi / corners)
    ring = np.stack([across + radius * np.cos(angle), height + radius * np.sin(angle), np.zeros(corners)], axis=-1)
    return ring[None].astype(np.float32)


def limb(start: ArrayLike, end: ArrayLike, width: float) -> Floats:
    """A bar between two points (across, height), each [2], or [T, 2] if the bar moves; returns corners [T, 1, 4, 3]."""
    a, b = np.broadcast_arrays(*(np.atleast_2d(np.asarray(point, dtype=np.float64)) for point in (start, end)))
    along = b - a
    normal = np.stack([-along[:, 1], along[:, 0]], axis=-1)
    normal *= 0.5 * width / np.maximum(np.linalg.norm(along, axis=-1, keepdims=True), 1e-6)
    corners = np.stack([a + normal, b + normal, b - normal, a - normal], axis=1)
    depth = np.zeros((*corners.shape[:2], 1))
    return np.concatenate([corners, depth], axis=-1)[:, None].astype(np.float32)


def strip(left: float, right: float, start: float, end: float) -> Floats:
    """A rectangle on the ground: [1, 4, 3]."""
    return np.array([[(left, 0, start), (right, 0, start), (right, 0, end), (left, 0, end)]], dtype=np.float32)
