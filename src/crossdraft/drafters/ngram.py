"""The drafter `ngram`: what followed the last few tokens when they stood there before, in the prompt or the answer.

Prompt lookup decoding (Saxena 2023): the longest of the last `longest` … 1 tokens that occurs earlier is looked up,
and what stood behind it is copied. Of several places the newest is taken.
"""

from collections.abc import Callable, Sequence

from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.tree import DraftTree

LONGEST, COPIED = 3, 10


class NgramDrafter:
    """Copies from the question and from the answer so far.

    Args:
        encode: text to the target's tokens, without special ones.
        longest: most tokens that are looked up.
        copied: most tokens that are copied.
    """

    needs = Needs()

    def __init__(self, encode: Callable[[str], Sequence[int]], longest: int = LONGEST, copied: int = COPIED) -> None:
        self.encode = encode
        self.longest = longest
        self.copied = copied

    def begin(self, requests: Sequence[Request]) -> list[list[int]]:
        return [list(self.encode(request.prompt)) for request in requests]

    def propose(self, states: Sequence[list[int]], budgets: Sequence[Budget]) -> list[Draft]:
        drafts = []
        for text, budget in zip(states, budgets, strict=True):
            copied = lookup(text, self.longest, min(self.copied, budget.nodes))
            if budget.on_token is not None:
                for token in copied:
                    budget.on_token(token)
            drafts.append(Draft(DraftTree.chain(copied)))
        return drafts

    def commit(self, states: Sequence[list[int]], outputs: Sequence[VerifyOutput]) -> None:
        for text, output in zip(states, outputs, strict=True):
            text.extend(output.tokens)

    def fork(self, states: Sequence[list[int]]) -> list[list[int]]:
        return [[*text] for text in states]

    def end(self, states: Sequence[list[int]]) -> None:
        """Nothing to free."""


def lookup(text: Sequence[int], longest: int, most: int) -> tuple[int, ...]:
    """At most `most` tokens that stood behind the newest earlier place of the last tokens of `text`.

    >>> lookup([7, 1, 2, 3, 4, 9, 1, 2], longest=3, most=3)
    (3, 4, 9)
    """
    for length in range(min(longest, len(text) - 1), 0, -1):
        sought = tuple(text[-length:])
        for start in range(len(text) - length - 1, -1, -1):
            if tuple(text[start : start + length]) == sought:
                return tuple(text[start + length : start + length + most])
    return ()
