"""A request as the inputs of a video VLM: decode, sample, preprocess, fill the prompt template."""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from crossdraft.engine.prompt import LazyFeatures, Prompt, VisualItem, ready_made, text_ids
from crossdraft.engine.request import Request
from crossdraft.errors import ContextLengthError, CrossdraftError
from crossdraft.messages import Part
from crossdraft.video.clip import DEFAULT_FRAMES, FrameSampling, read_clip
from crossdraft.video.clip_frames import UNTIMED
from crossdraft.video.families import FAMILIES
from crossdraft.video.image import image_frames
from crossdraft.video.inputs import (
    ClipText,
    Features,
    chat_inputs,
    clip_inputs,
    image_inputs,
    merged,
    placeholder_ids,
    placeholder_of,
)

if TYPE_CHECKING:
    from crossdraft.video.spec import FrameSpec

AT_ONCE = 16  # frames that are preprocessed unseen; before more are, two tell whether all fit the context
REMEMBERED = 1024  # clips of which is kept what a prompt needs to know beside their pixels
PIXELS = "pixel_values"  # how the names of the large inputs begin


@dataclass(frozen=True)
class _Shown:
    """An image or a clip as a prompt needs it.

    Args:
        text: text that stands for the image or clip in the prompt.
        features: the model's inputs; without pixels if the image or clip is known already.
        notes: see `Prompt`.
        pixels: names of the inputs that are left out.
    """

    text: ClipText
    features: Features
    notes: tuple[str, ...] = ()
    pixels: tuple[str, ...] = ()

    def without_pixels(self) -> "_Shown":
        """Return a copy without pixels, to be kept."""
        pixels = tuple(name for name in self.features if name.startswith(PIXELS))
        return replace(self, features={k: v for k, v in self.features.items() if k not in pixels}, pixels=pixels)


@dataclass(frozen=True)
class VideoPrompt:
    """Turns a request into the inputs of a video VLM.

    Args:
        model, tokenizer: model and tokenizer of one checkpoint.
        spec: spec of the clips' frames; `None` = the model family's own.
        sampling: sampling of a file's frames.
        image_spec: spec of images; `None` = the model family's own.
        asks_for_visuals: refuse a question that shows nothing, which the reference target cannot answer.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    spec: "FrameSpec | None"
    sampling: FrameSampling = field(default_factory=lambda: FrameSampling(DEFAULT_FRAMES))
    image_spec: "FrameSpec | None" = None
    asks_for_visuals: bool = False
    _clips: "OrderedDict[bytes, _Shown]" = field(default_factory=OrderedDict, repr=False, compare=False)

    def __call__(self, request: Request) -> Prompt:
        """Make the prompt of a request; clips that the prefix cache knows are read only if their pixels are needed.

        Raises:
            CrossdraftError: ready-made inputs are no prompt, a clip is missing, unreadable, or has more frames than
                the model's context holds.
        """
        if request.inputs is not None:
            return Prompt(*ready_made(request.inputs))
        if self.asks_for_visuals and request.messages is None and not request.visuals:
            raise CrossdraftError("The request has no video; give the path of a clip, an image, or messages.")
        shown: list[_Shown] = []
        for number in range(len(request.visuals)):
            shown.append(self._shown(request, shown, number))
        inputs, order = chat_inputs(
            self.model.config, self.tokenizer, request.conversation, [one.text for one in shown], request.template
        )
        tokens = inputs.pop("input_ids")[0]
        items = tuple(
            VisualItem(number, shown[number].text.tokens(self._placeholder(shown[number].text)), found)
            for number in order
            for found in [self._features(request, shown, number)]
        )
        notes = tuple(note for one in shown for note in one.notes)
        features = {**inputs} if not items else self._merged(items, shown, inputs)
        return Prompt(tokens, features, notes, items)

    def _placeholder(self, text: ClipText) -> str:
        return placeholder_of(self.model.config, text.kind)

    def _shown(self, request: Request, before: Sequence[_Shown], number: int) -> _Shown:
        """Return an image or clip of a request, known already or read now; `before` are the preceding ones."""
        digest = self._digest(request, number)
        found = None if digest is None else self._clips.get(digest)
        if found is None:
            found = self._read(request, before, number)
            if digest is not None and request.content.unchanged:
                self._clips[digest] = found.without_pixels()
                if len(self._clips) > REMEMBERED:
                    self._clips.popitem(last=False)
        return found

    def _digest(self, request: Request, number: int) -> bytes | None:
        items: Sequence[bytes] = () if request.content is None else request.content.items
        return items[number] if len(items) == len(request.visuals) else None

    def _features(self, request: Request, shown: Sequence[_Shown], number: int) -> Mapping[str, Tensor]:
        """Return the inputs of an image or clip; pixels that were left out are read on demand."""
        one = shown[number]
        if not one.pixels:
            return one.features

        def load() -> Features:
            if request.content is not None:
                request.content.reread()
            again = self._read(request, shown[:number], number)
            if again.text != one.text:
                raise CrossdraftError(
                    "A clip changed while it was being read; wait until it is written, and ask again."
                )
            return again.features

        return LazyFeatures(one.features, one.pixels, load)

    def _merged(self, items: Sequence[VisualItem], shown: Sequence[_Shown], inputs: Features) -> Mapping[str, Tensor]:
        """Merge the inputs of the whole prompt; pixels on demand."""
        if len(items) == 1 and not isinstance(items[0].features, LazyFeatures):
            return {**items[0].features, **inputs}
        config = self.model.config
        parts = [one.features for one in items]
        names = dict.fromkeys(name for features in parts for name in features if name.startswith(PIXELS))
        small = [{k: features[k] for k in features if k not in names} for features in parts]

        def pixels() -> Features:
            return merged(config, [{k: features[k] for k in features if k in names} for features in parts])

        return LazyFeatures({**merged(config, small), **inputs}, tuple(names), pixels)

    def _read(self, request: Request, before: Sequence[_Shown], number: int) -> _Shown:
        """Read an image, or all frames of a clip if the model's context holds them with the rest of the prompt."""
        part, config = request.visuals[number], self.model.config
        if part.kind == "image":
            image = image_frames(part.value)
            return _Shown(*image_inputs(config, self.image_spec, image.frames), image.notes)
        sample = read_clip(part.value, self.sampling)
        count, times_s, indices = len(sample), sample.times_s, sample.indices
        few = count if count <= AT_ONCE else 2
        shown = sample.pixels[:few] if indices is None else sample.pixels[indices[:few]]
        text, features = clip_inputs(config, self.spec, shown, times_s[:few], count=count)
        self._refuse_long(request, before, text, few, count)
        if few < count:
            text, features = clip_inputs(config, self.spec, sample.pixels, times_s, indices)
            self._refuse_long(request, before, text, count, count)
        untimed = FAMILIES[config.model_type].timed and not sample.timed
        return _Shown(text, features, (*sample.notes, UNTIMED) if untimed else sample.notes)

    def _refuse_long(self, request: Request, before: Sequence[_Shown], clip: ClipText, shown: int, count: int) -> None:
        """Refuse `count` frames if the context has no room for them; `clip` is the text of `shown` frames."""
        config, number = self.model.config, len(before)
        texts = [*(one.text for one in before), clip, *_placeholders(config, request.visuals[number + 1 :])]
        inputs, order = chat_inputs(config, self.tokenizer, request.conversation, texts, request.template)
        ids = inputs["input_ids"][0]
        shows = placeholder_ids(config)
        visual = [at for at, token in enumerate(ids.tolist()) if token in shows]
        counts = [texts[one].tokens(self._placeholder(texts[one])) for one in order]
        first = sum(counts[: order.index(number)])
        # With what is written between frames.
        clip_tokens = visual[first + counts[order.index(number)] - 1] + 1 - visual[first]
        _refuse_long(
            count, clip_tokens / shown, len(ids) - clip_tokens, config.get_text_config().max_position_embeddings
        )


def text_of(
    config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, reserved: Collection[int], request: Request
) -> tuple[int, ...]:
    """Return the ids of a prompt's text, as in `Request.prompt_ids`; no clip is read.

    Args:
        config, tokenizer, reserved: the target's configuration, tokenizer and reserved ids.
        request: the request; its clips may lie on another machine.

    Raises:
        CrossdraftError: as `VideoPrompt`.
    """
    texts = _placeholders(config, request.visuals)
    inputs, _ = chat_inputs(config, tokenizer, request.conversation, texts, request.template)
    return text_ids(inputs["input_ids"][0], reserved)


def _placeholders(config: PretrainedConfig, visuals: Sequence[Part]) -> list[ClipText]:
    """Make a text of one token for each image and clip."""
    return [ClipText(placeholder_of(config, one.kind), 1, one.kind) for one in visuals]


def _refuse_long(count: int, each: float, text: int, context: int) -> None:
    """Refuse `count` frames of `each` tokens and a `text` beside them, if the context has no room for an answer."""
    if count * each + text < context:
        return
    most = max(0, int((context - text - 1) // each))
    if most == 0:
        raise ContextLengthError(
            f"The prompt has {text} tokens beside the clip's, the model's context {context}; ask a shorter question.",
            context,
        )
    step = -(-count // most)
    raise ContextLengthError(
        f"The clip's {count} frames are {count * each:.0f} tokens, and the model's context holds {context}; give at "
        f"most {most} frames: set num_frames=…, or take every {step}th of an array, as video[::{step}].",
        context,
    )


def video_prompt(prepare: object) -> VideoPrompt | None:
    """Return the `VideoPrompt` that makes a target's prompts of clips; `None` if another object does.

    Args:
        prepare: the target's `prepare`; for a compressed target, its `whole` makes the whole prompt.
    """
    whole = getattr(prepare, "whole", prepare)
    return whole if isinstance(whole, VideoPrompt) else None
