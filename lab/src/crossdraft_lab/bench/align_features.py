"""Features that an adapter predicts beside the target's own: cosines, and whether the target's head says the same."""

from collections.abc import Hashable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.prefill import prefill
from crossdraft.engine.target import Target
from crossdraft.heads.networks.base import SharedWeights
from crossdraft_lab.align.drafter import AlignedDrafter, AlignedState, FusedState
from crossdraft_lab.bench.identity import ReferenceAnswer
from crossdraft_lab.bench.statistics import ratio_by

THRESHOLDS = (0.80, 0.90)
Json = dict[str, Any]


def figures_of(
    found: Sequence[tuple[Tensor, Tensor]], lm_head: Tensor, answers: Sequence[Sequence[int]], clips: Sequence[Hashable]
) -> Json:
    """Figures of predictions [A, H] against the target's features [A, H]; pooled over positions, drawn over clips.

    `cosine`: the mean with the target's feature. `acceptance@0.80`, `@0.90`: share of positions whose cosine is above
    0.80, 0.90. `consecutive@0.90`: mean number of positions from the first on that are above 0.90. `same_position`,
    `shifted`: share of positions whose likeliest token, by the target's head, is the target's own token there, and its
    token one position later, which nothing predicts that draws on this one alone.

    Args:
        found: predictions and target features of each answer, on the CPU.
        lm_head: the target's output matrix [V, H].
        answers: tokens of each answer.
        clips: clip of each answer.
    """
    cosines, same, shifted, rows = list[Tensor](), list[Tensor](), list[Tensor](), list[int]()
    for (predicted, own), tokens in zip(found, answers, strict=True):
        cosine = F.cosine_similarity(predicted, own, dim=-1)
        likeliest, wanted = (predicted @ lm_head.T).argmax(-1), torch.tensor(tokens)
        cosines.append(cosine)
        same.append(likeliest == wanted)
        shifted.append(likeliest[:-1] == wanted[1:])
        rows.append(int((cosine > THRESHOLDS[-1]).long().cumprod(0).sum()))
    above = {f"acceptance@{one:.2f}": [cosine > one for cosine in cosines] for one in THRESHOLDS}
    pooled = {"cosine": cosines, **above, "same_position": same, "shifted": shifted}
    return {
        **{name: _pooled(values, clips) for name, values in pooled.items()},
        "consecutive@0.90": ratio_by(clips, rows, [1] * len(rows)).to_json(),
    }


def _pooled(answers: Sequence[Tensor], clips: Sequence[Hashable]) -> Json:
    """Mean over the positions of all answers."""
    return ratio_by(clips, [float(one.float().sum()) for one in answers], [len(one) for one in answers]).to_json()


@torch.inference_mode()
def target_features(target: Target, pair: ReferenceAnswer) -> Tensor:
    """Return the target's last features [A, H] from which it computed its answer of A tokens, on the CPU."""
    prompt, last = target.prepare(pair.item.request), (target.text_config.num_hidden_layers,)
    length = len(prompt) + len(pair.tokens)
    cache = target.new_cache(capacity=length)
    out = prefill(target, cache, prompt, target.encode(prompt), length, capture=last)
    rows = [out.hidden[0][0][-1:]]
    if len(pair.tokens) > 1:
        chunk = Chunk(torch.tensor(pair.tokens[:-1]))
        rows.append(target.extend(cache, [PassRow(0, chunk, capture=last)]).hidden[0][0])
    return torch.cat(rows).float().cpu()


@torch.inference_mode()
def aligned_features(drafter: AlignedDrafter, pair: ReferenceAnswer, own: Tensor) -> Tensor:
    """Return the adapter's predictions [A, H] of the target's features along the target's own answer, on the CPU.

    An adapter that reads the target's features gets `own` [A, H], each one position late.
    """
    state = cast("AlignedState", drafter.begin([pair.item.request])[0])
    if isinstance(state, FusedState):
        state.target = own.to(state.aligned)
    rows, tokens = [state.outputs[-1:]], list(pair.tokens[:-1])
    if tokens:
        drafter.feed(state, tokens[:1], tokens[1:])
        rows.append(state.outputs)
    return torch.cat(rows).float().cpu()


def feature_figures(
    drafter: AlignedDrafter, target: Target, pairs: Sequence[ReferenceAnswer], features: Sequence[Tensor]
) -> Json:
    """Figures of an adapter's predictions along the answers."""
    found = [(aligned_features(drafter, pair, own), own) for pair, own in zip(pairs, features, strict=True)]
    return figures_of(found, lm_head_of(target), [pair.tokens for pair in pairs], clips_of(pairs))


def identity_figures(target: Target, pairs: Sequence[ReferenceAnswer], features: Sequence[Tensor]) -> Json:
    """`feature_figures` of the target's own features, offered as predictions of themselves.

    These predictions are perfect at their own position, yet draft nothing: they show how little a score at the same
    position says of an adapter that is given the target's feature.
    """
    found = [(own, own) for own in features]
    return figures_of(found, lm_head_of(target), [pair.tokens for pair in pairs], clips_of(pairs))


def lm_head_of(target: Target) -> Tensor:
    """Return the target's output matrix [V, H], float32 on the CPU: target and drafter may be on different devices."""
    return SharedWeights.of(target.model).lm_head.float().cpu()


def clips_of(pairs: Sequence[ReferenceAnswer]) -> tuple[int, ...]:
    """Clip of each question, as its seed."""
    return tuple(pair.item.seed for pair in pairs)
