"""Models from local folders: safetensors only, never remote code, every key and shape accounted for."""

import logging
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from jinja2 import TemplateRuntimeError, TemplateSyntaxError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)

from crossdraft.checkpoints.files import check_files, quantization_method, read_config, target_class
from crossdraft.checkpoints.locate import EVENT_MODELS, TARGETS, repair_hint, shipped_or_found
from crossdraft.checkpoints.parts import check_model, check_tokenizer, frame_settings, is_text_model, parts
from crossdraft.checkpoints.processor import MissingPackageError, load_processor, no_clips
from crossdraft.checkpoints.weights import LIBRARY_ERRORS, DeviceMap, Fill, first_line, load_mapped, load_weights
from crossdraft.dtypes import DTYPES, dtype_name
from crossdraft.engine.detokenize import TokenText
from crossdraft.engine.devices import usable_device
from crossdraft.engine.fast.packed_linear import has_bf16, prepack
from crossdraft.engine.fast.quantized_linear import bytes_saved, check_quantization, quantize_layers
from crossdraft.engine.fast.unused_layers import pass_unread
from crossdraft.engine.generation import read_defaults, read_file
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.prompt import Prompt, PromptIds, known_ids, text_ids
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.engine.traits import check_layers
from crossdraft.errors import CrossdraftError
from crossdraft.files import fingerprint
from crossdraft.processor_prompt import ProcessorPrompt, pixel_inputs, sample_prompts
from crossdraft.text_model import TextPrompt, text_model
from crossdraft.token_bytes import token_speller
from crossdraft.trial import check_class, try_class
from crossdraft.video.classes import ANY_CLASS, CLASSES
from crossdraft.video.clip import FrameSampling
from crossdraft.video.inputs import image_spec
from crossdraft.video.spec import image_settings, video_settings
from crossdraft.video_prompt import VideoPrompt, text_of

log = logging.getLogger(__name__)
VERIFIED = 16  # rows of a usual pass that verifies a draft
BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")  # how SentencePiece spells a byte that has no other token


@dataclass(frozen=True)
class Reduction:
    """A way to hold a model in less memory than its stored weights take, at no time more, loading included.

    Args:
        apply: changes a model layer by layer; its second argument reads the weights of a layer.
        saved: number of bytes of a model's weights that are saved; the model may be on the `meta` device.
    """

    apply: Callable[[Any, Fill], None]
    saved: Callable[[Any], int]


def load_target(
    source: str = "reference",
    device: str | None = None,
    dtype: str | None = None,
    *,
    packed: bool = True,
    num_frames: int | None = None,
    fps: float | None = None,
    quantize: str | None = None,
    device_map: DeviceMap | None = None,
    rows: int = VERIFIED,
    tried: bool = True,
) -> Target:
    """Load a video VLM or a text model as a target.

    Args:
        source: `reference`, or the folder of a Hugging Face checkpoint (safetensors): a VLM of a supported class, or a
            causal language model.
        device, dtype: default CUDA and bfloat16 if there is a GPU, else CPU and float32.
        packed: make it faster, for inference alone: on a CPU keep the linear layers in the layout that is faster there
            (`engine.fast.packed_linear`), and leave out the layers of its vision encoder whose output is never
            read (`engine.fast.unused_layers`).
        num_frames, fps: number of frames that the target reads of a clip, or of each second; default: the setting of
            the checkpoint's video processor, else 8 frames.
        quantize: `int8` or `int4`: hold the language model's weights in 8 or 4 bits, on a CPU; the default dtype is
            then bfloat16. See `engine.fast.quantized_linear`.
        device_map: instead of `device`: the device of each layer, as in `from_pretrained`, by accelerate. Layers are
            not packed then.
        rows: rows of a usual pass, for which the layout is chosen; without a drafter, the requests that share a pass.
        tried: try a class that is not in the table of families, and refuse it if it is not right (`trial`).

    Raises:
        CrossdraftError: the folder lacks a file, a key or a shape differs, the class is not supported, the device
            cannot be quantised for, or frames are asked of a text model.
    """
    folder = checked_folder(source, TARGETS)
    kind = class_of(folder)
    text = kind is AutoModelForCausalLM
    if text:
        _refuse_frames(folder, num_frames, fps)
    if device_map is not None:
        model = load_mapped(kind, folder, DTYPES[usual_dtype(dtype)], device_map).eval()
    else:
        model = load_network(kind, folder, device, dtype, packed=packed, quantize=quantize, rows=rows)
    tokenizer = load_tokenizer(folder)
    check_tokenizer(tokenizer, model)
    if text or model.config.model_type not in CLASSES:
        words = TextPrompt(tokenizer, skips_visuals=False)
        target = _adapter(model, tokenizer, words if text else _by_processor(words, model, folder, num_frames, fps))
        _check_finite(target, folder)
        return _tried(target) if tried else target
    spec, sampling = frame_settings(*video_settings(folder))
    where, settings = image_settings(folder) or (folder, None)
    stills = image_spec(model.config, settings, where)
    if packed and device_map is None:
        pass_unread(model)
    prepare = VideoPrompt(
        model, tokenizer, spec, sampling.instead(num_frames, fps), stills, asks_for_visuals=source == "reference"
    )
    target = _adapter(model, tokenizer, prepare)
    _check_finite(target, folder)
    return target


@torch.inference_mode()
def _check_finite(target: Target, folder: Path) -> None:
    """Refuse weights that are not finite, by the logits of one token: a pass is a fraction of what loading takes."""
    cache = target.new_cache()
    cache.add_row(1)
    out = target.extend(cache, [PassRow(0, Chunk(torch.zeros(1, dtype=torch.long)))])
    if not bool(out.logits[0].isfinite().all()):
        raise CrossdraftError(
            f"The weights in {folder} have numbers that are not finite, or overflow in "
            f"{dtype_name(target.model.dtype)}; take the checkpoint anew, or another dtype."
        )


def _by_processor(
    words: TextPrompt, model: PreTrainedModel, given: Any, num_frames: int | None, fps: float | None
) -> ProcessorPrompt:
    """Make what writes the prompts of a class that is not in the table of families.

    Args:
        given: the checkpoint's folder, its processor, or its tokenizer alone.
    """
    refused: dict[str, str] = dict.fromkeys(("image", "clip"), "only its tokenizer is here; give its processor.")
    processor: Any = given if isinstance(given, ProcessorMixin) else None
    if isinstance(given, Path):
        try:
            processor = load_processor(given)
        except MissingPackageError as error:
            refused = dict.fromkeys(refused, str(error))
    if processor is not None:
        refused = {"clip": why} if (why := no_clips(processor)) else {}
    settings = vars(getattr(processor, "video_processor", None) or words)
    sampling = FrameSampling.from_settings(settings).instead(num_frames, fps)
    return ProcessorPrompt(model, processor, words, sampling, refused)


def _tried(target: Target) -> Target:
    """Return a target whose class was tried, and which refuses what is not right; CrossdraftError if words are not."""
    prompts, lacking = sample_prompts(target.prepare)
    lacking |= (found := check_class(target, prompts))
    if isinstance(target.prepare, ProcessorPrompt):
        for one in lacking.keys() - target.prepare.refused.keys():
            log.warning("No %s can be shown to %s: %s", one, target.source or type(target.model).__name__, lacking[one])
        tried = {name: found.get(one, "") for one, prompt in prompts.items() for name in pixel_inputs(prompt)}
        trial = partial(_inputs_trial, target.model)
        target.prepare = replace(target.prepare, refused=lacking, tried=tried, trial=trial)
    return target


def _inputs_trial(model: PreTrainedModel, prompt: Prompt) -> str:
    """Try ready-made inputs on a small model; returns why they are refused, or an empty text."""
    return try_class(model, {"inputs": prompt})[-1].refusal


def _refuse_frames(target: object, num_frames: int | None, fps: float | None) -> None:
    """Raise CrossdraftError if frames are asked of a text model."""
    if num_frames is not None or fps is not None:
        name = "num_frames" if fps is None else "fps"
        raise CrossdraftError(f"{name} is about clips, and the target {target} is a text model; leave it out.")


def class_of(folder: Path) -> Any:
    """Return the class of a checkpoint that can be a target."""
    kind = target_class(folder)
    if kind == ANY_CLASS:
        config = read_config(folder)
        named, classes = config["model_type"], config.get("architectures")
        own = str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(named))
        if own.endswith("ForCausalLM") and named not in MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES:
            raise CrossdraftError(
                f"{folder / 'config.json'} has architectures = {classes}, and models of type {named!r} that write text "
                f"are {own}; mend the entry, or take another model."
            )
        kind = MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.get(named)
        if kind is None:
            raise CrossdraftError(
                f"Models of type {named!r} cannot be a target: transformers {transformers.__version__} has no class of "
                "that type that reads images and writes text, and a checkpoint's own code is never run."
            )
    read_defaults(read_file(folder), str(folder))  # refused before gigabytes are read
    return getattr(transformers, kind)


def usual_dtype(dtype: str | None) -> str:
    """Name of the dtype of weights: the given one, else bfloat16 on a machine with a GPU, float32 on others."""
    return dtype_name(dtype or ("bfloat16" if torch.cuda.is_available() else "float32"))


def adapt_model(
    model: PreTrainedModel,
    processor: ProcessorMixin | PreTrainedTokenizerBase,
    num_frames: int | None = None,
    fps: float | None = None,
    *,
    packed: bool = False,
) -> Target:
    """Make a target of a loaded video VLM or text model; the model stays unchanged, unless it is packed.

    Args:
        model: a VLM of a supported class, or a causal language model, in eval mode, with sdpa or eager attention, on
            the device that it runs on.
        processor: its processor; or its tokenizer, and then frames are made as is usual for the model's family.
        num_frames, fps, packed: as in `load_target`; packing changes the model for good.

    Raises:
        CrossdraftError: the model is of no supported class, is in training mode, or the processor does not fit.
    """
    check_model(model)
    tokenizer, settings = parts(processor)
    check_tokenizer(tokenizer, model)
    sees, known = not is_text_model(model), model.config.model_type in CLASSES
    prepare: VideoPrompt | TextPrompt | ProcessorPrompt = TextPrompt(tokenizer, skips_visuals=False)
    if sees and not known:
        prepare = _by_processor(prepare, model, processor, num_frames, fps)
    elif sees:
        spec, sampling = frame_settings("The processor", settings) if settings else (None, FrameSampling())
        pixels: Any = getattr(processor, "image_processor", None)
        stills = image_spec(model.config, None if pixels is None else pixels.to_dict())
        prepare = VideoPrompt(model, tokenizer, spec, sampling.instead(num_frames, fps), stills)
    else:
        _refuse_frames(type(model).__name__, num_frames, fps)
    if packed and known:
        pass_unread(model)
    if packed:
        prepack(model, rows=VERIFIED)
    target = _adapter(model, tokenizer, prepare)
    return target if known else _tried(target)


def _adapter(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prepare: VideoPrompt | TextPrompt | ProcessorPrompt
) -> Target:
    where = model.name_or_path or type(model).__name__
    defaults = read_defaults(vars(model.generation_config), where, model.config.get_text_config().vocab_size)
    eos, reserved = ends_of(model, tokenizer), reserved_of(model, tokenizer)
    if isinstance(prepare, TextPrompt):
        return text_model(model, prepare, token_text(tokenizer), eos, reserved, defaults)
    return Target(model, prepare, token_text(tokenizer), eos, reserved, defaults)


def draft_dtype(device: str | None) -> str | None:
    """Default dtype of a drafter: bfloat16 on a CPU that multiplies it, since drafts need not be exact."""
    where = usable_device(device or None, "device")
    return "bfloat16" if where.type == "cpu" and has_bf16() else None


def event_folder(source: str) -> Path:
    """The folder of an event model; `source` as in `load_drafter`."""
    return checked_folder(source, EVENT_MODELS)


def text_folder(source: str) -> Path:
    """The folder of a language model: `text` of the reference pair, or a folder."""
    return checked_folder(source, ("text",))


def event_fingerprint(source: str) -> str:
    """The fingerprint of an event model's weights: `source` as in `load_drafter`; see `fingerprint`."""
    return fingerprint(event_folder(source))


def target_folder(source: str) -> Path:
    """The folder of a target; `source` as in `load_target`."""
    return checked_folder(source, TARGETS)


def target_fingerprint(source: str) -> str:
    """The fingerprint of a target's weights: `reference`, or the folder of a checkpoint; see `fingerprint`."""
    return fingerprint(target_folder(source))


def tokenizer_of(source: str) -> PreTrainedTokenizerBase:
    """A target's tokenizer."""
    return load_tokenizer(checked_folder(source, TARGETS))


def text_reader(source: str, reserved: Collection[int]) -> Callable[[Request], PromptIds]:
    """Make a reader of a target's prompts from its configuration and tokenizer, for text drafters on other machines.

    Args:
        source: as in `load_target`.
        reserved: ids of the target that are no text.

    Raises:
        CrossdraftError: the folder lacks a file, or the class is not supported.
    """
    folder = checked_folder(source, TARGETS)
    kind, tokenizer = class_of(folder), load_tokenizer(folder)
    if kind.__name__ not in CLASSES.values():
        return lambda request: known_ids(text_ids(TextPrompt(tokenizer)(request).input_ids, reserved))
    config = kind.config_class.from_pretrained(folder)
    return lambda request: known_ids(text_of(config, tokenizer, reserved, request))


def vocabulary_of(source: str) -> dict[str, int]:
    """Tokens and ids of a target's tokenizer."""
    return tokenizer_of(source).get_vocab()


def checked_folder(source: str, shipped: Sequence[str]) -> Path:
    """Find the folder of a name, path or repository, and check the files that every checkpoint needs."""
    folder = shipped_or_found(source, shipped)
    check_files(folder)
    config = read_config(folder)
    text = config.get("text_config")
    layers = (text if isinstance(text, dict) else config).get("layer_types")
    check_layers(f"The checkpoint {folder}", layers if isinstance(layers, list) else ())  # before it is read
    return folder


def load_network(
    kind: Any,
    folder: Path,
    device: str | None,
    dtype: str | None,
    *,
    packed: bool,
    quantize: str | None,
    reduction: Reduction | None = None,
    rows: int = 1,
) -> PreTrainedModel:
    """Load a model strictly: no tensor missing, left over or of another shape."""
    stored = quantization_method(read_config(folder))
    if None not in (stored, quantize):
        raise CrossdraftError(f"{folder} is quantised already ({stored}); leave out quantize={quantize}.")
    where = usable_device(device or None, "device")
    half = bool(stored or quantize) or where.type == "cuda"
    name = dtype_name(dtype or ("bfloat16" if half else "float32"))
    if quantize is not None:
        check_quantization(quantize, where, DTYPES[name])
    saved = (lambda model: bytes_saved(model, quantize)) if reduction is None else reduction.saved
    loaded, fill = load_weights(kind, folder, DTYPES[name], where, saved)
    model: Any = loaded
    if reduction is not None:
        reduction.apply(model, fill)
    if quantize is not None:
        quantize_layers(model, quantize, fill)
    if packed and where.type == "cpu":
        prepack(model, fill, rows=rows)  # layer by layer, each read just before
    fill(model)
    return (model if stored else model.to(where)).eval()  # a library that quantised moves its model itself


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer in a folder.

    Raises:
        CrossdraftError: the tokenizer cannot be loaded, or its chat template is none.
    """
    try:
        found = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        if found.chat_template:
            with suppress(TemplateRuntimeError, *LIBRARY_ERRORS):  # some want more than this
                found.apply_chat_template([{"role": "user", "content": ""}], tokenize=False)
    except TemplateSyntaxError as error:
        names = "chat_template.jinja", "chat_template.json", "tokenizer_config.json"
        where = next(folder / name for name in names if (folder / name).is_file())
        raise CrossdraftError(
            f"The chat template in {where} cannot be read, line {error.lineno}: {first_line(error)}; correct it there."
        ) from error
    except LIBRARY_ERRORS as error:
        never = " (a checkpoint's own code is never run)" if "custom code" in str(error) else ""
        raise CrossdraftError(
            f"The tokenizer in {folder} cannot be loaded{never}: {first_line(error)}; {repair_hint(folder)}."
        ) from error
    return found


def token_text(tokenizer: PreTrainedTokenizerBase) -> TokenText:
    """The text of a tokenizer's tokens, as answers show it."""

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True))

    added = tokenizer.added_tokens_decoder
    special = {token: str(found) for token, found in added.items() if found.special}
    byte_fallback = (token for piece, token in tokenizer.get_vocab().items() if BYTE.fullmatch(piece))
    return TokenText(decode, special, frozenset(byte_fallback), token_speller(tokenizer), tokenizer)


def ends_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids that end an answer, from the generation config, else the tokenizer."""
    ids: Any = getattr(model.generation_config, "eos_token_id", None)
    ids = tokenizer.eos_token_id if ids is None else ids
    return (ids,) if isinstance(ids, int) else tuple(ids or ())


def reserved_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids of a model's head that are no text; see `reserved_ids`."""
    return reserved_ids(tokenizer, model.config.get_text_config().vocab_size, ends_of(model, tokenizer))


def reserved_ids(tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos: Sequence[int]) -> tuple[int, ...]:
    """Ids that are no text: special tokens other than the end, and rows of the head that no token has."""
    padded = range(len(tokenizer), vocab_size)
    return (*sorted(special_ids(tokenizer) - {*eos, *padded}), *padded)


def special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Ids of special tokens."""
    # A token may be marked as special without standing among the tokenizer's named ones: EventGPT's `<event>` does.
    marked = {token for token, found in tokenizer.added_tokens_decoder.items() if found.special}
    return {*tokenizer.all_special_ids} | marked
