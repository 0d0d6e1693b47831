"""A drafter whose vocabulary is not the target's (heterogeneous vocabularies; "universal assisted generation" in HF).

It runs behind the same adapter as a target does and needs nothing of the one it drafts for, so it may draft while that
one reads. Its drafts cross to the target's vocabulary by one of three methods:

    slem  by text: any two tokenizers; see `slem`
    tli   by token: what both vocabularies have; sampled drafts are accepted by their full distribution; see `tli`
    omni  as tli, and several drafter tokens that are one of the target's are learned while answering

Each is lossless. A model that shares the target's vocabulary, id for id, is an `IndependentDrafter` instead:
`map_vocabularies(…).identity` says so.
"""

from dataclasses import replace
from typing import Protocol

from crossdraft.drafters.base import PerRequestDrafter, fork_of
from crossdraft.drafters.cross_vocab.assistant import AssistantModel, AssistantState
from crossdraft.drafters.cross_vocab.slem import StringLevelMatch
from crossdraft.drafters.cross_vocab.tli import NgramCache, TokenIntersection
from crossdraft.drafters.cross_vocab.vocabulary import TokenTable, map_vocabularies
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError

CROSS_VOCAB_METHODS = ("slem", "tli", "omni")


class CrossVocabMethod(Protocol):
    """How drafts cross from one vocabulary to the other."""

    def begin(self, request: Request) -> AssistantState:
        """Prefill."""
        ...

    def propose(self, state: AssistantState, budget: Budget) -> Draft:
        """Continue the answer behind what is committed, in the target's tokens."""
        ...

    def commit(self, state: AssistantState, output: VerifyOutput) -> None:
        """Learn what was accepted."""
        ...


class CrossVocabDrafter(PerRequestDrafter[AssistantState]):
    """Drafts a chain with a model of another vocabulary.

    Args:
        model: the drafter's network behind the adapter, with its own `prepare`.
        own: its tokenizer, as wide as its head.
        target: the target's tokenizer, as wide as the target's head; what must not be drafted has no bytes in it.
        how: one of `CROSS_VOCAB_METHODS`.
        sees: true if the model looks at the request's video.

    Raises:
        CrossdraftError: there is no such method, or it needs shared tokens and there are none.
    """

    def __init__(
        self, model: Target, own: TokenTable, target: TokenTable, how: str = "slem", *, sees: bool = False
    ) -> None:
        if how not in CROSS_VOCAB_METHODS:
            raise CrossdraftError(
                f"There is no way '{how}' to draft across vocabularies; choose one of {', '.join(CROSS_VOCAB_METHODS)}."
            )
        self.needs = Needs(video=sees, learns=how == "omni")
        self.model = model
        assistant = AssistantModel(model)
        self.method: CrossVocabMethod
        if how == "slem":
            self.method = StringLevelMatch(assistant, own, target)
        else:
            ngrams = NgramCache() if how == "omni" else None
            self.method = TokenIntersection(assistant, own, target, map_vocabularies(own, target), ngrams)

    def _begin(self, request: Request) -> AssistantState:
        return self.method.begin(request)

    def _propose(self, state: AssistantState, budget: Budget) -> Draft:
        return self.method.propose(state, budget)

    def _commit(self, state: AssistantState, output: VerifyOutput) -> None:
        self.method.commit(state, output)

    def _fork(self, state: AssistantState) -> AssistantState:
        return replace(fork_of(state), is_fork=True)
