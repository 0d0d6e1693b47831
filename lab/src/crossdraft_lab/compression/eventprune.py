"""Pruning by events, after EventPrune (Ma et al. 2026, arXiv 2605.19506): they choose the visual tokens. LOSSY.

The paper's stages, from its abstract (its formulas were not at hand): keyframes by events; tokens without events are
suppressed; the ranks by attention and by events are fused. Here, without training:

    score of a token    events in its patch, from the middle to the frame before to the middle to the one after
    rank                share of the clip's tokens with fewer events, mixed with that by the class token's attention
    kept                each frame's class token, the best ranks of the whole clip, and a few evenly spread over the
                        others (the floor), so that what stands still is seen, too

All frames are read, so a clip's frames share its tokens by their events; that, the floor, the mixture, and the class
token's attention in place of the language model's are our own choices. Each token keeps its position.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.events.excerpt import Excerpt
from crossdraft.events.stream import Events
from crossdraft.heads.glance.frame_encoder import PIXELS
from crossdraft.specs import Limit, check_settings
from crossdraft.video.preprocess import resized
from crossdraft.video.spec import FrameSpec
from crossdraft.video_prompt import VideoPrompt
from crossdraft_lab.compression.visionzip import SHARE, encoder_with_attention, first_places, projected, tokens_left

SCORES = "event counts"  # key of the tokens' events [F, P] among a prompt's inputs
PART = Limit("a number from 0 to 1", lambda value: 0 <= value <= 1)


@dataclass(frozen=True, slots=True)
class EventPruneSettings:
    """Settings of pruning by events; the defaults are the best of six on 40 questions of the validation split.

    Args:
        keep: share of the clip's tokens that are kept, rounded down for a frame.
        floor: share of the kept patches that are spread evenly, whatever the events.
        attention: weight of the class token's attention in the rank; 0 = events alone.

    Raises:
        CrossdraftError: a number outside its range.
    """

    keep: Annotated[float, SHARE] = 0.25
    floor: Annotated[float, PART] = 0.5
    attention: Annotated[float, PART] = 0.5

    def __post_init__(self) -> None:
        check_settings(self, "eventprune", "compression")


def chosen_tokens(ranks: Tensor, kept: int, floor: float) -> Tensor:
    """Choose tokens of a clip: class tokens, the patches of highest rank, and some evenly spread over the others.

    Args:
        ranks: [F, P] ranks of the patches; of equal ones the first are taken.
        kept: number of patches to keep.
        floor: share of them that are spread.

    Returns:
        [F + kept] ascending places among F * (1 + P) tokens; each frame's class token is its first.

    >>> chosen_tokens(torch.tensor([[5.0, 0, 0], [0, 9, 0]]), 3, 0.34).tolist()
    [0, 1, 4, 5, 6]
    """
    spread = round(floor * kept)
    chosen = torch.zeros(ranks.numel(), dtype=torch.bool, device=ranks.device)
    chosen[ranks.flatten().argsort(descending=True, stable=True)[: kept - spread]] = True
    others = (~chosen).nonzero().flatten()
    at = torch.arange(spread, device=ranks.device)
    chosen[others[(2 * at + 1) * len(others) // (2 * max(spread, 1))]] = True
    return F.pad(chosen.view_as(ranks), (1, 0), value=True).flatten().nonzero().flatten()


def shares_below(values: Tensor) -> Tensor:
    """Share of the values that are smaller than each; equal ones get equal shares.

    >>> shares_below(torch.tensor([[7.0, 0], [0, 3]])).tolist()
    [[0.75, 0.0], [0.0, 0.5]]
    """
    flat = values.float().flatten()
    return torch.searchsorted(flat.sort().values, flat).view_as(values) / len(flat)


def event_counts(chunks: Iterable[Events], span: tuple[int, int], frames: int, spec: FrameSpec, side: int) -> Tensor:
    """Count the events of each patch of a clip's frames.

    Args:
        chunks: the recording; camera and clip see the same, from its first event to its last.
        span: times in µs of its first and last event.
        frames: number of frames, spread evenly over the span; an event counts for the nearest.
        spec: preprocessing of frames; events outside its crop are left out.
        side: patches along a side of a frame.

    Returns:
        [frames, side * side] int64.
    """
    found = np.zeros(frames * side * side, np.int64)
    length = max(1, span[1] - span[0])
    for events in chunks:
        high, wide = resized(events.height, events.width, spec.size)
        crop_high, crop_wide = spec.crop or (high, wide)
        frame = np.rint((events.t - span[0]) * ((frames - 1) / length)).astype(np.int64)
        row, column = (
            _patches(events.y, events.height, high, crop_high, side),
            _patches(events.x, events.width, wide, crop_wide, side),
        )
        seen = (row >= 0) & (row < side) & (column >= 0) & (column < side)
        found += np.bincount(((frame * side + row) * side + column)[seen], minlength=len(found))
    return torch.from_numpy(found).view(frames, -1)


def _patches(pixels: NDArray[np.uint16], sensor: int, size: int, crop: int, side: int) -> NDArray[np.int64]:
    """Patches along an axis that is resized from `sensor` to `size` pixels and cropped; outside 0 … side - 1 = cut."""
    return np.floor(((pixels + 0.5) * (size / sensor) - (size - crop) // 2) * (side / crop)).astype(np.int64)


class EventPrunePrompt:
    """Converts a request into a prompt with the placeholders that are left, and the events of each patch.

    Raises:
        CrossdraftError: as `first_places`, or how the target's frames are cropped is not known.
    """

    def __init__(self, target: Target, settings: EventPruneSettings) -> None:
        whole = target.prepare
        self._fewer = first_places(
            target, "eventprune", lambda tokens: tokens_left(settings.keep, tokens, "eventprune")
        )
        self.side = self._fewer.side
        if not isinstance(whole, VideoPrompt) or whole.spec is None:
            raise CrossdraftError(
                "The compression 'eventprune' is for targets whose frames crossdraft prepares itself; choose another."
            )
        self._spec = whole.spec

    def __call__(self, request: Request) -> Prompt:
        prompt = self._fewer(request)
        if prompt.positions is None:
            return prompt
        if PIXELS not in prompt.features:
            raise CrossdraftError("A target with eventprune reads clips, no images; ask about a clip.")
        notes = list[str]()
        counts = self._counts(request.events, prompt.features[PIXELS].shape[1], notes)
        return replace(prompt, features={**prompt.features, SCORES: counts}, notes=(*prompt.notes, *notes))

    def _counts(self, events: object, frames: int, notes: list[str]) -> Tensor:
        """Count a recording's events, and add what its reader notes."""

        def noted(chunks: Iterable[Events]) -> Iterator[Events]:
            for chunk in chunks:
                notes.extend(note for note in chunk.notes if note not in notes)
                yield chunk

        recording = Excerpt(Path(events)) if isinstance(events, str | Path) else events
        if isinstance(recording, Excerpt):
            span, chunks = recording.time_span() or (0, 0), recording.chunks()
        elif isinstance(recording, Events):
            span, chunks = (recording.t0, recording.t0 + recording.duration_us), iter((recording,))
        else:
            raise CrossdraftError(
                "The compression 'eventprune' chooses by events, and the request has no recording of them that is at "
                "hand here; give one (--events), or choose another compression, such as visionzip."
            )
        return event_counts(noted(chunks), span, frames, self._spec, self.side)


def eventprune_target(target: Target, settings: EventPruneSettings) -> Target:
    """Make a target that reads the tokens of a clip that its events and the class token's attention choose.

    Raises:
        CrossdraftError: as `EventPrunePrompt` and `encoder_with_attention`, or too few tokens would be left.
    """
    prepare = EventPrunePrompt(target, settings)
    states_of = encoder_with_attention(target, "eventprune")
    kept = tokens_left(settings.keep, prepare.side**2 + 1, "eventprune") - 1  # besides the class token

    def encode(prompt: Prompt) -> Encoded:
        """Compute the visual features that are left, with their places."""
        if prompt.positions is None:
            return target.encode(prompt)
        states, attention, _ = states_of(prompt)
        by_events = shares_below(prompt.features[SCORES]).to(attention.device)
        ranks = torch.lerp(by_events, shares_below(attention[:, 1:]), settings.attention)
        places = chosen_tokens(ranks, kept * len(states), settings.floor)
        return projected(target, states.flatten(0, 1)[places], places)

    return target.reading(prepare, encode)
