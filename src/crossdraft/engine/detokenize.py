"""Incremental detokenisation: the text of an answer while it grows, at a cost linear in its length.

A token's text may depend on its neighbours: a character may span several tokens, and SentencePiece decoders drop the
first token's space. So a short window of the last tokens is decoded anew, never the whole answer, and text is
handed out once no later token can change it. Text that may be the beginning of a stop string is held back as well.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

BROKEN = "\ufffd"  # what decoders write for bytes that are no character (yet)
UNFINISHED = 3  # most `BROKEN` characters that one unfinished character can show as
WINDOW = 24  # tokens in the window before it is cut ...
KEPT = 12  # ... to this many tokens
LONGEST_RUN = 64  # byte-fallback tokens in a row that are waited for; see `Detokenizer.push`


@dataclass(frozen=True)
class TokenText:
    """A tokenizer's conversion of token ids to text.

    Args:
        decode: ids to text, special tokens left out.
        special: id of each special token -> how it is spelt.
        byte_fallback: ids that stand for one byte of a character that has no token of its own (`<0xE2>`).
        spell: the bytes that an id adds to a text; `None`: those of its decoded text, wrong for half a character.
        tokenizer: the tokenizer itself, which structures are compiled for; `None` = structured answers are refused.
        marks: special tokens that the text does show -> how each is spelt.
    """

    decode: Callable[[Sequence[int]], str]
    special: Mapping[int, str] = field(default_factory=dict)
    byte_fallback: frozenset[int] = frozenset()
    spell: Callable[[int], bytes] | None = None
    tokenizer: Any = field(default=None, repr=False, compare=False)
    marks: Mapping[int, str] = field(default_factory=dict)

    def showing(self, marks: str) -> "TokenText":
        """Return a copy that shows special tokens whose spelling stands in `marks`."""
        shown = {token: spelling for token, spelling in self.special.items() if spelling in marks}
        hidden = {token: spelling for token, spelling in self.special.items() if token not in shown}
        return replace(self, special=hidden, marks=shown)

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token adds to an answer; a special token adds none."""
        if token in self.special:
            return b""
        return self.decode([token]).encode() if self.spell is None else self.spell(token)


class Detokenizer:
    """Turns tokens into text piece by piece; the pieces joined are what decoding all tokens at once gives.

    Args:
        text: the tokenizer's side.
        before: the prompt's tokens, in front of the first token; with them a leading space is not lost.
        eager: hand out each character that byte-fallback tokens spell as soon as it is whole. Decoders write a whole
            run as broken if one of its bytes is wrong; the eager pieces hold the characters in front of that byte.
    """

    def __init__(self, text: TokenText, before: Sequence[int] = (), *, eager: bool = False) -> None:
        self._text = text
        self._patience = 1 if eager else LONGEST_RUN
        plain = [token for token in before[-2 * WINDOW :] if token not in text.special]
        while plain and plain[-1] in text.byte_fallback:
            plain.pop()
        self._anchor = plain[self._cut(plain) :]
        self._reset()

    def push(self, tokens: Sequence[int]) -> str:
        """Add tokens; returns the text that is certain now, without an incomplete last character.

        Unless `eager`, a run of byte-fallback tokens is decoded when it is over, because one wrong byte changes the
        whole run; a run longer than `LONGEST_RUN` is handed out in parts.
        """
        if (mark := next((at for at, token in enumerate(tokens) if token in self._text.marks), None)) is not None:
            text = self.push(tokens[:mark]) + self.flush() + self._text.marks[tokens[mark]]
            return text + self.push(tokens[mark + 1 :])
        self._window += [token for token in tokens if token not in self._text.special]
        run = self._run()
        if 0 < run < self._patience:
            return ""
        decoded = self._text.decode(self._window)
        broken = len(decoded) - len(decoded.rstrip(BROKEN))
        if run:
            if broken and run < self._patience + UNFINISHED:
                return ""
            text = decoded[self._shown :]
            self._reset()
            return text
        certain = max(self._shown, len(decoded) - min(broken, UNFINISHED))
        text, self._shown = decoded[self._shown : certain], certain
        if len(self._window) > WINDOW and (cut := self._cut(self._window)):
            self._window = self._window[cut:]
            # Counted from the end: a window's first characters may differ from the whole text's.
            self._shown = len(self._text.decode(self._window)) - (len(decoded) - certain)
        return text

    def flush(self) -> str:
        """Return the text that was held back: no token follows."""
        text = self._text.decode(self._window)[self._shown :]
        self._reset()
        return text

    def _reset(self) -> None:
        self._window = list(self._anchor)
        self._shown = len(self._text.decode(self._anchor)) if self._anchor else 0

    def _run(self) -> int:
        """Number of byte-fallback tokens at the end of the window."""
        count = 0
        while count < len(self._window) and self._window[-1 - count] in self._text.byte_fallback:
            count += 1
        return count

    def _cut(self, window: Sequence[int]) -> int:
        """Index at which a shorter window may begin, not inside a run of byte-fallback tokens; 0 if there is none."""
        cut = max(0, len(window) - KEPT)
        while cut and window[cut] in self._text.byte_fallback:
            cut -= 1
        return cut


class StopMatcher:
    """Looks for a stop string in text that grows: Knuth, Morris and Pratt's automaton, constant time a character.

    Args:
        stop: the string, not empty.

    `matched` is the length of the longest end of the text that is a beginning of the string, and not all of it.
    """

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self.matched = 0
        # The prefix function; [i]: the longest end of stop[: i + 1] that is a beginning of it, and not all of it.
        self._shorter = [0] * len(stop)
        for at in range(1, len(stop)):
            self._step(stop[at])
            self._shorter[at] = self.matched
        self.matched = 0

    def push(self, text: str) -> int | None:
        """Feed new text; returns the start of the first match that it completes, relative to it, else `None`."""
        first: int | None = None
        for at, char in enumerate(text, 1):
            if self._step(char) and first is None:
                first = at - len(self._stop)
        return first

    def _step(self, char: str) -> bool:
        """Feed one character; true if it completes the string."""
        while self.matched and self._stop[self.matched] != char:
            self.matched = self._shorter[self.matched - 1]
        self.matched += self._stop[self.matched] == char
        if self.matched < len(self._stop):
            return False
        self.matched = self._shorter[-1]
        return True


class AnswerText:
    """The text of one answer as it may be shown.

    The text has no leading spaces, no unfinished character at the end, and neither the stop string that ended the
    answer nor the possible beginning of one. Joined, the pieces are the answer's text.

    Args:
        text: the tokenizer's side.
        stops: strings that end the answer, looked for in the text that is shown. A string that spells a special token
            ends the answer at that token.
        before: the prompt's tokens.
        spelt: look for stop strings as `transformers.StopStringCriteria` does: special tokens and leading spaces count
            by their spelling, and a string may begin in the prompt.
        goes_on: the text goes on from the prompt's, so that spaces in front of it are shown.
    """

    def __init__(
        self,
        text: TokenText,
        stops: Sequence[str] = (),
        before: Sequence[int] = (),
        *,
        spelt: bool = False,
        goes_on: bool = False,
    ) -> None:
        self.stopped = False
        self._special, self._spelt_too = text.special, spelt
        self._ends = frozenset(token for token, spelling in text.special.items() if spelling in stops)
        self._stops = [StopMatcher(stop) for stop in stops]
        self._detokenizer = Detokenizer(text, before, eager=bool(stops))
        # Characters of the answer that may be part of a stop string, and whether they are to be shown.
        self._held = deque[tuple[str, bool]]()
        if spelt:
            end = _end_of_prompt(text, stops, before)
            for stop in self._stops:
                stop.push(end)
        self._begun = goes_on
        self._broken = ""

    def push(self, tokens: Sequence[int]) -> str:
        """The text that may be shown now; `stopped` is set if a stop string is complete."""
        text = ""
        if not self._stops:
            return self._shown(self._released(self._detokenizer.push(tokens)))
        for token in tokens:
            if self.stopped:
                break
            if token not in self._special:
                text += self._released(self._detokenizer.push((token,)))
            elif self._spelt_too:
                text += self._release(self._special[token], visible=False)
            elif token in self._ends:
                self.stopped = True
                text += self._shift(len(self._held))
        return self._shown(text)

    def flush(self) -> str:
        """Return the text that was held back: the answer has ended."""
        if self.stopped:
            return ""
        text = self._released(self._detokenizer.flush())
        if not self.stopped:
            text += self._shift(len(self._held))
        text, self._broken = self._shown(text), ""
        return text

    def _released(self, part: str) -> str:
        """Add text of the answer: spaces in front of it are not shown."""
        spaces = 0 if self._begun else len(part) - len(part.lstrip(" "))
        self._begun = self._begun or spaces < len(part)
        text = self._release(part[:spaces], visible=False)
        return text if self.stopped else text + self._release(part[spaces:], visible=True)

    def _release(self, part: str, *, visible: bool) -> str:
        """Add text; returns the visible held text that cannot be part of a stop string any more."""
        if not self._stops or not (visible or self._spelt_too):
            return part if visible else ""
        old = len(self._held)
        self._held.extend((char, visible) for char in part)
        begins = [at for stop in self._stops if (at := stop.push(part)) is not None]
        if begins:
            self.stopped, certain = True, old + min(begins)
        else:
            certain = len(self._held) - max(stop.matched for stop in self._stops)
        return self._shift(certain)

    def _shift(self, count: int) -> str:
        """Take `count` held characters; returns those that are to be shown."""
        taken = [self._held.popleft() for _ in range(count)]  # none if a stop string begins in the prompt
        return "".join(char for char, visible in taken if visible)

    def _shown(self, text: str) -> str:
        """Hold back broken characters at the end of the text until another character follows."""
        text = self._broken + text
        whole = text.rstrip(BROKEN)
        self._broken = text[len(whole) :]
        return whole


def _end_of_prompt(text: TokenText, stops: Sequence[str], prompt: Sequence[int]) -> str:
    """The end of the prompt in which a stop string that the answer completes may begin."""
    longest = max(map(len, stops), default=0)
    if longest < 2:
        return ""
    split = max(0, len(prompt) - longest)
    detokenizer = Detokenizer(text, prompt[:split], eager=True)
    spelt = [text.special[token] if token in text.special else detokenizer.push((token,)) for token in prompt[split:]]
    return ("".join(spelt) + detokenizer.flush())[1 - longest :]
