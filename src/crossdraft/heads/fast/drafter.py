"""The drafter `fast`: the beginning of an answer from the marginals of the fast draft head.

The event encoder encodes the clip; its language model is not used. All logits are computed when the request begins:
later rounds draft from the next positions' logits, whatever was accepted before them. Top-k tokens become nodes where
the head is uncertain, as it is not conditioned on the accepted tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor

from crossdraft.drafters import WORDS
from crossdraft.drafters.alternatives import TokenAlternatives, tree_from_topk
from crossdraft.drafters.base import Draws, PerRequestDrafter, banned_bias, show
from crossdraft.drafters.independent import top_tokens
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.prefix_cache import SENSED, CachedPrompt
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling, warp
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.heads.fast.network import Fast


@dataclass(eq=False)
class FastState:
    """State of one answer: `logits` [N, V] of its positions; `slots`, their likeliest tokens, if no penalty applies."""

    sampling: Sampling
    context: list[int]  # the prompt's ids, for repetition penalties
    draws: Draws
    logits: Tensor
    slots: list[TokenAlternatives]
    committed: list[int] = field(default_factory=list)


class FastDrafter(PerRequestDrafter[FastState]):
    """Drafts the beginnings of answers.

    Args:
        model: the event model behind its adapter; only its prompts and event encoder are used.
        head: the fast head, on its device.
        banned: ids that must never be drafted.
        words: number of likeliest tokens of a position that may become nodes, in greedy answers; 1 = chains.

    Raises:
        CrossdraftError: the head has another vocabulary.
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

    def _begin(self, request: Request) -> FastState:
        request = self.prefixes.identify(request, SENSED)
        prompt = self.model.prepare(request)
        known = self.prefixes.lookup(self.model, prompt, request)
        few = self.head.marginal_logits(self._visual(known), self.head.question(self._question_ids(prompt))[None])[0]
        every = self.head.to_full_vocab(few)
        every += self.banned
        sampling, ids = request.sampling, prompt.input_ids.tolist()
        slots = top_tokens(every) if sampling.plain else []
        return FastState(sampling, ids, Draws(sampling, self.model.device), every, slots)

    def _visual(self, known: CachedPrompt) -> Tensor | None:
        """Features [1, n, H] of the events, if the head reads them."""
        if not self.head.config.sees:
            return None
        encoded = cast("Any", known.encode())
        return encoded["video"].pooler_output

    def _question_ids(self, prompt: Prompt) -> Tensor:
        """Ids [n] after the last event feature."""
        ids = prompt.input_ids
        visual = [at for at, token in enumerate(ids.tolist()) if token in self.model.traits.visual_ids]
        first = visual[-1] + 1 if visual else 0
        return ids[min(first, len(ids) - 1) :].to(self.model.device)

    def _propose(self, state: FastState, budget: Budget) -> Draft:
        done, sampling = len(state.committed), state.sampling
        rows = state.logits[done : done + budget.nodes]
        if not sampling.greedy:
            return Draft(self._sampled(state, rows))
        slots = state.slots[done:]
        if not sampling.plain:
            slots = top_tokens(warp(rows, sampling, [*state.context, *state.committed]))
        draft = tree_from_topk(slots, budget.nodes, self.words, self.model.eos)
        show(draft.tree.main_path_tokens, budget)
        return draft

    def _sampled(self, state: FastState, rows: Tensor) -> DraftTree:
        """Draw a chain, each token from its position's marginal."""
        logits = warp(rows, state.sampling, [*state.context, *state.committed])
        tokens: list[int] = []
        for row in logits:
            if tokens and tokens[-1] in self.model.eos:
                break
            tokens.append(state.draws.token(row, len(state.committed) + len(tokens)))
        return state.draws.chain(tokens, [*logits[: len(tokens)]])

    def _commit(self, state: FastState, output: VerifyOutput) -> None:
        state.committed += output.tokens
