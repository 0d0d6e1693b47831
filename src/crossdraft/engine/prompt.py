"""Prompt: a request as the target's model reads it, before anything of it is computed."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

GAP = -1  # in `PromptIds`: where something visual stands
PromptIds = Future[tuple[int, ...]]
"""A prompt's token ids for drafters of text, once the prompt is prepared; `GAP` for each run of what is no text."""

# Modality -> what the model's own feature function returned; from a model that cannot take these, its raw inputs.
Encoded = Mapping[str, object]


class LazyFeatures(Mapping[str, Tensor]):
    """Inputs of a model, some of which are only made when they are asked for.

    Args:
        ready: those that are there.
        names: of the others.
        load: makes them.
    """

    def __init__(
        self, ready: Mapping[str, Tensor], names: Sequence[str], load: Callable[[], Mapping[str, Tensor]]
    ) -> None:
        self._found = dict(ready)
        self._names = (*ready, *(name for name in names if name not in ready))
        self._load = load

    def __getitem__(self, name: str) -> Tensor:
        if name in self._names and name not in self._found:
            self._found |= self._load()
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class VisualItem:
    """An image or a clip of a prompt.

    Args:
        source: its number among the `visuals` of the request.
        tokens: how many ids stand for it.
        features: its own inputs of the model, a batch of one.
    """

    source: int
    tokens: int
    features: Mapping[str, Tensor]


@dataclass(frozen=True)
class Prompt:
    """A request as the model reads it.

    Args:
        input_ids: [L] token ids with the visual placeholders expanded.
        features: further inputs of the model, batch of one (`pixel_values_videos`, `video_grid_thw`, …).
        notes: what the user should know of the input, such as a damaged clip; they reach `Answer.notes`.
        items: what is visual, in the order of the ids, each to be encoded by itself; `()` = all of it together.
        lossy: how it is read in place of the whole prompt, so that the answer need not be the target's own.
        positions: gives the [L] positions of its tokens and the offset of later text, of its visual features; `None` =
            as the model counts.
    """

    input_ids: Tensor
    features: Mapping[str, Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    items: tuple[VisualItem, ...] = ()
    lossy: str | None = None
    positions: Callable[[Encoded | None], tuple[Tensor, int]] | None = None

    def __len__(self) -> int:
        return len(self.input_ids)


def text_ids(ids: Tensor, reserved: Collection[int]) -> tuple[int, ...]:
    """The ids [L] of a prompt, with one `GAP` in place of each run of those that are no text.

    >>> text_ids(torch.tensor([5, 9, 9, 9, 6]), {9})
    (5, -1, 6)
    """
    visual = torch.isin(ids, torch.tensor(sorted(reserved), dtype=ids.dtype, device=ids.device))
    repeated = visual & visual.roll(1)
    repeated[:1] = False
    return tuple(ids.masked_fill(visual, GAP)[~repeated].tolist())


def known_ids(ids: Sequence[int]) -> PromptIds:
    """A prompt's ids that are known already."""
    made = PromptIds()
    made.set_result(tuple(ids))
    return made
