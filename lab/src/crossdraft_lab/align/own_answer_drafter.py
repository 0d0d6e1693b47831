"""`aligned` with `token_projection` or `logit_alignment`: the drafter's own answer, translated index by index.

All of it is known before the target has said anything; what the target says changes nothing but where it goes on.
"""

from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from crossdraft.drafters.base import Draws
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft_lab.align.drafter import PLAIN, AlignedOptions
from crossdraft_lab.align.networks.own_answer import OwnAnswer, OwnAnswerAdapter
from crossdraft_lab.align.token_drafter import TokenDrafter, TokenState


@dataclass(eq=False)
class OwnAnswerState(TokenState):
    """One answer; `rows` [n, V] are the logits of its tokens."""

    rows: Tensor = field(default_factory=lambda: torch.empty(0))


class OwnAnswerDrafter(TokenDrafter):
    """See the module's text; arguments and errors as in `TokenDrafter`."""

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
        """[n, V] of its tokens and the features that each came from."""
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
    """An answer [B, n] with the features [B, n, S] that its tokens came from.

    Args:
        head: the drafter's own LM head.
        top: of its tokens that are kept at each position.
        lengths: [B], n by default.
    """
    logits: Tensor = head(states)
    best = logits.float().log_softmax(-1).topk(top, -1)
    if lengths is None:
        lengths = torch.full(tokens.shape[:1], tokens.shape[1], device=tokens.device)
    return OwnAnswer(tokens, states, best.indices, best.values.to(states.dtype), lengths)
