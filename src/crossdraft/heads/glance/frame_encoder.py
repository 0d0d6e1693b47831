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
    """`glance` and its visual features, for `IndependentDrafter`.

    Args:
        glance: the network.
        target: of which only `prepare` and `encode` are used; `None` = the features come with the request, see
            `Needs.visual`.

    Raises:
        CrossdraftError: the target's visual features cannot be computed without its language model.
    """

    def __init__(self, glance: Glance, target: Target | None = None) -> None:
        check_encodes(target)
        self.glance, self.target = glance.eval(), target

    def encode(self, request: Request) -> list[KeyValue]:
        """Keys and values of the frames, a layer each.

        Raises:
            CrossdraftError: the request has no clip, or the target does not encode it frame by frame.
        """
        config = self.glance.config
        return self.glance.keys_values(frame_features(request, config.frames, config.patches, self.target)[None])

    def logits(self, features: Tensor, visual: Sequence[KeyValue]) -> Tensor:
        """[n, H] last features of the drafter's model -> [n, V] logits, -inf outside its draft vocabulary."""
        return self.glance.to_full_vocab(self.glance.logits(features[None], visual)[0])


def check_encodes(target: Target | None) -> None:
    """Check that a target encodes a clip by itself.

    Raises:
        CrossdraftError: it does not.
    """
    if target is not None and not target.traits.takes_encoded:
        raise CrossdraftError(
            "This version of transformers does not encode a clip without the language model, which a glance needs; "
            "update transformers."
        )


def frame_features(request: Request, frames: int, patches: int, target: Target | None = None) -> Tensor:
    """[frames · patches, E] the target's visual features of some frames of a request's clip, evenly spread.

    Args:
        request: with `visual_features`, where there is no target.
        frames, patches: how many frames are read, and features of each.
        target: which encodes them here; see `FrameEncoder`.

    Raises:
        CrossdraftError: the request has no clip, or the target does not encode it frame by frame, or not by itself.
    """
    check_encodes(target)
    if target is not None:
        return visual_rows(target.encode(fewer_frames(target.prepare(request), frames))["video"])
    if request.visual_features is None:
        raise CrossdraftError("A glance outside the target's process needs the target's visual features.")
    rows = request.visual_features()
    count, rest = divmod(len(rows), patches)
    if rest:
        return rows  # which the network refuses
    return rows.unflatten(0, (count, -1))[evenly(count, frames)].flatten(0, 1)


def fewer_frames(prompt: Prompt, count: int) -> Prompt:
    """The prompt with `count` of its frames, evenly spread; its ids are unchanged.

    Raises:
        CrossdraftError: it holds no frames.
    """
    pixels = prompt.features.get(PIXELS)
    if not isinstance(pixels, Tensor) or pixels.ndim != 5:
        raise CrossdraftError(
            "A glance needs a target that encodes a clip frame by frame, as Video-LLaVA and LLaVA-NeXT-Video do."
        )
    chosen = torch.tensor(evenly(pixels.shape[1], count))
    return replace(prompt, features={**prompt.features, PIXELS: pixels[:, chosen]}, items=())
