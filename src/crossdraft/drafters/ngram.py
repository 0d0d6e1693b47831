"""The drafter `ngram`: prompt lookup decoding (Saxena 2023).

The longest of the last `longest` … 1 tokens that occurs earlier, in the prompt or the answer, is looked up, and what
stood after it is copied. Of several matches the newest is taken.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crossdraft.drafters.base import PerRequestDrafter, show
from crossdraft.drafters.settings import NgramSettings
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.tree import DraftTree


@dataclass(eq=False)
class NgramState:
    """One answer: the question's tokens and the answer's."""

    text: list[int]


class NgramDrafter(PerRequestDrafter[NgramState]):
    """Copies from the question and from the answer so far.

    Args:
        encode: text to the target's tokens, without special ones.
        longest: most tokens that are looked up.
        copied: most tokens that are copied.
    """

    needs = Needs()

    def __init__(
        self,
        encode: Callable[[str], Sequence[int]],
        longest: int = NgramSettings.longest,
        copied: int = NgramSettings.copied,
    ) -> None:
        self.encode = encode
        self.longest = longest
        self.copied = copied

    def _begin(self, request: Request) -> NgramState:
        return NgramState(list(self.encode(request.question)))

    def _propose(self, state: NgramState, budget: Budget) -> Draft:
        copied = lookup(state.text, self.longest, min(self.copied, budget.nodes))
        show(copied, budget)
        return Draft(DraftTree.chain(copied))

    def _commit(self, state: NgramState, output: VerifyOutput) -> None:
        state.text += output.tokens


def lookup(text: Sequence[int], longest: int, most: int) -> tuple[int, ...]:
    """At most `most` tokens that stood after the newest earlier match of the last tokens of `text`.

    >>> lookup([7, 1, 2, 3, 4, 9, 1, 2], longest=3, most=3)
    (3, 4, 9)
    """
    for length in range(min(longest, len(text) - 1), 0, -1):
        sought = tuple(text[-length:])
        for start in range(len(text) - length - 1, -1, -1):
            if tuple(text[start : start + length]) == sought:
                return tuple(text[start + length : start + length + most])
    return ()
