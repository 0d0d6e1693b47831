"""Conversion of the official EventGPT checkpoint to a folder that `from_pretrained` loads."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import (
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.configuration_utils import PreTrainedConfig

from crossdraft.config_keys import PRETRAINED, Followed, Harmless, Only, Table, check
from crossdraft.errors import CrossdraftError
from crossdraft.files import read_json
from crossdraft.models.eventgpt.checkpoint import library_errors_as, new_folder, write_weights
from crossdraft.models.eventgpt.configuration import EventGPTConfig
from crossdraft.models.eventgpt.layout import EMBEDDING, check_strict, refuse_qformer, rename, vision_config_of
from crossdraft.models.eventgpt.processing import EV_END, EV_START, EventGPTProcessor
from crossdraft.models.eventgpt.vocabulary import EVENT, TokenRows, extend_vocabulary
from crossdraft.models.shards import OnShard, read_weights

FLAGS = (("mm_use_im_patch_token", True), ("mm_use_im_start_end", False))  # the official defaults
# Of the official configuration beside Llama's: the code has the sizes and the layout written in itself.
OFFICIAL: Table = {
    **dict.fromkeys(("model_type", "architectures", "mm_visual_tower"), Harmless("names")),
    **dict.fromkeys(("event_feature_adaptor", "use_event_qformer", "tie_word_embeddings"), Harmless("tensors")),
    **dict.fromkeys(("tune_mm_mlp_adapter", "freeze_mm_mlp_adapter"), Harmless("training")),
    **{key: Followed(f"EventGPTConfig.{key}") for key, _ in FLAGS},
    **{key: Followed(key) for key in ("rope_theta", "rope_scaling")},
    "partial_rotary_factor": Only((1, None)),
}
VISION: Table = {
    "architectures": Harmless("names"),
    "model_type": Only(("clip_vision_model",)),
    "dropout": Only((0.0,)),
}
VIDEO_LLAVA_IMAGE_ID = 32000


@dataclass(frozen=True, slots=True)
class EventGPTConversion:
    """The converter's findings and decisions.

    Args:
        source, destination: folders read and written.
        tensors, parameters: numbers of tensors and parameters written.
        dtype: dtype of the embedding, named by the converted configuration.
        dropped: stored constants that were left out.
        vision: the vision encoder's shape in words.
        add_start_end, add_patch: `mm_use_im_start_end` and `mm_use_im_patch_token` of the configuration.
        rows_read, rows_written: rows of the embedding before and after.
        tokens: id of each of EventGPT's own tokens; `<event>` is the placeholder.
        fresh_tokens: EventGPT's own tokens that the checkpoint had no row for.
        num_event_frames: frames of one window.
    """

    source: str
    destination: str
    tensors: int
    parameters: int
    dtype: str
    dropped: tuple[str, ...]
    vision: str
    add_start_end: bool
    add_patch: bool
    rows_read: int
    rows_written: int
    tokens: Mapping[str, int]
    fresh_tokens: tuple[str, ...]
    num_event_frames: int

    def decisions(self) -> list[str]:
        """Every decision as a sentence."""
        wrap = "is set: prompts wrap" if self.add_start_end else "is not set: prompts do not wrap"
        lines = [
            f"mm_use_im_start_end {wrap} the event in {EV_START} and {EV_END}, as in training.",
            f"The placeholder {EVENT} is id {self.tokens[EVENT]}; the official code uses -200, which is no row.",
            f"The embedding and the head had {self.rows_read} rows and have {self.rows_written}.",
        ]
        if self.fresh_tokens:
            lines.append(f"Without a row of their own, given the mean row: {', '.join(self.fresh_tokens)}.")
        clash = [token for token, row in self.tokens.items() if row == VIDEO_LLAVA_IMAGE_ID]
        if clash:
            lines.append(
                f"Id {VIDEO_LLAVA_IMAGE_ID} is {clash[0]} here but <image> in Video-LLaVA: drafts for it must mask the "
                f"ids from {VIDEO_LLAVA_IMAGE_ID} on."
            )
        lines.append(f"The vision encoder has {self.vision}.")
        lines.append(f"A window has {self.num_event_frames} frames; the official configuration does not say.")
        if self.dropped:
            lines.append(f"Left out {len(self.dropped)} stored constant(s), which the model computes.")
        lines.append("No event Q-Former: neither asked for nor among the weights.")
        return lines


def convert_eventgpt(
    source: str | Path,
    destination: str | Path,
    *,
    num_event_frames: int = 5,
    vision_config: str | Path | None = None,
    on_shard: OnShard = lambda what, done, total: None,
) -> EventGPTConversion:
    """Convert an official checkpoint folder; the destination is written whole or not at all.

    Args:
        source: `config.json`, the tokenizer, and safetensors or PyTorch weights, in shards or not.
        destination: a new folder.
        num_event_frames: 5 in the release, where it stands in the code and not in the configuration.
        vision_config: the vision encoder's `config.json`, for one whose heads are not 64 wide as OpenAI's are.
        on_shard: progress callback.

    Raises:
        CrossdraftError: an incomplete or damaged checkpoint, a Q-Former, or weights that do not fit exactly.
    """
    source, destination = Path(source), Path(destination)
    raw = read_json(source / "config.json")
    tokenizer = _load_tokenizer(source)
    with new_folder(destination) as folder:
        weights, dropped = _read_renamed(source, raw, on_shard)
        vision = vision_config_of(weights) if vision_config is None else _read_vision_config(Path(vision_config))
        add_patch, add_start_end = (bool(raw.get(key, default)) for key, default in FLAGS)
        vocabulary = extend_vocabulary(tokenizer, weights, patch=add_patch, start_end=add_start_end)
        config = EventGPTConfig(
            vision_config=vision,
            text_config=_text_config(raw, vocabulary.rows_written),
            event_token_id=vocabulary.tokens[EVENT],
            num_event_frames=num_event_frames,
            add_start_end=add_start_end,
            architectures=["EventGPTForConditionalGeneration"],
            dtype=weights[EMBEDDING].dtype,
        )
        check_strict(config, weights)
        with library_errors_as(f"Cannot write {destination}", "free some space or choose another folder"):
            config.save_pretrained(folder)
            _generation_config(config, vocabulary).save_pretrained(folder)
            EventGPTProcessor(config, tokenizer).save_pretrained(folder)
            write_weights(folder, weights, on_shard)
    return _report(source, destination, config, vocabulary, weights, dropped, add_patch=add_patch)


def _read_renamed(source: Path, raw: Mapping[str, object], on_shard: OnShard) -> tuple[dict[str, Tensor], list[str]]:
    """Return the weights under our names, and the names of stored constants that were left out."""
    official = read_weights(source, on_shard)
    refuse_qformer(raw, official)
    return rename(official)


def _report(
    source: Path,
    destination: Path,
    config: EventGPTConfig,
    vocabulary: TokenRows,
    weights: Mapping[str, Tensor],
    dropped: Sequence[str],
    *,
    add_patch: bool,
) -> EventGPTConversion:
    vision = config.vision_config
    return EventGPTConversion(
        source=str(source),
        destination=str(destination),
        tensors=len(weights),
        parameters=sum(tensor.numel() for tensor in weights.values()),
        dtype=str(weights[EMBEDDING].dtype).removeprefix("torch."),
        dropped=tuple(dropped),
        vision=f"{vision.num_hidden_layers} layers of {vision.num_attention_heads} heads and reads "
        f"{vision.image_size} px in patches of {vision.patch_size}",
        add_start_end=config.add_start_end,
        add_patch=add_patch,
        rows_read=vocabulary.rows_read,
        rows_written=vocabulary.rows_written,
        tokens=vocabulary.tokens,
        fresh_tokens=vocabulary.fresh,
        num_event_frames=config.num_event_frames,
    )


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The checkpoint's tokenizer, from `tokenizer.json` or else from sentencepiece's `tokenizer.model`."""
    fast, slow = folder / "tokenizer.json", folder / "tokenizer.model"
    if not fast.is_file() and not slow.is_file():
        raise CrossdraftError(
            f"{folder} holds neither tokenizer.json nor tokenizer.model; add Vicuna's tokenizer to it."
        )
    if not fast.is_file() and importlib.util.find_spec("sentencepiece") is None:
        raise CrossdraftError(f"Reading {slow} needs the package sentencepiece; install it, or add a tokenizer.json.")
    kind = PreTrainedTokenizerFast if fast.is_file() else LlamaTokenizer
    with library_errors_as(f"The tokenizer in {folder} is damaged", "copy it from the checkpoint again"):
        return kind.from_pretrained(str(folder))


def _read_vision_config(path: Path) -> CLIPVisionConfig:
    """Read a vision encoder's configuration file, or the `vision_config` within a whole CLIP's."""
    raw = read_json(path)
    nested = raw.get("vision_config", raw)
    if not isinstance(nested, Mapping):
        raise CrossdraftError(f"{path} is not a CLIP vision configuration (its vision_config holds no keys).")
    check(nested, _table(CLIPVisionConfig, VISION), {})
    try:
        return CLIPVisionConfig(**nested)
    except (TypeError, StrictDataclassError) as error:
        raise CrossdraftError(f"{path} is not a CLIP vision configuration ({_one_line(error)}).") from error


def _text_config(raw: Mapping[str, object], rows: int) -> LlamaConfig:
    """Return the Llama part of the official configuration, which is flat and mixed with EventGPT's own keys."""
    table = _table(LlamaConfig, OFFICIAL)
    check(raw, table, {})
    fields = {key: value for key, value in raw.items() if table[key] == Followed(key)}
    try:
        return LlamaConfig(**cast("dict[str, Any]", fields | {"vocab_size": rows, "tie_word_embeddings": False}))
    except (TypeError, ValueError, StrictDataclassError) as error:
        raise CrossdraftError(f"config.json of the checkpoint is no Llama's ({_one_line(error)}).") from error


def _table(config: type[PreTrainedConfig], others: Table) -> Table:
    """Return a rule for each key: the network's own keys are followed as in `transformers`."""
    own = {*config.__dataclass_fields__} - {*PreTrainedConfig.__dataclass_fields__}
    return {**PRETRAINED, **{key: Followed(key) for key in own}, **others}


def _generation_config(config: EventGPTConfig, vocabulary: TokenRows) -> GenerationConfig:
    """Greedy decoding that never writes the placeholder or a token without a trained row."""
    text = config.text_config
    return GenerationConfig(
        bos_token_id=text.bos_token_id,
        eos_token_id=text.eos_token_id,
        pad_token_id=text.pad_token_id if text.pad_token_id is not None else text.eos_token_id,
        suppress_tokens=sorted({vocabulary.tokens[token] for token in (*vocabulary.fresh, EVENT)}),
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
