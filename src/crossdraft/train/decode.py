"""Greedy answers of many rows at once, with a guess as the draft: the trainer's own small speculative decoder.

All questions of a clip share its prefix. Each pass feeds every unfinished row its last token and the next
`window - 1` tokens of its guess, keeps what the argmax confirms, and goes on from the first disagreement with
the guess shifted along. Whatever the guess, the result is the model's greedy answer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from crossdraft.train.packed import BranchCache, Prefix, step_branches
from crossdraft.train.seers import Seer


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

    `guesses` may be empty lists. Every row takes part in every pass until all are done; finished rows idle.
    """
    longest = max(len(q) for q in questions)
    cache = BranchCache(prefix, len(questions), longest + max_new_tokens + window)
    lengths = torch.tensor([len(q) for q in questions])
    padded = torch.zeros(len(questions), longest, dtype=torch.long)
    for row, question in enumerate(questions):
        padded[row, : len(question)] = torch.tensor(question)
    hidden = step_branches(seer.llama, cache, seer.llama.embed_tokens(padded), torch.zeros_like(lengths))
    first = seer.head(hidden[torch.arange(len(questions)), lengths - 1]).argmax(-1).tolist()
    rows = [
        _Row([token], list(guess), eos_id, max_new_tokens)
        for token, guess in zip(first, guesses, strict=True)
    ]
    passes = 1
    while not all(row.done for row in rows):
        tokens = torch.tensor([row.propose(window) for row in rows])
        start = lengths + torch.tensor([len(row.tokens) - 1 for row in rows])
        hidden = step_branches(seer.llama, cache, seer.llama.embed_tokens(tokens), start)
        chosen: Tensor = seer.head(hidden).argmax(-1)
        for row, fed, said in zip(rows, tokens.tolist(), chosen.tolist(), strict=True):
            row.accept(fed, said)
        passes += 1
    return [row.tokens for row in rows], passes


class _Row:
    """One answer on its way: its tokens so far and where its guess stands."""

    def __init__(self, tokens: list[int], guess: list[int], eos_id: int, limit: int) -> None:
        self.tokens = tokens
        self.guess = guess
        self.eos_id = eos_id
        self.limit = limit

    @property
    def done(self) -> bool:
        return self.tokens[-1] == self.eos_id or len(self.tokens) >= self.limit

    def propose(self, window: int) -> list[int]:
        """The last token, then the guess from where it last agreed in position, padded with `</s>`."""
        ahead = self.guess[len(self.tokens) : len(self.tokens) + window - 1]
        return [self.tokens[-1], *ahead, *[self.eos_id] * (window - 1 - len(ahead))]

    def accept(self, fed: list[int], said: list[int]) -> None:
        """Keep the model's choices up to and including the first that the feed did not foresee."""
        for position, choice in enumerate(said):
            if self.done:
                return
            self.tokens.append(choice)
            if position + 1 >= len(fed) or fed[position + 1] != choice:
                return
