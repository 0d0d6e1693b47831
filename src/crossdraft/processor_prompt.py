"""A request as the inputs of any vision-language model: its own Hugging Face processor writes ids and pixels."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.video_utils import VideoMetadata

from crossdraft.checkpoints.weights import LIBRARY_ERRORS, first_line, quiet
from crossdraft.engine.prompt import Prompt, ready_made
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.messages import Message, holds_words, refuse_tools
from crossdraft.text_model import TextPrompt
from crossdraft.video.clip import FrameSampling, read_clip
from crossdraft.video.clip_frames import UNTIMED, ClipFrames
from crossdraft.video.image import image_frames
from crossdraft.video.spelt import spelling_ids, stand_ins

MILLI = 1000  # a clip's frames are numbered in milliseconds, so that their times are exact


@dataclass(frozen=True)
class ProcessorPrompt:
    """Turns a request into the inputs of a vision-language model by the checkpoint's own processor.

    Args:
        model: model of the checkpoint.
        processor: its processor, with a chat template; `None` = only words and ready-made inputs are read.
        words: writes prompts of words alone where there is no processor.
        sampling: sampling of a file's frames.
        refused: why images or clips cannot be shown, by `image` and `clip`.
        tried: what the trial found wrong, by the names of ready-made inputs that hold pixels; empty = nothing.
        trial: tries further ones; returns what is wrong, or an empty text.
    """

    model: PreTrainedModel
    processor: Any
    words: TextPrompt
    sampling: FrameSampling = field(default_factory=FrameSampling)
    refused: Mapping[str, str] = field(default_factory=dict)
    tried: dict[str, str] = field(default_factory=dict[str, str])
    trial: Callable[[Prompt], str] = lambda prompt: ""

    def __call__(self, request: Request) -> Prompt:
        """Make the prompt of a request.

        Raises:
            CrossdraftError: ready-made inputs are no prompt, an image or a clip cannot be read or shown, or the
                processor fails.
        """
        here = f"cannot be shown to a {type(self.model).__name__} here"
        if request.inputs is not None:
            prompt = Prompt(*ready_made(request.inputs))
            names = pixel_inputs(prompt)
            new = [name for name in names if name not in self.tried]
            if new and (why := self.trial(prompt)):  # of this request's own: the next one's may be right
                raise CrossdraftError(f"The {new[0]} of the request's inputs {here}: {why}")
            self.tried.update(dict.fromkeys(new, ""))
            for name in names:
                if why := self.tried[name]:
                    raise CrossdraftError(f"The {name} of the request's inputs {here}: {why}")
            return prompt
        for part in request.visuals:
            clip = part.kind == "video"
            if why := self.refused.get("clip" if clip else "image"):
                frames = ", only their frames as images" if clip and "image" not in self.refused else ""
                raise CrossdraftError(f"{'Clips' if clip else 'Images'} {here}{frames}: {why}")
        if self.processor is None:
            return self.words(request)
        images = [image_frames(part.value) for part in request.visuals if part.kind == "image"]
        clips = [read_clip(part.value, self.sampling) for part in request.visuals if part.kind == "video"]
        own = [value for name, value in vars(self.processor).items() if name.endswith("_token")]
        messages, stands = stand_ins(request.conversation, {one for one in own if isinstance(one, str) and one})
        try:
            with quiet():
                found = self._processed(messages, request.template, images, clips)
        except LIBRARY_ERRORS as error:
            raise CrossdraftError(
                f"The model's own processor, a {type(self.processor).__name__}, fails on this request: "
                f"{first_line(error)}; ask otherwise, or give the model's inputs (Request.inputs)."
            ) from error
        known = inspect.signature(inspect.unwrap(self.model.forward)).parameters
        features = {name: value for name, value in found.items() if name in known and isinstance(value, Tensor)}
        features.pop("attention_mask", None)
        features = _spelt_out(features, self.processor.tokenizer, stands)
        ids = features.pop("input_ids")[0]
        notes = [note for one in (*images, *clips) for note in one.notes] + [UNTIMED for one in clips if not one.timed]
        return Prompt(ids, features if request.visuals else {}, tuple(notes))

    def _processed(
        self,
        messages: Sequence[Message],
        template: Mapping[str, Any],
        images: Sequence[ClipFrames],
        clips: Sequence[ClipFrames],
    ) -> dict[str, Any]:
        """Run the processor over the conversation, a batch of one."""
        from PIL import Image

        text, tokenizer = self._rendered(messages, template), self.processor.tokenizer
        given: dict[str, Any] = {"text": [text], "return_tensors": "pt"}
        if images:
            given["images"] = [[Image.fromarray(one.frames[0].numpy()) for one in images]]
        if clips:
            given["videos"] = [[one.frames.movedim(-1, 1).numpy() for one in clips]]
            given |= {"video_metadata": [[_metadata(one) for one in clips]], "do_sample_frames": False}
            given["return_metadata"] = True  # which some classes' prompts need, and do not ask for
        if tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token):
            given["add_special_tokens"] = False  # the template has written it
        if not images and not clips:
            with suppress(*LIBRARY_ERRORS):  # some want an image
                return dict(self.processor(**given))
            return dict(tokenizer(**given))
        if "mm_token_type_ids" in inspect.signature(inspect.unwrap(self.model.forward)).parameters:
            given["return_mm_token_type_ids"] = True
        try:
            return dict(self.processor(**given))
        except ValueError:
            if images:
                with suppress(Exception):  # GOT-OCR takes no list of lists, and fails by a StopIteration
                    return dict(self.processor(**given | {"images": given["images"][0]}))
            raise

    def _rendered(self, messages: Sequence[Message], template: Mapping[str, Any]) -> str:
        """The conversation by the chat template: in parts, or where it takes words alone, as plain text."""
        from jinja2 import TemplateError

        for plain in (False, True):
            given = [message.as_dict(plain=plain) for message in messages]
            try:
                text = self.processor.apply_chat_template(given, **template)
            except TemplateError as error:
                raise ValueError(f"its chat template cannot be filled in: {error}") from error
            if holds_words(text, messages, template):
                return text
        refuse_tools(self.processor.tokenizer.name_or_path, messages, template)
        raise ValueError("its chat template leaves out a message's text")


def _spelt_out(features: dict[str, Tensor], tokenizer: Any, stands: Mapping[str, str]) -> dict[str, Tensor]:
    """Put the spellings of placeholders that are words back into `input_ids` [1, L], and into what is as long."""
    for character, spelling in stands.items():
        ids: list[int] = features["input_ids"][0].tolist()
        before, both = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("a", f"a{character}"))
        stand, spelt = both[len(before) :], spelling_ids(tokenizer, spelling)
        starts = [at for at in range(len(ids)) if ids[at : at + len(stand)] == stand]
        if not starts or not spelt:
            raise CrossdraftError(f"The prompt spells {spelling}, which stands for an image or a clip; leave it out.")
        length, at = len(ids), list(range(len(ids)))
        for start in reversed(starts):
            at[start : start + len(stand)] = [start] * len(spelt)
            ids[start : start + len(stand)] = spelt
        features = {
            name: value[:, at] if value.shape[:2] == (1, length) else value for name, value in features.items()
        } | {"input_ids": torch.tensor([ids])}
    return features


def pixel_inputs(prompt: Prompt) -> list[str]:
    """The names of a prompt's inputs that hold pixels or other numbers; words alone may have the others, too."""
    return [name for name, value in prompt.features.items() if value.is_floating_point() or "pixel" in name]


def _metadata(clip: ClipFrames) -> VideoMetadata:
    """The times of a clip's frames, as numbers of a clip of a thousand frames a second."""
    numbers = np.round(clip.times_s * MILLI).astype(int)
    count = len(numbers)
    step = (numbers[-1] - numbers[0]) // max(count - 1, 1) or MILLI
    total = int(numbers[-1] + step)
    return VideoMetadata(
        total_num_frames=total, fps=MILLI, duration=total / MILLI, frames_indices=numbers.tolist(),
        height=clip.frames.shape[1], width=clip.frames.shape[2],
    )  # fmt: skip


def sample_prompts(prepare: Callable[[Request], Prompt]) -> tuple[dict[str, Prompt], dict[str, str]]:
    """Prompts about a small `image` and a small `clip`; and for those that cannot be made, why."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 56, 84, 3), dtype=np.uint8)
    asked = {"image": Request("What is it?", image=pixels[0]), "clip": Request("What is it?", pixels)}
    found: dict[str, Prompt] = {}
    lacking = dict(prepare.refused) if isinstance(prepare, ProcessorPrompt) else {}
    lacking |= dict.fromkeys(asked, "it is a text model.") if isinstance(prepare, TextPrompt) else {}
    for name, request in asked.items():
        if name in lacking:
            continue
        try:
            found[name] = prepare(request)
        except CrossdraftError as error:
            lacking[name] = str(error)
    return found, lacking
