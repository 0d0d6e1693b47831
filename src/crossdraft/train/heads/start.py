"""Everything that a head's training needs, found and checked before it begins."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target, target_fingerprint
from crossdraft.models.heads.base import Head
from crossdraft.train.capture.online import Online
from crossdraft.train.capture.scenery import SceneSource
from crossdraft.train.capture.sources import Source, source_of
from crossdraft.train.capture.store import Store
from crossdraft.train.heads.lessons import Asked, Lessons, Stored
from crossdraft.train.heads.recipe import HeadRecipe
from crossdraft.train.heads.run import HeadRun, draft_ids_of, train_head
from crossdraft.train.ranks import joined

LONGEST = 96  # tokens of an answer that is measured


def start(
    recipe: HeadRecipe,
    out: Path,
    target: str = "reference",
    device: str | None = None,
    capture: Path | None = None,
    kept_back: Path | None = None,
    online: int = 0,
) -> dict[str, Any]:
    """Train a head; see `run.train_head`.

    Raises:
        CrossdraftError: neither capture nor scenes to ask about, a capture of another target, and as `train_head`.
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
        stores = [_opened(folder, digest) for folder in (capture, kept_back)]
        store, back = stores
        if store is not None:
            ids = draft_ids_of(store, recipe.vocabulary.most, sorted(loaded.reserved))
            source: dict[str, object] = {"capture": store.index.asked_sha256, "answers": len(store)}
        else:
            ids = [token for token in range(loaded.vocab_size) if token not in loaded.reserved]
            source = {"online_scenes": online}
        run = HeadRun(
            recipe,
            loaded,
            digest,
            source,
            lambda head: _lessons(head, store, loaded, online, recipe),
            None if back is None else lambda head: _stored(head, back, recipe),
            _requests(back, recipe.measure.pairs),
            out,
        )
        return train_head(run, ids, ranks)


def _opened(folder: Path | None, digest: str) -> Store | None:
    if folder is None:
        return None
    store = Store.open(folder)
    store.require(digest)
    return store


def _lessons(head: Head, store: Store | None, target: Target, scenes: int, recipe: HeadRecipe) -> Lessons:
    if store is not None:
        return _stored(head, store, recipe)
    layers, visual = _wanted(head)
    return Asked(Online(target, SceneSource(clips=scenes, seed=recipe.seed), layers, visual))


def _stored(head: Head, store: Store, recipe: HeadRecipe) -> Stored:
    layers, visual = _wanted(head)
    return Stored(store, layers, visual, recipe.seed)


def _wanted(head: Head) -> tuple[Sequence[int], Sequence[int]]:
    """What the head reads, and the last layer, by which it is judged."""
    return sorted({*head.reads, head.config.num_layers}), head.visual_reads


def _requests(store: Store | None, pairs: int) -> list[Request]:
    """Questions about clips that were kept back, as few of each clip as will do."""
    if store is None or not pairs:
        return []
    source: Source = source_of(store.index.asked, store.index.done)
    clips = [source.read(clip) for clip in range(min(len(source), pairs))]
    asked = [clip.requests(LONGEST) for clip in clips]
    turns = [
        questions[turn]
        for turn in range(max(map(len, asked)))
        for questions in asked
        if turn < len(questions)
    ]
    return turns[:pairs]
