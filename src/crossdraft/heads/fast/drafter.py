"""The drafter `fast`: drafts the beginning of an answer from the marginals of the fast draft head.

The event encoder encodes the clip; its language model is not used. All logits are known once the request has been read:
later rounds draft those of the next positions, whatever was accepted in front of them. Alternatives to the likeliest
token become nodes where the head is uncertain, as it never learns which token came true.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from crossdraft.drafters.alternatives import TokenAlternatives, tree_from_topk
from crossdraft.drafters.base import banned_bias, draft_generator, fork_of
from crossdraft.drafters.independent import top_tokens
from crossdraft.drafters.settings import WORDS
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling, sample_one, warp
from crossdraft.engine.target import Prompt, Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.heads.fast.network import Fast


@dataclass(eq=False)
class FastState:
    """One answer: `logits` [N, V] of its places, their `slots` where nothing depends on what was said."""

    sampling: Sampling
    context: list[int]  # the prompt's ids, for repetition penalties
    generator: torch.Generator
    logits: Tensor
    slots: list[TokenAlternatives]
    committed: list[int] = field(default_factory=list)


class FastDrafter:
    """Drafts the beginnings of answers.

    Args:
        model: the event model behind its adapter; only what reads prompts and encodes events is used.
        head: the fast head, on its device.
        banned: ids that must never be drafted.
        words: words of a place that may become nodes, in greedy answers; 1 = chains.

    Raises:
        CrossdraftError: the head is of another vocabulary.
    """

    needs = Needs()

    def __init__(self, model: Target, head: Fast, banned: Sequence[int] = (), *, words: int = WORDS) -> None:
        if head.config.vocab_size != model.vocab_size:
            raise CrossdraftError(
                f"The fast head has a vocabulary of {head.config.vocab_size}, its event model one of "
                f"{model.vocab_size}; train a head for this model."
            )
        self.model, self.head, self.words = model, head.eval(), words
        self.banned = banned_bias(model, banned)

    @torch.inference_mode()
    def begin(self, requests: Sequence[Request]) -> list[FastState]:
        return [self._begin(request) for request in requests]

    @torch.inference_mode()
    def propose(self, states: Sequence[FastState], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._propose(state, budget) for state, budget in zip(states, budgets, strict=True)]

    def commit(self, states: Sequence[FastState], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            state.committed += output.tokens

    @torch.inference_mode()
    def fork(self, states: Sequence[FastState]) -> list[FastState]:
        return [fork_of(state) for state in states]

    def end(self, states: Sequence[FastState]) -> None:
        """Nothing to free but the states themselves."""

    def _begin(self, request: Request) -> FastState:
        prompt = self.model.prepare(request)
        few = self.head.marginal_logits(self._see(prompt), self.head.asked(self._question(prompt))[None])[0]
        every = self.head.to_full_vocab(few)
        every += self.banned
        sampling, ids = request.sampling, prompt.input_ids.tolist()
        slots = top_tokens(every) if sampling.plain else []
        return FastState(sampling, ids, draft_generator(self.model, request), every, slots)

    def _see(self, prompt: Prompt) -> Tensor | None:
        """[1, n, H] features of the events, if the head looks at them."""
        if not self.head.config.sees:
            return None
        encoded = cast("Any", self.model.encode(prompt))
        return encoded["video"].pooler_output

    def _question(self, prompt: Prompt) -> Tensor:
        """[n] ids behind the last event feature."""
        ids = prompt.input_ids
        visual = [place for place, token in enumerate(ids.tolist()) if token in self.model.traits.visual_ids]
        first = visual[-1] + 1 if visual else 0
        return ids[min(first, len(ids) - 1) :].to(self.model.device)

    def _propose(self, state: FastState, budget: Budget) -> Draft:
        place, sampling = len(state.committed), state.sampling
        rows = state.logits[place : place + budget.nodes]
        if not sampling.greedy:
            return Draft(self._drawn(state, rows))
        slots = state.slots[place:]
        if not sampling.plain:
            slots = top_tokens(warp(rows, sampling, [*state.context, *state.committed]))
        draft = tree_from_topk(slots, budget.nodes, self.words, self.model.eos)
        if budget.on_token is not None:
            for token in draft.tree.main_path_tokens:
                budget.on_token(token)
        return draft

    def _drawn(self, state: FastState, rows: Tensor) -> DraftTree:
        """A chain, each token drawn from its own place's distribution."""
        logits = warp(rows, state.sampling, [*state.context, *state.committed])
        tokens: list[int] = []
        for law in logits:
            if tokens and tokens[-1] in self.model.eos:
                break
            tokens.append(sample_one(law, state.generator))
        return DraftTree.chain(tokens, logits[: len(tokens)] if tokens else None)
