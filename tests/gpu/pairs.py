"""Tiny pairs of models on the device under test, and the comparison of answers."""

import os
from collections.abc import Sequence

import torch

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.reference import full_forward
from crossdraft.engine.request import Answer, Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.target import Target
from tests.engine.zoo import ZOO, as_target, noisy

DEVICE = torch.device(os.environ.get("CROSSDRAFT_TEST_DEVICE", "cuda"))
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
# Rounding may flip a choice between two logits as close as this, relative to the largest one; nothing wider.
NEAR = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 0.15}
# A config.json that `bench scale` takes for a target and for a drafter.
TINY = {
    "model_type": "eventgpt",
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 8,
        "patch_size": 4,
    },
    "text_config": {
        "vocab_size": 99,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    },
    "event_token_id": 98,
}
REQUESTS = [Request("x" * i, max_new_tokens=6 + 6 * i) for i in range(1, 6)]


def target_of(name: str, dtype: str, device: str | torch.device = DEVICE) -> Target:
    model, prompt = ZOO[name]()
    return as_target(model.to(device, DTYPES[dtype]), prompt)


def drafter_of(name: str, dtype: str, device: str | torch.device = DEVICE, words: int = 1) -> IndependentDrafter:
    """A drafter that agrees with the target often, not always; a process of its own can make it, too."""
    model, prompt = ZOO[name]()
    model = noisy(model, 1e-3)
    return IndependentDrafter(as_target(model.to(device, DTYPES[dtype]), prompt), words=words)


def answers(target: Target, runner: DraftRunner | None, requests=REQUESTS, **options) -> list[Answer]:
    """Answers with this drafter, which is closed afterwards."""
    try:
        return DecodeLoop(target, runner, **options).generate(requests)
    finally:
        if runner is not None:
            runner.close()


def inline(drafter: object, hidden: str) -> DraftRunner:
    return DraftRunner(drafter, hidden, DEVICE)


def check_same(
    target: Target, dtype: str, expected: Sequence[Answer], found: Sequence[Answer], note, requests=REQUESTS
) -> None:
    """Every answer is the target's own, but where two of its logits are as close as rounding; these are noted."""
    divergences = [
        divergence(target, request, own.tokens, other.tokens)
        for request, own, other in zip(requests, expected, found, strict=True)
        if own.tokens != other.tokens
    ]
    note("dtype", dtype)
    note("identical", [len(expected) - len(divergences), len(expected)])
    note("divergences", divergences)
    assert not [answer.drafter_error for answer in found if answer.drafter_error]
    assert not any(answer.stats.bad_drafts for answer in found)
    assert all(entry["gap"] <= NEAR[dtype] * entry["largest"] for entry in divergences), divergences


def divergence(target: Target, request: Request, expected: Sequence[int], found: Sequence[int]) -> dict[str, float]:
    """Where two answers part, and how far the target's first choice there is ahead of its second, in logits."""
    same = [a == b for a, b in zip(expected, found, strict=False)]
    position = same.index(False) if False in same else len(same)
    logits = full_forward(target, target.prepare(request), expected[:position]).double()
    first, second = logits.topk(2).values.tolist()
    return {"position": position, "gap": first - second, "largest": float(logits.abs().max())}
