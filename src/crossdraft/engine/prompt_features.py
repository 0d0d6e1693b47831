"""Parts of a prompt that are kept as it is read: layers for a drafter, all of it for requests that share it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from crossdraft.engine.cache import KVCache, KVPrefix
from crossdraft.engine.drafter import Needs, PromptFeatures
from crossdraft.engine.prefix_cache import CachedPrompt
from crossdraft.engine.prompt import Encoded


class PromptReading:
    """Features that a prompt's passes give, collected for a drafter.

    Args:
        cut: number of tokens up to the last visual one; 0 if no token is visual, or no text follows.
        prefix: cached beginning of the prompt, with the features of its part in front of the cut.
        positions: positions of all its tokens, as in `PromptFeatures`.
    """

    def __init__(self, cut: int, prefix: KVPrefix, positions: Tensor | None = None) -> None:
        self.cut, self._read, self._positions = cut, len(prefix), positions
        self._front: list[Mapping[int, Tensor]] = [*prefix.hidden]
        self._text: list[Mapping[int, Tensor]] = []

    def wanted(self, tokens: int, needs: Needs) -> tuple[int, ...]:
        """The layers that a drafter wants of the next `tokens` tokens."""
        front = needs.visual_layers if self._read < self.cut else ()
        text = needs.hidden_layers if self._read + tokens > self.cut else ()
        return tuple(dict.fromkeys((*front, *text)))

    def add(self, layers: Mapping[int, Tensor], tokens: int) -> None:
        """Note the features [tokens + n, h] of the next tokens, and of the n nodes of a tree behind them."""
        front = max(0, min(tokens, self.cut - self._read))
        if front:
            self._front.append({layer: states[:front] for layer, states in layers.items()})
        if front < tokens:
            self._text.append({layer: states[front:] for layer, states in layers.items()})
        self._read += tokens

    def first(self, tokens: int) -> "PromptReading":
        """A copy that has read the first `tokens` tokens, which reach behind the cut."""
        copy = PromptReading(self.cut, KVPrefix(hidden=tuple(self._front)), self._positions)
        layers = sorted(set.intersection(*map(set, self._text))) if self._text else []
        text = zip(layers, self.text(layers), strict=True)
        copy._text = [{layer: states[: tokens - self.cut] for layer, states in text}]
        copy._read = tokens
        return copy

    def front(self) -> dict[int, Tensor]:
        """[cut, h] features in front of the cut, of each layer of which all are known."""
        known = set[int]().union(*self._front)
        return {
            layer: torch.cat([part[layer] for part in self._front])
            for layer in sorted(known)
            if all(layer in part for part in self._front)
        }

    def text(self, layers: Sequence[int]) -> list[Tensor]:
        """[m + n, h] features of each layer behind the cut, those of the tree included."""
        return [torch.cat([part[layer] for part in self._text]) for layer in layers]

    def prompt(self, ids: Sequence[int], layers: Sequence[int]) -> PromptFeatures:
        """A prompt of these ids for its drafter, with these layers in front of the cut."""
        front = self.front() if layers else {}
        visual = {one: front[one] for one in layers if one in front}
        return PromptFeatures(tuple(ids[self.cut :]), tuple(ids[: self.cut]), visual, self._positions)


@dataclass(eq=False)
class SharedPrompt:
    """A prompt that several requests share: the first one leaves here what the others go on from.

    Args:
        awaited: number of these requests that have not begun; while one of the others runs, they may yet come.
        encoded: its visual features.
        known: the prompt, once it is read; its prefix is all of it but the last token.
        reading: its features for the drafter.
        drafting: whether these are as the drafter needs them.
    """

    awaited: int
    encoded: Encoded = field(default_factory=dict[str, object])
    known: CachedPrompt | None = None
    reading: PromptReading | None = None
    drafting: bool = False

    def keep(self, known: CachedPrompt, cache: KVCache, row: int, reading: PromptReading, *, drafting: bool) -> None:
        """Keep a prompt that a row of the cache holds, if the row has its states before the last token."""
        count = len(known.prompt) - 1
        ends = cache.lengths[row] == count if cache.keeps_states else cache.lengths[row] > count
        text = int(known.prompt.input_ids[-1]) not in known.target.traits.visual_ids
        if self.known is None and count and ends and text:
            prefix = KVPrefix(((cache.span(row, 0, count), count),))
            self.known, self.reading, self.drafting = replace(known, prefix=prefix), reading.first(count), drafting
