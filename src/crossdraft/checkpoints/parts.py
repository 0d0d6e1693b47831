"""A checkpoint's parts besides the weights: model class, tokenizer, settings of its frames."""

import copy
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from crossdraft.engine.traits import embedded_ids
from crossdraft.errors import CrossdraftError
from crossdraft.video.classes import ANY_CLASS, CLASSES, model_class
from crossdraft.video.clip import FrameSampling
from crossdraft.video.spec import FrameSpec


def check_model(model: object) -> None:
    """Raise CrossdraftError unless it is a loaded video VLM or text model that can answer."""
    if not isinstance(model, PreTrainedModel):
        raise CrossdraftError(
            f"The model is a {type(model).__name__}; give a loaded Hugging Face model, or load one "
            "from its folder with Engine.load."
        )
    wanted = model_class(model.config.model_type)
    if not model.can_generate() or wanted not in (type(model).__name__, ANY_CLASS):
        raise CrossdraftError(f"The model is a {type(model).__name__}, which cannot answer; load it as {wanted}.")
    if model.training:
        raise CrossdraftError("The model is in training mode; call model.eval() first.")


def is_text_model(model: PreTrainedModel) -> bool:
    """True if a model is a causal language model without vision."""
    kind = model.config.model_type
    return kind not in CLASSES and type(model).__name__ == MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)


def parts(processor: Any) -> tuple[PreTrainedTokenizerBase, dict[str, Any]]:
    """Return a processor's tokenizer, and the settings of its video (else image) processor, empty if it has neither."""
    if isinstance(processor, PreTrainedTokenizerBase):
        return processor, {}
    tokenizer = getattr(processor, "tokenizer", None)
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise CrossdraftError(
            f"The processor is a {type(processor).__name__}, which has no tokenizer; give AutoProcessor's or "
            "AutoTokenizer's."
        )
    pixels = getattr(processor, "video_processor", None) or getattr(processor, "image_processor", None)
    template = getattr(processor, "chat_template", None)
    if template and not tokenizer.chat_template:
        tokenizer = copy.copy(tokenizer)  # the user's own stays as it is
        tokenizer.chat_template = template
    return tokenizer, {} if pixels is None else pixels.to_dict()


def frame_settings(where: object, settings: Mapping[str, Any]) -> tuple[FrameSpec, FrameSampling]:
    """Read the preprocessing and sampling of frames that a checkpoint asks for; `where` begins the error message."""
    spec = FrameSpec.from_settings(settings, where)
    try:
        return spec, FrameSampling.from_settings(settings)
    except CrossdraftError as error:
        raise CrossdraftError(f"{where} cannot be used: {error}") from None


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Raise CrossdraftError if the tokenizer writes ids for which the model has no embedding."""
    rows = embedded_ids(model.config)  # a vision encoder has no embeddings left to count
    token, highest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if highest >= rows:
        raise CrossdraftError(
            f"The tokenizer writes {token!r} as {highest}, but the model embeds only {rows} tokens; take both from one "
            "checkpoint."
        )
