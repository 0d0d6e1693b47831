"""Training and drafting must agree: logits of `forward` and of the drafter at every position of the same text."""

from collections.abc import Mapping
from dataclasses import fields

import torch

from crossdraft.engine.drafter import PromptFeatures, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import ROOT
from crossdraft.heads.drafting.head_drafter import HeadDrafter
from crossdraft.heads.files import make
from crossdraft.heads.networks.base import Head, SharedWeights
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.heads.registry import NETWORKS

HIDDEN, VOCABULARY, LAYERS, LONG, START, VISUAL = 32, 60, 6, 12, 4, 5
IDS = tuple(range(3, 40))
VALUES = {
    "hidden_size": HIDDEN,
    "vocab_size": VOCABULARY,
    "num_layers": LAYERS,
    "draft_ids": IDS,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "steps": 4,
    "tower": "a target's hash",
    "visual_size": 12,
    "patches": 5,
}


def shared() -> SharedWeights:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(2, VOCABULARY, HIDDEN, generator=generator, dtype=torch.double)
    return SharedWeights(rows[0], rows[1])


def some_head(network: str, common: Mapping[str, object] = VALUES, **more: object) -> Head:
    """A small random head in double precision, whose every weight matters.

    Of `common` it takes what its network has; `more` are settings of its network, and an unknown one is an error.
    """
    kind, values = NETWORKS[network].config_class, {**VALUES, **common}
    torch.manual_seed(0)
    config = kind(**{**{field.name: values[field.name] for field in fields(kind) if field.name in values}, **more})
    head = make(network, config, shared()).double().eval()
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.2)
    return head


def some_batch(head: Head, rows: int = 1) -> TrainBatch:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(IDS[0], IDS[-1] + 1, (rows, LONG), generator=generator)

    def features(layers, length):
        shape = (rows, length, HIDDEN)
        return {layer: torch.randn(shape, generator=generator, dtype=torch.double) for layer in layers}

    return TrainBatch(
        tokens,
        features(head.reads, LONG),
        torch.full((rows,), START),
        torch.full((rows,), LONG),
        features(head.visual_reads, VISUAL),
        torch.full((rows, VISUAL), VOCABULARY - 1) if head.visual_reads else None,
    )


def state_at(
    drafter: HeadDrafter,
    batch: TrainBatch,
    position: int,
    pieces: int = 1,
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
):
    """The state of a drafter that has read the text up to `position`; the token after it is the root."""
    text = batch.tokens[0].tolist()
    visual = {layer: rows[0] for layer, rows in batch.visual.items()}
    prefix = () if batch.visual_ids is None else tuple(batch.visual_ids[0].tolist())
    prompt = PromptFeatures(tuple(text[:START]), prefix, visual)
    hidden = {layer: rows[0] for layer, rows in batch.hidden.items()}
    states = drafter.begin([Request("?", max_new_tokens=64, sampling=sampling)])
    first = {layer: rows[:START] for layer, rows in hidden.items()}
    drafter.commit(states, [VerifyOutput((), (text[START],), first, prompt)])
    for start in range(START, position + 1, pieces):
        end = min(start + pieces, position + 1)
        some = {layer: rows[start:end] for layer, rows in hidden.items()}
        path = tuple(range(end - start - 1))
        drafter.commit(states, [VerifyOutput(path, tuple(text[start + 1 : end + 1]), some)])
    return states[0]


@torch.inference_mode()
def check_consistency(drafter: HeadDrafter, batch: TrainBatch, pieces: int = 1) -> int:
    """Compare along the text, from every position of the answer; returns how many predictions were compared."""
    predictions = {prediction.offset: prediction.logits[0] for prediction in drafter.head(batch)}
    text, compared = batch.tokens[0].tolist(), 0
    for position in range(START - 1, LONG - 2):
        step_fn = drafter.step_fn(state_at(drafter, batch, position, pieces).head_state)
        logits = step_fn([ROOT], [], [], 0)[0]
        for offset in sorted(predictions):
            assert torch.allclose(logits, predictions[offset][position], atol=1e-9), (position, offset)
            compared += 1
            following = position + 1 + offset  # the draft's token of that offset
            if following >= LONG or offset == max(predictions):
                break
            logits = step_fn([offset - 1], [text[following]], [offset - 2], offset)[0]
    return compared


@torch.inference_mode()
def check_branches(drafter: HeadDrafter) -> None:
    """The logits of every path of a tree are those of the path alone."""
    batch = some_batch(drafter.head)
    step_fn = drafter.step_fn(state_at(drafter, batch, 6).head_state)
    step_fn([ROOT], [], [], 0)
    step_fn([0, 1], [5, 6], [ROOT, ROOT], 1)
    both = step_fn([2, 3, 4], [7, 8, 9], [0, 1, 0], 2)
    for row, path in enumerate(([5, 7], [6, 8], [5, 9])):
        alone = drafter.step_fn(state_at(drafter, batch, 6).head_state)
        alone([ROOT], [], [], 0)
        alone([0], path[:1], [ROOT], 1)
        assert torch.allclose(alone([1], path[1:], [0], 2)[0], both[row], atol=1e-9)
