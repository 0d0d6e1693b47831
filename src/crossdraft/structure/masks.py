"""Masks of one answer, by llguidance's matchers: forked along the paths of a draft tree."""

import heapq
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.structure.blanks import Blanks

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MOST_WAYS = 4  # bytes that may come next, at most, for all of them to be drafted
MOST_PATHS = 6
LEAST_PROB = 0.1  # of a drafted text, each way being as likely as the others
TAIL = 4  # tokens of the answer that forced text is tokenised with


class GrammarMasks:
    """The masks of one answer, as `engine.structure.Masks`.

    Args:
        tokenizer: llguidance's form of the tokenizer.
        first_bytes: [tokens] the first byte of each token.
        matcher: at the answer's beginning.
        dense: of the same structure without blanks, where these may stand between parts (JSON): it knows what must
            come but for the blanks, which `Blanks` learns from the answer.
        vocabulary: number of the target's logits.
        ends: ids that end an answer.
    """

    def __init__(
        self,
        tokenizer: "LLTokenizer",
        first_bytes: np.ndarray,
        matcher: "LLMatcher",
        dense: "LLMatcher | None",
        vocabulary: int,
        ends: Collection[int],
    ) -> None:
        self.tokenizer, self.first_bytes, self.matcher, self.dense = tokenizer, first_bytes, matcher, dense
        self.vocabulary, self.ends = vocabulary, frozenset(ends)
        self._blanks = None if dense is None else Blanks()
        self._tail: list[int] = []

    def allowed(self, tree: DraftTree) -> list[int]:
        return sorted(node for node, _ in self._walk(tree))

    def masks(self, tree: DraftTree) -> Tensor:
        found = np.ones((1 + len(tree), self.vocabulary), dtype=bool)  # PyTorch would wake its threads for each row
        found[0] = self._bits(self.matcher)
        for node, matcher in self._walk(tree):
            if matcher is not None:
                found[1 + node] = self._bits(matcher)
        return torch.from_numpy(found)

    def commit(self, tokens: Sequence[int]) -> None:
        tokens = [token for token in tokens if token not in self.ends]
        if self.matcher.try_consume_tokens(tokens) != len(tokens):
            raise CrossdraftError(
                f"The answer left its structure: {self.matcher.get_error() or 'a token is forbidden'}."
            )
        self._tail = [*self._tail, *tokens][-TAIL:]
        if self._blanks is not None and self.dense is not None:
            self.dense.consume_tokens(self.tokenizer.tokenize_bytes(self._blanks.push(self._bytes(tokens))))

    def forced(self, nodes: int) -> DraftTree:
        if nodes < 1:
            return DraftTree.empty()
        paths = [path for text in islice(self._texts(nodes), MOST_PATHS) if (path := self._tokens(text))]
        share = nodes // max(1, len(paths))  # of each, before the likeliest goes on
        tree = DraftTree.from_paths([*(path[:share] for path in paths), *(path[:nodes] for path in paths)])
        tree = tree.first(nodes)
        return tree.keep(self.allowed(tree))

    def _walk(self, tree: DraftTree) -> "Iterator[tuple[int, LLMatcher | None]]":
        """Allowed nodes, each with the matcher after it; `None` after an end."""
        waiting: list[tuple[int, LLMatcher]] = [(ROOT, self.matcher)]
        while waiting:
            node, matcher = waiting.pop()
            for child in tree.children(node):
                token = tree.tokens[child]
                if token in self.ends:
                    if matcher.is_accepting():
                        yield child, None
                    continue
                behind = matcher.deep_copy()
                if behind.try_consume_tokens([token]):
                    yield child, behind
                    waiting.append((child, behind))

    def _bits(self, matcher: "LLMatcher") -> np.ndarray:
        """[V] bool, the tokens that may come next.

        Raises:
            CrossdraftError: the structure became too complex here.
        """
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            raise CrossdraftError(f"The answer's structure cannot be followed: {matcher.get_error():.300}.")
        known = np.unpackbits(bits, bitorder="little").view(bool)[: self.vocabulary]
        return known if len(known) == self.vocabulary else np.pad(known, (0, self.vocabulary - len(known)))

    # -- what must come ----------------------------------------------------------------------------------------------

    def _texts(self, nodes: int) -> Iterator[bytes]:
        """Texts that must come, or of which one must, the likeliest first; none has more bytes than is worth it."""
        start = self.matcher if self.dense is None else self.dense
        found: list[tuple[float, bytes]] = []
        waiting = [(-1.0, b"", start)]
        while waiting and len(found) < nodes:
            prob, text, matcher = heapq.heappop(waiting)
            matcher = matcher.deep_copy()
            if must := matcher.compute_ff_bytes():
                text += must
                if not matcher.consume_tokens(self.tokenizer.tokenize_bytes(must)):
                    continue
            ways = self._ways(matcher) if len(text) < 16 * nodes and not matcher.is_stopped() else b""
            if ways and -prob / len(ways) >= LEAST_PROB:
                for way in ways:
                    behind = matcher.deep_copy()
                    if behind.consume_tokens(self.tokenizer.tokenize_bytes(bytes([way]))):
                        heapq.heappush(waiting, (prob / len(ways), text + bytes([way]), behind))
            elif text:
                found.append((prob, text))
        for _, text in sorted(found):
            yield from [text] if self._blanks is None else self._blanks.spaced(text)

    def _ways(self, matcher: "LLMatcher") -> bytes:
        """The bytes that may come next, if they are at most `MOST_WAYS`."""
        allowed = self._bits(matcher)[: len(self.first_bytes)]
        allowed[[token for token in self.ends if token < len(allowed)]] = False
        first = np.flatnonzero(np.bincount(self.first_bytes[: len(allowed)][allowed]))
        return bytes(first.tolist()) if len(first) <= MOST_WAYS else b""

    def _bytes(self, tokens: Sequence[int]) -> bytes:
        return self.tokenizer.decode_bytes([*tokens])

    def _tokens(self, text: bytes) -> list[int]:
        """The model's own tokens of a text that follows the answer."""
        ids = self.tokenizer.tokenize_bytes(self._bytes(self._tail) + text)
        same = ids[: len(self._tail)] == self._tail
        return ids[len(self._tail) :] if same else self.tokenizer.tokenize_bytes(text)
