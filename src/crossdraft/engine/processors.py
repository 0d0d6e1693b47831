"""Logits processors at every node of a draft tree: `transformers`' own, in its own order.

A processor looks at the context: prompt, answer so far, and the node's path. Nodes of one depth have contexts of one
length, so each depth is one call with one row per node. Most requests need none of this (`Sampling.contextual`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from crossdraft.engine.accept import Acceptance, Rule
from crossdraft.engine.noise import Noise
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import CONTEXTUAL, WARPERS, Sampling
from crossdraft.engine.structure import masked
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError

# Processors that keep a state between calls, or run a model of their own.
STATEFUL = frozenset(
    (
        "SynthIDTextWatermarkLogitsProcessor",
        "UnbatchedClassifierFreeGuidanceLogitsProcessor",
        "ClassifierFreeGuidanceLogitsProcessor",
        "DiaClassifierFreeGuidanceLogitsProcessor",
        "DiaEOSDelayPatternLogitsProcessor",
        "WhisperNoSpeechDetection",
    )
)


class CountPenalty(LogitsProcessor):
    """Presence and frequency penalty of a sampling over the tokens behind a prompt; `transformers` has none."""

    def __init__(self, sampling: Sampling, prompt: int) -> None:
        self.sampling, self.prompt = sampling, prompt

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Scores [rows, V] after contexts [rows, length], less the penalty."""
        answer = input_ids[:, self.prompt :]
        counts = torch.zeros_like(scores).scatter_add_(1, answer, torch.ones_like(answer, dtype=scores.dtype))
        return scores - self.sampling.count_penalty(counts)


class TreeProcessors:
    """The logits processors of one request.

    Args:
        sampling: what they are made from.
        model: the target's model, which knows how `transformers` puts them together.
        prompt: token ids of the prompt.
        eos: ids that end an answer.
        max_new_tokens: the longest answer.

    Raises:
        CrossdraftError: `transformers` refuses a value, or a processor keeps a state.
    """

    def __init__(
        self, sampling: Sampling, model: PreTrainedModel, prompt: Sequence[int], eos: Sequence[int], max_new_tokens: int
    ) -> None:
        self.greedy, self._structure = sampling.greedy, _Masked()
        for processor in sampling.processors or ():
            if type(processor).__name__ in STATEFUL:
                raise CrossdraftError(
                    f"{type(processor).__name__} keeps a state between tokens; the nodes of a draft tree cannot share "
                    "one, so leave it out."
                )
        config: Any = generation_config(sampling, eos, len(prompt), max_new_tokens)
        config._eos_token_tensor = torch.tensor(eos, device=model.device) if eos else None  # noqa: SLF001
        assemble: Any = model
        counted = (CountPenalty(sampling, len(prompt)),) if sampling.counted else ()
        try:
            self._processors: LogitsProcessorList = assemble._get_logits_processor(  # noqa: SLF001 - its order is the point
                generation_config=config,
                input_ids_seq_length=len(prompt),
                encoder_input_ids=torch.tensor([list(prompt)], device=model.device),
                logits_processor=LogitsProcessorList((*counted, *(sampling.processors or ()), self._structure)),
                device=model.device,
                model_kwargs={},
            )
        except (ValueError, TypeError) as error:
            raise CrossdraftError(f"transformers refuses these sampling settings: {error}") from error

    @torch.inference_mode()
    def warp_tree(self, logits: Tensor, tree: DraftTree, context: Sequence[int], masks: Tensor | None = None) -> Tensor:
        """The distribution after the root and after every node; as `sampling.warp_tree`.

        Args:
            logits: [1 + n, V], the root's first.
            tree: the n nodes.
            context: token ids of the prompt and the answer so far, the root's among them.
            masks: [1 + n, V] bool, false for tokens that the request's structure forbids.

        Returns:
            [1 + n, V] probabilities; when greedy, logits whose argmax is the token.

        Raises:
            CrossdraftError: a processor changed the shape of the scores, or fails at the root.
        """
        scores = logits.clone() if logits.dtype == torch.float64 else logits.float().clone()
        before = torch.tensor(list(context), device=logits.device)
        depths = torch.tensor((0, *tree.depths))
        for depth in range(tree.depth + 1):
            rows = (depths == depth).nonzero()[:, 0].to(logits.device)
            paths = [tree.path_tokens(row - 1) if row else [] for row in rows.tolist()]
            behind = torch.tensor(paths, dtype=torch.long, device=logits.device).view(len(rows), depth)
            ids: Any = torch.cat((before.expand(len(rows), -1), behind), 1)
            scores[rows] = self._processed(ids, scores[rows], len(context), None if masks is None else masks[rows])
        return scores if self.greedy else scores.softmax(-1)

    def _processed(self, ids: Any, scores: Tensor, root: int, masks: Tensor | None) -> Tensor:
        """Scores [rows, V] after contexts [rows, length]; NaN where a processor fails on a draft's context.

        A processor may raise if every token is forbidden, or if a draft leaves its grammar. That matters only at an
        accepted node, see `verify_tree`; the root, whose context has `root` tokens, is always accepted.
        """
        try:
            self._structure.masks = masks
            processed = self._processors(ids.clone(), scores.clone())  # some work in place, and are called again
            if masks is not None:
                processed[impossible(processed != -torch.inf)] = torch.nan
        except Exception as error:
            if len(ids) > 1:
                parts = [slice(i, i + 1) for i in range(len(ids))]
                alone = [self._processed(ids[i], scores[i], root, None if masks is None else masks[i]) for i in parts]
                return torch.cat(alone)
            if ids.shape[1] > root:
                return torch.full_like(scores, torch.nan)
            if isinstance(error, CrossdraftError):
                raise
            reason = next(iter(str(error).splitlines()), "")
            raise CrossdraftError(
                f"A logits processor cannot go on: {type(error).__name__}{reason and ': '}{reason}"
            ) from error
        if processed.shape != scores.shape:
            raise CrossdraftError(
                f"The logits processors made {tuple(processed.shape)} of scores {tuple(scores.shape)}; they must keep "
                "the shape."
            )
        return processed.to(scores)


class _Masked(LogitsProcessor):
    """The request's structure as the last processor before temperature and filters; `masks` are the next rows'."""

    masks: Tensor | None = None

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores if self.masks is None else masked(scores, self.masks)


def impossible(possible: Tensor) -> list[int]:
    """The rows in which a structure leaves no token that the other settings do not forbid.

    Args:
        possible: [1 + n, V] bool, true for the tokens that neither of them forbids.

    Raises:
        CrossdraftError: the first row, the root's, is such a row.
    """
    lost: list[int] = (~possible.any(-1)).nonzero()[:, 0].tolist()
    if 0 in lost:
        raise CrossdraftError(
            "The request's other settings (such as min_new_tokens or bad_words_ids) forbid every token that its "
            "structure allows here; leave them out."
        )
    return lost


def verify_tree(rule: Rule, tree: DraftTree, warped: Tensor, noise: Noise, logits: Tensor | None = None) -> Acceptance:
    """Verify a tree, some rows of whose `warped` [1 + n, V] have NaN: no token may come there, or nobody knows which.

    Nodes after the node of such a row are not verified. If that node is accepted, its token is the round's last: in the
    next round it is the root, where the processor fails as for the target alone, unless the answer has ended.
    """
    lost: list[bool] = warped.isnan().any(-1).tolist() if len(tree) else []
    if not any(lost):
        return rule(tree, warped, noise, logits)
    kept: list[int] = []
    reached = set[int]() if lost[0] else {ROOT}
    for node, parent in enumerate(tree.parents):
        if parent in reached:
            kept.append(node)
            if not lost[1 + node]:
                reached.add(node)
    places = [0, *(1 + node for node in kept)]
    rows, logits = warped[places], None if logits is None else logits[places]
    # Such a row is not used, but a rule must be able to read it: it becomes a point mass.
    rows[[1 + index for index, node in enumerate(kept) if lost[1 + node]]] = torch.eye(1, rows.shape[-1]).to(rows)
    output = rule(tree.keep(kept), rows, noise, logits)
    path = tuple(kept[node] for node in output.path)
    if path and lost[1 + path[-1]]:
        return Acceptance(path[:-1], tree.tokens[path[-1]])
    return Acceptance(path, output.bonus)


def generation_config(sampling: Sampling, eos: Sequence[int], prompt: int, max_new_tokens: int) -> GenerationConfig:
    """Sampling settings as `generate` takes them; biases of single tokens are joined to one `sequence_bias`.

    As in `transformers`, a `min_new_tokens`, 0 too, replaces `min_length`.
    """
    biases: dict[tuple[int, ...], float] = {}
    pairs = [((token,), bias) for token, bias in sampling.logit_bias or ()] + list(sampling.sequence_bias or ())
    for ids, bias in pairs:
        biases[ids] = biases.get(ids, 0.0) + float(bias)
    decay = sampling.exponential_decay_length_penalty
    least = sampling.min_length or 0
    if sampling.min_new_tokens is not None:
        least = prompt + sampling.min_new_tokens
    given: dict[str, object] = {
        "max_length": prompt + max_new_tokens,
        "do_sample": not sampling.greedy,
        "eos_token_id": list(eos) or None,
        "pad_token_id": eos[0] if eos else 0,
        "sequence_bias": [[list(ids), bias] for ids, bias in biases.items()] or None,
        "repetition_penalty": float(sampling.repetition_penalty or 1),
        "encoder_repetition_penalty": float(sampling.encoder_repetition_penalty or 1),
        "no_repeat_ngram_size": sampling.no_repeat_ngram_size or 0,
        "encoder_no_repeat_ngram_size": sampling.encoder_no_repeat_ngram_size or 0,
        "bad_words_ids": [list(ids) for ids in sampling.bad_words_ids or ()] or None,
        "suppress_tokens": list(sampling.suppress_tokens or ()) or None,
        "begin_suppress_tokens": list(sampling.begin_suppress_tokens or ()) or None,
        "min_length": least,
        "min_new_tokens": sampling.min_new_tokens,
        "forced_bos_token_id": next(iter(sampling.forced_bos_token_id or ()), None),
        "forced_eos_token_id": list(sampling.forced_eos_token_id or ()) or None,
        "exponential_decay_length_penalty": (decay[0], float(decay[1])) if decay else None,
        "remove_invalid_values": bool(sampling.remove_invalid_values),
        "renormalize_logits": bool(sampling.renormalize_logits),
        "num_beams": 1,
    }
    if not sampling.greedy:
        given |= {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or 0,
            "top_p": 1.0 if sampling.top_p is None else float(sampling.top_p),
            "min_p": sampling.min_p or None,
            "top_h": sampling.top_h or None,
            "typical_p": 1.0 if sampling.typical_p is None else float(sampling.typical_p),
            "epsilon_cutoff": float(sampling.epsilon_cutoff or 0),
            "eta_cutoff": float(sampling.eta_cutoff or 0),
        }
    return GenerationConfig(**given)


def for_drafter(request: Request, most: int, rule: Rule) -> Request:
    """Return a request as its drafter reads it.

    The seed stays only if the rule is `invariant`: then the drafter draws with the target's own noise. Any other rule
    is exact only if the drafter's draws are independent of the rule's own random numbers.

    A drafter may draw from any distribution, so only cheap settings stay, with the biases of single tokens as one
    `logit_bias`. If others were left out, a single `LogitsProcessor` marks that the target applies more.

    Args:
        request: the request, with the checkpoint's defaults filled in.
        most: the longest answer, if the request does not say.
        rule: the rule that verifies the drafts.
    """
    sampling = request.sampling if rule.invariant else replace(request.sampling, seed=None)
    biases: dict[int, float] = {}
    for token, bias in sampling.token_bias:
        biases[token] = biases.get(token, 0.0) + bias
    counted = ("presence_penalty", "frequency_penalty")
    off = dict.fromkeys(("bad_words_ids", "sequence_bias", "suppress_tokens", *counted, *CONTEXTUAL, *WARPERS))
    shown = replace(sampling, **off, logit_bias=tuple(biases.items()))
    if sampling.contextual or sampling.counted or request.constraint is not None:
        shown = replace(shown, processors=(LogitsProcessor(),))
    length = request.max_new_tokens or most
    return replace(request, sampling=shown, structure=None, predictions=(), hints=(), max_new_tokens=length)
