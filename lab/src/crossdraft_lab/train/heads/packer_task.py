"""Training of TokenPacker for a frozen target: what it packs of a clip must make the target say what it says.

First, for `feature_steps`, packed tokens learn to be the target's own, pooled, so that they look like visual tokens at
all; then the frozen language model reads them, and the target's own answers are what it should say (`vision_task`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head, HeadConfig
from crossdraft_lab.compression.packer import check_packable, default_heads, default_levels, encoder_levels
from crossdraft_lab.compression.packer_network import TokenPacker
from crossdraft_lab.train.capture.sources import ClipSource
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.heads.align_data import ClipAnswers, clip_answers
from crossdraft_lab.train.heads.event_data import FeatureCache, patches_per_frame
from crossdraft_lab.train.heads.task import TaskData, TaskInputs, captured_source
from crossdraft_lab.train.heads.vision_task import FrozenTargetTask

SAMPLE = 16  # clips that tell the scale of visual tokens


class LevelFeatures(FeatureCache):
    """Hidden states that a packer reads of each clip: [F, P, L·S], kept in bfloat16.

    Args:
        levels: which hidden states of the target's vision encoder. The others are as in `FeatureCache`.
    """

    kind = "levels"
    reads_events = False

    def __init__(
        self, target: Any, source: ClipSource, seed: int, folder: Path, owner: str, levels: tuple[int, ...]
    ) -> None:
        super().__init__(target, source, seed, folder, owner)
        self.levels = levels

    def _encode(self, clip: int) -> Tensor:
        prompt = self.model.prepare(self.source.read(clip).requests(1)[0])
        found = encoder_levels(self.model, prompt, self.levels).bfloat16()
        first = next(iter(self.cached.values()), found)
        if found.shape != first.shape:
            raise CrossdraftError(
                f"Clip {clip} of the capture has {len(found)} frames, one before it {len(first)}; capture clips of "
                "which the target reads equally many."
            )
        return found


@dataclass(frozen=True)
class PackedClips:
    """`VisualExamples` of a packer.

    Args:
        answers: see there.
        projector: the target's own.
        packer: whose grid pools the tokens that are compared.
        scale: of these.
    """

    answers: ClipAnswers
    projector: nn.Module
    packer: TokenPacker
    scale: float = 1.0

    def visual(self, step: int) -> tuple[Tensor, Tensor]:
        """[clips, F, P, L·S] features, and [clips, K, H] the target's own tokens, pooled."""
        seen = self.answers.visual(step).float()  # a copy: what was made in inference mode cannot be learned through
        return seen, self.pooled(seen)

    def spread_of(self, clips: int) -> float:
        """The standard deviation of such tokens of the first clips from their mean over clips."""
        tokens = self.pooled(self.answers.features.visual(0, range(clips)).float())
        return float((tokens - tokens.mean(0)).square().mean().sqrt()) or 1.0

    @torch.no_grad()
    def pooled(self, seen: Tensor) -> Tensor:
        """[clips, K, H] of features [clips, F, P, L·S]."""
        config = self.packer.config
        tokens = self.projector(seen[..., -config.source_size :]).flatten(0, 2)
        return config.grid.pool(tokens, config.factor).unflatten(0, (len(seen), -1))


class PackerTask(FrozenTargetTask):
    """See the module's text.

    Raises:
        CrossdraftError: as `FrozenTargetTask`, or the target's clips do not go through a vision encoder of their own.
    """

    def __init__(self, inputs: TaskInputs) -> None:
        super().__init__(inputs)
        check_packable(inputs.target)
        self.projector: nn.Module = cast("Any", inputs.target.model.base_model).multi_modal_projector

    @property
    def drafted(self) -> str:
        return "nothing is drafted"

    def measured_settings(self, kind: type[HeadConfig], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings that the target's vision encoder determines."""
        config = cast("Any", self.inputs.target.model.config)
        vision = config.vision_config
        side, size = vision.image_size // vision.patch_size, vision.hidden_size
        tokens = patches_per_frame(self.prompt, self.inputs.target.traits.visual_ids)
        levels = default_levels(config)
        if "levels" in settings and settings["levels"][-1] != levels[-1]:
            raise CrossdraftError(
                f"The last of a packer's levels must be {levels[-1]}, which the target's projector reads; it is "
                f"{settings['levels'][-1]}."
            )
        found = {
            "source_size": size,
            "levels": levels,
            "side": side,
            "class_token": tokens == side**2 + 1,
            "heads": default_heads(size),
        }
        return {name: value for name, value in found.items() if name not in settings}

    def data(self, head: Head) -> TaskData:
        packer, validation = cast("TokenPacker", head), self.inputs.validation
        packer.begin_at(self.projector)
        clips = self._clips(self.store, packer)
        clips = replace(clips, scale=clips.spread_of(min(SAMPLE, len(captured_source(self.store)))))
        others = None if validation is None else replace(self._clips(validation, packer), scale=clips.scale)
        visual_ids = self.inputs.target.traits.visual_ids
        length = sum(token in visual_ids for token in self.prompt.input_ids.tolist())
        grid, factor = packer.config.grid, packer.config.factor
        decoder = self.decoder(packer, grid.places(length // grid.tokens, factor), length)
        return self.examples(packer, clips, others, decoder)

    def measured_figures(self, head: Head, folder: Path) -> dict[str, object]:
        """None: what it costs in quality, `bench compression` measures."""
        return {}

    def _clips(self, store: CaptureStore, packer: TokenPacker) -> PackedClips:
        recipe, levels, source = self.inputs.recipe, packer.config.levels, captured_source(store)
        owner = f"{self.inputs.fingerprint} {store.index.asked_sha256} {levels}"
        features = LevelFeatures(self.inputs.target, source, recipe.seed, store.folder, owner, levels)
        return PackedClips(
            clip_answers(store, source, features, recipe.seed, recipe.optim.clips), self.projector, packer
        )
