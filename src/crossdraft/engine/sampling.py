"""Sampling: logits are warped to distributions of the next token, at every node of a draft tree, and tokens are drawn.

Warping happens once, before any acceptance rule sees the logits; order and formulas are those of `transformers`'
logits processors: bias, repetition penalty, temperature, top-k, top-p, min-p. OpenAI's presence and frequency penalty
come in front of the temperature. Here all nodes of a tree are warped in a few tensor operations. Settings that need a
logits processor for every context (`Sampling.contextual`) are in `engine.processors`. Reported log-probabilities are
the target's raw ones, before any warping.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from crossdraft.checks import NamedFields
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from transformers import LogitsProcessor

COLDEST = 1e-7  # far below this, logits over temperature overflow float32; Qwen2.5-VL ships 1e-6
SEEDS = 2**63


@dataclass(frozen=True, slots=True)
class Sampling(NamedFields):
    """Settings of token sampling; a `None` field is the checkpoint's own (its generation_config), else off.

    Names and meanings are those of `transformers.GenerationConfig`, where nothing else is said.

    Args:
        temperature: 0 = greedy; the filters (`top_k` to `eta_cutoff`) then have no effect, the rest does.
        top_k: draw from the k most likely tokens; 0 = from all.
        top_p: draw from the fewest most likely tokens that hold this mass together; 1 = from all.
        min_p: draw from tokens at least this likely, relative to the most likely one; 0 = from all.
        repetition_penalty: above 1, tokens of the prompt and of the answer so far become less likely; 1 = off.
        logit_bias: (token id, number added to its logit) pairs; -inf forbids a token.
        seed: `None` draws one from torch's global generator; `Answer.stats.seed` tells it. The same request and seed
            give the same tokens, in any batch, with any drafter and without one (see `engine.rules.gumbel`), as far as
            the logits are the same: passes of different shapes round differently, which may decide a near-tie. Another
            rule, such as `rejection`, may draw other tokens of the same distribution; if the drafter learns from
            earlier answers, such a rule does not use the seed (see `Needs.learns`).
        typical_p: locally typical sampling (Meister et al. 2022) with this mass; 1 = off.
        top_h: keep the likeliest tokens up to this share of the entropy; 1 = the whole budget; 0 = off.
        epsilon_cutoff, eta_cutoff: truncation sampling (Hewitt et al. 2022); 0 = off.
        encoder_repetition_penalty: above 1, tokens that are not in the prompt become less likely; 1 = off.
        no_repeat_ngram_size: n-grams of this size occur once in prompt and answer; 0 = off.
        encoder_no_repeat_ngram_size: n-grams of the prompt of this size do not occur in the answer; 0 = off.
        bad_words_ids: sequences of token ids that are never completed.
        sequence_bias: (sequence of token ids, number added to the logit of its last one where the others precede it).
        suppress_tokens, begin_suppress_tokens: ids that are never drawn, or not as the answer's first token.
        min_length, min_new_tokens: least tokens of prompt and answer together, and of the answer, before it may end.
        forced_bos_token_id, forced_eos_token_id: ids, one of which is taken after a prompt of one token, or as the last
            token that fits; () = off.
        exponential_decay_length_penalty: (start, factor): from this token of the answer on its end becomes likelier;
            () = off.
        remove_invalid_values: NaN and infinite logits become finite.
        renormalize_logits: the processed logits are normalised.
        processors: your own logits processors, applied before the temperature, as in `transformers`. They are called
            with several contexts at once, [rows, length], only one of which becomes the answer: they must not keep a
            state.
        presence_penalty: OpenAI's: subtracted from the logits of tokens that the answer so far holds; 0 = off.
        frequency_penalty: OpenAI's: subtracted as often as the answer so far holds the token; 0 = off.

    Raises:
        CrossdraftError: a value outside its range, or a token that is biased twice.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None
    seed: int | None = None
    typical_p: float | None = None
    top_h: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    encoder_repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    encoder_no_repeat_ngram_size: int | None = None
    bad_words_ids: tuple[tuple[int, ...], ...] | None = None
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] | None = None
    suppress_tokens: tuple[int, ...] | None = None
    begin_suppress_tokens: tuple[int, ...] | None = None
    min_length: int | None = None
    min_new_tokens: int | None = None
    forced_bos_token_id: tuple[int, ...] | None = None
    forced_eos_token_id: tuple[int, ...] | None = None
    exponential_decay_length_penalty: tuple[int, float] | tuple[()] | None = None
    remove_invalid_values: bool | None = None
    renormalize_logits: bool | None = None
    processors: "tuple[LogitsProcessor, ...] | None" = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    def __post_init__(self) -> None:
        for name, (holds, wanted) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not _holds(holds, value):
                raise CrossdraftError(f"{name} is {value!r}; it must be {wanted}.")

    @property
    def greedy(self) -> bool:
        """True if the most likely token is always taken."""
        return not self.temperature

    @property
    def certain(self) -> bool:
        """True if nothing is left to chance: the answer is greedy, or its draws follow from a seed."""
        return self.greedy or self.seed is not None

    @property
    def contextual(self) -> bool:
        """True if `warp` does not suffice: a setting needs a logits processor with each node's own context."""
        long = any(len(ids) > 1 for ids in self.bad_words_ids or ()) or any(
            len(ids) > 1 for ids, _ in self.sequence_bias or ()
        )
        warpers = () if self.greedy else WARPERS
        set_here = any(not _neutral(name, getattr(self, name)) for name in (*CONTEXTUAL, *warpers))
        return long or set_here

    @property
    def plain(self) -> bool:
        """True if the model's own likeliest token is always taken, whatever was emitted before."""
        penalised = not _neutral("repetition_penalty", self.repetition_penalty)
        return self.greedy and not penalised and not self.counted and not self.token_bias and not self.contextual

    @property
    def counted(self) -> bool:
        """True if a penalty depends on how often the answer so far holds a token."""
        return bool(self.presence_penalty or self.frequency_penalty)

    def count_penalty(self, counts: Tensor) -> Tensor:
        """Numbers to subtract from the logits of tokens that occur `counts` times in the answer so far."""
        return (self.frequency_penalty or 0.0) * counts + (self.presence_penalty or 0.0) * (counts > 0)

    @property
    def token_bias(self) -> tuple[tuple[int, float], ...]:
        """(token id, number added to its logit) of every setting that concerns single tokens; an id may come twice."""
        forbidden = [*(self.suppress_tokens or ()), *(i for i, *rest in self.bad_words_ids or () if not rest)]
        single = [(ids[0], bias) for ids, bias in self.sequence_bias or () if len(ids) == 1]
        return (*(self.logit_bias or ()), *single, *((token, -math.inf) for token in forbidden))

    def over(self, defaults: "Sampling") -> "Sampling":
        """Fill settings that are `None` from `defaults`."""
        own = {name: value for name in NAMES if (value := getattr(self, name)) is not None}
        return replace(defaults, **own)

    def seeded(self) -> Self:
        """The settings with a seed: their own, else one drawn from torch's global generator, as in `transformers`."""
        if self.seed is not None:
            return self
        return replace(self, seed=int(torch.randint(SEEDS - 1, ())))


NAMES = tuple(field.name for field in fields(Sampling))
# Settings that `transformers` applies to sampled answers only, and those that depend on the context or on all logits.
WARPERS = ("typical_p", "top_h", "epsilon_cutoff", "eta_cutoff")
CONTEXTUAL = (
    "encoder_repetition_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "begin_suppress_tokens",
    "min_length",
    "min_new_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "exponential_decay_length_penalty",
    "remove_invalid_values",
    "renormalize_logits",
    "processors",
)
ONES = frozenset(("top_p", "typical_p", "repetition_penalty", "encoder_repetition_penalty"))


def _neutral(name: str, value: object) -> bool:
    """True if a setting is off."""
    return not value or (name in ONES and value == 1)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _ids(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_whole, value))


def _holds(holds: Callable[[Any], bool], value: object) -> bool:
    try:
        return bool(holds(value))
    except (TypeError, ValueError):
        return False


PENALTY = (lambda x: 0 < x < math.inf, "a number above 0, 1 = off")
OPENAI = (lambda x: -2 <= x <= 2, "between -2 and 2, 0 = off")
COUNT = (_whole, "0 (off) or a whole number above")
IDS = (_ids, "a tuple of token ids")
SHARE = (lambda x: 0 <= x < 1, "at least 0 (off) and below 1")
FLAG = (lambda x: isinstance(x, bool), "True or False")
RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (lambda x: x == 0 or COLDEST <= x < math.inf, f"0 (greedy) or at least {COLDEST}"),
    "top_k": (_whole, "0 (off) or more"),
    "top_p": (lambda x: 0 < x <= 1, "above 0 and at most 1 (off)"),
    "min_p": (lambda x: 0 <= x <= 1, "between 0 (off) and 1"),
    "repetition_penalty": PENALTY,
    "presence_penalty": OPENAI,
    "frequency_penalty": OPENAI,
    "logit_bias": (
        lambda x: (
            all(_whole(token) and bias < math.inf for token, bias in x) and len({token for token, _ in x}) == len(x)
        ),
        "(token id, number below infinity) pairs, one per token id",
    ),
    "seed": (lambda x: _whole(x) and x < SEEDS, "between 0 and 2^63 - 1"),
    "typical_p": (lambda x: 0 < x <= 1, "above 0 and at most 1 (off)"),
    "top_h": (lambda x: 0 <= x <= 1, "between 0 (off) and 1"),
    "epsilon_cutoff": SHARE,
    "eta_cutoff": SHARE,
    "encoder_repetition_penalty": PENALTY,
    "no_repeat_ngram_size": COUNT,
    "encoder_no_repeat_ngram_size": COUNT,
    "bad_words_ids": (
        lambda x: isinstance(x, tuple) and all(_ids(ids) and ids for ids in x),
        "a tuple of tuples of token ids, none of them empty",
    ),
    "sequence_bias": (
        lambda x: (
            all(_ids(ids) and ids and bias < math.inf for ids, bias in x) and len({ids for ids, _ in x}) == len(x)
        ),
        "(tuple of token ids, number below infinity) pairs, one per sequence",
    ),
    "suppress_tokens": IDS,
    "begin_suppress_tokens": IDS,
    "min_length": COUNT,
    "min_new_tokens": COUNT,
    "forced_bos_token_id": (lambda x: _ids(x) and len(x) <= 1, "a tuple of one token id, or () (off)"),
    "forced_eos_token_id": IDS,
    "exponential_decay_length_penalty": (
        lambda x: x == () or (len(x) == 2 and _whole(x[0]) and 0 < x[1] < math.inf),
        "(first token of the answer that it concerns, factor above 0), or () (off)",
    ),
    "remove_invalid_values": FLAG,
    "renormalize_logits": FLAG,
    "processors": (lambda x: isinstance(x, tuple) and all(map(callable, x)), "a tuple of transformers.LogitsProcessor"),
}


def warp(logits: Tensor, sampling: Sampling, seen: Sequence[int] = ()) -> Tensor:
    """Warp logits to the distribution after one context.

    Args:
        logits: [..., V], raw.
        sampling: the settings; `contextual` ones and penalties by counts are not applied.
        seen: token ids of the context, for the repetition penalty; all rows share them.

    Returns:
        [..., V] probabilities; when greedy, logits whose argmax is the token. Half precision becomes float32.
    """
    penalised = None if _neutral("repetition_penalty", sampling.repetition_penalty) else _seen_mask(seen, logits)
    return _warp(logits, sampling, penalised)


def warp_tree(
    logits: Tensor, tree: DraftTree, context: Sequence[int], sampling: Sampling, answer: Sequence[int] = ()
) -> Tensor:
    """Warp logits to the distributions after the root and after every node; a node's context is its own path.

    Args:
        logits: [1 + n, V], the root's first.
        tree: the n nodes.
        context: token ids of the prompt and the answer so far, the root's among them.
        sampling: the settings; `contextual` ones are not applied.
        answer: token ids of the answer so far, the root's among them, for the penalties by counts.

    Returns:
        [1 + n, V], as `warp` does.
    """
    if _neutral("repetition_penalty", sampling.repetition_penalty):
        return _warp(logits, sampling, None, _counts(tree, answer, sampling))
    penalised = _seen_mask(context, logits).repeat(1 + len(tree), 1)
    nodes, ancestors = tree.visible.nonzero(as_tuple=True)
    penalised[nodes + 1, torch.tensor(tree.tokens, dtype=torch.long)[ancestors]] = True
    return _warp(logits, sampling, penalised, _counts(tree, answer, sampling))


def _counts(tree: DraftTree, answer: Sequence[int], sampling: Sampling) -> tuple[Tensor, Tensor] | None:
    """Ids [u] of tokens in answer and tree, and their counts [1 + n, u] in the answer with each node's path."""
    if not sampling.counted or not (answer or len(tree)):
        return None
    tokens = torch.tensor([*answer, *tree.tokens], dtype=torch.long)
    ids, column = tokens.unique(return_inverse=True)
    said = column[: len(answer)].bincount(minlength=len(ids))
    drafted = torch.nn.functional.one_hot(column[len(answer) :], len(ids))
    return ids, torch.cat((said[None], said + tree.visible.long() @ drafted))


def _seen_mask(seen: Sequence[int], logits: Tensor) -> Tensor:
    """[V] bool, true for seen tokens; visual placeholders beyond the head have no logit, and are left out."""
    vocabulary = logits.shape[-1]
    mask = torch.zeros(vocabulary, dtype=torch.bool, device=logits.device)
    mask[[token for token in set(seen) if token < vocabulary]] = True
    return mask


def _warp(
    logits: Tensor, sampling: Sampling, penalised: Tensor | None, counts: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    scores = logits if logits.dtype == torch.float64 else logits.float()
    if bias := sampling.token_bias:
        scores = scores + _bias(scores, bias)
    if penalised is not None:
        penalty = sampling.repetition_penalty or 1.0
        scores = torch.where(penalised, torch.where(scores < 0, scores * penalty, scores / penalty), scores)
    if counts is not None:
        ids, count = counts
        scores = scores.index_add(-1, ids.to(scores.device), -sampling.count_penalty(count.to(scores)))
    if not sampling.temperature:
        return scores
    scores = scores / sampling.temperature
    if sampling.top_k:
        scores = _top_k(scores, sampling.top_k)
    if sampling.top_p is not None and sampling.top_p < 1:
        scores = _top_p(scores, sampling.top_p)
    probs = scores.softmax(-1)
    if sampling.min_p:
        likely = probs >= sampling.min_p * probs.amax(-1, keepdim=True)
        probs = scores.masked_fill(~likely, -math.inf).softmax(-1)
    return probs


def check_bias(pairs: Sequence[tuple[int, float]], vocabulary: int) -> None:
    """Refuse biases of tokens outside the vocabulary; such tokens may be forbidden, as in `transformers`.

    Raises:
        CrossdraftError: there is such a bias.
    """
    beyond = max((token for token, value in pairs if value > -math.inf), default=0)
    if beyond >= vocabulary:
        raise CrossdraftError(f"A bias names token {beyond}, but the vocabulary has {vocabulary} tokens.")


def _bias(scores: Tensor, pairs: Sequence[tuple[int, float]]) -> Tensor:
    """[V] numbers to add to the scores."""
    vocabulary = scores.shape[-1]
    check_bias(pairs, vocabulary)
    known = [(token, value) for token, value in pairs if token < vocabulary]
    ids = torch.tensor([token for token, _ in known], dtype=torch.long, device=scores.device)
    values = scores.new_tensor([value for _, value in known])
    return scores.new_zeros(vocabulary).index_add_(0, ids, values)


def _top_k(scores: Tensor, k: int) -> Tensor:
    """Keep the k highest scores, and all that equal the k-th, as in `transformers`."""
    least = scores.topk(min(k, scores.shape[-1])).values[..., -1:]
    return scores.masked_fill(scores < least, -math.inf)


def _top_p(scores: Tensor, mass: float) -> Tensor:
    """Drop the least likely tokens, as many as hold at most `1 - mass` together; the likeliest token stays."""
    ascending, order = scores.sort(-1)
    dropped = ascending.softmax(-1).cumsum(-1) <= 1 - mass
    dropped[..., -1] = False
    return scores.masked_fill(dropped.scatter(-1, order, dropped), -math.inf)


def sample_one(weights: Tensor, generator: torch.Generator) -> int:
    """Draw one token with probability proportional to `weights` [V]; never one of weight 0.

    Raises:
        CrossdraftError: the weights are not finite or all 0, which a broken model produces.
    """
    mass = weights.double().cumsum(-1)
    total = mass[-1].item()
    if not 0 < total < math.inf:
        raise CrossdraftError("The model's output is not finite; load it in another dtype, or check its weights.")
    point = torch.rand((), dtype=torch.float64, generator=generator, device=generator.device).item() * total
    # Rounding may put `point` at the total, which is beyond the last token.
    return int(torch.searchsorted(mass, min(point, math.nextafter(total, 0)), right=True))


def sample_children(weights: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Draw up to k different tokens one after another, without replacement, by an exponential race.

    Token i arrives at time E_i / w_i with E_i ~ Exp(1). The first arrival is i with probability proportional to w_i,
    and so it is for each later arrival among the tokens left. (Efraimidis and Spirakis 2006; equals Gumbel top-k.)

    Args:
        weights: [..., V], not negative.
        k: how many to draw; fewer are drawn where fewer have a positive weight.
        generator: source of random numbers.

    Returns:
        [..., k] token ids in the order of arrival: the order in which siblings must stand in the tree.
    """
    support = weights > 0
    k = min(k, int(support.sum(-1).min()))
    # In float64: a float32 Exp(1) is 0 once in 10^7 draws.
    clock = torch.empty(weights.shape, dtype=torch.float64, device=generator.device).exponential_(generator=generator)
    speed = (weights.double() / clock.to(weights.device)).masked_fill(~support, -1)
    return speed.topk(k, -1).indices
