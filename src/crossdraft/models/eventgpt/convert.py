"""From the official EventGPT checkpoint to a folder that `from_pretrained` loads, and what was decided on the way."""

import importlib.util
from collections.abc import Mapping
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

from crossdraft.errors import CrossdraftError
from crossdraft.models.eventgpt.checkpoint import (
    OnShard,
    atomic_folder,
    read_json,
    read_weights,
    write_weights,
)
from crossdraft.models.eventgpt.configuration import EventGPTConfig
from crossdraft.models.eventgpt.layout import (
    EMBEDDING,
    HEAD,
    check_strict,
    extend_rows,
    refuse_qformer,
    rename,
    vision_config_of,
)
from crossdraft.models.eventgpt.processing import EV_END, EV_START, EventGPTProcessor

EV_PATCH, EVENT = "<ev_patch>", "<event>"
VIDEO_LLAVA_IMAGE_ID = 32000
FLAGS = (("mm_use_im_patch_token", True), ("mm_use_im_start_end", False))  # the official defaults


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What the converter found and decided.

    Args:
        source, destination: the folders.
        tensors, parameters: how many were written.
        dtype: of the embedding, which the converted configuration names.
        dropped: stored constants that were left out.
        vision: the tower's shape in words.
        add_start_end, add_patch: `mm_use_im_start_end` and `mm_use_im_patch_token` of the configuration.
        rows_read, rows_written: rows of the embedding before and after.
        tokens: id of each of EventGPT's own tokens; `<event>` is the placeholder.
        fresh_tokens: those of them that the checkpoint had no row for.
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
        lines.append(f"The vision tower has {self.vision}.")
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
) -> ConversionReport:
    """Convert an official checkpoint folder; the destination is written whole or not at all.

    Args:
        source: `config.json`, the tokenizer, and safetensors or PyTorch weights, in shards or not.
        destination: a new folder.
        num_event_frames: 5 in the release, where it stands in the code and not in the configuration.
        vision_config: the tower's `config.json`, for one whose heads are not 64 wide as OpenAI's are.
        on_shard: told the progress.

    Raises:
        CrossdraftError: an incomplete or damaged checkpoint, a Q-Former, or weights that do not fit exactly.
    """
    source, destination = Path(source), Path(destination)
    raw = read_json(source / "config.json")
    tokenizer = _load_tokenizer(source)
    with atomic_folder(destination) as folder:
        official = read_weights(source, on_shard)
        refuse_qformer(raw, official)
        weights, dropped = rename(official)
        vision = (
            vision_config_of(weights) if vision_config is None else _read_vision_config(Path(vision_config))
        )
        add_patch, add_start_end = (bool(raw.get(key, default)) for key, default in FLAGS)
        tokens = _add_tokens(tokenizer, add_patch, add_start_end)
        rows_read, rows = _extend_vocabulary(weights, len(tokenizer))
        config = EventGPTConfig(
            vision_config=vision,
            text_config=_text_config(raw, rows),
            event_token_id=tokens[EVENT],
            num_event_frames=num_event_frames,
            add_start_end=add_start_end,
            architectures=["EventGPTForConditionalGeneration"],
            dtype=weights[EMBEDDING].dtype,
        )
        check_strict(config, weights)
        report = ConversionReport(
            source=str(source),
            destination=str(destination),
            tensors=len(weights),
            parameters=sum(tensor.numel() for tensor in weights.values()),
            dtype=str(weights[EMBEDDING].dtype).removeprefix("torch."),
            dropped=tuple(dropped),
            vision=f"{vision.num_hidden_layers} layers of {vision.num_attention_heads} heads and reads "
            f"{vision.image_size} px in patches of {vision.patch_size}",
            add_start_end=add_start_end,
            add_patch=add_patch,
            rows_read=rows_read,
            rows_written=rows,
            tokens=tokens,
            fresh_tokens=tuple(token for token, row in tokens.items() if row >= rows_read),
            num_event_frames=num_event_frames,
        )
        config.save_pretrained(folder)
        _generation_config(config, report).save_pretrained(folder)
        EventGPTProcessor(config, tokenizer).save_pretrained(folder)
        write_weights(folder, weights, on_shard)
    return report


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The checkpoint's tokenizer, from `tokenizer.json` or else from sentencepiece's `tokenizer.model`."""
    fast, slow = folder / "tokenizer.json", folder / "tokenizer.model"
    if not fast.is_file() and not slow.is_file():
        raise CrossdraftError(
            f"{folder} holds neither tokenizer.json nor tokenizer.model; add Vicuna's tokenizer to it."
        )
    if not fast.is_file() and importlib.util.find_spec("sentencepiece") is None:
        raise CrossdraftError(
            f"Reading {slow} needs the package sentencepiece; install it, or add a tokenizer.json."
        )
    kind = PreTrainedTokenizerFast if fast.is_file() else LlamaTokenizer
    try:
        return kind.from_pretrained(str(folder))
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise CrossdraftError(f"The tokenizer in {folder} is damaged ({_one_line(error)}).") from error


def _add_tokens(tokenizer: PreTrainedTokenizerBase, add_patch: bool, add_start_end: bool) -> dict[str, int]:
    """Add what the official loader adds, in its order, and the placeholder. Known tokens keep their ids."""
    wanted = [EV_PATCH] * add_patch + [EV_START, EV_END] * add_start_end + [EVENT]
    tokenizer.add_tokens(wanted, special_tokens=True)
    vocabulary = tokenizer.get_vocab()
    return {token: vocabulary[token] for token in wanted}


def _extend_vocabulary(weights: dict[str, Tensor], tokens: int) -> tuple[int, int]:
    """Give embedding and head a row for each of `tokens`. Returns the rows before and after.

    A checkpoint may have more rows than its tokenizer has tokens (padding): those stay.
    """
    lacking = [name for name in (EMBEDDING, HEAD) if name not in weights]
    if lacking:
        raise CrossdraftError(f"The checkpoint lacks {', '.join(lacking)}; give the merged EventGPT weights.")
    rows_read = weights[EMBEDDING].shape[0]
    rows = max(rows_read, tokens)
    for name in (EMBEDDING, HEAD):
        weights[name] = extend_rows(weights[name], rows)
    return rows_read, rows


def _read_vision_config(path: Path) -> CLIPVisionConfig:
    """A tower's configuration file, or the `vision_config` within a whole CLIP's."""
    raw = read_json(path)
    nested = raw.get("vision_config", raw)
    try:
        return CLIPVisionConfig(**cast("dict[str, Any]", nested))
    except (TypeError, StrictDataclassError) as error:
        raise CrossdraftError(f"{path} is not a CLIP vision configuration ({_one_line(error)}).") from error


def _text_config(raw: Mapping[str, object], rows: int) -> LlamaConfig:
    """The Llama part of the official configuration, which is flat and mixed with EventGPT's own keys."""
    known = {*LlamaConfig.__dataclass_fields__, "rope_theta", "rope_scaling"} - {
        *PreTrainedConfig.__dataclass_fields__
    }
    fields = {key: value for key, value in raw.items() if key in known}
    try:
        return LlamaConfig(
            **cast("dict[str, Any]", fields | {"vocab_size": rows, "tie_word_embeddings": False})
        )
    except (TypeError, ValueError, StrictDataclassError) as error:
        raise CrossdraftError(f"config.json of the checkpoint is no Llama's ({_one_line(error)}).") from error


def _generation_config(config: EventGPTConfig, report: ConversionReport) -> GenerationConfig:
    """Greedy decoding that never writes the placeholder or a token without a trained row."""
    text = config.text_config
    return GenerationConfig(
        bos_token_id=text.bos_token_id,
        eos_token_id=text.eos_token_id,
        pad_token_id=text.pad_token_id if text.pad_token_id is not None else text.eos_token_id,
        suppress_tokens=sorted({report.tokens[token] for token in (*report.fresh_tokens, EVENT)}),
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
