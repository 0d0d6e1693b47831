"""Masks of one answer, by llguidance's matchers: forked along the paths of a draft tree."""

import heapq
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.structure.blanks import Blanks

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MOST_WAYS = 4  # bytes that may come next, at most, for all of them to be drafted
MOST_PATHS = 6  # texts that are drafted, in the styles of their blanks
LEAST_PROB = 0.1  # of a drafted text, each way being as likely as the others
ROUND_S = 1.0  # of a core for the masks of a round
FORCED_S = 0.02  # of a core, after which no further text is looked for
TAIL = 4  # tokens of the answer that forced text is tokenised with


class GrammarMasks:
    """The masks of one answer, as `engine.structure.MaskSource` makes them.

    Copies of a matcher share what its lexer has learned, errors too. So each answer has matchers of its own, and they
    are made anew where a draft has led one into an error: the answer is not the draft's.

    Args:
        tokenizer: llguidance's form of the tokenizer.
        byte_tokens: [256] the token of each byte.
        make: makes a matcher at the answer's beginning, and for JSON one of the structure without blanks: it knows
            what must come but for the blanks, which `Blanks` learns from the answer.
        vocabulary: number of the target's logits.
        ends: ids that end an answer.
        reserved: ids of other special tokens, which no structure may ask for.
    """

    def __init__(
        self,
        tokenizer: "LLTokenizer",
        byte_tokens: NDArray[np.int64],
        make: "Callable[[], tuple[LLMatcher, LLMatcher | None]]",
        vocabulary: int,
        ends: Collection[int],
        reserved: Collection[int] = (),
    ) -> None:
        self.tokenizer, self.byte_tokens, self._make = tokenizer, byte_tokens, make
        self.matcher, self.dense = make()
        self.vocabulary, self.ends = vocabulary, frozenset(ends)
        self._ends = self._packed(ends)
        self._text = ~self._packed({*ends, *reserved}) & self._packed(range(vocabulary))
        self._blanks = None if self.dense is None else Blanks()
        self._said: list[int] = []
        self._spent_s = 0.0  # of a core, by this round's masks

    def allowed(self, tree: DraftTree) -> list[int]:
        found: list[int] = []
        waiting = [(ROOT, self.matcher)]
        while waiting:
            node, matcher = waiting.pop()
            for child in tree.children(node):
                behind = matcher.deep_copy()
                if tree.tokens[child] in self.ends:
                    found += [child] if matcher.is_accepting() else []
                elif behind.try_consume_tokens([tree.tokens[child]]):
                    found.append(child)
                    waiting.append((child, behind))
        return sorted(found)

    def allows(self, path: Sequence[int], token: int) -> bool:
        matcher, shown = self._after(path), self._text[token >> 3] >> (token & 7) & 1
        if matcher is None or not shown or matcher.is_stopped():
            return False
        # Of bytes that must come, the mask has the usual token alone.
        usual = matcher.compute_ff_tokens()[:1] if matcher.compute_ff_bytes() else [token]
        return token in usual and matcher.validate_tokens([token]) > 0

    def mask(self, path: Sequence[int] = ()) -> Tensor:
        start, matcher = time.thread_time(), self._after(path)
        bits = self._bits(matcher) if self.ends.isdisjoint(path) else self._ends
        if not path and not bits.any():  # a draft may have led the library into an error
            self._renew()
            bits = self._bits(self.matcher)
            if not bits.any():
                why = self.matcher.get_error().partition("\n")[0] or "no token may come"
                raise CrossdraftError(f"The answer's structure cannot be followed: {why}.")
        self._spent_s += time.thread_time() - start
        if self._spent_s > ROUND_S:
            raise CrossdraftError(f"The masks of a structure take more than {ROUND_S:g} s a round; make it simpler.")
        return torch.from_numpy(np.unpackbits(bits, count=self.vocabulary, bitorder="little").view(bool))

    def commit(self, tokens: Sequence[int]) -> None:
        tokens = [token for token in tokens if token not in self.ends]
        self._said += tokens
        self._spent_s = 0.0
        if self.matcher.try_consume_tokens(tokens) != len(tokens):
            self._renew()
        if self._blanks is not None:
            text = self.tokenizer.tokenize_bytes(self._blanks.push(self.tokenizer.decode_bytes(tokens)))
            if self.dense is not None and self.dense.try_consume_tokens(text) != len(text):
                self.dense = None  # nothing is forced any more

    def forced(self, nodes: int) -> DraftTree:
        if nodes < 1 or (self._blanks is not None and self.dense is None):
            return DraftTree.empty()
        paths = [path for text in islice(self._texts(nodes), MOST_PATHS) if (path := self._tokens(text))]
        share = nodes // max(1, len(paths))  # of each, before the likeliest goes on
        tree = DraftTree.from_paths([*(path[:share] for path in paths), *(path[:nodes] for path in paths)])
        tree = tree.first(nodes)
        return tree.keep(self.allowed(tree))

    def _renew(self) -> None:
        """Make the matcher of the answer so far anew.

        Raises:
            CrossdraftError: it does not take the answer.
        """
        self.matcher, _ = self._make()
        if self.matcher.try_consume_tokens(self._said) != len(self._said):
            why = self.matcher.get_error().partition("\n")[0] or "a token is forbidden"
            raise CrossdraftError(f"The answer left its structure: {why}.")

    def _after(self, path: Sequence[int]) -> "LLMatcher | None":
        """The matcher behind a path; `None` if the path may not come."""
        matcher = self.matcher.deep_copy() if path else self.matcher
        return matcher if not path or matcher.try_consume_tokens([*path]) == len(path) else None

    def _bits(self, matcher: "LLMatcher | None") -> NDArray[np.uint8]:
        """[V / 8] uint8, a bit for each token that may come next; none without a matcher, or if the library fails."""
        if matcher is None:
            return np.zeros_like(self._ends)
        accepting, forced = matcher.is_accepting(), matcher.compute_ff_tokens()[:1]
        spelt = not forced or matcher.validate_tokens(forced)
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)[: len(self._ends)]
        if matcher.is_error():
            return np.zeros_like(self._ends)
        if not spelt:  # by an added token, which is no text for the parser
            first = self.tokenizer.tokenize_bytes(self.tokenizer.decode_bytes(forced)[:-1])[:1]
            return self._packed(first if first and matcher.validate_tokens(first) else ())
        known = self._text.copy()
        known[: len(bits)] &= bits
        known[len(bits) :] = 0
        return known | self._ends if accepting else known

    def _packed(self, tokens: Iterable[int]) -> NDArray[np.uint8]:
        """[V / 8] uint8, a bit for each token that has a logit."""
        marked = np.zeros(self.vocabulary, dtype=bool)
        marked[[token for token in tokens if token < self.vocabulary]] = True
        return np.packbits(marked, bitorder="little")

    # -- what must come ----------------------------------------------------------------------------------------------

    def _texts(self, nodes: int) -> Iterator[bytes]:
        """Texts that must come, or of which one must, the likeliest first; of a few letters a node, and found in 20 ms.

        A text may also end: that is one more way to go on.
        """
        most, until = 16 * nodes, time.thread_time() + FORCED_S
        found: list[tuple[float, bytes]] = []
        waiting = [(-1.0, b"", self.matcher if self.dense is None else self.dense)]
        while waiting and len(found) < nodes:
            prob, text, matcher = heapq.heappop(waiting)
            matcher, late = matcher.deep_copy(), time.thread_time() > until
            must = b"" if late else matcher.compute_ff_bytes()[: most - len(text)]
            if must and not matcher.consume_tokens(self.tokenizer.tokenize_bytes(must)):
                continue
            text += must
            ways = self._ways(matcher) if len(text) < most and not late and not matcher.is_stopped() else b""
            share = prob / (len(ways) + matcher.is_accepting()) if ways else 0.0
            if -share >= LEAST_PROB:
                for way in ways:
                    behind = matcher.deep_copy()
                    if behind.consume_tokens([int(self.byte_tokens[way])]):
                        heapq.heappush(waiting, (share, text + bytes([way]), behind))
            elif text:
                found.append((prob, text))
        for _, text in sorted(found):
            yield from [text] if self._blanks is None else self._blanks.spaced(text)

    def _ways(self, matcher: "LLMatcher") -> bytes:
        """The bytes that may come next, if they are at most `MOST_WAYS`."""
        bits: NDArray[np.uint8] = self._bits(matcher) & ~self._ends
        first = np.flatnonzero(bits[self.byte_tokens >> 3] >> (self.byte_tokens & 7) & 1)
        return bytes(first.tolist()) if len(first) <= MOST_WAYS else b""

    def _tokens(self, text: bytes) -> list[int]:
        """The model's own tokens of a text that follows the answer."""
        tail = self._said[-TAIL:]
        ids = self.tokenizer.tokenize_bytes(self.tokenizer.decode_bytes(tail) + text)
        return ids[len(tail) :] if ids[: len(tail)] == tail else self.tokenizer.tokenize_bytes(text)
