"""What a drafter reads again instead of writing it anew.

Where the target overrules a word, most of what was written behind it usually still holds. The drafter guesses that its
old text goes on, reads the guess behind the new word in one pass, and keeps as much as it would say now. A guess
that fails costs rows, so after a failure guesses are short until they come true again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

LONGEST, SHORTEST = 32, 2  # tokens of a guess
MOST = 256  # tokens of older texts that are kept
GRAM = 2  # words that must recur for a place to be taken for the same


@dataclass(frozen=True)
class DraftReuse:
    """Text that was overruled.

    Args:
        tokens: all of it, the latest first.
        at: the token that stood where the last word was written; what follows it is the guess.
        length: how many tokens to guess.
    """

    tokens: tuple[int, ...] = ()
    at: int = 0
    length: int = LONGEST

    def overruled(self, text: Sequence[int]) -> "DraftReuse":
        """With new text, of whose first token the target put another in the place."""
        return DraftReuse((*text, *self.tokens[:MOST])) if text else self

    def guess(self, written: Sequence[int], most: int) -> tuple["DraftReuse", list[int]]:
        """What may follow `written`, at most `most` tokens; and where that was found.

        Behind the nearest place further on where the last two words stand, else any; failing that, the last word was
        put in another's place, and the old text goes on behind that.
        """
        at = self._same_place(tuple(written[-GRAM:]))
        end = min(len(self.tokens), at + min(self.length, most))
        return replace(self, at=at), list(self.tokens[at:end])

    def told(self, offered: int, held: int) -> "DraftReuse":
        """Of a guess of `offered` tokens, `held` came true, and one more word was written."""
        if not offered:
            return self
        length = min(LONGEST, 2 * self.length) if held == offered else max(SHORTEST, held)
        return replace(self, at=self.at + held, length=length)

    def _same_place(self, last: tuple[int, ...]) -> int:
        text = self.tokens
        here = min(self.at + 1, len(text))
        if len(last) < GRAM:
            return here
        further = range(max(GRAM, here), len(text) + 1)
        nearer = range(min(here, len(text) + 1) - 1, GRAM - 1, -1)
        return next((end for end in chain(further, nearer) if text[end - GRAM : end] == last), here)
