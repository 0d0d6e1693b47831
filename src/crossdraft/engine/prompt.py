"""Prompt: a request as inputs of the target's model."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from crossdraft.errors import CrossdraftError

GAP = -1  # stands for an image or a clip in `PromptIds`
PromptIds = Future[tuple[int, ...]]
"""A prompt's token ids for drafters of text, once the prompt is prepared; `GAP` for each run of visual tokens."""

# Modality -> output of the model's own feature function; raw inputs if the model's forward does not take features.
Encoded = Mapping[str, object]


class LazyFeatures(Mapping[str, Tensor]):
    """Inputs of a model, some of which are only made when they are asked for.

    Args:
        ready: inputs that are there.
        names: names of the others.
        load: makes the others.
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
        source: its index among the `visuals` of the request.
        tokens: number of token ids that stand for it.
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
        items: its images and clips, in the order of the ids, each to be encoded alone; `()` = all together.
        lossy: name of a lossy way in which it is read, after which the answer may differ from the target's own.
        positions: function from its visual features to the [L] positions of its tokens and the offset of later text;
            `None` = the model's own positions.
    """

    input_ids: Tensor
    features: Mapping[str, Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    items: tuple[VisualItem, ...] = ()
    lossy: str | None = None
    positions: Callable[[Encoded | None], tuple[Tensor, int]] | None = None

    def __len__(self) -> int:
        return len(self.input_ids)


def ready_made(inputs: Mapping[str, object]) -> tuple[Tensor, dict[str, Tensor]]:
    """The ids [L] and the features of ready-made inputs (`Request.inputs`).

    Raises:
        CrossdraftError: they have no `input_ids` [1, L].
    """
    given = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    ids = given.pop("input_ids", None)
    if ids is None or ids.dim() != 2 or len(ids) != 1:
        found = "not there" if ids is None else f"of shape {list(ids.shape)}"
        raise CrossdraftError(
            f"The request's inputs need input_ids, a tensor [1, L], as a processor makes it; it is {found}."
        )
    given.pop("attention_mask", None)
    return ids[0], given


def text_ids(ids: Tensor, reserved: Collection[int]) -> tuple[int, ...]:
    """Replace each run of `reserved` ids among a prompt's ids [L] by one `GAP`.

    >>> text_ids(torch.tensor([5, 9, 9, 9, 6]), {9})
    (5, -1, 6)
    """
    visual = torch.isin(ids, torch.tensor(sorted(reserved), dtype=ids.dtype, device=ids.device))
    repeated = visual & visual.roll(1)
    repeated[:1] = False
    return tuple(ids.masked_fill(visual, GAP)[~repeated].tolist())


def known_ids(ids: Sequence[int]) -> PromptIds:
    """A `PromptIds` future that has its result already."""
    made = PromptIds()
    made.set_result(tuple(ids))
    return made
