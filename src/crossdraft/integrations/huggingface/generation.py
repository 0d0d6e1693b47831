"""`transformers`' `generate` with drafts: same arguments, some of our own, and the same tokens."""

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from crossdraft.api import FOR_OTHERS, Engine
from crossdraft.engine.generation import read_defaults
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.integrations.questions import question_in

USUAL_LENGTH = 20  # new tokens of `generate` where nothing says how many
# Arguments of `generate` that run somebody's code between two tokens, or another way of generating.
REFUSED = (
    "logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn", "assistant_model", "streamer",
    "negative_prompt_ids", "negative_prompt_attention_mask", "inputs_embeds", "past_key_values", "tokenizer",
    "assistant_tokenizer",
)  # fmt: skip
RETURNS = ("return_dict_in_generate", "output_scores", "output_logits", "output_attentions", "output_hidden_states")


def generate(model: PreTrainedModel, **given: Any) -> Tensor:
    """Answer one prompt; `transformers` calls it with the arguments of `generate`.

    Args:
        model: a video VLM of a supported class.
        given: its prepared inputs (`input_ids`, `pixel_values_videos`, …), fields of a generation config, and of ours:
            `engine`, made by `Engine.from_model` of this model; or `processor` and, if not the usual one, `drafter`:
            then an engine is made for this call. `events` and `question`, for the drafter.

    Returns:
        [1, L + n] ids: the prompt and the answer, as `generate` returns them.

    Raises:
        CrossdraftError: an argument is not supported, the batch is larger than one, or as `Engine.generate`.
    """
    for name in REFUSED:
        if _is_given(given.pop(name, None)):
            raise CrossdraftError(f"generate(custom_generate=…) of crossdraft takes no {name}; leave it out.")
    given.pop("synced_gpus", None)
    engine, processor, drafter = (given.pop(name, None) for name in ("engine", "processor", "drafter"))
    events, question = given.pop("events", None), given.pop("question", None)
    fields, inputs = _split(model, given)
    ids = _prompt(inputs)
    asked = _request(model, fields, inputs)
    with _engine(model, engine, processor, drafter) as used:
        tokenizer = used.target.prepare.tokenizer  # pyright: ignore[reportFunctionMemberAccess]  # a `VideoPrompt`
        text = question or question_in(model.config, tokenizer, ids[0].tolist())
        answer = used.generate(replace(asked, prompt=text, events=events))
    return torch.cat((ids, ids.new_tensor([answer.tokens])), 1)


def _is_given(value: Any) -> bool:
    """True if an argument asks for something: a tensor does, `False` and an empty list of processors do not."""
    return isinstance(value, Tensor) or bool(value)


def _split(model: PreTrainedModel, given: Mapping[str, Any]) -> tuple[GenerationConfig, dict[str, Tensor]]:
    """Split the arguments into the generation config that they ask for and the model's inputs.

    Raises:
        CrossdraftError: an argument belongs to neither.
    """
    named = dict(given)
    if any(_is_given(named.get(name)) for name in RETURNS):
        raise CrossdraftError("generate(custom_generate=…) of crossdraft returns tokens alone; ask for nothing else.")
    base = named.pop("generation_config", None) or model.generation_config
    if (inputs := named.pop("inputs", None)) is not None:
        named["input_ids"] = inputs
    config = copy.deepcopy(base)
    rest = config.update(**named)
    other = next((name for name, value in rest.items() if value is not None and not isinstance(value, Tensor)), None)
    if other is not None:
        raise CrossdraftError(f"generate(custom_generate=…) of crossdraft knows no argument '{other}'; leave it out.")
    return config, {name: value for name, value in rest.items() if value is not None}


def _prompt(inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the prompt's ids [1, L].

    Raises:
        CrossdraftError: there is no prompt, there are several, or a part of the prompt is masked.
    """
    ids = inputs.get("input_ids")
    if ids is None or ids.ndim != 2 or len(ids) != 1:
        raise CrossdraftError(
            "generate(custom_generate=…) of crossdraft takes one prompt, input_ids [1, L]; give several to "
            "Engine.generate as a list of requests."
        )
    mask = inputs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise CrossdraftError("The attention_mask hides a part of the prompt; give the prompt without padding.")
    return ids


def _request(model: PreTrainedModel, config: GenerationConfig, inputs: Mapping[str, Tensor]) -> Request:
    """Make the request of a call, without the drafter's part of the request.

    Raises:
        CrossdraftError: the config asks for something that no engine of ours does.
    """
    fields = read_defaults(vars(config), "The call", model.config.get_text_config().vocab_size)
    usual = read_defaults(vars(model.generation_config), "The model")
    if set(fields.eos) != set(usual.eos):
        raise CrossdraftError("eos_token_id is the checkpoint's own here; set it in model.generation_config.")
    length = inputs["input_ids"].shape[1]
    most = USUAL_LENGTH if fields.max_new_tokens is None and fields.max_length is None else None
    if most is None:
        most = fields.limit(length, length + (fields.max_new_tokens or fields.max_length or 0))
    return Request(
        inputs=dict(inputs),
        max_new_tokens=most,
        sampling=fields.sampling,
        stop=fields.stop or None,
        stop_in="tokens",
        max_time=fields.max_time,
    )


def _engine(
    model: PreTrainedModel, engine: Engine | None, processor: Any, drafter: Any
) -> AbstractContextManager[Engine]:
    """Return the given engine, or make one for this call.

    Raises:
        CrossdraftError: the engine is another model's, or neither engine nor processor was given.
    """
    if engine is None:
        if processor is None:
            raise CrossdraftError(
                "generate(custom_generate=…) of crossdraft needs engine=Engine.from_model(model, processor), or the "
                "processor, to make one for this call."
            )
        return Engine.from_model(model, processor, FOR_OTHERS if drafter is None else drafter)
    if engine.target.model is not model:
        raise CrossdraftError("The engine is another model's; make it by Engine.from_model(model, processor).")
    if processor is not None or drafter is not None:
        raise CrossdraftError("The engine has its processor and drafter already; leave them out of generate.")
    return nullcontext(engine)
