"""Check of a capture: random answers recomputed in one plain pass each of the model alone.

It uses no cache, no batch, no shared encoding and no draft: the capture's methods to be fast must not have changed
tokens or features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from crossdraft.engine.noise import uniform
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.capture.shard import CapturedAnswer
from crossdraft_lab.train.capture.sources import ClipSource
from crossdraft_lab.train.capture.store import CaptureStore

SAMPLE = 8
ROUNDED, COARSE = (0.01, 0.06)  # largest relative error: rounded to bfloat16; also computed in 16 bits
NEAR_TIE, NEAR_TIE_COARSE = (1e-3, 0.25)  # logit differences that passes of other shapes may reverse


@dataclass(frozen=True)
class CheckResult:
    """The result of a check.

    Args:
        answers, places: answers recomputed, and their tokens (both are keys of the JSON report).
        differing: tokens that differ from the model's own argmax, near-ties excepted.
        near_ties: tokens that differ because of a near-tie.
        error: greatest relative error of a feature: the length of the difference over the feature's own.
        tolerance: greatest error that rounding explains.
    """

    answers: int
    places: int
    differing: int
    near_ties: int
    error: float
    tolerance: float

    @property
    def right(self) -> bool:
        """True if tokens and features are the target's."""
        return not self.differing and self.error <= self.tolerance

    def sentence(self) -> str:
        """Result in one line, for people."""
        return (
            f"{self.answers} random answers recomputed, {self.places} tokens: {self.differing} differ, "
            f"{self.near_ties} near-ties; max relative error of features "
            f"{self.error:.2g} (tolerance {self.tolerance:g})."
        )


def check_sample(
    store: CaptureStore, target: Target, source: ClipSource, count: int = SAMPLE, seed: int = 0
) -> CheckResult:
    """Recompute `count` random answers.

    Raises:
        CrossdraftError: tokens or features are not the model's.
    """
    spec = store.index.wanted
    if not len(store):
        raise CrossdraftError(f"The capture {store.folder} holds no answers yet; resume it first.")
    chosen = np.random.default_rng(seed).choice(len(store), min(count, len(store)), replace=False)
    coarse = target.model.dtype in (torch.bfloat16, torch.float16)
    differing = near_ties = tokens = 0
    error = 0.0
    for index in sorted(chosen.tolist()):
        clip, question = source.locate(index)
        request = source.read(clip).requests(spec.max_new_tokens)[question]
        answer = store.answer(index, spec.layers, spec.visual_layers)
        gaps, off = _compare(target, target.prepare(request), answer, request.sampling)
        near = NEAR_TIE_COARSE if coarse else NEAR_TIE
        tokens, error = tokens + len(gaps), max(error, off)
        differing += int((gaps > near).sum())
        near_ties += int(((gaps > 0) & (gaps <= near)).sum())
    found = CheckResult(len(chosen), tokens, differing, near_ties, error, COARSE if coarse else ROUNDED)
    if not found.right:
        raise CrossdraftError(f"The capture {store.folder} is not the target's: {found.sentence()}")
    return found


def _compare(target: Target, prompt: Prompt, answer: CapturedAnswer, sampling: Sampling) -> tuple[Tensor, float]:
    """Return how far each token's logit is below the largest one, [A], and the largest relative error of a feature.

    The logits of a sampled answer are taken with the noise that drew it; see `engine.noise`.
    """
    start, answer_ids = answer.start, answer.tokens[answer.start :]
    if prompt.input_ids[-start:].tolist() != answer.tokens[:start].tolist():  # another prompt altogether
        return torch.full((len(answer_ids),), float("inf")), float("inf")
    logits, states = plain_pass(target, prompt, answer_ids[:-1].tolist())
    answer_logits = logits[-len(answer_ids) :].float()
    if sampling.temperature and sampling.seed is not None:
        every = torch.arange(answer_logits.shape[1], device=answer_logits.device)
        drawn = [uniform(sampling.seed, position, every) for position in range(len(answer_ids))]
        answer_logits = answer_logits - sampling.temperature * torch.stack(drawn).log().neg().log()
    gaps = answer_logits.max(1).values - answer_logits.gather(1, answer_ids.to(answer_logits.device)[:, None])[:, 0]
    first = len(prompt) - start
    error = max(_error(states, answer.hidden, slice(first, None)), _error(states, answer.visual, slice(0, first)))
    return gaps.cpu(), error


def _error(states: Sequence[Tensor], found: Mapping[int, Tensor], part: slice) -> float:
    """Greatest relative error over layers and positions."""
    worst = 0.0
    for layer, features in found.items():
        expected = states[layer][part].float().cpu()
        off = (features.float() - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-12)
        worst = max(worst, float(off.max()) if len(off) else 0.0)
    return worst


@torch.inference_mode()
def plain_pass(target: Target, prompt: Prompt, continuation: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
    """Logits [n, V] and hidden states [n, H] of prompt + continuation, by the model alone."""
    out, _ = full_pass(target.model, prompt, continuation)
    return out.logits[0], [states[0] for states in out.hidden_states]


def full_pass(model: PreTrainedModel, prompt: Prompt, continuation: Sequence[int]) -> tuple[Any, Tensor]:
    """The model's output over prompt + continuation in one pass, with hidden states, and the ids [n] that it read."""
    features = {name: value.to(model.device) for name, value in prompt.features.items()}
    if "mm_token_type_ids" in features:
        kinds = features["mm_token_type_ids"]
        features["mm_token_type_ids"] = torch.cat([kinds, kinds.new_zeros(1, len(continuation))], 1)
    inputs = {n: v.to(model.dtype) if v.is_floating_point() else v for n, v in features.items()}
    ids = torch.cat([prompt.input_ids.cpu(), torch.tensor(continuation, dtype=torch.long)]).to(model.device)
    return model(input_ids=ids[None], **inputs, use_cache=False, output_hidden_states=True), ids
