"""Cosines between what events tell of a clip and the clip itself: of raw pixels, and of visual tokens.

The cosine of raw pixels is what a "feature acceptance" was once reported as: an event image and a frame, flattened. How
little a cosine says shows beside it: the same with *another* clip, and with what any clip looks like.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.drafters.recordings import PIXELS
from crossdraft.engine.arrivals import evenly
from crossdraft.engine.encoded import visual_rows
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.video.clip import read_clip
from crossdraft_lab.align.predicted import encoder_features
from crossdraft_lab.align.prefill import SpeculativePrefill
from crossdraft_lab.bench.statistics import Interval, ratio

SIDE = 224  # of an image, as it was measured


@dataclass(frozen=True)
class ClipCosine:
    """One pair of things that are compared.

    Args:
        name: which.
        same: mean cosine within a clip.
        other: with the next clip's.
    """

    name: str
    same: Interval
    other: Interval

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {"compared": self.name, "same_clip": self.same.to_json(), "another_clip": self.other.to_json()}


@torch.inference_mode()
def clip_cosines(target: Target, predicting: SpeculativePrefill, requests: Sequence[Request]) -> list[ClipCosine]:
    """Mean cosines over requests about different clips.

    Args:
        target: the whole one.
        predicting: what is predicted for it.
        requests: with a clip and events each.
    """
    images, frames, predicted, true = [], [], [], []
    adapter, events = predicting.predicting.adapter, predicting.predicting.events
    config = adapter.config
    for request in requests:
        seen = events.prepare(request)
        images.append(_event_image(events, seen.features[PIXELS][0]))
        frames.append(_middle_frame(predicting, request))
        predicted.append(predicting.predicting.predict(encoder_features(events, seen)).float())
        rows = visual_rows(next(iter(target.encode(target.prepare(request)).values()))).float()
        shown = rows.view(-1, config.tokens, rows.shape[-1])
        true.append(shown[evenly(len(shown), config.frames)].flatten(0, 1))
    any_clip = (config.scale * adapter.mean).to(true[0]).expand(len(true), -1, -1)
    return [
        _compared("raw pixels: event image, frame", torch.stack(images)[:, None], torch.stack(frames)[:, None]),
        _compared("visual tokens: predicted, true", torch.stack(predicted), torch.stack(true)),
        _compared("visual tokens: what any clip looks like, true", any_clip, torch.stack(true)),
    ]


def _compared(name: str, left: Tensor, right: Tensor) -> ClipCosine:
    """Compare two [clips, n, d]: cosines of each clip with its own counterpart, and with the next clip's."""
    each = (F.cosine_similarity(left, one, dim=-1).mean(1).tolist() for one in (right, right.roll(1, 0)))
    return ClipCosine(name, *(ratio(cosines, [1] * len(left)) for cosines in each))


def _event_image(events: Target, pixels: Tensor) -> Tensor:
    """[3 · 224 · 224] the middle one of preprocessed event frames [T, 3, s, s], in 0 … 1."""
    spec = cast("Any", events.prepare).processor.frame_spec
    mean, std = (torch.tensor(one, dtype=pixels.dtype)[:, None, None] for one in (spec.mean, spec.std))
    return _sized(pixels[len(pixels) // 2].cpu() * std + mean)


def _middle_frame(predicting: SpeculativePrefill, request: Request) -> Tensor:
    """[3 · 224 · 224] the frame that an adapter of one frame predicts, in 0 … 1."""
    frames = read_clip(request.clip, predicting.sampling).frames
    return _sized(torch.as_tensor(frames[evenly(len(frames), 1)[0]]).permute(2, 0, 1).float() / 255)


def _sized(image: Tensor) -> Tensor:
    return F.interpolate(image[None].float(), size=(SIDE, SIDE), mode="bilinear").flatten()
