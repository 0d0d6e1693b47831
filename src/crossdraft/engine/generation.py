"""A checkpoint's generation_config: the defaults of settings that a request leaves open.

Each field of `transformers.GenerationConfig` is honoured as `generate` honours it, or has no effect on one sequence
that is written token by token, or is refused by name. Fields that the installed `transformers` does not know have no
effect, as in `generate`.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from crossdraft.engine.request import MAX_NEW_TOKENS, Request, stop_strings
from crossdraft.engine.sampling import NAMES, Sampling
from crossdraft.errors import CrossdraftError

FILE = "generation_config.json"
DEFAULT_TOP_K = 50  # `generate`'s own, for a checkpoint that samples and sets no top_k

OWN = frozenset(("logit_bias", "seed", "processors"))  # fields of `Sampling` that `GenerationConfig` lacks
LENGTHS = frozenset(("max_length", "max_new_tokens", "max_time", "stop_strings", "eos_token_id"))
HONOURED = (frozenset(NAMES) - OWN) | LENGTHS | {"do_sample"}
# Fields about beams, a batch's padding, further outputs, the speed of a pass, or an assistant model that was not given:
# `generate` writes the same tokens whatever their values.
WITHOUT_EFFECT = frozenset(
    (
        *("early_stopping", "length_penalty", "diversity_penalty"),
        *("pad_token_id", "bos_token_id", "decoder_start_token_id", "transformers_version"),
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
        *("return_dict_in_generate", "use_cache", "max_cache_len", "low_memory"),
        *("compile_config", "disable_compile", "num_assistant_tokens", "num_assistant_tokens_schedule"),
        *("assistant_confidence_threshold", "max_matching_ngram_size"),
        *("assistant_lookbehind", "target_lookbehind"),
    )
)
# Field -> (values that change nothing, what it would need).
REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "num_beams": ((1,), "beam search"),
    "num_beam_groups": ((1,), "group beam search"),
    "constraints": ((), "constrained beam search"),
    "force_words_ids": ((), "constrained beam search"),
    "num_return_sequences": ((1,), "several answers at once"),
    "penalty_alpha": ((0,), "contrastive search"),
    "dola_layers": ((), "DoLa decoding"),
    "guidance_scale": ((1,), "classifier-free guidance"),
    "watermarking_config": ((), "watermarking"),
    "token_healing": ((False,), "token healing"),
    "use_mtp": ((False,), "multi-token prediction"),
    "is_assistant": ((False,), "an assistant's role"),
    "assistant_early_exit": ((), "assisted generation"),
    "assistant_ensemble_weight": ((), "lossy assisted generation"),
    "prompt_lookup_num_tokens": ((), "prompt lookup (here drafter=ngram)"),
    "speculation_type": ((), "assisted generation"),
    "cache_implementation": (("dynamic", "hybrid"), "another cache than the engine's own"),
    "cache_config": ((), "another cache than the engine's own"),
    "prefill_chunk_size": ((), "a chunked prefill"),
    "continuous_batching_config": ((), "continuous batching of `transformers`"),
}


@dataclass(frozen=True)
class GenerationDefaults:
    """Generation settings of a checkpoint; see `Request` and `Sampling`.

    Args:
        sampling: how tokens are drawn.
        max_new_tokens, max_length: the longest answer, the longest prompt and answer together; the former wins.
        stop: strings that end an answer.
        max_time: seconds after which no further round is begun.
        eos: ids that end an answer; empty if the checkpoint names none.
    """

    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int | None = None
    max_length: int | None = None
    stop: tuple[str, ...] = ()
    max_time: float | None = None
    eos: tuple[int, ...] = ()

    def resolve(self, request: Request) -> Request:
        """Fill in the settings that a request leaves open, except the longest answer, which depends on the prompt."""
        sampling = request.sampling.over(self.sampling)
        if sampling.bad_words_ids:  # the end cannot be forbidden so, as in `transformers`
            ends = {(token,) for token in self.eos}
            kept = tuple(ids for ids in sampling.bad_words_ids if ids not in ends)
            sampling = replace(sampling, bad_words_ids=kept)
        most = request.max_new_tokens
        if most is not None and (sampling.min_new_tokens or 0) > most:  # the checkpoint's own
            sampling = replace(sampling, min_new_tokens=most)
        return replace(
            request,
            sampling=sampling if sampling.greedy else sampling.seeded(),
            stop=self.stop if request.stop is None else request.stop,
            stop_in="tokens" if request.stop is None else request.stop_in,
            max_time=self.max_time if request.max_time is None else request.max_time,
        )

    def most(self, context: int) -> int:
        """The longest answer to any prompt in a context of `context` tokens."""
        if self.max_new_tokens is None and self.max_length is None:
            return min(MAX_NEW_TOKENS, context)
        return min(self.max_new_tokens or self.max_length or context, context)

    def limit(self, prompt: int, context: int) -> int:
        """The longest answer to a prompt of `prompt` tokens, limited by the context.

        Raises:
            CrossdraftError: `max_length` leaves no room for an answer.
        """
        room = context - prompt
        if self.max_new_tokens is None and self.max_length is not None:
            if self.max_length <= prompt:
                raise CrossdraftError(
                    f"The checkpoint's generation_config has max_length {self.max_length}, and the prompt alone has "
                    f"{prompt} tokens; say max_new_tokens."
                )
            return min(self.max_length - prompt, room)
        return min(self.max_new_tokens or MAX_NEW_TOKENS, room)


def read_file(folder: Path) -> Mapping[str, object]:
    """The fields of a checkpoint folder's generation_config.json; none if there is no such file.

    Raises:
        CrossdraftError: it is not a JSON object.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CrossdraftError(f"{path} is not valid JSON: {error}; correct it, or remove it.") from error
    if not isinstance(found, dict):
        raise CrossdraftError(f"{path} is no generation config: it must hold a JSON object; correct it, or remove it.")
    return found


def read_defaults(values: Mapping[str, Any], where: str, vocabulary: int | None = None) -> GenerationDefaults:
    """Check the fields of a generation config, and convert them.

    Args:
        values: the fields; `None` = not set.
        where: the checkpoint, for error messages.
        vocabulary: how many token ids there are, if that is known.

    Raises:
        CrossdraftError: a field is refused, or its value is of a wrong type or out of range.
    """
    config = {name: value for name, value in values.items() if value is not None}
    known = vars(GenerationConfig())
    for name, value in config.items():
        if name in HONOURED or name in WITHOUT_EFFECT or name not in known or name.startswith("_"):
            continue
        neutral, needed = REFUSED.get(name, ((), "what this version does not know"))
        if value not in neutral:
            raise CrossdraftError(
                f"{where} sets {name} to {value!r} in its generation config, which asks for {needed}; it is not "
                f"supported, so remove that field from {FILE} if you can do without."
            )
    try:
        defaults = _defaults(config)
        _check_ids(defaults, vocabulary)
    except CrossdraftError as error:
        raise CrossdraftError(
            f"The generation config of {where} cannot be honoured: {str(error).rstrip('.')}; correct it in {FILE}."
        ) from error
    return defaults


def _defaults(config: Mapping[str, Any]) -> GenerationDefaults:
    eos = _token_ids(config, "eos_token_id") or ()
    samples = config.get("do_sample", False)
    if not isinstance(samples, bool):
        raise CrossdraftError(f"do_sample is {samples!r}; it must be true or false.")
    temperature = _number(config, "temperature")
    if samples and temperature is not None and temperature <= 0:
        raise CrossdraftError(f"do_sample is true and temperature {temperature}; it must be above 0.")
    top_p = _number(config, "top_p")
    sampling = Sampling(
        temperature=(1.0 if temperature is None else temperature) if samples else 0.0,
        top_k=config.get("top_k", DEFAULT_TOP_K if samples else None),
        top_p=math.ulp(0.0) if top_p == 0 else top_p,  # the likeliest token alone
        **{name: _number(config, name) for name in NUMBERS},
        **{name: config.get(name) for name in COUNTS_AND_FLAGS},
        forced_bos_token_id=_token_ids(config, "forced_bos_token_id"),
        forced_eos_token_id=_token_ids(config, "forced_eos_token_id"),
        **{name: _tuples(config.get(name)) for name in LISTS},
    )
    return GenerationDefaults(
        sampling,
        _count(config, "max_new_tokens"),
        _count(config, "max_length"),
        stop_strings(config.get("stop_strings", ())),
        _seconds(config),
        eos,
    )


# Fields of `Sampling` by their type in JSON: floats, integers and booleans, (nested) lists.
NUMBERS = (
    "min_p",
    "top_h",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "repetition_penalty",
    "encoder_repetition_penalty",
)
COUNTS_AND_FLAGS = (
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "min_length",
    "min_new_tokens",
    "remove_invalid_values",
    "renormalize_logits",
)
LISTS = (
    "bad_words_ids",
    "sequence_bias",
    "suppress_tokens",
    "begin_suppress_tokens",
    "exponential_decay_length_penalty",
)


def _tuples(value: Any) -> Any:
    """Convert lists to tuples, at any depth."""
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def _number(config: Mapping[str, Any], name: str) -> float | None:
    value = config.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise CrossdraftError(f"{name} is {value!r}; it must be a number.")
    return float(value)


def _seconds(config: Mapping[str, Any]) -> float | None:
    value = _number(config, "max_time")
    if value is not None and value <= 0:
        raise CrossdraftError(f"max_time is {value}; it must be a number of seconds above 0.")
    return value


def _count(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise CrossdraftError(f"{name} is {value!r}; it must be a whole number above 0.")
    return value


def _token_ids(config: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    value = config.get(name)
    if value is None:
        return None
    ids = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
        raise CrossdraftError(f"{name} is {value!r}; it must be a token id, or a list of them.")
    return tuple(ids)


def _check_ids(defaults: GenerationDefaults, vocabulary: int | None) -> None:
    """Raise CrossdraftError if a forced or biased id is outside the vocabulary; forbidden ids may be outside."""
    sampling = defaults.sampling
    named = {
        "eos_token_id": defaults.eos,
        "forced_bos_token_id": sampling.forced_bos_token_id or (),
        "forced_eos_token_id": sampling.forced_eos_token_id or (),
        "bad_words_ids": [token for ids in sampling.bad_words_ids or () for token in ids],
        "sequence_bias": [token for ids, _ in sampling.sequence_bias or () for token in ids],
    }
    for name, ids in named.items():
        if vocabulary is not None and max(ids, default=0) >= vocabulary:
            raise CrossdraftError(f"{name} names token {max(ids)}, but the vocabulary has {vocabulary} tokens.")
