"""Targets that read fewer visual tokens. LOSSY: see `crossdraft.compressions`, which defines their records.

They are baselines (compression without drafting, and with it), not ways to draft. Entry points of the group
`crossdraft.executors` name them.
"""

from crossdraft.compressions import Compression
from crossdraft_lab.align.prefill import PrefillSettings, speculative_target
from crossdraft_lab.compression.eventprune import EventPruneSettings, eventprune_target
from crossdraft_lab.compression.fastv import FastVSettings, fastv_target
from crossdraft_lab.compression.frames import FramesSettings, fewer_frames_target
from crossdraft_lab.compression.packer import TokenPackerSettings, token_packer_target
from crossdraft_lab.compression.pool import PoolSettings, pooled_target
from crossdraft_lab.compression.visionzip import VisionZipSettings, visionzip_target

FASTV = Compression(
    "fastv",
    "after some layers, the visual tokens that the prompt's last token attends to least are dropped",
    "FastV, Chen et al. 2024", FastVSettings, fastv_target, shares_prefixes=False,
)  # fmt: skip
VISIONZIP = Compression(
    "visionzip",
    "of each frame those patches are left that its class token attends to most, and a few into which the "
    "others are merged",
    "VisionZip, Yang et al. 2024", VisionZipSettings, visionzip_target,
)  # fmt: skip
EVENTPRUNE = Compression(
    "eventprune",
    "of a clip those patches are left that have most events in their part of it and to which the class token attends "
    "most, and a few between them",
    "after EventPrune, Ma et al. 2026", EventPruneSettings, eventprune_target, shares_prefixes=False,
)  # fmt: skip
POOL = Compression(
    "pool",
    "a frame's patches are downsampled before the language model (TokenPacker's queries, without its "
    "trained attention to the patches)",
    "after TokenPacker, Li et al. 2024", PoolSettings, pooled_target,
)  # fmt: skip
TOKEN_PACKER = Compression(
    "token_packer",
    "the same, and each token then attends to the patches that it stands for "
    "(trained for one target: token_packer:dir=FOLDER, of `crossdraft train token_packer`)",
    "TokenPacker, Li et al. 2024", TokenPackerSettings, token_packer_target, trained=True,
)  # fmt: skip
FRAMES = Compression(
    "frames", "fewer frames of the clip are read", "crossdraft", FramesSettings, fewer_frames_target,
)  # fmt: skip
PREDICTED = Compression(
    "predicted",
    "visual tokens predicted from events stand for the clip, or for all but a few key frames, where a gate "
    "that sees the events alone is confident (trained for one pair: predicted:dir=FOLDER)",
    "crossdraft", PrefillSettings, speculative_target, trained=True, shares_prefixes=False,
)  # fmt: skip
