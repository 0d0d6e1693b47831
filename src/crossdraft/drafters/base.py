"""Parts that drafters share: a list interface over one request at a time, copies of a state, their own prefill."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from crossdraft.drafters.recycled import RecycledTokens
from crossdraft.drafters.token_index import TokenIndex
from crossdraft.drafters.trees.builder import SelectFn, TopK, WithoutReplacement
from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.noise import choose, shares
from crossdraft.engine.passes import TargetOut
from crossdraft.engine.prefill import prefill
from crossdraft.engine.prefix_cache import SEEN, PrefixCache
from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling, sample_one
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    State = TypeVar("State", bound=DataclassInstance)
else:
    State = TypeVar("State")


NO_PREFIXES = PrefixCache(0)  # keeps nothing


class PerRequestDrafter(Generic[State]):
    """A drafter that does not batch: subclasses define `_begin`, `_propose` and `_commit`, each for one request."""

    needs: Needs
    prefixes: PrefixCache = NO_PREFIXES  # prompts that its own model has read; set where the drafter is assembled

    @torch.inference_mode()
    def begin(self, requests: Sequence[Request]) -> list[State]:
        return [self._begin(request) for request in requests]

    @torch.inference_mode()
    def propose(self, states: Sequence[State], budgets: Sequence[Budget]) -> list[Draft]:
        drafts = [self._propose(state, budget) for state, budget in zip(states, budgets, strict=True)]
        noted = [getattr(state, "notes", ()) for state in states]  # of its own prompt, where it has one
        return [replace(one, notes=notes) if notes else one for one, notes in zip(drafts, noted, strict=True)]

    @torch.inference_mode()
    def commit(self, states: Sequence[State], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            self._commit(state, output)

    @torch.inference_mode()
    def fork(self, states: Sequence[State]) -> list[State]:
        return [self._fork(state) for state in states]

    def end(self, states: Sequence[State]) -> None:
        """Free the states; by default they hold nothing that must be freed."""

    def _begin(self, request: Request) -> State:
        raise NotImplementedError

    def _propose(self, state: State, budget: Budget) -> Draft:
        raise NotImplementedError

    def _commit(self, state: State, output: VerifyOutput) -> None:
        raise NotImplementedError

    def _fork(self, state: State) -> State:
        return fork_of(state)


def fork_of(state: State) -> State:
    """A copy of a dataclass that changes independently of the original.

    Fields that are changed in place are copied: lists, dicts, the cache, an indexed text. All other fields, and the
    lists' items, are only ever replaced, and may be shared. The draws must be shared: a random number drawn twice would
    be known before its token is drawn, and the token would not follow the reported distribution.
    """
    return replace(state, **{field.name: _own(getattr(state, field.name)) for field in fields(state)})


def _own(value: object) -> object:
    match value:
        case list() | dict() | KVCache() | TokenIndex() | RecycledTokens():
            return value.copy()
        case _:
            return value


def show(tokens: Sequence[int], budget: Budget) -> None:
    """Report tokens of the main path to `budget.on_token`."""
    if budget.on_token is not None:
        for token in tokens:
            budget.on_token(token)


def own_prompt(model: Target, request: Request) -> Prompt:
    """Make the prompt of a request for the drafter's model.

    Raises:
        CrossdraftError: the prompt does not fit into the model's context.
    """
    prompt = model.prepare(request)
    if len(prompt) >= model.context:
        raise CrossdraftError(
            f"The drafter reads the question as {len(prompt)} tokens, its context has {model.context}; "
            "ask a shorter question."
        )
    return prompt


def read_prompt(
    model: Target,
    request: Request,
    spare: int,
    capture: Sequence[int] = (),
    prefixes: PrefixCache = NO_PREFIXES,
    senses: Sequence[str] = SEEN,
) -> tuple[Prompt, KVCache, TargetOut]:
    """The drafter's own prefill: the prompt, a cache with room for `spare` more tokens, and [1, V] logits after it.

    Args:
        model, request: the model that reads, and the request that it reads.
        spare: room for this many more tokens.
        capture: hidden layers wanted of the prompt's last token.
        prefixes: cache of prompts that were read before.
        senses: fields of the request that the model reads.

    Raises:
        CrossdraftError: see `own_prompt`.
    """
    request = prefixes.identify(request, senses)
    prompt = own_prompt(model, request)
    known = prefixes.lookup(model, prompt, request)
    capacity = _capacity(model, prompt, spare)
    cache = model.new_cache(capacity=capacity)
    out = prefill(model, cache, prompt, known.encode(), capacity, capture=capture, prefix=known.prefix)
    known.store(cache, 0, model.visual_end(prompt))
    cache.mark(0)
    return prompt, cache, out


def read_encoded(model: Target, prompt: Prompt, encoded: Encoded, spare: int) -> tuple[KVCache, TargetOut]:
    """Prefill a prompt whose visual features are given; returns the cache and the output, as `read_prompt`."""
    capacity = _capacity(model, prompt, spare)
    cache = model.new_cache(capacity=capacity)
    out = prefill(model, cache, prompt, encoded, capacity)
    cache.mark(0)
    return cache, out


def _capacity(model: Target, prompt: Prompt, spare: int) -> int:
    """Number of positions of a cache for a prompt and `spare` more tokens.

    The target refuses an answer that is longer than its context, but maybe only after the drafter has begun; so the
    capacity is bounded here, whatever a request asks for.
    """
    return len(prompt) + min(spare, 2 * model.context)


class Draws:
    """Random draws of one answer's drafts.

    Draws use the noise of the request's seed, if it is known: the target mostly draws the same token (`engine.noise`),
    and a draft is deterministic. Otherwise they use the drafter's own random numbers, and the distributions that the
    tokens were drawn from must go with the draft.

    Args:
        sampling: sampling of the request.
        device: where the distributions are.
    """

    def __init__(self, sampling: Sampling, device: torch.device | str = "cpu") -> None:
        self.seed = sampling.seed
        self.generator = torch.Generator(device)
        self.generator.seed()

    @property
    def independent(self) -> bool:
        """True if a draft must carry the distributions that its tokens were drawn from."""
        return self.seed is None

    def token(self, dist: torch.Tensor, position: int) -> int:
        """The token at a position of the answer, drawn from `dist` [V]."""
        return sample_one(dist, self.generator) if self.seed is None else choose(dist, self.seed, position)

    def chain(self, tokens: Sequence[int], dists: Sequence[torch.Tensor]) -> DraftTree:
        """Make a chain of tokens, each drawn after the previous token from its row of `dists`, [V] each."""
        return DraftTree.chain(tokens, torch.stack([*dists]) if dists and self.independent else None)

    def rank(self, dists: torch.Tensor, position: int) -> torch.Tensor:
        """Distributions [m, V] of one position for a tree builder: with the seed's noise, if it is known.

        With the noise the likeliest token is the one drawn, so that `TopK` draws without replacement, and the lead of
        the likeliest says how likely the target is to draw the same.
        """
        return dists if self.seed is None else shares(dists, self.seed, position)

    @property
    def select(self) -> SelectFn:
        """The rule by which a tree builder takes children from what `rank` gives."""
        return WithoutReplacement(self.generator) if self.independent else TopK()


def banned_bias(model: Target, banned: Sequence[int]) -> torch.Tensor:
    """[V] to be added to logits: -inf at ids that must not be drafted."""
    blocked = sorted(frozenset(banned) | model.reserved)
    bias = torch.zeros(model.vocab_size, device=model.device)
    bias[[i for i in blocked if i < model.vocab_size]] = float("-inf")
    return bias
