"""An n-gram index of one text: finds earlier places of its last tokens without a search (prompt lookup: Saxena 2023).

The places of a prompt are sorted once by the tokens before each, the nearest first, like a suffix array in reverse: the
places after an n-gram stand side by side, and each further token narrows their range. An answer grows token by token,
and has a table of its n-grams. A look-up or an appended token takes some ten microseconds, however long the
text is; memory is 4 × longest + 16 bytes for each token of the prompt, some 200 × longest for each of the answer.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from crossdraft.engine.prompt import GAP, PromptIds


class SortedPlaces:
    """The places of a text that a token follows, sorted by the tokens before them.

    Args:
        tokens: [N] the text.
        longest: number of tokens before a place that are sorted by.
    """

    def __init__(self, tokens: NDArray[np.int32], longest: int) -> None:
        places = np.flatnonzero(tokens != GAP).astype(np.int32)  # gaps are not copied
        padded = np.concatenate([np.full(longest, GAP, np.int32), tokens])
        before = [padded[places + (longest - back)] for back in range(1, longest + 1)]
        order = np.lexsort(before[::-1])
        self.tokens = tokens
        self._places = places[order]
        self._before = [column[order] for column in before]

    def around(self, places: NDArray[np.int32], before: int, after: int) -> NDArray[np.int32]:
        """[M, before + after] tokens: `before` in front of each place, `after` from it on; gaps outside the text."""
        at = places[:, None] + np.arange(-before, after)
        inside = (at >= 0) & (at < len(self.tokens))
        return np.where(inside, self.tokens.take(at, mode="clip"), np.int32(GAP))

    def ranges(self, last: Sequence[int]) -> list[NDArray[np.int32]]:
        """The places after the last 1, 2, … tokens of `last`, unordered, up to the longest n-gram that occurs."""
        low, high, found = 0, len(self._places), list[NDArray[np.int32]]()
        for token, column in zip(reversed(last), self._before, strict=False):
            part, value = column[low:high], np.int32(token)
            low, high = low + int(part.searchsorted(value)), low + int(part.searchsorted(value, "right"))
            if low == high:
                break
            found.append(self._places[low:high])
        return found


class TokenIndex:
    """A text, prompt and answer, and the places behind its n-grams.

    No n-gram reaches across a gap (`prompt.GAP`), and nothing is copied across one.

    Args:
        longest: tokens of the longest n-gram.
        prompt: the beginning of the text, empty until it is known.
    """

    def __init__(self, longest: int, prompt: PromptIds | None = None) -> None:
        self.longest = longest
        self.answer: list[int] = []
        self.prompt: SortedPlaces | None = None  # set once the prompt is known; shared by copies
        self._awaited = prompt
        self._before: tuple[int, ...] = ()  # the prompt
        self._newest: dict[tuple[int, ...], int] = {}  # n-gram -> newest place after it in the answer

    def __len__(self) -> int:
        return len(self._before) + len(self.answer)

    def copy(self) -> "TokenIndex":
        """A copy that can be appended to independently."""
        other = TokenIndex(self.longest, self._awaited)
        other.prompt, other._before = self.prompt, self._before
        other.answer, other._newest = self.answer.copy(), self._newest.copy()
        return other

    def read_prompt(self) -> None:
        """Put the prompt before the answer, if it is known by now."""
        if self._awaited is None or not self._awaited.done():
            return
        self._before, self._awaited = self._awaited.result(), None
        self.prompt = SortedPlaces(np.array(self._before, np.int32), self.longest)
        answer, self.answer, self._newest = self.answer, [], {}
        self.append(answer)

    def append(self, tokens: Sequence[int]) -> None:
        """Append tokens to the answer."""
        for token in tokens:
            last = self.last_tokens()
            for start in range(len(last)):
                self._newest[last[start:]] = len(self)
            self.answer.append(token)

    def longest_match(self) -> tuple[int, int]:
        """(length, place): the newest earlier place after the text's longest recurring end; (0, 0) if there is none."""
        last = self.last_tokens()
        ranges = [] if self.prompt is None else self.prompt.ranges(last)
        for length in range(len(last), 0, -1):
            place = self._newest.get(last[len(last) - length :])
            if place is None and length <= len(ranges):
                place = int(ranges[length - 1].max())
            if place is not None:
                return length, place
        return 0, 0

    def tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """The tokens from position `start` up to `stop`."""
        count = len(self._before)
        return (*self._before[start:stop], *self.answer[max(0, start - count) : max(0, stop - count)])

    def following(self, place: int, most: int) -> tuple[int, ...]:
        """The tokens from a place on, `most` of them or up to the next gap."""
        found = self.tokens(place, place + most)
        return found[: found.index(GAP)] if GAP in found else found

    def last_tokens(self) -> tuple[int, ...]:
        """The last `longest` tokens, without any before the last gap."""
        last = self.tokens(max(0, len(self) - self.longest), len(self))
        return last[len(last) - last[::-1].index(GAP) :] if GAP in last else last
