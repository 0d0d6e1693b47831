"""`aligned` with adapters of the drafter's own answer: the drafter answers first, then the adapter translates.

Both happen before the target's first token. With `token`, after a rejection the adapter continues after the target's
own token. With `token_projection` and `logit_alignment` the answer is translated index by index, and the target's
tokens only decide where drafting continues.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from crossdraft.drafters.alternatives import TokenAlternatives, tree_from_topk
from crossdraft.drafters.base import Draws, PerRequestDrafter, banned_bias
from crossdraft.drafters.independent import IndependentDrafter, top_tokens
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling, warp_tree
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree, common_prefix
from crossdraft.errors import CrossdraftError
from crossdraft_lab.align.drafter import PLAIN, AlignedOptions, check_vocabulary, first_positions
from crossdraft_lab.align.networks.base import Past
from crossdraft_lab.align.networks.own_answer import OwnAnswer, OwnAnswerAdapter
from crossdraft_lab.align.networks.token import TokenAdapter

NOTHING_DRAFTED = DraftTree.chain([])


@dataclass(eq=False)
class TokenState:
    """State of one answer. `prompt` is the question and the drafter's own answer; `past` covers `prompt` and `read`."""

    sampling: Sampling
    draws: Draws
    prompt: list[int]
    past: Past = ()
    logits: Tensor = field(default_factory=lambda: torch.empty(0))  # [1, V] after the last of these
    read: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    drafted: list[TokenAlternatives] = field(default_factory=list)
    dists: list[Tensor] = field(default_factory=list)  # [V] each, of drafted tokens that were drawn independently

    @property
    def written(self) -> list[int]:
        """The answer so far, including tokens that are not verified yet."""
        return [*self.committed, *(one.tokens[0] for one in self.drafted)]


class TokenDrafter(PerRequestDrafter[TokenState]):
    """Drafter with an adapter `token`; see the module's docstring.

    Args:
        model: event model behind the adapter of models, with its own LM head.
        adapter: adapter on the model's device.
        options: options of the drafter; see `AlignedOptions`.

    Raises:
        CrossdraftError: event model and adapter have different vocabularies, or `options.alone` is not 0.
    """

    def __init__(
        self, model: Target, adapter: TokenAdapter | OwnAnswerAdapter, options: AlignedOptions = PLAIN
    ) -> None:
        if options.alone:
            raise CrossdraftError("An adapter on the drafter's own answer always drafts alone; leave out `alone`.")
        check_vocabulary(adapter, model)
        self.needs = Needs()
        self.model = model
        self.writer = IndependentDrafter(model, options.banned)
        self.adapter = adapter.eval()
        self.banned = banned_bias(model, options.banned)
        self.words = options.words

    def _begin(self, request: Request) -> TokenState:
        question, own = self.own_answer(request)
        state = TokenState(request.sampling, Draws(request.sampling, self.model.device), [*question, *own])
        self._read(state, state.prompt)
        return state

    def own_answer(self, request: Request) -> tuple[list[int], list[int]]:
        """Return the prompt's tokens after the events, and the event model's own greedy answer."""
        return self.own_words(request)[:2]

    def own_words(self, request: Request) -> tuple[list[int], list[int], list[Tensor]]:
        """Return `own_answer`, and the features [S] from which each token came, if the writer captures them."""
        self.writer.prefixes = self.prefixes
        greedy = replace(request, sampling=Sampling(), max_new_tokens=self.adapter.config.own)
        (state,) = self.writer.begin([greedy])
        (draft,) = self.writer.propose([state], [Budget(self.adapter.config.own)])
        self.writer.end([state])
        visual = self.model.traits.visual_ids
        last = max((at for at, token in enumerate(state.prompt) if token in visual), default=-1)
        return state.prompt[last + 1 :], list(draft.tree.tokens), state.features

    def _read(self, state: TokenState, tokens: Sequence[int]) -> None:
        ids = torch.tensor([list(tokens)], device=self.adapter.embeddings.device)
        no_features = torch.empty(*ids.shape, 0, device=ids.device)
        features, state.past = self.adapter.align(no_features, ids, state.past)
        state.logits = self.adapter.to_full_vocab(self.adapter.logits(features[0, -1:])).float()

    def _propose(self, state: TokenState, budget: Budget) -> Draft:
        while len(state.drafted) < budget.nodes and not budget.stopped:
            written = state.written
            likely = math.prod(one.probs[0] for one in state.drafted)
            if self.ended(state) or likely < budget.min_confidence:
                break
            if missing := written[len(state.read) :]:
                self._read(state, missing)
                state.read = written
            self._choose(state)
            if budget.on_token is not None:
                budget.on_token(state.drafted[-1].tokens[0])
        if state.sampling.greedy:
            return tree_from_topk(state.drafted, budget.nodes, self.words, self.model.eos)
        count = min(budget.nodes, len(state.drafted))
        chain = [one.tokens[0] for one in state.drafted[:count]]
        return Draft(state.draws.chain(chain, state.dists[:count]))

    def ended(self, state: TokenState) -> bool:
        """True if the written tokens, verified or not, end the answer."""
        return not self.model.eos.isdisjoint(state.written[-1:])

    def _choose(self, state: TokenState) -> None:
        before = [*state.prompt, *state.written]
        scores = warp_tree(state.logits + self.banned, NOTHING_DRAFTED, before, state.sampling)
        if state.sampling.greedy:
            state.drafted += top_tokens(scores)
            return
        token = state.draws.token(scores[0], len(state.written))
        state.drafted.append(TokenAlternatives((token,), (float(scores[0, token]),)))
        if state.draws.independent:
            state.dists.append(scores[0].clone())

    def _commit(self, state: TokenState, output: VerifyOutput) -> None:
        """Commit the target's tokens; keep the rest of the draft only if the target accepted all tokens before it."""
        agreed = common_prefix([one.tokens[0] for one in state.drafted], output.tokens)
        kept = agreed if agreed == len(output.tokens) else len(state.drafted)
        del state.drafted[:kept], state.dists[:kept]
        state.committed += output.tokens
        read = common_prefix(state.read, state.written)
        if read < len(state.read):
            state.read = state.read[:read]
            state.past = first_positions(state.past, len(state.prompt) + read)


@dataclass(eq=False)
class OwnAnswerState(TokenState):
    """State of one answer; `rows` [n, V] are the logits of its tokens."""

    rows: Tensor = field(default_factory=lambda: torch.empty(0))


class OwnAnswerDrafter(TokenDrafter):
    """See the module's docstring; arguments and errors as in `TokenDrafter`."""

    adapter: OwnAnswerAdapter  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, model: Target, adapter: OwnAnswerAdapter, options: AlignedOptions = PLAIN) -> None:
        super().__init__(model, adapter, options)
        self.writer.capture = adapter.reads

    def _begin(self, request: Request) -> OwnAnswerState:
        question, own, features = self.own_words(request)
        draws = Draws(request.sampling, self.model.device)
        rows = self._rows(own, features)
        return OwnAnswerState(request.sampling, draws, [*question, *own], logits=rows[:1], rows=rows)

    def _rows(self, own: list[int], features: list[Tensor]) -> Tensor:
        """Compute logits [n, V] from the answer's tokens and the features from which each came."""
        if not own:
            return torch.empty(0, self.model.vocab_size)
        states, tokens = torch.stack(features[: len(own)])[None], torch.tensor([own], device=features[0].device)
        answer = own_answer_of(tokens, states, self.model.model.get_output_embeddings(), self.adapter.top)
        return self.adapter.to_full_vocab(self.adapter.translate(answer).logits[0]).float()

    def _read(self, state: TokenState, tokens: object) -> None:
        written = cast("OwnAnswerState", state).written
        state.logits = cast("OwnAnswerState", state).rows[len(written) : len(written) + 1]

    def ended(self, state: TokenState) -> bool:
        """True if the written tokens end the answer, or are as many as the drafter's own."""
        return super().ended(state) or len(state.written) >= len(cast("OwnAnswerState", state).rows)


def own_answer_of(tokens: Tensor, states: Tensor, head: Any, top: int, lengths: Tensor | None = None) -> OwnAnswer:
    """Build an `OwnAnswer` from tokens [B, n] and the features [B, n, S] from which they came.

    Args:
        head: the drafter's own LM head.
        top: number of likeliest tokens that are kept at each position.
        lengths: [B] lengths of the answers, n by default.
    """
    logits: Tensor = head(states)
    best = logits.float().log_softmax(-1).topk(top, -1)
    if lengths is None:
        lengths = torch.full(tokens.shape[:1], tokens.shape[1], device=tokens.device)
    return OwnAnswer(tokens, states, best.indices, best.values.to(states.dtype), lengths)
