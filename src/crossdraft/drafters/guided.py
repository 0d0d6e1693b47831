"""A small VLM of the target's family that reads the clip as the target's attention points it out; see `pruning`.

It must wait for the target: until the target has read the prompt nobody knows what matters. So nothing is hidden; what
is won is that every later draft costs little.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from crossdraft.drafters.base import fork_of
from crossdraft.drafters.independent import (
    IndependentDrafter,
    IndependentState,
    draft_generator,
    own_prompt,
    read_encoded,
)
from crossdraft.drafters.pruning import KEEP, MASS, attention_scores, decoder_of, kept_places, pruned
from crossdraft.engine.drafter import Budget, Draft, Needs, PromptFeatures, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError


@dataclass(eq=False)
class GuidedState:
    """One answer; `writing` is `None` until the target has read the prompt."""

    request: Request
    writing: IndependentState | None = None


class GuidedDrafter:
    """See the module's text.

    Args:
        model: the drafter's network behind the adapter; its prompt must hold the same visual tokens as the target's.
        target: whose attention guides.
        banned: ids that must never be drafted.
        layers: at which of the target's layers the attention is looked at; default all, as in the paper.
        keep, mass: see `kept_places`.

    Raises:
        CrossdraftError: the target's attention cannot be computed, it has no such layer, or the drafter cannot be given
            a part of a clip.
    """

    def __init__(
        self,
        model: Target,
        target: Target,
        banned: Sequence[int] = (),
        *,
        layers: Sequence[int] | None = None,
        keep: float = KEEP,
        mass: float = MASS,
    ) -> None:
        self.decoder = decoder_of(target.model)
        depth = len(self.decoder.layers)
        self.layers = tuple(range(depth) if layers is None else layers)
        if not self.layers or not all(0 <= layer < depth for layer in self.layers):
            raise CrossdraftError(f"Attention is looked at in layers 0 to {depth - 1}, not {list(self.layers)}.")
        if model.traits.mrope or not model.traits.takes_encoded:
            raise CrossdraftError(
                f"A {type(model.model).__name__} cannot be given a part of a clip: its positions are those of whole "
                "frames, or it encodes frames itself; guided pruning needs a drafter of plain positions, on "
                "transformers 5.18 or later."
            )
        self.visual_ids = target.traits.visual_ids
        self.keep, self.mass = keep, mass
        self.inner = IndependentDrafter(model, banned, sees=True)
        self.needs = Needs(hidden_layers=self.layers, visual_layers=self.layers, video=True)

    def begin(self, requests: Sequence[Request]) -> list[GuidedState]:
        return [GuidedState(request) for request in requests]

    def propose(self, states: Sequence[GuidedState], budgets: Sequence[Budget]) -> list[Draft]:
        return [
            Draft(DraftTree.empty()) if state.writing is None else self.inner.propose([state.writing], [budget])[0]
            for state, budget in zip(states, budgets, strict=True)
        ]

    @torch.inference_mode()
    def commit(self, states: Sequence[GuidedState], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            if output.prompt is not None:
                state.writing = self._read(state.request, output, output.prompt)
            if state.writing is not None:
                self.inner.commit([state.writing], [output])

    def fork(self, states: Sequence[GuidedState]) -> list[GuidedState]:
        return [replace(state, writing=None if state.writing is None else fork_of(state.writing)) for state in states]

    def end(self, states: Sequence[GuidedState]) -> None:
        """Nothing to free but the states themselves."""

    def kept(self, output: VerifyOutput, prompt: PromptFeatures) -> torch.Tensor:
        """Which of the visual tokens stay, by the attention of the prompt's last piece."""
        ids, text = torch.tensor(prompt.visual_tokens), len(prompt.tokens)
        seen = torch.isin(ids, torch.tensor(sorted(self.visual_ids))).nonzero()[:, 0]
        entering = {layer: torch.cat((prompt.visual[layer], output.hidden[layer][:text])) for layer in self.layers}
        device = entering[self.layers[0]].device
        asking = torch.arange(len(ids), len(ids) + text, device=device)
        return kept_places(attention_scores(self.decoder, entering, asking, seen.to(device)), self.keep, self.mass)

    def _read(self, request: Request, output: VerifyOutput, told: PromptFeatures) -> IndependentState:
        """The drafter's own prefill, of what is left of the clip."""
        model = self.inner.model
        prompt = own_prompt(model, request)
        own = int(torch.isin(prompt.input_ids.cpu(), torch.tensor(sorted(model.traits.visual_ids))).sum())
        targets = sum(token in self.visual_ids for token in told.visual_tokens)
        if own != targets:
            raise CrossdraftError(
                f"The drafter reads a clip as {own} visual tokens, the target as {targets}; guided pruning needs a "
                "drafter that shares the target's."
            )
        encoded = model.encode(prompt)
        if own:
            prompt, encoded = pruned(prompt, encoded, model.traits.placeholders, self.kept(output, told))
        cache, out = read_encoded(model, prompt, encoded, request.token_limit)
        ids, generator = prompt.input_ids.tolist(), draft_generator(model, request)
        return IndependentState(request.sampling, cache, len(prompt), ids, generator, out.logits[0])
