"""Flat building blocks: polygons in metres, upright unless said otherwise."""

import numpy as np
from numpy.typing import ArrayLike

from crossdraft.scenes.camera import Floats


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
    """A bar of a width from start to end, (across, height) each, [2] or, where it moves, [T, 2]: [T, 1, 4, 3]."""
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
