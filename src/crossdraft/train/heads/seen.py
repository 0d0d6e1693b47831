"""What an event model sees of captured clips: made once, when a clip is first looked at, and kept in a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from crossdraft import scenes
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path
from crossdraft.train.capture.scenery import SceneSource
from crossdraft.train.capture.sources import Source
from crossdraft.train.reference.clips import clip_seed

KEPT_EVERY = 100  # clips between two writings of the file


class Walk:
    """Clips in an order that each epoch draws anew from the seed."""

    def __init__(self, pool: int, seed: int) -> None:
        self.pool, self.seed = pool, seed

    def clips(self, step: int, count: int) -> list[int]:
        """Numbers of a step's clips: `count` of them, or all where there are fewer."""
        count = min(count, self.pool)
        epoch, place = divmod(step, self.pool // count)
        drawn = np.random.default_rng([self.seed, epoch]).permutation(self.pool)
        return drawn[place * count : (place + 1) * count].tolist()


class Seen(Walk):
    """A sight (`events.Sight`) of the clips of a capture.

    Args:
        model: the event model behind its adapter.
        source: the clips.
        seed: of their order.
        file: where features are kept from one sitting to the next.
        owner: what tells these features from others: model and clips.

    Raises:
        CrossdraftError: a list names a clip without events.
    """

    def __init__(self, model: Target, source: Source, seed: int, file: Path, owner: str) -> None:
        super().__init__(len(source), seed)
        if not isinstance(source, SceneSource):
            for clip in range(len(source)):
                events_of(source, clip)  # what is not there is missed now, and not when a step comes to it
        self.model, self.source, self.file, self.owner = model, source, file, owner
        self.known = self._read()
        self._kept = len(self.known)

    @torch.inference_mode()
    def visual(self, step: int, clips: Sequence[int]) -> Tensor:
        for clip in clips:
            if clip not in self.known:
                self.known[clip] = self._look(clip)
        if len(self.known) >= min(self._kept + KEPT_EVERY, self.pool) and len(self.known) > self._kept:
            self._write()
        return torch.stack([self.known[clip] for clip in clips])

    def _look(self, clip: int) -> Tensor:
        """[n, H], in the model's own precision, whatever that of the training is."""
        prompt = self.model.prepare(Request("?", events=events_of(self.source, clip)))
        with torch.autocast(self.model.device.type, enabled=False):
            encoded = cast("Any", self.model.encode(prompt))
        return encoded["video"].pooler_output[0].clone()

    def _read(self) -> dict[int, Tensor]:
        """What an earlier sitting kept; what cannot be read is looked at again."""
        try:
            with safe_open(self.file, "pt") as kept:
                if (kept.metadata() or {}).get("owner") == self.owner:
                    return {int(name): kept.get_tensor(name) for name in kept.keys()}  # noqa: SIM118
        except (OSError, SafetensorError):
            pass
        return {}

    def _write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(self.file) as path:
            save_file({str(clip): seen for clip, seen in self.known.items()}, path, {"owner": self.owner})
        self._kept = len(self.known)


class Unseen(Walk):
    """A sight of nothing: what a blind control is shown."""

    def visual(self, step: int, clips: Sequence[int]) -> Tensor:
        return torch.zeros(1, 0, 0)


def events_of(source: Source, clip: int) -> object:
    """The events of a captured clip, as `Request.events`: simulated for a scene, recorded for a clip of a list.

    Raises:
        CrossdraftError: the list names none.
    """
    if isinstance(source, SceneSource):
        seed = clip_seed(source.split, source.first + clip)
        return scenes.simulate_events(scenes.make_scene(seed))
    found = source.read(clip)
    if found.events is None:
        raise CrossdraftError(
            f"The clip {found.name} of the capture has no events, which heads on an event model look at; capture a "
            "list that names an event recording for every clip, or scenes."
        )
    return found.events
