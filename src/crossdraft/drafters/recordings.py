"""Long recordings for an EventGPT (after EventFlash: Liu et al. 2026): many short windows, sparse and merged tokens.

An EventGPT reads the last second of a recording as five slices. Here it reads all of it, as `slices` adaptive windows
(`events.windows`), at about the same cost:

- spatial sparsity: only the `patches` with the most lit pixels of each frame go through the vision encoder. The other
  patches, mostly empty, get the features of a blank frame;
- temporal merging: T·n frames give n times the temporal tokens, of which each n in a row are averaged, and spatial
  tokens are means over all frames. So the language model reads T+P+1 tokens, as without merging.

The weights are the model's own. With `slices` = T and every patch, only the windows differ from the model's own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.modeling_outputs import BaseModelOutputWithPooling

from crossdraft.engine.prompt import Encoded, LazyFeatures, Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target, as_input
from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, Excerpt, Newest, adaptive_windows
from crossdraft.video.preprocess import preprocess

if TYPE_CHECKING:
    from crossdraft.models.eventgpt import EventGPTProcessor

PIXELS, PATCHES = "pixel_values_videos", "event_patches"
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
        patches: number of patches that are encoded of each frame; `None` = all.

    Raises:
        CrossdraftError: slices that cannot be merged to the model's tokens, more patches than there are, or a blind
            model.
    """

    processor: "EventGPTProcessor"
    slices: int
    patches: int | None = None

    def __post_init__(self) -> None:
        config, frames = self.processor.config, self.processor.config.num_event_frames
        if self.processor.options.blind:
            raise CrossdraftError("A blind model reads no recording; leave out slices and patches.")
        if self.slices < 1 or self.slices % frames:
            raise CrossdraftError(
                f"The event model has {frames} temporal tokens; give slices as a multiple of that, not {self.slices}."
            )
        most = config.event_seq_length - frames - 1
        if self.patches is not None and not 1 <= self.patches <= most:
            raise CrossdraftError(f"A frame has {most} patches; encode 1 to {most} of them, not {self.patches}.")

    def __call__(self, request: Request) -> Prompt:
        ids = torch.tensor(self.processor.prompt_ids(request.question))

        def features() -> tuple[dict[str, Tensor], tuple[str, ...]]:
            events = _recording(request, self.slices)
            found = {PIXELS: self.pixels(events)[None]}
            if self.patches is not None:
                found[PATCHES] = busiest_patches(found[PIXELS][0], self._patch_size, self.patches)[None]
            return found, events.notes

        names = (PIXELS,) if self.patches is None else (PIXELS, PATCHES)
        return recording_prompt(request, ids, names, features)

    def pixels(self, events: Events) -> Tensor:
        """[slices, 3, s, s] preprocessed frames, one a window."""
        windows = adaptive_windows(events, self.slices, self.longest_us)
        painted = (frame for rows in windows for frame in self.processor.paint(events.take(rows), 1))
        return torch.cat([preprocess(frame, self.processor.frame_spec) for frame in painted])

    @property
    def longest_us(self) -> int:
        """Longest window in µs: half of what the model was trained to read at once."""
        return max(1, (self.processor.options.window_us or WINDOW_US) // 2)

    @property
    def blank(self) -> Tensor:
        """[1, 3, s, s] a frame without events."""
        size = self.processor.config.vision_config.image_size
        return preprocess(torch.full((1, size, size, 3), 255, dtype=torch.uint8), self.processor.frame_spec)

    @property
    def _patch_size(self) -> int:
        return self.processor.config.vision_config.patch_size


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


def busiest_patches(pixels: Tensor, size: int, count: int) -> Tensor:
    """[n, count] ascending indexes of the patches of frames [n, 3, s, s] with the most non-white pixels.

    White, where no event is, is the largest value of every channel. Of equal patches the first are taken.
    """
    lit = (pixels < pixels.amax((-1, -2), keepdim=True) - 1e-3).any(1).float()
    share = F.avg_pool2d(lit[:, None], size).flatten(1)
    return share.argsort(dim=1, descending=True, stable=True)[:, :count].sort(1).values


class RecordingEncoder:
    """Encodes the frames of a `RecordingPrompt`.

    Args:
        target: the EventGPT behind its adapter.
        prompt: makes the prompts.
    """

    def __init__(self, target: Target, prompt: RecordingPrompt) -> None:
        self._inner, self._sent = cast("Any", target.model.base_model), partial(as_input, target.model, target.device)
        self.frames = prompt.processor.config.num_event_frames
        self._blank: Tensor | None = None
        if prompt.patches is not None:
            with torch.inference_mode():
                self._blank = self._projected(self._sent(prompt.blank))[0]

    def __call__(self, prompt: Prompt) -> Encoded:
        """The event features [1, T+P+1, h] that replace the placeholders."""
        pixels = self._sent(prompt.features[PIXELS][0])
        if self._blank is None:
            rows = self._projected(pixels)
        else:
            rows = self._sparse(pixels, self._sent(prompt.features[PATCHES][0]), self._blank)
        temporal = rows.mean(1).unflatten(0, (self.frames, -1)).mean(1)
        pooled = torch.cat([temporal, rows.mean(0)])
        return {"video": BaseModelOutputWithPooling(pooler_output=self._inner.event_adaptor(pooled)[None])}

    def _sparse(self, pixels: Tensor, patches: Tensor, blank: Tensor) -> Tensor:
        """[n, P+1, h] projected features, computed for the class token and `patches` [n, k] only; others `blank`."""
        tower, embed = self._inner.vision_tower, self._inner.vision_tower.embeddings
        size, (frames, kept) = embed.patch_embedding.kernel_size[0], patches.shape
        cells = pixels.unfold(2, size, size).unfold(3, size, size).flatten(2, 3)  # [n, 3, P, size, size]
        index = patches[..., None, None, None].expand(-1, -1, cells.shape[1], size, size)
        chosen = cells.transpose(1, 2).gather(1, index)
        rows = F.linear(chosen.reshape(frames, kept, -1), embed.patch_embedding.weight.flatten(1))
        places = embed.position_embedding.weight
        first = (embed.class_embedding + places[0]).expand(frames, 1, -1)
        rows = torch.cat([first, rows + places[1 + patches]], 1)
        hidden = tower.encoder(inputs_embeds=tower.pre_layrnorm(rows)).last_hidden_state
        found = self._inner.multi_modal_projector(hidden)
        at = F.pad(1 + patches, (1, 0))[..., None].expand(-1, -1, found.shape[-1])  # the class token is first
        return blank.expand(frames, -1, -1).scatter(1, at, found)

    def _projected(self, pixels: Tensor) -> Tensor:
        """[n, P+1, h] projected features of whole frames."""
        return self._inner.multi_modal_projector(self._inner.vision_tower(pixels, return_dict=True).last_hidden_state)
