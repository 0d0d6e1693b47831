"""Encodes frames of the clip for `glance`: the target's visual features of a few frames, as keys and values.

In another process than the target, the features come with the request; they are there long before the prefill ends. In
the target's process, the frames are encoded here.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from crossdraft.drafters.view import evenly
from crossdraft.engine.request import Request
from crossdraft.engine.target import Prompt, Target, visual_rows
from crossdraft.errors import CrossdraftError
from crossdraft.heads.glance.network import Glance
from crossdraft.heads.networks.layers import KeyValue

PIXELS = "pixel_values_videos"  # [1, frames, 3, h, w]


class FrameEncoder:
    """`glance` and its visual features, for `IndependentDrafter`.

    Args:
        glance: the network.
        tower: the target, of which no more is used than `prepare` and `encode`; `None` = the features come with the
            request, see `Needs.visual`.

    Raises:
        CrossdraftError: what the target makes of a clip cannot be had apart from its reading.
    """

    def __init__(self, glance: Glance, tower: Target | None = None) -> None:
        if tower is not None and not tower.traits.takes_encoded:
            raise CrossdraftError(
                "This version of transformers does not tell a model's vision from its reading, which a glance needs; "
                "update transformers."
            )
        self.glance, self.tower = glance.eval(), tower

    def look(self, request: Request) -> list[KeyValue]:
        """Keys and values of the frames, a layer each.

        Raises:
            CrossdraftError: the request has no clip, or the target does not see it frame by frame.
        """
        if self.tower is not None:
            prompt = fewer_frames(self.tower.prepare(request), self.glance.config.frames)
            return self.glance.see(visual_rows(self.tower.encode(prompt)["video"])[None])
        if request.visual_features is None:
            raise CrossdraftError("A glance that has no target beside it needs the target's visual features.")
        return self.glance.see(self._chosen(request.visual_features())[None])

    def _chosen(self, rows: Tensor) -> Tensor:
        """Of [F · n, E] features of a clip those of the frames that are read."""
        frames, rest = divmod(len(rows), self.glance.config.patches)
        if rest:
            return rows  # which `see` refuses
        chosen = evenly(frames, self.glance.config.frames)
        return rows.unflatten(0, (frames, -1))[chosen].flatten(0, 1)

    def logits(self, features: Tensor, seen: Sequence[KeyValue]) -> Tensor:
        """[n, H] last features of the drafter's model -> [n, V] logits, -inf outside its draft vocabulary."""
        return self.glance.to_full_vocab(self.glance.logits(features[None], seen)[0])


def fewer_frames(prompt: Prompt, count: int) -> Prompt:
    """The prompt with `count` of its frames, evenly spread; what its ids say of frames is not looked at.

    Raises:
        CrossdraftError: it holds no frames side by side.
    """
    pixels = prompt.features.get(PIXELS)
    if not isinstance(pixels, Tensor) or pixels.ndim != 5:
        raise CrossdraftError(
            "A glance needs a target that sees a clip frame by frame, as Video-LLaVA and LLaVA-NeXT-Video do."
        )
    chosen = torch.tensor(evenly(pixels.shape[1], count))
    return replace(prompt, features={**prompt.features, PIXELS: pixels[:, chosen]})
