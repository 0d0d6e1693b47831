"""Drafting across vocabularies by text: the drafter writes, the target's tokenizer reads it, equal ones are kept.

String-level exact match (SLEM; Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding
Algorithms for Heterogeneous Vocabularies"). Any two tokenizers will do. The drafter always takes its likeliest token,
so what it offers is chosen for certain: the target keeps token x with probability p(x), which is exact.
"""

import math
import operator
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from crossdraft.drafters.cross_vocab.assistant import AssistantModel, AssistantState, Step, whole
from crossdraft.drafters.cross_vocab.vocabulary import TokenTable
from crossdraft.engine.drafter import Budget, Draft, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.tree import DraftTree

READ_EVERY = 4  # drafter tokens after which a word without an end is read nevertheless
INNER = bytes(range(0x80, 0xC0))  # what a character of UTF-8 never begins with
LOOK_BACK = 8  # committed tokens among which the start of the last word is looked for


@dataclass(frozen=True)
class TargetToken:
    """A target token for drafted text, and where in it the token ends, in bytes."""

    token: int
    end: int


def continuation(
    target: TokenTable, committed: Sequence[int], text: bytes, *, ended: bool = False
) -> list[TargetToken]:
    """The target's tokens for a text behind committed tokens.

    Only tokens whose bytes lie completely inside the text, and not the last of them while the text may go on: more of
    it could make that token another one ("turn" becomes "turning").

    Args:
        target: the target's tokenizer.
        committed: the answer's tokens so far; they stay as they are, whatever the tokenizer would make of them now.
        text: what the drafter wrote behind them; may end inside a character.
        ended: the drafter ended the answer there.
    """
    rest = len(text) - len(text.lstrip(INNER))  # the end of a character that the committed tokens began
    readable, size = whole(text[rest:])
    offered: list[TargetToken] = []
    at = 0
    for token in [*_bytes(target, text[:rest]), *_read_behind(target, committed, readable)]:
        spelled = target.spelling[token] if 0 <= token < target.width else None
        if spelled is None or text[at : at + len(spelled)] != spelled:
            return offered
        at += len(spelled)
        offered.append(TargetToken(token, at))
    if not ended or rest + size < len(text):
        return offered[:-1]
    return offered if target.end is None else [*offered, TargetToken(target.end, at)]


def _bytes(target: TokenTable, text: bytes) -> list[int]:
    """Bytes that are no character: in one token if there is one, else one by one; -1 for what cannot be said."""
    if text in target.ids:
        return [target.ids[text]]
    return [target.ids.get(bytes([byte]), -1) for byte in text]


def _read_behind(target: TokenTable, committed: Sequence[int], text: str) -> list[int]:
    """As the tokenizer reads it behind the word in front, if that leaves the committed tokens alone; else by itself."""
    if not text:
        return []
    for start in range(len(committed) - 1, max(-1, len(committed) - 1 - LOOK_BACK), -1):
        spelled = target.spelling[committed[start]] or b""
        if not spelled.startswith(b" "):
            continue
        word = list(committed[start:])
        before = target.spell(word)
        if whole(before)[1] == len(before):
            ids = target.encode(before.decode(errors="replace") + text)
            if ids[: len(word)] == word:
                return ids[len(word) :]
        break
    return target.encode(text)


class StringLevelMatch:
    """SLEM as a way of drafting.

    Args:
        pen: the drafter's model.
        own, target: the two tokenizers.
    """

    def __init__(self, pen: AssistantModel, own: TokenTable, target: TokenTable) -> None:
        self.pen = pen
        self.own = own
        self.target = target
        self.target_lead: bytes | None = None  # how the target begins one; known once it has
        readable = [i for i, text in enumerate(own.spelling) if text is not None or i in own.ends]
        self.mask = pen.mask(readable)

    def open(self, request: Request) -> AssistantState:
        """Read a request."""
        page = self.pen.open(request)
        page.target_lead = self.target_lead
        return page

    def propose(self, page: AssistantState, budget: Budget) -> Draft:
        """Write on until what was written makes enough target tokens, or until the answer ends."""
        offered = self._offer(page)
        told, unread = len(offered), 0
        while len(offered) < budget.nodes and not budget.stopped and self._may_write(page):
            if math.prod(self._chances(page)) < budget.min_confidence:
                break
            text = self._write(page)
            unread += 1
            if unread >= READ_EVERY or text.startswith(b" ") or self._ended(page):
                offered, unread = self._offer(page), 0
                if budget.on_token is not None:
                    for node in offered[told : budget.nodes]:
                        budget.on_token(node.token)
                told = max(told, len(offered))
        offered = (self._offer(page) if unread else offered)[: budget.nodes]
        return Draft(DraftTree.chain([node.token for node in offered]), self._reach(page, offered))

    def commit(self, page: AssistantState, output: VerifyOutput) -> None:
        """Keep what was written as far as the committed text agrees with it; else say that text anew."""
        written = page.said[: page.base_bytes] + b"".join(self._texts(page))
        if not page.committed and not page.on_trial:
            self.target_lead = b" " if self.target.spell(output.tokens).startswith(b" ") else b""
        page.committed += output.tokens
        page.said += self.target.spell(output.tokens)
        if not written.startswith(page.said):
            page.restate(self.own)

    def _write(self, page: AssistantState) -> bytes:
        """One more token of the drafter's; returns its text."""
        logits = self.pen.behind(page, page.ids) + self.mask
        token = int(logits.argmax())
        page.tail.append(Step((token,), math.exp(logits[token] - logits.logsumexp(-1))))
        return self._texts(page)[-1]

    def _may_write(self, page: AssistantState) -> bool:
        """Not behind the answer's end, not where the text is another one already, not beyond the context."""
        fits = self.pen.room(page, len(page.ids))
        return fits and not self._ended(page) and self._ahead(page) is not None

    def _ended(self, page: AssistantState) -> bool:
        return bool(page.tail) and page.tail[-1].ids[-1] in self.own.ends

    def _texts(self, page: AssistantState) -> list[bytes]:
        """What each step of the tail adds to the answer, which begins as the target begins its answers."""
        texts = [self.own.spell(step.ids) for step in page.tail]
        if texts and page.base_bytes == 0 and page.target_lead is not None:
            texts[0] = page.target_lead + texts[0].lstrip(b" ")
        return texts

    def _ahead(self, page: AssistantState) -> bytes | None:
        """The text behind the committed one; `None` if the drafter went another way inside a character."""
        written, waiting = b"".join(self._texts(page)), page.said[page.base_bytes :]
        if written.startswith(waiting):
            return written[len(waiting) :]
        return b"" if waiting.startswith(written) else None

    def _offer(self, page: AssistantState) -> list[TargetToken]:
        ahead = self._ahead(page)
        if ahead is None:
            return []
        return continuation(self.target, page.committed, ahead, ended=self._ended(page))

    def _chances(self, page: AssistantState) -> list[float]:
        """The drafter's probability of each step of the tail; 1 for what the target has agreed to."""
        judged = len(page.said) - page.base_bytes
        ends = accumulate(len(text) for text in self._texts(page))
        return [
            1.0 if end <= judged and step.ids[-1] not in self.own.ends else step.confidence
            for step, end in zip(page.tail, ends, strict=True)
        ]

    def _reach(self, page: AssistantState, offered: Sequence[TargetToken]) -> tuple[float, ...]:
        """For each offered token the probability of everything that had to be written for it."""
        judged = len(page.said) - page.base_bytes
        ends = list(accumulate(len(text) for text in self._texts(page)))
        paths = list(accumulate(self._chances(page), operator.mul))
        return tuple(
            paths[-1] if node.token == self.target.end else paths[bisect_left(ends, judged + node.end)]
            for node in offered
        )
