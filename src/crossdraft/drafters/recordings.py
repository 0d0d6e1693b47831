"""Long recordings for an EventGPT (after EventFlash: Liu et al. 2026): many short windows, merged tokens.

An EventGPT reads the last second of a recording as five slices. Here it reads all of it, as `slices` adaptive windows
(`events.windows`), at about the same cost, by temporal merging: T·n frames give n times the temporal tokens, of which
each n in a row are averaged, and spatial tokens are means over all frames. So the language model reads T+P+1 tokens, as
without merging. The weights are the model's own. With `slices` = T only the windows differ from the model's own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling

from crossdraft.engine.prompt import Encoded, LazyFeatures, Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target, as_input
from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, Excerpt, Newest, adaptive_windows
from crossdraft.video.preprocess import preprocess

if TYPE_CHECKING:
    from crossdraft.models.eventgpt import EventGPTProcessor

PIXELS = "pixel_values_videos"
WINDOW_US = 1_000_000  # window of a model whose settings name none
MOST_EVENTS = 16_000_000  # newest events of a recording that are read, which bounds the reading
Read = Callable[[], tuple[Mapping[str, Tensor], tuple[str, ...]]]


def recording_prompt(request: Request, ids: Tensor, names: Sequence[str], read: Read) -> Prompt:
    """Make the prompt of a request; `read` gives the features `names` of its recording, and the reader's notes."""
    kept = [] if request.content is None else _notes_on(request.content.digest)
    if request.known:
        return Prompt(ids, LazyFeatures({}, names, lambda: read()[0]), tuple(kept))
    features, notes = read()
    kept[:] = notes
    return Prompt(ids, features, notes)


@lru_cache(1000)
def _notes_on(_content: bytes) -> list[str]:
    """Notes on a recording, kept by its content: once its features are cached, it is not read again."""
    return []


@dataclass(frozen=True)
class RecordingPrompt:
    """Turns a request into the inputs of an EventGPT that reads whole recordings.

    Args:
        processor: the model's own.
        slices: number of windows; a multiple of the model's frames.

    Raises:
        CrossdraftError: slices that cannot be merged to the model's tokens, or a blind model.
    """

    processor: "EventGPTProcessor"
    slices: int

    def __post_init__(self) -> None:
        frames = self.processor.config.num_event_frames
        if self.processor.options.blind:
            raise CrossdraftError("A blind model reads no recording; leave out slices.")
        if self.slices < 1 or self.slices % frames:
            raise CrossdraftError(
                f"The event model has {frames} temporal tokens; give slices as a multiple of that, not {self.slices}."
            )

    def __call__(self, request: Request) -> Prompt:
        ids = torch.tensor(self.processor.prompt_ids(request.question))

        def features() -> tuple[dict[str, Tensor], tuple[str, ...]]:
            events = _recording(request, self.slices)
            return {PIXELS: self.pixels(events)[None]}, events.notes

        return recording_prompt(request, ids, (PIXELS,), features)

    def pixels(self, events: Events) -> Tensor:
        """[slices, 3, s, s] preprocessed frames, one a window."""
        windows = adaptive_windows(events, self.slices, self.longest_us)
        painted = (frame for rows in windows for frame in self.processor.paint(events.take(rows), 1))
        return torch.cat([preprocess(frame, self.processor.frame_spec) for frame in painted])

    @property
    def longest_us(self) -> int:
        """Longest window in µs: half of what the model was trained to read at once."""
        return max(1, (self.processor.options.window_us or WINDOW_US) // 2)


def _recording(request: Request, least: int) -> Events:
    """Read a request's events, at most the newest `MOST_EVENTS`."""
    events, newest = request.events, Newest(least=least, most=max(MOST_EVENTS, least))
    if isinstance(events, str | Path):
        events = Excerpt(Path(events))
    if isinstance(events, Excerpt):
        if events.windows > 1:
            raise CrossdraftError(
                "A drafter with slices lays its own windows; leave out the recording's (windows=…), or slices."
            )
        return events.read(newest)
    if not isinstance(events, Events):
        raise CrossdraftError(
            "A drafter with slices reads an event recording (`events`), as a file or `Events`; give one, or leave out "
            "slices."
        )
    return newest.of(events)


class RecordingEncoder:
    """Encodes the frames of a `RecordingPrompt`.

    Args:
        target: the EventGPT behind its adapter.
        prompt: makes the prompts.
    """

    def __init__(self, target: Target, prompt: RecordingPrompt) -> None:
        self._inner, self._sent = cast("Any", target.model.base_model), partial(as_input, target.model, target.device)
        self.frames = prompt.processor.config.num_event_frames

    def __call__(self, prompt: Prompt) -> Encoded:
        """The event features [1, T+P+1, h] that replace the placeholders."""
        pixels = self._sent(prompt.features[PIXELS][0])
        tower = self._inner.vision_tower(pixels, return_dict=True)
        rows = self._inner.multi_modal_projector(tower.last_hidden_state)  # [n, P+1, h]
        temporal = rows.mean(1).unflatten(0, (self.frames, -1)).mean(1)
        pooled = torch.cat([temporal, rows.mean(0)])
        return {"video": BaseModelOutputWithPooling(pooler_output=self._inner.event_adaptor(pooled)[None])}
