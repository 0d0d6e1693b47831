"""Causal language models without vision, as targets and as drafters: their prompts, and what their class must offer.

`Target` asks nothing visual of a model: without pixels it encodes nothing.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from crossdraft.engine.detokenize import TokenText
from crossdraft.engine.generation import GenerationDefaults
from crossdraft.engine.prompt import Prompt, ready_made
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.messages import holds_words, refuse_tools

PLAIN = "USER: {prompt} ASSISTANT:"
PASSED = ("position_ids", "attention_mask", "past_key_values", "logits_to_keep")


@dataclass(frozen=True)
class TextPrompt:
    """Turns a request's text into token ids: by the tokenizer's chat template, if it has one.

    A template gets all text of a conversation; without a template only the last question is read.

    Args:
        tokenizer: tokenizer of the checkpoint.
        skips_visuals: leave out images and clips, as drafters do, in place of refusing them.
    """

    tokenizer: PreTrainedTokenizerBase
    skips_visuals: bool = True

    def __call__(self, request: Request) -> Prompt:
        """Make the prompt of a request.

        Raises:
            CrossdraftError: ready-made inputs are no prompt, the chat template fails, or the request shows something,
                or has tools that the template does not write, and visuals are not skipped.
        """
        if request.inputs is not None:
            return Prompt(ready_made(request.inputs)[0])
        if request.visuals and not self.skips_visuals:
            raise CrossdraftError("The target is a text model, and the request shows an image or a clip; leave it out.")
        messages, template, name = request.conversation, request.template, self.tokenizer.name_or_path
        if not self.tokenizer.chat_template:
            if request.continue_final_message:
                raise CrossdraftError("The model has no chat template, so no message goes on; leave it out.")
            if not self.skips_visuals:
                refuse_tools(name, messages, template)
            return self._ids(PLAIN.format(prompt=request.question), special=True)
        from jinja2 import TemplateError  # transformers needs it for templates, and for nothing else

        try:
            text = self.tokenizer.apply_chat_template(
                [{"role": one.role, "content": one.text, **one.calls} for one in messages], **template
            )
        except (TemplateError, ValueError) as error:
            raise CrossdraftError(f"The model's chat template cannot be filled in: {error}; correct it.") from error
        if not self.skips_visuals and not holds_words(str(text), messages, template):
            refuse_tools(name, messages, template)
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
    defaults: GenerationDefaults | None = None,
) -> Target:
    """The adapter over a causal language model; arguments as of `Target`.

    Raises:
        CrossdraftError: the model cannot be run on a preallocated cache with given positions.
    """
    name, config = type(model).__name__, model.config.get_text_config()
    parameters = inspect.signature(inspect.unwrap(model.forward)).parameters
    lacking = next((argument for argument in PASSED if argument not in parameters), None)
    if lacking is not None:
        raise CrossdraftError(f"{name} cannot be used: its forward takes no {lacking}; give another model.")
    for size in ("max_position_embeddings", "num_hidden_layers"):
        if not isinstance(getattr(config, size, None), int):
            raise CrossdraftError(f"{name} cannot be used: its config.json does not say {size}; give another model.")
    return Target(model, prepare, decode, eos, reserved, defaults)
