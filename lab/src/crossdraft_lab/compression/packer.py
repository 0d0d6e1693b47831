"""A target that reads packed frames: TokenPacker (Li et al. 2024), trained for this target. LOSSY.

The authors train the packer and the language model together. Here the target stays unchanged, and only the packer is
trained, through the target (`crossdraft train token_packer`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import load_head
from crossdraft.heads.glance.frame_encoder import PIXELS
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.load import target_fingerprint
from crossdraft.specs import check_settings
from crossdraft_lab.align.predicted import encoded_rows
from crossdraft_lab.compression.packer_network import TokenPacker
from crossdraft_lab.compression.pool import pooled_prompt
from crossdraft_lab.compression.visionzip import check_tower
from crossdraft_lab.networks import shipped_folder

HEAD_SIZE = 128  # features of an attention head


@dataclass(frozen=True, slots=True)
class TokenPackerSettings:
    """Choice of a packer.

    Args:
        dir: folder of the packer; by default the one shipped for the reference target.
    """

    dir: Path | None = None

    def __post_init__(self) -> None:
        check_settings(self, "token_packer", "compression")


def token_packer_target(target: Target, settings: TokenPackerSettings) -> Target:
    """Make a target that reads the tokens to which a packer reduces each frame.

    Raises:
        CrossdraftError: the folder holds no packer or one of another target, or as `check_tower`.
    """
    check_tower(target, "TokenPacker")
    shared, source = SharedWeights.of(target.model), target_fingerprint(target.source)
    folder = settings.dir or shipped_folder("token_packer", source, "token_packer:dir=FOLDER")
    packer = cast("TokenPacker", load_head(folder, shared, source, "token_packer")).to(target.device)

    def encode(prompt: Prompt) -> Encoded:
        if prompt.positions is None:
            return target.encode(prompt)
        if PIXELS not in prompt.features:
            raise CrossdraftError("A target with packed frames reads clips, no images; ask about a clip.")
        levels = encoder_levels(target, prompt, packer.config.levels).float()
        return encoded_rows("video", packer.predict(levels[None])[0].to(target.model.dtype))

    return target.reading(pooled_prompt(target, packer.config.factor), encode)


def encoder_levels(target: Target, prompt: Prompt, levels: tuple[int, ...]) -> Tensor:
    """Hidden states [F, P, L·S] of L layers of the vision encoder, for a prompt's frames."""
    tower: Any = cast("Any", target.model.base_model).video_tower
    pixels = prompt.features[PIXELS].to(target.device, target.model.dtype)
    states = tower(pixels.flatten(0, 1), output_hidden_states=True).hidden_states
    return torch.cat([states[level] for level in levels], -1)


def default_heads(size: int) -> int:
    """Number of attention heads for `size` features: 8 for 1024, as the authors choose."""
    return max(1, size // HEAD_SIZE)


def default_levels(config: Any) -> tuple[int, ...]:
    """Hidden states that a packer reads: 12, 16, 22 and 23 of CLIP's large encoder, as the authors choose.

    The last is the layer that the target's projector reads; in other encoders the others are placed in proportion.

    Raises:
        CrossdraftError: the projector reads several layers.
    """
    depth, read = config.vision_config.num_hidden_layers, config.vision_feature_layer
    if not isinstance(read, int):
        raise CrossdraftError("The target's projector reads several layers of its vision encoder; choose `pool`.")
    last = read if read >= 0 else depth + 1 + read
    return tuple(sorted({depth // 2, 2 * depth // 3, max(last - 1, 0), last} & set(range(last + 1))))
