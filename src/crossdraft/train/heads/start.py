"""Everything that a head's training needs, found and checked before it begins."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target, target_fingerprint
from crossdraft.train.capture.store import Store
from crossdraft.train.core.dist import joined
from crossdraft.train.heads.course import Course, Given
from crossdraft.train.heads.eventful import EventCourse
from crossdraft.train.heads.featured import FeatureCourse
from crossdraft.train.heads.lookahead import PassCourse
from crossdraft.train.heads.recipe import HeadRecipe
from crossdraft.train.heads.run import HeadRun, train_head

# Networks that learn from something else than the target's features.
COURSES: Mapping[str, Callable[[Given], Course]] = {
    "event_medusa": EventCourse.of,
    "fast": EventCourse.of,
    "glance": EventCourse.of,
    "pass": PassCourse.of,
}


def on_events(network: str) -> bool:
    """Whether heads of this network stand on an event model."""
    return COURSES.get(network) == EventCourse.of


def start(
    recipe: HeadRecipe,
    out: Path,
    target: str = "reference",
    device: str | None = None,
    capture: Path | None = None,
    kept_back: Path | None = None,
    online: int = 0,
    event: str = "event",
) -> dict[str, Any]:
    """Train a head; see `run.train_head`.

    Args:
        event: the event model of heads on one, `event` or a folder; they are trained on the CPU.

    Raises:
        CrossdraftError: neither capture nor scenes to ask about, a capture of another target, `out` is another
            training's, and as `train_head`.
    """
    if (capture is None) == (online == 0):
        raise CrossdraftError(
            "A head learns from a capture or from a target that is asked as it learns; give one of --capture FOLDER "
            "and --online SCENES."
        )
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with joined(place) as (ranks, own):
        loaded = load_target(target, str(own), None if own.type == "cuda" else "float32", packed=False)
        digest = target_fingerprint(target)
        store, back = (_opened(folder, digest) for folder in (capture, kept_back))
        source = {"target": digest, **_lessons(store, online)}
        given = Given(recipe, loaded, target, digest, event, store, back, online, out)
        course = COURSES.get(recipe.network, FeatureCourse)(given)
        return train_head(HeadRun(recipe, course, source, out), ranks)


def _lessons(store: Store | None, online: int) -> dict[str, object]:
    """What is learned from, as far as it tells one training from another."""
    if store is None:
        return {"online_scenes": online}
    index = store.index
    return {"capture": index.asked_sha256, "answers": len(store), "max_new_tokens": index.wanted.max_new_tokens}


def _opened(folder: Path | None, digest: str) -> Store | None:
    if folder is None:
        return None
    store = Store.open(folder)
    store.require(digest)
    return store
