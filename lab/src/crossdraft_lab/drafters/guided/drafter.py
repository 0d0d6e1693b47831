"""The drafter `guided`: verifier-guided pruning of visual tokens (SpecVLM: Ji et al., EMNLP 2025).

A small VLM of the target's family reads only those visual tokens that the question attends to. The target has read clip
and question; how much the question's tokens attend to each visual token says what of the clip matters for it. Of these
tokens the drafter reads a tenth: first the few that draw most of the attention, then an even spread over the others, so
that the rest of the scene is not lost. The target's own input stays as it is.

The engine's attention kernels return no weights, so they are computed again: from the hidden states that entered a
layer, by the layer's own projections. That is no more than one product of question and prompt per layer.

The drafter must wait for the target's prefill, so nothing is hidden; every later draft costs little instead.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from crossdraft.drafters.base import Draws, PerRequestDrafter, fork_of, own_prompt, read_encoded
from crossdraft.drafters.independent import IndependentDrafter, IndependentState
from crossdraft.engine.drafter import Budget, Draft, Needs, PromptFeatures, VerifyOutput
from crossdraft.engine.fast.forward import ANATOMIES
from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft_lab.drafters.guided import GuidedSettings


@dataclass(eq=False)
class GuidedState:
    """One answer; `inner` is `None` until the target has read the prompt."""

    request: Request
    inner: IndependentState | None = None


class GuidedDrafter(PerRequestDrafter[GuidedState]):
    """Drafts with a small VLM that reads the visual tokens the target attends to.

    Args:
        model: the drafter's network behind the adapter; its prompt must hold the same visual tokens as the target's.
        target: whose attention guides.
        banned: ids that must never be drafted.
        layers: at which of the target's layers the attention is looked at; default all, as in the paper.
        keep, mass: see `kept_positions`.

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
        keep: float = GuidedSettings.keep,
        mass: float = GuidedSettings.mass,
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

    def _begin(self, request: Request) -> GuidedState:
        return GuidedState(request)

    def _propose(self, state: GuidedState, budget: Budget) -> Draft:
        if state.inner is None:
            return Draft(DraftTree.empty())
        return self.inner.propose([state.inner], [budget])[0]

    def _commit(self, state: GuidedState, output: VerifyOutput) -> None:
        if output.prompt is not None:
            state.inner = self._read(state.request, output, output.prompt)
        if state.inner is not None:
            self.inner.commit([state.inner], [output])

    def _fork(self, state: GuidedState) -> GuidedState:
        return replace(state, inner=None if state.inner is None else fork_of(state.inner))

    def kept(self, output: VerifyOutput, prompt: PromptFeatures) -> Tensor:
        """Positions of the visual tokens that stay, by the attention of the prompt's last piece."""
        ids, text = torch.tensor(prompt.visual_tokens), len(prompt.tokens)
        visual = torch.isin(ids, torch.tensor(sorted(self.visual_ids))).nonzero()[:, 0]
        entering = {layer: torch.cat((prompt.visual[layer], output.hidden[layer][:text])) for layer in self.layers}
        device = entering[self.layers[0]].device
        queries = torch.arange(len(ids), len(ids) + text, device=device)
        scores = attention_scores(self.decoder, entering, queries, visual.to(device))
        return kept_positions(scores, self.keep, self.mass)

    def _read(self, request: Request, output: VerifyOutput, features: PromptFeatures) -> IndependentState:
        """The drafter's own prefill, of the pruned clip."""
        model = self.inner.model
        prompt = own_prompt(model, request)
        own = int(torch.isin(prompt.input_ids.cpu(), torch.tensor(sorted(model.traits.visual_ids))).sum())
        targets = sum(token in self.visual_ids for token in features.visual_tokens)
        if own != targets:
            raise CrossdraftError(
                f"The drafter reads a clip as {own} visual tokens, the target as {targets}; guided pruning needs a "
                "drafter that shares the target's."
            )
        encoded = model.encode(prompt)
        if own:
            prompt, encoded = pruned(prompt, encoded, model.traits.placeholders, self.kept(output, features))
        cache, out = read_encoded(model, prompt, encoded, request.token_limit)
        ids, draws = prompt.input_ids.tolist(), Draws(request.sampling, model.device)
        return IndependentState(request.sampling, cache, ids, draws, out.logits[0])


def decoder_of(model: PreTrainedModel) -> Any:
    """The text decoder of a vision-language model, whose attention `attention_scores` knows how to compute.

    Raises:
        CrossdraftError: the model is built otherwise.
    """
    decoder: Any = getattr(model.base_model, "language_model", model.base_model)
    if type(decoder) not in ANATOMIES:
        known = " or ".join(kind.__name__ for kind in ANATOMIES)
        raise CrossdraftError(
            f"The attention of a {type(decoder).__name__} cannot be computed from its hidden states; guided pruning "
            f"needs a target whose text is read by a {known}."
        )
    return decoder


def attention_scores(decoder: Any, entering: Mapping[int, Tensor], queries: Tensor, keys: Tensor) -> Tensor:
    """Compute how much some tokens of a prompt attend to others, as means over layers, heads and query tokens.

    Args:
        decoder: decoder that `decoder_of` returned.
        entering: layer -> [n, H] hidden states that enter it, `hidden_states[layer]`, of the prompt's first n tokens;
            at least one layer.
        queries: [m] positions of the question's tokens.
        keys: [N] positions of the visual tokens.

    Returns:
        [N] shares; together they are the share of the question's attention that goes to the clip.
    """
    total = torch.zeros(())
    for layer, states in entering.items():
        block = decoder.layers[layer]
        rows, attention = block.input_layernorm(states[None]), block.self_attn
        positions = torch.arange(rows.shape[1], device=rows.device)
        query, key = (
            project(rows).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            for project in (attention.q_proj, attention.k_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *decoder.rotary_emb(rows, positions[None]))
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        scores = query[:, :, queries] @ key.transpose(-1, -2) * attention.scaling
        probs = scores.masked_fill(positions > queries[:, None], float("-inf")).softmax(-1)
        total = total.to(probs) + probs[..., keys].mean((0, 1, 2))
    return total / len(entering)


def kept_positions(scores: Tensor, keep: float = GuidedSettings.keep, mass: float = GuidedSettings.mass) -> Tensor:
    """[⌈keep · N⌉] indices of the tokens that stay, rising.

    First the fewest tokens that together draw `mass` of the attention to the clip, then as many as are still wanted,
    evenly spread over the others in their order.

    >>> kept_positions(torch.tensor([0.1, 0.5, 0.1, 0.1, 0.1, 0.1]), keep=0.5)
    tensor([0, 1, 5])

    Args:
        scores: [N] attention to each visual token.
        keep: share of them that stays, above 0, at most 1.
        mass: share of the attention.

    Raises:
        CrossdraftError: `keep` or `mass` is no such share.
    """
    if not 0 < keep <= 1 or not 0 <= mass <= 1:
        raise CrossdraftError(
            f"Pruning keeps a share of tokens above 0 and up to 1, and of attention; got {keep}, {mass}."
        )
    wanted = -(-len(scores) * keep // 1)
    order = scores.argsort(descending=True, stable=True)
    covered = scores[order].cumsum(0)
    first = min(int((covered < mass * covered[-1:]).sum()) + 1, int(wanted)) if mass else 0
    rest = order[first:].sort().values
    evenly = torch.linspace(0, max(len(rest) - 1, 0), int(wanted) - first).round().long().to(rest.device)
    return torch.cat((order[:first], rest[evenly])).sort().values


def pruned(prompt: Prompt, encoded: Encoded, placeholders: Mapping[str, int], kept: Tensor) -> tuple[Prompt, Encoded]:
    """A prompt with few of its visual tokens, and their features.

    What is left is numbered anew, without gaps: a shorter clip, as the drafter knows them.

    Args:
        prompt: with one placeholder for every visual token.
        encoded: their features by kind, `pooler_output` [..., H] in the order of their placeholders.
        placeholders: the id of each kind.
        kept: [K] which of the visual tokens stay, counted over all kinds in the order of the prompt, rising.
    """
    ids = prompt.input_ids.cpu()
    visual = torch.isin(ids, torch.tensor(list(placeholders.values())))
    chosen = torch.zeros(int(visual.sum()), dtype=torch.bool)
    chosen[kept.cpu()] = True
    few = {kind: _some_of(features, chosen[ids[visual] == placeholders[kind]]) for kind, features in encoded.items()}
    stays = ~visual
    stays[visual] = chosen
    return Prompt(ids[stays], prompt.features), few


def _some_of(features: Any, chosen: Tensor) -> object:
    """Encoded features with some of their rows."""
    pooled = features.pooler_output
    parts = [pooled] if isinstance(pooled, Tensor) else list(pooled)
    rows = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
    some = copy(features)
    some.pooler_output = rows[chosen.to(rows.device)]
    return some
