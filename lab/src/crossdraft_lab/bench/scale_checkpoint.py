"""`crossdraft scale checkpoint`: a checkpoint of the hub's layout with random weights, of any size.

It allows loading, memory and disk space at 7B to be tried without a download. One file is held in memory at a time.

- Video-LLaVA as `LanguageBind/Video-LLaVA-7B-hf`, saved by transformers 4.42: `language_model.model.*`,
  `{video,image}_tower.vision_model.*`, `multi_modal_projector.*`.
- EventGPT as released, saved by transformers 4.37: see `models.eventgpt.layout`. It has to be converted.
- The tokenizer is of Llama's kind, SentencePiece's BPE in `tokenizers` format: <unk> <s> </s>, the 256 bytes, then
  the printable characters, then pairs, triples and longer runs of letters, each the merge of a shorter run and a
  letter. So any ids decode to letters; a text has about twice as many tokens as in Llama's own vocabulary.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from torch import Tensor
from transformers import AutoModelForImageTextToText, LlamaConfig, PretrainedConfig, VideoLlavaConfig

from crossdraft.checkpoints.files import INDEX
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder
from crossdraft.models.eventgpt import EventGPTConfig
from crossdraft.models.eventgpt.layout import PREFIXES
from crossdraft_lab.bench.scale_models import DRAFTERS, FRAMES, TARGETS, clip, small_llama, video_llava

UNK, BOS, EOS, PAD = "<unk>", "<s>", "</s>", "<pad>"
SPACE = "▁"  # how SentencePiece writes a space
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"  # by their frequency in English, so that common runs come first
CONTEXT = 4096  # tokens


TINY = 480  # ordinary tokens of the tiny checkpoints
MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]  # pixels of OpenAI's CLIP
VIDEO_LLAVA_NAMES = (  # ours in transformers 5 -> the hub's
    ("model.language_model.", "language_model.model."),
    ("model.video_tower.", "video_tower.vision_model."),
    ("model.image_tower.", "image_tower.vision_model."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("lm_head.", "language_model.lm_head."),
)
DTYPE = torch.bfloat16
ROOM = 100_000_000  # bytes to leave free on the disk, for settings and tokenizer among others
PATTERN = "model{suffix}.safetensors"


def llama_tokenizer(size: int, added: Sequence[str] = ()) -> Tokenizer:
    """Build a byte-fallback BPE of exactly `size` ids, plus one id for each `added` special token; it prepends `<s>`.

    >>> tokenizer = llama_tokenizer(32000, ["<image>"])
    >>> tokenizer.get_vocab_size(), tokenizer.token_to_id("<image>")
    (32001, 32000)
    >>> tokenizer.encode("the car").tokens
    ['<s>', '▁t', 'he', '▁c', 'ar']

    Raises:
        CrossdraftError: `size` is too small for the bytes and the characters.
    """
    printable = [SPACE, *map(chr, range(33, 127))]
    first = [UNK, BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256)), *printable]
    if size < len(first):
        raise CrossdraftError(f"A vocabulary of Llama's kind needs at least {len(first)} ids, got {size}.")
    merges = list(islice(_merges(), size - len(first)))
    vocabulary = {piece: i for i, piece in enumerate([*first, *(left + right for left, right in merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=UNK, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([UNK, BOS, EOS, *added])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])]
    )
    return tokenizer


def _merges() -> Iterator[tuple[str, str]]:
    """Yield pairs of an earlier run and a letter: all runs of two letters, then of three, without end."""
    runs = [SPACE, *LETTERS]
    while True:
        merges = [(run, letter) for run in runs for letter in LETTERS]
        yield from merges
        runs = [run + letter for run, letter in merges]


def write_tokenizer(folder: Path, tokenizer: Tokenizer, *, pad: str = PAD, processor: str | None = None) -> None:
    """Write a tokenizer and its settings as transformers 4.4x saved a LlamaTokenizerFast.

    Args:
        folder: an existing folder.
        tokenizer: a tokenizer as `llama_tokenizer` makes it.
        pad: the padding token, one of the tokenizer's tokens.
        processor: name of the processor's class, where the checkpoint has one.
    """
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": BOS, "eos_token": EOS, "pad_token": pad, "unk_token": UNK}
    added = {i: token.content for i, token in sorted(tokenizer.get_added_tokens_decoder().items())}
    settings: dict[str, object] = {
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": {
            str(i): dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
            | {"content": token, "special": True}
            for i, token in added.items()
        },
        "clean_up_tokenization_spaces": False,
        "legacy": False,
        "model_max_length": CONTEXT,
        "padding_side": "left",
        "tokenizer_class": "LlamaTokenizer",
        **special,
    }
    settings |= {} if processor is None else {"processor_class": processor}
    write_json_file(folder / "tokenizer_config.json", settings)
    write_json_file(folder / "special_tokens_map.json", special)
    further = {token: i for i, token in added.items() if token not in (UNK, BOS, EOS)}
    if further:
        write_json_file(folder / "added_tokens.json", further)


def write_json_file(path: Path, content: object) -> None:
    """Write JSON in the layout of the hub's files."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Layout:
    """A checkpoint's model, and its layout on disk.

    Args:
        config: configuration of the model as today's classes build it.
        rename: maps a tensor's name in that model to its name on disk.
        write_settings: writes all files but the weights into a folder.
        shard: most bytes of one weight file, as for the hub's.
    """

    config: PretrainedConfig
    rename: Callable[[str], str]
    write_settings: Callable[[Path], None]
    shard: int


def _small_video_llava() -> VideoLlavaConfig:
    """0.24 B parameters: a drafter's language model under the vision encoders of the 0.5B target."""
    drafter, target = DRAFTERS["small"](), TARGETS["0.5b"]()
    text = drafter.text_config.to_dict() | {"vocab_size": target.text_config.vocab_size}
    return video_llava(LlamaConfig(**text), drafter.vision_config)


def _tiny_video_llava() -> VideoLlavaConfig:
    """Smallest Video-LLaVA: one more vision layer than is used; heads of width 64, as the converter expects."""
    vision, text = clip(64, 3, 14, 32, 28, 128), small_llama(128, 2, 512, 256)
    return VideoLlavaConfig(vision_config=vision, text_config=text, image_token_index=TINY, video_token_index=TINY + 1)


def _tiny_eventgpt() -> EventGPTConfig:
    vision, text = clip(64, 3, 14, 32, 28, 128), small_llama(128, 2, TINY + 1, 256)
    return EventGPTConfig(vision_config=vision, text_config=text, event_token_id=TINY)


SHAPES: Mapping[str, Callable[[], Any]] = {
    "video-llava-7b": TARGETS["video-llava-7b"],
    "video-llava-0.5b": TARGETS["0.5b"],
    "video-llava-small": _small_video_llava,
    "video-llava-tiny": _tiny_video_llava,
    "eventgpt-7b": DRAFTERS["eventgpt-7b"],
    "eventgpt-small": DRAFTERS["small"],
    "eventgpt-tiny": _tiny_eventgpt,
}


def layout_of(name: str) -> Layout:
    """Layout of one of `SHAPES`; even a tiny one is cut into several shards."""
    config = SHAPES[name]()
    shard = 200_000 if name.endswith("tiny") else 5_000_000_000
    if config.model_type == "eventgpt":
        # Stored is the official checkpoint, which has no row for the placeholder.
        config.text_config.vocab_size = config.event_token_id
        config.event_token_id -= 1
        return Layout(config, _eventgpt_name, lambda folder: _write_eventgpt(folder, config), shard)
    return Layout(config, _video_llava_name, lambda folder: _write_video_llava(folder, config), shard)


def _eventgpt_name(name: str) -> str:
    return next((theirs + name.removeprefix(ours) for theirs, ours in PREFIXES if name.startswith(ours)), name)


def _video_llava_name(name: str) -> str:
    return next(theirs + name.removeprefix(ours) for ours, theirs in VIDEO_LLAVA_NAMES if name.startswith(ours))


def _write_video_llava(folder: Path, config: Any) -> None:
    first, side, patch = config.image_token_id, config.vision_config.image_size, config.vision_config.patch_size
    patches = (side // patch) ** 2
    tokenizer = llama_tokenizer(first, ["<image>", "<video>", PAD])
    write_tokenizer(folder, tokenizer, processor="VideoLlavaProcessor")
    text = _llama_fields(config.text_config) | {"_name_or_path": "lmsys/vicuna-7b-v1.5", "model_type": "llama"}
    vision = config.vision_config
    sizes = (
        "hidden_size", "image_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "patch_size",
        "projection_dim",
    )  # fmt: skip
    found: dict[str, object] = {
        "architectures": ["VideoLlavaForConditionalGeneration"],
        "ignore_index": -100,
        "image_seq_length": patches,
        "image_token_index": first,
        "model_type": "video_llava",
        "pad_token_id": first + 2,
        "projector_hidden_act": "gelu",
        "text_config": text | {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"},
        "torch_dtype": "bfloat16",
        "transformers_version": "4.42.0",
        "video_seq_length": FRAMES * (patches + 1),
        "video_token_index": first + 1,
        "vision_config": {key: getattr(vision, key) for key in sizes} | {"model_type": "clip_vision_model"},
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
    }
    write_json_file(folder / "config.json", found)
    _write_generation(folder, first + 2, "4.42.0")
    size: dict[str, object] = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    steps = ("do_center_crop", "do_convert_rgb", "do_normalize", "do_rescale", "do_resize")
    frames: dict[str, object] = dict.fromkeys(steps, True) | size | {"image_mean": MEAN, "image_std": STD}
    frames |= {"resample": 3, "rescale_factor": 1 / 255, "image_processor_type": "VideoLlavaImageProcessor"}
    write_json_file(folder / "preprocessor_config.json", frames | {"processor_class": "VideoLlavaProcessor"})
    write_json_file(folder / "processor_config.json", {"processor_class": "VideoLlavaProcessor"})


def _write_eventgpt(folder: Path, config: EventGPTConfig) -> None:
    text = config.text_config
    write_tokenizer(folder, llama_tokenizer(text.vocab_size), pad=UNK)
    found: dict[str, object] = _llama_fields(text) | {
        "_name_or_path": "lmsys/vicuna-7b-v1.5",
        "architectures": ["EventChatModel"],
        "event_feature_adaptor": True,
        "mm_use_im_patch_token": False,
        "mm_use_im_start_end": False,
        "mm_visual_tower": "openai/clip-vit-large-patch14-336",
        "model_type": "EventChat_llama",
        "torch_dtype": "bfloat16",
        "transformers_version": "4.37.2",
    }
    write_json_file(folder / "config.json", found)
    _write_generation(folder, 0, "4.37.2")


def _llama_fields(text: LlamaConfig) -> dict[str, object]:
    """Vicuna's configuration with the sizes of `text`."""
    sizes = (
        "hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers",
        "num_key_value_heads", "vocab_size",
    )  # fmt: skip
    return {name: getattr(text, name) for name in sizes} | {
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "pad_token_id": 0,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "use_cache": True,
    }


def _write_generation(folder: Path, pad: int, version: str) -> None:
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": pad}
    write_json_file(
        folder / "generation_config.json", {"_from_model_config": True, **ids, "transformers_version": version}
    )


@dataclass(frozen=True, slots=True)
class RandomCheckpoint:
    """Contents of a written checkpoint: numbers of tensors and parameters, bytes of weights, and number of shards."""

    folder: str
    config: str
    tensors: int
    parameters: int
    bytes: int
    shards: int


def write_checkpoint(
    name: str,
    destination: Path,
    *,
    seed: int = 0,
    force: bool = False,
    start: Callable[[int], object] = lambda total: None,
    on_bytes: Callable[[str, int], None] = lambda file, count: None,
) -> RandomCheckpoint:
    """Write a checkpoint folder, whole or not at all.

    Args:
        name: one of `SHAPES`.
        destination: a new or empty folder; with `force` it may hold a checkpoint, which is then replaced.
        seed: seed of the weights.
        start, on_bytes: called with the total number of bytes, and with a file's name and the bytes written.

    Raises:
        CrossdraftError: an unknown name, a folder that is not empty, or a disk without enough space.
    """
    if name not in SHAPES:
        raise CrossdraftError(f"Unknown config '{name}'; choose one of {', '.join(SHAPES)}.")
    _check_destination(destination, force=force)
    layout = layout_of(name)
    files = planned(layout)
    every = [tensor for tensors in files.values() for tensor in tensors.values()]
    size = sum(tensor.numel() for tensor in every) * DTYPE.itemsize
    _check_room(destination, size)
    start(size)
    generator = torch.Generator().manual_seed(seed)
    with atomic_folder(destination) as folder:
        layout.write_settings(folder)
        for file, tensors in files.items():
            drawn = dict[str, Tensor]()
            for key, tensor in tensors.items():
                drawn[key] = random_weight(key, tuple(tensor.shape), generator)
                on_bytes(file, drawn[key].nbytes)
            save_file(drawn, folder / file, metadata={"format": "pt"})
        if len(files) > 1:
            where = {key: file for file, tensors in files.items() for key in tensors}
            index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}
            write_json_file(folder / INDEX, index)
    return RandomCheckpoint(str(destination), name, len(every), size // DTYPE.itemsize, size, len(files))


def _check_destination(destination: Path, *, force: bool) -> None:
    if destination.is_dir() and not any(destination.iterdir()):
        return
    if not destination.exists() and not destination.is_symlink():
        return
    if not (destination / "config.json").is_file():
        raise CrossdraftError(f"{destination} exists and holds no checkpoint; name a new folder.")
    if not force:
        raise CrossdraftError(f"{destination} exists; add --force to overwrite it, or name another folder.")


def _check_room(destination: Path, wanted: int) -> None:
    parent = next(folder for folder in destination.absolute().parents if folder.is_dir())
    free = shutil.disk_usage(parent).free
    if wanted + ROOM > free:
        raise CrossdraftError(
            f"{destination} needs {wanted / 1e9:.1f} GB, but {parent} has {free / 1e9:.1f} GB free; free some space, "
            "choose another disk, or a smaller --config."
        )


def planned(layout: Layout) -> dict[str, dict[str, Tensor]]:
    """Assign tensors to files as `save_pretrained` cuts shards.

    Returns:
        Tensors of each file, by their names on disk, as shapes without memory.
    """
    with torch.device("meta"):
        model: Any = AutoModelForImageTextToText.from_config(layout.config, dtype=DTYPE)
    tensors = {layout.rename(key): tensor for key, tensor in model.state_dict().items()}
    split = split_state_dict_into_shards_factory(
        tensors,
        get_storage_size=lambda tensor: tensor.numel() * tensor.element_size(),
        filename_pattern=PATTERN,
        max_shard_size=layout.shard,
    )
    return {file: {key: tensors[key] for key in keys} for file, keys in split.filename_to_tensors.items()}


def random_weight(key: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Random weights as before training, in bfloat16: norms 1, biases 0, all others normal.

    Products with a matrix keep their variance (1 / width for weights), so that activations stay finite at any depth.
    """
    if key.endswith("bias"):
        return torch.zeros(shape, dtype=DTYPE)
    if "norm" in key or "layrnorm" in key:
        return torch.ones(shape, dtype=DTYPE)
    deviation = 0.02 if len(shape) == 1 or "embed" in key else 1 / math.sqrt(math.prod(shape[1:]))
    return torch.empty(shape, dtype=DTYPE).normal_(0, deviation, generator=generator)
