"""A text-only causal language model behind the adapter that targets use.

`Target` asks nothing visual of a model: without pixels it encodes nothing. So a text model needs only a prompt and the
checks in this module.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from crossdraft.engine.detokenize import TokenText
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError

PLAIN = "USER: {prompt} ASSISTANT:"
PASSED = ("position_ids", "attention_mask", "past_key_values", "logits_to_keep")


@dataclass(frozen=True)
class TextPrompt:
    """Turns a request's question into token ids: by the tokenizer's chat template, if it has one.

    A template gets all text of a conversation; without a template only the last question is read.
    """

    tokenizer: PreTrainedTokenizerBase

    def __call__(self, request: Request) -> Prompt:
        if not self.tokenizer.chat_template:
            return self._ids(PLAIN.format(prompt=request.question), special=True)
        from jinja2 import TemplateError  # transformers needs it for templates, and for nothing else

        try:
            text = self.tokenizer.apply_chat_template(
                [{"role": one.role, "content": one.text} for one in request.conversation],
                tokenize=False,
                add_generation_prompt=True,
            )
        except TemplateError as error:
            raise CrossdraftError(
                f"The drafter's chat template cannot be filled in: {error}; remove it, or name another drafter."
            ) from error
        return self._ids(str(text), special=False)  # the template writes them itself

    def _ids(self, text: str, *, special: bool) -> Prompt:
        encoded: Any = self.tokenizer(text, add_special_tokens=special, return_tensors="pt", verbose=False)
        return Prompt(encoded["input_ids"][0].long())


def text_model(
    model: PreTrainedModel,
    prepare: TextPrompt,
    decode: Callable[[Sequence[int]], str] | TokenText,
    eos: Sequence[int],
    reserved: Sequence[int] = (),
) -> Target:
    """The adapter over a causal language model.

    Raises:
        CrossdraftError: the model cannot be run on a preallocated cache with given positions.
    """
    name, config = type(model).__name__, model.config.get_text_config()
    parameters = inspect.signature(inspect.unwrap(model.forward)).parameters
    lacking = next((argument for argument in PASSED if argument not in parameters), None)
    if lacking is not None:
        raise CrossdraftError(f"{name} cannot draft: its forward takes no {lacking}; give another model.")
    for size in ("max_position_embeddings", "num_hidden_layers"):
        if not isinstance(getattr(config, size, None), int):
            raise CrossdraftError(f"{name} cannot draft: its config.json does not say {size}; give another model.")
    return Target(model, prepare, decode, eos, reserved)
