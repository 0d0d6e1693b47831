"""A request as the inputs of a video VLM: decode, sample, preprocess, fill the prompt template."""

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from crossdraft.engine.request import Request
from crossdraft.engine.target import LazyFeatures, Prompt
from crossdraft.errors import CrossdraftError
from crossdraft.video.clip import DEFAULT_FRAMES, FrameSampling, read_clip
from crossdraft.video.inputs import ClipText, Features, clip_inputs, placeholder_id, question_inputs

if TYPE_CHECKING:
    from crossdraft.video.spec import FrameSpec

AT_ONCE = 16  # frames that are preprocessed unseen; before more are, two tell whether all fit the context
REMEMBERED = 1024  # clips of which is kept what a prompt needs to know beside their pixels
PIXELS = "pixel_values"  # how the names of the large inputs begin


@dataclass(frozen=True)
class _Clip:
    """A clip as a prompt needs it.

    Args:
        text: what stands for it.
        features: the model's inputs of it; of a known clip without its pixels.
        notes: see `Prompt`.
        pixels: names of the inputs that are left out.
    """

    text: ClipText
    features: Features
    notes: tuple[str, ...]
    pixels: tuple[str, ...] = ()

    def without_pixels(self) -> "_Clip":
        """What is kept of it."""
        pixels = tuple(name for name in self.features if name.startswith(PIXELS))
        return replace(self, features={k: v for k, v in self.features.items() if k not in pixels}, pixels=pixels)


@dataclass(frozen=True)
class VideoPrompt:
    """Turns a request into the inputs of a video VLM.

    Args:
        model, tokenizer: of one checkpoint.
        spec: of its frames; `None` takes the model family's own.
        sampling: how many frames of a file are read.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    spec: "FrameSpec | None"
    sampling: FrameSampling = field(default_factory=lambda: FrameSampling(DEFAULT_FRAMES))
    _clips: "OrderedDict[bytes, _Clip]" = field(default_factory=OrderedDict, repr=False, compare=False)

    def __call__(self, request: Request) -> Prompt:
        """The prompt of a request; a clip that the engine's prefix cache knows is read only if its pixels are needed.

        Raises:
            CrossdraftError: no clip, one that cannot be read, or more frames than the model's context holds.
        """
        if request.inputs is not None:
            given = {name: value for name, value in request.inputs.items() if isinstance(value, Tensor)}
            features = {name: value for name, value in given.items() if name not in ("input_ids", "attention_mask")}
            return Prompt(given["input_ids"][0], features)
        clip = self._clips.get(request.content.digest) if request.known else None
        if clip is None:
            clip = self._read(request)
            self._remember(request, clip)
        inputs = question_inputs(self.model.config, self.tokenizer, clip.text, request.prompt)
        tokens = inputs.pop("input_ids")[0]
        features = {**clip.features, **inputs}
        if not clip.pixels:
            return Prompt(tokens, features, clip.notes)
        return Prompt(tokens, LazyFeatures(features, clip.pixels, lambda: self._read(request).features), clip.notes)

    def _remember(self, request: Request, clip: _Clip) -> None:
        if request.content is not None and request.content.unchanged:
            self._clips[request.content.digest] = clip.without_pixels()
            if len(self._clips) > REMEMBERED:
                self._clips.popitem(last=False)

    def _read(self, request: Request) -> _Clip:
        """All frames of a clip, if the model's context holds them with the question."""
        sample = read_clip(request.video, self.sampling)
        config, count, times_s, indices = self.model.config, len(sample), sample.times_s, sample.indices
        few = count if count <= AT_ONCE else 2
        shown = sample.pixels[:few] if indices is None else sample.pixels[indices[:few]]
        text, features = clip_inputs(config, self.spec, shown, times_s[:few], count=count)
        self._refuse_long(text, few, count, request.prompt)
        if few < count:
            text, features = clip_inputs(config, self.spec, sample.pixels, times_s, indices)
            self._refuse_long(text, count, count, request.prompt)
        return _Clip(text, features, sample.notes)

    def _refuse_long(self, clip: ClipText, shown: int, count: int, question: str) -> None:
        """Refuse `count` frames, if the context has no room for them; `clip` stands for `shown` of them."""
        config = self.model.config
        ids = question_inputs(config, self.tokenizer, clip, question)["input_ids"][0]
        first, last = (ids == placeholder_id(config)).nonzero().flatten()[[0, -1]].tolist()
        clip_tokens = last + 1 - first  # with what is written between frames
        _refuse_long(
            count, clip_tokens / shown, len(ids) - clip_tokens, config.get_text_config().max_position_embeddings
        )


def _refuse_long(count: int, each: float, text: int, context: int) -> None:
    """Refuse `count` frames of `each` tokens and a `text` beside them, if the context has no room for an answer."""
    if count * each + text < context:
        return
    most = max(0, int((context - text - 1) // each))
    if most == 0:
        raise CrossdraftError(
            f"The prompt has {text} tokens beside the clip's, the model's context {context}; ask a shorter question."
        )
    step = -(-count // most)
    raise CrossdraftError(
        f"The clip's {count} frames are {count * each:.0f} tokens, and the model's context holds {context}; give at "
        f"most {most} frames: set num_frames (--frames), or take every {step}th of an array, as video[::{step}]."
    )
