"""Targets that read fewer visual tokens. LOSSY: see `crossdraft.compressions`, whose records these are.

These are baselines (compression without drafting, and with it), not ways to draft. Entry points of the group
`crossdraft.executors` name them.
"""

from crossdraft.compressions import Compression
from crossdraft_lab.align.prefill import PrefillSettings, SpeculativePrefill
from crossdraft_lab.compression.fastv import FastVSettings, fastv_target
from crossdraft_lab.compression.frames import FewerFramesTarget, FramesSettings
from crossdraft_lab.compression.packer import TokenPackerSettings, TokenPackerTarget
from crossdraft_lab.compression.pool import PooledTarget, PoolSettings
from crossdraft_lab.compression.visionzip import VisionZipSettings, VisionZipTarget

FASTV = Compression(
    "fastv",
    "after some layers, the visual tokens that the prompt's last token attends to least are dropped",
    "FastV, Chen et al. 2024", FastVSettings, fastv_target,
)  # fmt: skip
VISIONZIP = Compression(
    "visionzip",
    "of each frame those patches are left that its class token attends to most, and a few into which the "
    "others are merged",
    "VisionZip, Yang et al. 2024", VisionZipSettings, VisionZipTarget,
)  # fmt: skip
POOL = Compression(
    "pool",
    "a frame's patches are downsampled before the language model (TokenPacker's queries, without its "
    "trained attention to the patches)",
    "after TokenPacker, Li et al. 2024", PoolSettings, PooledTarget,
)  # fmt: skip
TOKEN_PACKER = Compression(
    "token_packer",
    "the same, and each token then attends to the patches that it stands for "
    "(trained for one target: token_packer:dir=FOLDER, of `crossdraft train token_packer`)",
    "TokenPacker, Li et al. 2024", TokenPackerSettings, TokenPackerTarget, trained=True,
)  # fmt: skip
FRAMES = Compression(
    "frames", "fewer frames of the clip are read", "crossdraft", FramesSettings, FewerFramesTarget,
)  # fmt: skip
PREDICTED = Compression(
    "predicted",
    "visual tokens predicted from events stand for the clip, or for all but a few key frames, where a gate "
    "that sees the events alone is confident (trained for one pair: predicted:dir=FOLDER)",
    "crossdraft", PrefillSettings, SpeculativePrefill, trained=True,
)  # fmt: skip
