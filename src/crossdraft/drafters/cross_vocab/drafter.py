"""An independent drafter whose vocabulary is not the target's.

It runs behind the same adapter as a target does and needs nothing of the one it drafts for, so it may write while that
one reads. Between the two stands a way of drafting:

    slem  by text: any two tokenizers; see `retokenise`
    tli   by token: what both vocabularies have; sampled drafts are accepted by their full law; see `translation`
    omni  as tli, and several drafter tokens that are one of the target's are learned while answering

Each keeps the answer the target's own. A model that shares the target's vocabulary, id for id, is an
`IndependentDrafter` instead: `map_vocabularies(…).identity` says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

import torch

from crossdraft.drafters.base import fork_of
from crossdraft.drafters.cross_vocab.assistant import AssistantModel, AssistantState
from crossdraft.drafters.cross_vocab.slem import StringLevelMatch
from crossdraft.drafters.cross_vocab.tli import NgramCache, TokenIntersection
from crossdraft.drafters.cross_vocab.vocabulary import TokenTable, map_vocabularies
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError


class CrossVocabMethod(Protocol):
    """How drafts cross from one vocabulary to the other."""

    def open(self, request: Request) -> AssistantState:
        """Read a request."""
        ...

    def propose(self, page: AssistantState, budget: Budget) -> Draft:
        """Continue the answer behind what is committed, in the target's tokens."""
        ...

    def commit(self, page: AssistantState, output: VerifyOutput) -> None:
        """Learn what was accepted."""
        ...


def _slem(pen: AssistantModel, own: TokenTable, target: TokenTable) -> CrossVocabMethod:
    return StringLevelMatch(pen, own, target)


def _tli(pen: AssistantModel, own: TokenTable, target: TokenTable) -> CrossVocabMethod:
    return TokenIntersection(pen, own, target, map_vocabularies(own, target))


def _omni(pen: AssistantModel, own: TokenTable, target: TokenTable) -> CrossVocabMethod:
    return TokenIntersection(pen, own, target, map_vocabularies(own, target), NgramCache())


CROSS_VOCAB_METHODS: Mapping[str, Callable[[AssistantModel, TokenTable, TokenTable], CrossVocabMethod]] = (
    MappingProxyType({"slem": _slem, "tli": _tli, "omni": _omni})
)


class CrossVocabDrafter:
    """Drafts a chain with a model of another vocabulary.

    Args:
        model: the drafter's network behind the adapter, with its own `prepare`.
        own: its tokenizer, as wide as its head.
        target: the target's tokenizer, as wide as the target's head; what must not be drafted has no spelling in it.
        how: one of `CROSS_VOCAB_METHODS`.
        sees: true if the model looks at the request's video.

    Raises:
        CrossdraftError: there is no such way, or it needs shared tokens and there are none.
    """

    def __init__(
        self, model: Target, own: TokenTable, target: TokenTable, how: str = "slem", *, sees: bool = False
    ) -> None:
        if how not in CROSS_VOCAB_METHODS:
            raise CrossdraftError(
                f"There is no way '{how}' to draft across vocabularies; choose one of {', '.join(CROSS_VOCAB_METHODS)}."
            )
        self.needs = Needs(video=sees, remembers=how == "omni")
        self.model = model
        self.way = CROSS_VOCAB_METHODS[how](AssistantModel(model), own, target)

    @torch.inference_mode()
    def begin(self, requests: Sequence[Request]) -> list[AssistantState]:
        return [self.way.open(request) for request in requests]

    @torch.inference_mode()
    def propose(self, states: Sequence[AssistantState], budgets: Sequence[Budget]) -> list[Draft]:
        return [self.way.propose(state, budget) for state, budget in zip(states, budgets, strict=True)]

    def commit(self, states: Sequence[AssistantState], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            self.way.commit(state, output)

    @torch.inference_mode()
    def fork(self, states: Sequence[AssistantState]) -> list[AssistantState]:
        return [replace(fork_of(state), on_trial=True) for state in states]

    def end(self, states: Sequence[AssistantState]) -> None:
        """Nothing to free but the states themselves."""
