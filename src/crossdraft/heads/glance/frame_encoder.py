"""`FrameEncoder`: the target's visual features of a few frames as keys and values of `glance`'s cross-attention.

Outside the target's process the features come with the request, long before the prefill ends. In the target's process
the frames are encoded here.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from crossdraft.engine.arrivals import evenly
from crossdraft.engine.encoded import visual_rows
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.glance.network import Glance
from crossdraft.heads.networks.layers import KeyValue

PIXELS = "pixel_values_videos"  # [1, frames, 3, h, w]


class FrameEncoder:
    """`glance` with the visual features of a request, for `IndependentDrafter`.

    Args:
        glance: the network.
        target: target, of which only `prepare` and `encode` are used; `None` = the features come with the request, see
            `Needs.visual`.

    Raises:
        CrossdraftError: the target's visual features cannot be computed without its language model.
    """

    def __init__(self, glance: Glance, target: Target | None = None) -> None:
        check_encodes(target)
        self.glance, self.target = glance.eval(), target

    def encode(self, request: Request) -> list[KeyValue]:
        """Compute keys and values of the frames for each layer.

        Raises:
            CrossdraftError: the request has no clip, or the target does not encode it frame by frame.
        """
        config = self.glance.config
        return self.glance.keys_values(frame_features(request, config.frames, config.patches, self.target)[None])

    def logits(self, features: Tensor, visual: Sequence[KeyValue]) -> Tensor:
        """Map last features [n, H] of the drafter's model to logits [n, V], -inf outside its draft vocabulary."""
        return self.glance.to_full_vocab(self.glance.logits(features[None], visual)[0])


def check_encodes(target: Target | None) -> None:
    """Check that a target can encode a clip without its language model.

    Raises:
        CrossdraftError: the target cannot.
    """
    if target is not None and not target.traits.takes_encoded:
        raise CrossdraftError(
            "This version of transformers does not encode a clip without the language model, which a glance needs; "
            "update transformers."
        )


def frame_features(request: Request, frames: int, patches: int, target: Target | None = None) -> Tensor:
    """Visual features [frames · patches, E] of evenly spread frames of a request's clip, by the target's encoder.

    Args:
        request: the request, with `visual_features` if there is no target.
        frames, patches: number of frames that are read, and number of features of each.
        target: target that encodes the frames here; see `FrameEncoder`.

    Raises:
        CrossdraftError: the request has no clip, or the target does not encode it frame by frame, or not by itself.
    """
    check_encodes(target)
    if target is not None:
        return visual_rows(target.encode(fewer_frames(target.prepare(request), frames))["video"])
    if request.visual_features is None:
        raise CrossdraftError("A glance outside the target's process needs the target's visual features.")
    rows = request.visual_features()
    if len(rows) % patches:
        return rows  # the network refuses them
    return chosen(rows.unflatten(0, (-1, patches)), frames).flatten(0, 1)


def chosen(frames: Tensor, count: int) -> Tensor:
    """Choose `count` evenly spread frames of [F, ...], the frames of all clips in their order."""
    return frames[evenly(len(frames), count)]


def fewer_frames(prompt: Prompt, count: int) -> Prompt:
    """Reduce a prompt to `count` of the frames of all its clips; its ids are unchanged.

    Raises:
        CrossdraftError: the prompt has no frames.
    """
    sources = [item.features for item in prompt.items if PIXELS in item.features] or [prompt.features]
    clips = [features.get(PIXELS) for features in sources]
    frames = [clip.flatten(0, 1) for clip in clips if isinstance(clip, Tensor) and clip.ndim == 5]
    if not prompt.items and not prompt.features:
        raise CrossdraftError("The request has no video, of which a glance reads the frames; name another drafter.")
    if not frames or len(frames) < len(clips):
        raise CrossdraftError(
            "A glance needs a target that encodes a clip frame by frame, as Video-LLaVA and LLaVA-NeXT-Video do."
        )
    return replace(prompt, features={PIXELS: chosen(torch.cat(frames), count)[None]}, items=())
