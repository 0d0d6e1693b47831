"""A request as the inputs of a video VLM: decode, sample, preprocess, fill the prompt template."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from crossdraft.engine.request import Request
from crossdraft.engine.target import Prompt
from crossdraft.errors import CrossdraftError
from crossdraft.video.clip import DEFAULT_FRAMES, FrameSampling, read_clip
from crossdraft.video.inputs import Features, model_inputs

if TYPE_CHECKING:
    from crossdraft.video.read import ClipFrames
    from crossdraft.video.spec import FrameSpec

AT_ONCE = 16  # frames that are preprocessed unseen; before more are, two tell whether all fit the context


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

    def __call__(self, request: Request) -> Prompt:
        """The prompt of a request.

        Raises:
            CrossdraftError: no clip, one that cannot be read, or more frames than the model's context holds.
        """
        notes: tuple[str, ...] = ()
        if request.inputs is not None:
            inputs = {name: value for name, value in request.inputs.items() if isinstance(value, Tensor)}
        else:
            sample = read_clip(request.video, self.sampling)
            inputs, notes = self._inputs(sample, request.prompt), sample.notes
        features = {name: value for name, value in inputs.items() if name not in ("input_ids", "attention_mask")}
        return Prompt(inputs["input_ids"][0], features, notes)

    def _inputs(self, sample: "ClipFrames", question: str) -> Features:
        """All frames of a clip with a question, if the model's context holds them."""
        config, count, times_s, indices = self.model.config, len(sample), sample.times_s, sample.indices
        few = count if count <= AT_ONCE else 2
        shown = sample.pixels[:few] if indices is None else sample.pixels[indices[:few]]
        found = model_inputs(config, self.tokenizer, self.spec, shown, times_s[:few], question)
        ids = found["input_ids"]
        visual = int((ids == config.video_token_id).sum())
        _refuse_long(count, visual / few, ids.numel() - visual, config.get_text_config().max_position_embeddings)
        if few == count:
            return found
        return model_inputs(config, self.tokenizer, self.spec, sample.pixels, times_s, question, indices)


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
