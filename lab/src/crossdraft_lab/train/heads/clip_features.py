"""Features of captured clips from frozen encoders: computed once a clip, and kept in a file for other trainings."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path
from crossdraft.heads.glance.frame_encoder import PIXELS
from crossdraft_lab import scenes
from crossdraft_lab.train.capture.sources import ClipSource, SceneSource
from crossdraft_lab.train.heads.batches import EpochSampler
from crossdraft_lab.train.reference.clips import clip_seed

FEATURES = "features"
WRITE_EVERY = 100  # clips between two writings of the file


class ClipFeatures(EpochSampler):
    """Order of the clips of each step, without features, for a control that sees nothing."""

    def visual(self, step: int, clips: Sequence[int]) -> Tensor:
        """Features [clips, …] of some of the step's clips; without features [1, 0, 0]."""
        return torch.zeros(1, 0, 0)


class FeatureCache(ClipFeatures):
    """Features of a capture's clips.

    Args:
        kind: name of the kind of features, used in the file's name.
        encode: computes the features of the clip of that number, in the model's own precision, not the training's.
        model: the model that computes them.
        source: the clips.
        seed: seed of their order.
        folder: folder of the capture, in which a folder `features` is made; if it cannot be written, nothing is kept.
        owner: identity of model and clips, which distinguishes these features from others of their kind.
    """

    def __init__(
        self,
        kind: str,
        encode: Callable[[int], Tensor],
        model: Target,
        source: ClipSource,
        seed: int,
        folder: Path,
        owner: str,
    ) -> None:
        super().__init__(len(source), seed)
        precision = sorted({str(value.dtype) for value in model.model.state_dict().values()})
        self.encode, self.device, self.owner = encode, model.device.type, f"{owner} {' '.join(precision)}"
        self.file = folder / FEATURES / f"{kind}-{sha256(self.owner.encode()).hexdigest()[:12]}.safetensors"
        self.cached = self._read()
        self._written = len(self.cached)

    @torch.inference_mode()
    def visual(self, step: int, clips: Sequence[int]) -> Tensor:
        for clip in clips:
            if clip not in self.cached:
                self.cached[clip] = self._encoded(clip)
        if len(self.cached) >= min(self._written + WRITE_EVERY, self.pool) and len(self.cached) > self._written:
            self._write()
        return torch.stack([self.cached[clip] for clip in clips])

    def _encoded(self, clip: int) -> Tensor:
        with torch.autocast(self.device, enabled=False):
            found = self.encode(clip).cpu().clone()
        first = next(iter(self.cached.values()), found)
        if found.shape != first.shape:
            raise CrossdraftError(
                f"Clip {clip} of the capture has features of the shape {tuple(found.shape)}, one before it "
                f"{tuple(first.shape)}; capture clips of which equally many frames are read."
            )
        return found

    def _read(self) -> dict[int, Tensor]:
        """Load the features that an earlier run kept; start afresh if the file cannot be read."""
        try:
            with safe_open(self.file, "pt") as kept:
                if (kept.metadata() or {}).get("owner") == self.owner:
                    return {int(name): kept.get_tensor(name) for name in kept.keys()}  # noqa: SIM118
        except (OSError, SafetensorError):
            pass
        return {}

    def _write(self) -> None:
        with suppress(CrossdraftError), atomic_path(self.file) as path:
            save_file({str(clip): features for clip, features in self.cached.items()}, path, {"owner": self.owner})
        self._written = len(self.cached)


def seen_events(model: Target, prompt: Prompt) -> Tensor:
    """Event features [n, H] that replace the placeholders of a prompt."""
    return cast("Any", model.encode(prompt))["video"].pooler_output[0]


def event_features(
    model: Target,
    source: ClipSource,
    seed: int,
    folder: Path,
    owner: str,
    kind: str = "seen",
    encode: Callable[[Target, Prompt], Tensor] = seen_events,
) -> FeatureCache:
    """Cache of an event model's features of the clips' events.

    Args:
        model: the event model behind its adapter.
        source, seed, folder, owner, kind: as in `FeatureCache`.
        encode: computes the features of a prompt with events.

    Raises:
        CrossdraftError: a list names a clip without events.
    """
    if not isinstance(source, SceneSource):
        for clip in range(len(source)):
            clip_events(source, clip)  # raises now, not at the step that needs the events

    def of_clip(clip: int) -> Tensor:
        return encode(model, model.prepare(Request("?", events=clip_events(source, clip))))

    return FeatureCache(kind, of_clip, model, source, seed, folder, owner)


def clip_events(source: ClipSource, clip: int) -> object:
    """Events of a captured clip, as in `Request.events`: simulated for a scene, recorded for a clip of a list.

    Raises:
        CrossdraftError: the list names no events for the clip.
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


def patches_per_frame(prompt: Prompt, visual_ids: Collection[int]) -> int:
    """Number of the target's visual features per frame, counted in a prompt with a clip in it.

    Raises:
        CrossdraftError: the target does not see a clip frame by frame.
    """
    pixels = prompt.features.get(PIXELS)
    count = sum(token in visual_ids for token in prompt.input_ids.tolist())
    frames = pixels.shape[1] if isinstance(pixels, Tensor) and pixels.ndim == 5 else 0
    if not frames or not count or count % frames:
        raise CrossdraftError(
            "A glance needs a target that encodes a clip frame by frame, as Video-LLaVA and LLaVA-NeXT-Video do; "
            f"this one has {count} visual features for a clip. Train another head, for example event_medusa."
        )
    return count // frames
