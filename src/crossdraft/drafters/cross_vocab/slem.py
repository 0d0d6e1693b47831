"""String-level exact match (SLEM; Timor et al. 2025).

From "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous Vocabularies". The
assistant's text is read with the target's tokenizer; any two tokenizers will do. The assistant always takes its
likeliest token, so what it drafts is chosen deterministically: the target keeps token x with probability p(x), which
is exact.
"""

import math
import operator
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from crossdraft.drafters.base import show
from crossdraft.drafters.cross_vocab.assistant import (
    AssistantState,
    ByNamespace,
    CrossVocabDrafter,
    DraftStep,
    complete_text,
)
from crossdraft.drafters.cross_vocab.vocabulary import TokenTable
from crossdraft.engine.drafter import Budget, Draft, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree

READ_EVERY = 4  # assistant tokens after which even an unfinished word is read
INNER = bytes(range(0x80, 0xC0))  # bytes that never begin a character in UTF-8
LOOK_BACK = 8  # committed tokens among which the start of the last word is looked for


@dataclass(frozen=True)
class TargetToken:
    """A target token for drafted text, and where in it the token ends, in bytes."""

    token: int
    end: int


def continuation(
    target: TokenTable, committed: Sequence[int], text: bytes, *, ended: bool = False
) -> list[TargetToken]:
    """The target's tokens for a text after committed tokens.

    Only tokens whose bytes lie completely inside the text are returned, without the last of them while the text may go
    on: more text could change that token ("turn" becomes "turning").

    Args:
        target: the target's tokenizer.
        committed: the answer's tokens so far; they do not change, even if the tokenizer would now split them otherwise.
        text: text that the assistant drafted after them; may end inside a character.
        ended: the assistant ended the answer there.
    """
    rest = len(text) - len(text.lstrip(INNER))  # the end of a character that the committed tokens began
    readable, size = complete_text(text[rest:])
    offered: list[TargetToken] = []
    at = 0
    for token in [*_bytes(target, text[:rest]), *_read_behind(target, committed, readable)]:
        piece = target.token_bytes[token] if 0 <= token < target.width else None
        if piece is None or text[at : at + len(piece)] != piece:
            return offered
        at += len(piece)
        offered.append(TargetToken(token, at))
    if not ended or rest + size < len(text):
        return offered[:-1]
    return offered if target.eos_id is None else [*offered, TargetToken(target.eos_id, at)]


def _bytes(target: TokenTable, text: bytes) -> list[int]:
    """Tokens of bytes that are no character: one token if it exists, else one per byte; -1 for a byte without token."""
    if text in target.ids:
        return [target.ids[text]]
    return [target.ids.get(bytes([byte]), -1) for byte in text]


def _read_behind(target: TokenTable, committed: Sequence[int], text: str) -> list[int]:
    """Tokenize text together with the word before it, if that keeps the committed tokens; else by itself."""
    if not text:
        return []
    for start in range(len(committed) - 1, max(-1, len(committed) - 1 - LOOK_BACK), -1):
        piece = target.token_bytes[committed[start]] or b""
        if not piece.startswith(b" "):
            continue
        word = list(committed[start:])
        before = target.to_bytes(word)
        if complete_text(before)[1] == len(before):
            ids = target.encode(before.decode(errors="replace") + text)
            if ids[: len(word)] == word:
                return ids[len(word) :]
        break
    return target.encode(text)


class StringLevelMatch(CrossVocabDrafter):
    """SLEM; arguments as in `CrossVocabDrafter`."""

    def __init__(self, model: Target, own: TokenTable, target: TokenTable, *, sees: bool = False) -> None:
        super().__init__(model, own, target, sees=sees)
        self.target_prefixes = ByNamespace[bytes]()  # how the target begins an answer; known once it has

    def _begin(self, request: Request) -> AssistantState:
        state = super()._begin(request)
        if state.sampling.greedy:  # a sampled draft would depend on draws of another answer; see `Needs.learns`
            state.target_prefix = self.target_prefixes.get(state.namespace)
        return state

    def _propose(self, state: AssistantState, budget: Budget) -> Draft:
        """Draft until the text gives enough target tokens, or until the answer ends."""
        offered = self._offer(state)
        shown, unread = len(offered), 0
        while len(offered) < budget.nodes and not budget.stopped and self._may_write(state):
            if math.prod(self._probs(state)) < budget.min_confidence:
                break
            text = self._write(state)
            unread += 1
            if unread >= READ_EVERY or text.startswith(b" ") or self._ended(state):
                offered, unread = self._offer(state), 0
                show([node.token for node in offered[shown : budget.nodes]], budget)
                shown = max(shown, len(offered))
        offered = (self._offer(state) if unread else offered)[: budget.nodes]
        return Draft(DraftTree.chain([node.token for node in offered]), self._path_probs(state, offered))

    def _commit(self, state: AssistantState, output: VerifyOutput) -> None:
        """Keep drafted steps as far as the committed text agrees with them; otherwise encode that text anew."""
        written = state.text[: state.own_bytes] + b"".join(self._texts(state))
        if not state.committed and not state.is_fork:
            prefix = b" " if self.target.to_bytes(output.tokens).startswith(b" ") else b""
            self.target_prefixes.set(state.namespace, prefix)
        state.committed += output.tokens
        state.text += self.target.to_bytes(output.tokens)
        if not written.startswith(state.text):
            state.retokenise(self.own)

    def _write(self, state: AssistantState) -> bytes:
        """Write one more token of the assistant's; return its text."""
        logits = self.logits_behind(state, state.written) + self.readable
        token = int(logits.argmax())
        state.pending.append(DraftStep((token,), math.exp(logits[token] - logits.logsumexp(-1))))
        return self._texts(state)[-1]

    def _may_write(self, state: AssistantState) -> bool:
        """True unless the answer has ended, the text has diverged already, or the context is full."""
        fits = self.has_room(state, len(state.written))
        return fits and not self._ended(state) and self._uncommitted(state) is not None

    def _ended(self, state: AssistantState) -> bool:
        return bool(state.pending) and state.pending[-1].ids[-1] in self.own.eos

    def _texts(self, state: AssistantState) -> list[bytes]:
        """Bytes that each pending step adds to the answer; the first begins as the target begins its answers."""
        texts = [self.own.to_bytes(step.ids) for step in state.pending]
        if texts and state.own_bytes == 0 and state.target_prefix is not None:
            texts[0] = state.target_prefix + texts[0].lstrip(b" ")
        return texts

    def _uncommitted(self, state: AssistantState) -> bytes | None:
        """The drafted text after the committed text; `None` if the assistant diverged inside a character."""
        written, waiting = b"".join(self._texts(state)), state.text[state.own_bytes :]
        if written.startswith(waiting):
            return written[len(waiting) :]
        return b"" if waiting.startswith(written) else None

    def _offer(self, state: AssistantState) -> list[TargetToken]:
        text = self._uncommitted(state)
        if text is None:
            return []
        return continuation(self.target, state.committed, text, ended=self._ended(state))

    def _probs(self, state: AssistantState) -> list[float]:
        """The assistant's probability of each pending step; 1 for steps that the target has verified."""
        verified = len(state.text) - state.own_bytes
        ends = accumulate(len(text) for text in self._texts(state))
        return [
            1.0 if end <= verified and step.ids[-1] not in self.own.eos else step.prob
            for step, end in zip(state.pending, ends, strict=True)
        ]

    def _path_probs(self, state: AssistantState, offered: Sequence[TargetToken]) -> tuple[float, ...]:
        """The probability, for each offered token, of everything that had to be drafted for it."""
        verified = len(state.text) - state.own_bytes
        ends = list(accumulate(len(text) for text in self._texts(state)))
        paths = list(accumulate(self._probs(state), operator.mul))
        return tuple(
            paths[-1] if node.token == self.target.eos_id else paths[bisect_left(ends, verified + node.end)]
            for node in offered
        )
