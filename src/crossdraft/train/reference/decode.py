"""Greedy answers of many rows at once, with a guess as the draft: the trainer's own small speculative decoder.

All questions of a clip share its prefix. Each pass feeds every unfinished row its last token and the next
`window - 1` tokens of its guess, keeps what the argmax confirms, and goes on from the first disagreement with
the guess moved along. Whatever the guess, the result is the model's greedy answer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from crossdraft.train.reference.models import Seer
from crossdraft.train.reference.packed import BranchCache, Prefix, step_branches

REACH = 12
"""How far ahead in its guess a row looks for the token that the model chose instead."""


@torch.inference_mode()
def greedy(
    seer: Seer,
    prefix: Prefix,
    questions: Sequence[Sequence[int]],
    guesses: Sequence[Sequence[int]],
    *,
    eos_id: int,
    max_new_tokens: int,
    window: int = 6,
) -> tuple[list[list[int]], int]:
    """Greedy continuations (with `</s>` if reached) of clip-major `questions`, and the passes they took.

    `guesses` may be empty lists. Finished rows idle until they are half of the batch, then they leave it.
    """
    longest = max(len(q) for q in questions)
    cache = BranchCache(prefix, len(questions), longest + max_new_tokens + window)
    lengths = torch.tensor([len(q) for q in questions])
    padded = torch.zeros(len(questions), longest, dtype=torch.long)
    for row, question in enumerate(questions):
        padded[row, : len(question)] = torch.tensor(question)
    hidden = step_branches(seer.llama, cache, seer.llama.embed_tokens(padded), torch.zeros_like(lengths))
    first = seer.head(hidden[torch.arange(len(questions)), lengths - 1]).argmax(-1).tolist()
    rows = [_Row([token], list(guess), eos_id, max_new_tokens) for token, guess in zip(first, guesses, strict=True)]
    passes, active = 1, list(range(len(rows)))
    while unfinished := [row for row in active if not rows[row].done]:
        if 2 * len(unfinished) <= len(active):
            cache.narrow(torch.tensor([active.index(row) for row in unfinished]))
            active = unfinished
        tokens = torch.tensor([rows[row].propose(window) for row in active])
        start = torch.tensor([len(questions[row]) + len(rows[row].tokens) - 1 for row in active])
        hidden = step_branches(seer.llama, cache, seer.llama.embed_tokens(tokens), start)
        chosen: Tensor = seer.head(hidden).argmax(-1)
        for row, fed, said in zip(active, tokens.tolist(), chosen.tolist(), strict=True):
            rows[row].accept(fed, said)
        passes += 1
    return [row.tokens for row in rows], passes


class _Row:
    """One answer on its way: its tokens so far, and what is left of its guess."""

    def __init__(self, tokens: list[int], guess: list[int], eos_id: int, limit: int) -> None:
        self.tokens: list[int] = []
        self.ahead = guess
        self.eos_id = eos_id
        self.limit = limit
        for token in tokens:
            self._say(token)

    @property
    def done(self) -> bool:
        return self.tokens[-1] == self.eos_id or len(self.tokens) >= self.limit

    def propose(self, window: int) -> list[int]:
        """The last token, then what the guess goes on with, padded with `</s>`."""
        ahead = self.ahead[: window - 1]
        return [self.tokens[-1], *ahead, *[self.eos_id] * (window - 1 - len(ahead))]

    def accept(self, fed: list[int], said: list[int]) -> None:
        """Keep the model's choices up to and including the first that the feed did not foresee."""
        for position, choice in enumerate(said):
            if self.done:
                return
            self._say(choice)
            if position + 1 >= len(fed) or fed[position + 1] != choice:
                return

    def _say(self, token: int) -> None:
        """Add a token and move the guess along: behind the same token if it comes soon, else by one."""
        self.tokens.append(token)
        soon = self.ahead[:REACH]
        self.ahead = self.ahead[soon.index(token) + 1 if token in soon else 1 :]
