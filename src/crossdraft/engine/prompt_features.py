"""Hidden layers of a prompt as it is read, for a drafter that looks into the target."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from crossdraft.engine.cache import KVPrefix
from crossdraft.engine.drafter import Needs, PromptFeatures


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
