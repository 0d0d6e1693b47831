"""Models from local folders: safetensors only, never remote code, every key and shape accounted for."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from crossdraft.checkpoints.files import check_files, quantization_method, read_config, target_class
from crossdraft.checkpoints.locate import EVENT_MODELS, TARGETS, repair_hint, shipped_or_found
from crossdraft.checkpoints.models import check_event_model
from crossdraft.checkpoints.parts import check_model, check_tokenizer, frame_settings, parts
from crossdraft.checkpoints.weights import LIBRARY_ERRORS, DeviceMap, Fill, first_line, load_mapped, load_weights
from crossdraft.drafters.cross_vocab.assistant import CrossVocabDrafter
from crossdraft.drafters.cross_vocab.drafter import cross_vocab_drafter
from crossdraft.drafters.cross_vocab.vocabulary import TokenTable, map_vocabularies, read_token_table, token_speller
from crossdraft.drafters.hf_text import TextPrompt, text_model
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.drafters.recordings import PIXELS, RecordingPrompt, RecordingTarget
from crossdraft.drafters.short_head import ShortHead, read_ids
from crossdraft.dtypes import DTYPES, dtype_name
from crossdraft.engine.detokenize import TokenText
from crossdraft.engine.devices import usable_device
from crossdraft.engine.fast.packed_linear import has_bf16, prepack
from crossdraft.engine.fast.quantized_linear import bytes_saved, check_quantization, quantize_layers
from crossdraft.engine.fast.unused_layers import pass_unread
from crossdraft.engine.generation import read_defaults, read_file
from crossdraft.engine.prompt import LazyFeatures, Prompt, PromptIds, known_ids
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.engine.traits import refuse_recurrent
from crossdraft.errors import CrossdraftError
from crossdraft.files import fingerprint
from crossdraft.video.clip import FrameSampling
from crossdraft.video.inputs import image_spec
from crossdraft.video.spec import FrameSpec, image_settings, video_settings
from crossdraft.video_prompt import VideoPrompt, text_of

if TYPE_CHECKING:
    from crossdraft.models.eventgpt import EventGPTProcessor

BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")  # how SentencePiece spells a byte that has no other token


@dataclass(frozen=True)
class Reduction:
    """Holds less of a model's weights than all of them as they are stored, and at no time more.

    Args:
        apply: changes a model layer by layer; what it is handed second reads the weights of a layer.
        saved: bytes of a model's weights that are given up so; it may be on the `meta` device.
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
) -> Target:
    """A video VLM as a target.

    Args:
        source: `reference`, or the folder of a Hugging Face checkpoint (safetensors) of a supported class.
        device, dtype: default CUDA and bfloat16 if there is a GPU, else CPU and float32.
        packed: make it faster, for inference alone: on a CPU keep the linear layers in the layout that its kernels read
            fastest (`engine.fast.packed_linear`), and leave out the layers of its vision encoder whose output is never
            read (`engine.fast.unused_layers`).
        num_frames, fps: how many frames of a clip it reads, or how many for each second; default what the checkpoint's
            video processor says, else 8 frames.
        quantize: `int8` or `int4`: hold the language model's weights in so many bits, on a CPU; its default dtype is
            then bfloat16. See `engine.fast.quantized_linear`.
        device_map: instead of `device`: which of its layers are on which device, as in `from_pretrained`, by
            accelerate. Its layers are not packed.

    Raises:
        CrossdraftError: the folder lacks a file, a key or a shape differs, the class is not supported, or the device
            cannot be quantised for.
    """
    folder = _folder(source, TARGETS)
    if device_map is not None:
        kind = _video_class(folder)
        model = load_mapped(kind, folder, DTYPES[_usual_dtype(dtype)], device_map).eval()
        return _target(folder, model, num_frames, fps, packed=False)
    model = _video_model(folder, device, dtype, packed=packed, quantize=quantize)
    return _target(folder, model, num_frames, fps, packed=packed)


def _video_model(
    folder: Path, device: str | None, dtype: str | None, *, packed: bool, quantize: str | None
) -> PreTrainedModel:
    return _model(_video_class(folder), folder, device, dtype, packed=packed, quantize=quantize)


def _video_class(folder: Path) -> Any:
    """The class of a checkpoint that can be a target."""
    kind = target_class(folder)
    read_defaults(read_file(folder), str(folder))  # refused before gigabytes are read
    return getattr(transformers, kind)


def _usual_dtype(dtype: str | None) -> str:
    return dtype_name(dtype or ("bfloat16" if torch.cuda.is_available() else "float32"))


def _target(
    folder: Path, model: PreTrainedModel, num_frames: int | None = None, fps: float | None = None, *, packed: bool
) -> Target:
    spec, sampling = frame_settings(*video_settings(folder))
    where, settings = image_settings(folder) or (folder, None)
    stills = image_spec(model.config, settings, where)
    return _adapter(model, _tokenizer(folder), spec, sampling.instead(num_frames, fps), stills, packed=packed)


def load_embeddings(
    source: str = "reference", device: str | None = None, dtype: str | None = None
) -> tuple[Tensor, Tensor]:
    """The input and output embeddings [V, H] of a target, of which nothing else is read.

    Args:
        source, device, dtype: as in `load_target`.

    Raises:
        CrossdraftError: as `load_target`.
    """
    model, _ = _with_embeddings(source, device, dtype)
    layers = model.get_input_embeddings(), model.get_output_embeddings()
    return layers[0].weight.detach(), layers[1].weight.detach()


@dataclass(frozen=True)
class OutputHead:
    """A target's output head: its output embeddings [V, H], and the ids among them that are no text."""

    weight: Tensor
    reserved: frozenset[int]


def load_output_head(source: str = "reference", device: str | None = None, dtype: str | None = None) -> OutputHead:
    """The output embeddings of a target, of which little else is read; arguments and errors as `load_embeddings`."""
    model, folder = _with_embeddings(source, device, dtype)
    return OutputHead(model.get_output_embeddings().weight.detach(), frozenset(_reserved(model, _tokenizer(folder))))


def _with_embeddings(source: str, device: str | None, dtype: str | None) -> tuple[Any, Path]:
    """A target whose embeddings alone are read, and its folder."""
    folder = _folder(source, TARGETS)
    where, kind = usable_device(device or None, "device"), _video_class(folder)
    loaded, fill = load_weights(kind, folder, DTYPES[_usual_dtype(dtype)], where, _all_but_embeddings)
    model: Any = loaded
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        fill(layer)
        layer.to(where)
    return model, folder


def _all_but_embeddings(model: PreTrainedModel) -> int:
    """Bytes of a model's other weights."""
    kept = {id(cast("Any", layer).weight) for layer in (model.get_input_embeddings(), model.get_output_embeddings())}
    return sum(weight.numel() * weight.element_size() for weight in model.parameters() if id(weight) not in kept)


def adapt_model(
    model: PreTrainedModel,
    processor: ProcessorMixin | PreTrainedTokenizerBase,
    num_frames: int | None = None,
    fps: float | None = None,
    *,
    packed: bool = False,
) -> Target:
    """A video VLM that is loaded already, as a target; the model stays as it is, unless it may be packed.

    Args:
        model: of a supported class, in eval mode, with sdpa or eager attention, on the device where it is to run.
        processor: its processor; or its tokenizer, then frames are made as the model's family usually wants them.
        num_frames, fps, packed: as in `load_target`; packing changes the model for good.

    Raises:
        CrossdraftError: the model is none of these, is in training mode, or the processor does not fit.
    """
    check_model(model)
    tokenizer, settings = parts(processor)
    spec, sampling = frame_settings("The processor", settings) if settings else (None, FrameSampling())
    pixels: Any = getattr(processor, "image_processor", None)
    stills = image_spec(model.config, None if pixels is None else pixels.to_dict())
    return _adapter(model, tokenizer, spec, sampling.instead(num_frames, fps), stills, packed=packed)


def _adapter(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    spec: FrameSpec | None,
    sampling: FrameSampling,
    stills: FrameSpec,
    *,
    packed: bool,
) -> Target:
    check_tokenizer(tokenizer, model)
    if packed:
        pass_unread(model)
        prepack(model)
    where = model.name_or_path or type(model).__name__
    defaults = read_defaults(vars(model.generation_config), where, model.config.get_text_config().vocab_size)
    prepare = VideoPrompt(model, tokenizer, spec, sampling, stills)
    eos, reserved = _eos(model, tokenizer), _reserved(model, tokenizer)
    return Target(model, prepare, _text(tokenizer), eos, reserved, defaults)


def load_drafter(
    source: str,
    device: str | None = None,
    dtype: str | None = None,
    banned: Sequence[int] = (),
    vocabulary: dict[str, int] | None = None,
    *,
    packed: bool = True,
    quantize: str | None = None,
) -> IndependentDrafter:
    """An EventGPT as an independent drafter.

    Args:
        source: `event`, `blind` or `foreign` of the reference pair, or the folder of an EventGPT. If it holds a
            `draft_ids.json`, a list of token ids, only these are drafted; see `drafters.short_head`.
        device, packed, quantize: as in `load_target`.
        dtype: default bfloat16, but float32 on a CPU that does not multiply bfloat16 itself.
        banned: ids that must never be drafted.
        vocabulary: the target's tokens and ids; every token that the drafter can write must be one of them, at the same
            id. Its own placeholders and other special tokens are never drafted, and may stand anywhere.

    Raises:
        CrossdraftError: as `load_target`, or the vocabularies differ.
    """
    model, tokenizer, folder = _event_model(source, device, dtype, packed=packed, quantize=quantize)
    if vocabulary is not None:
        _check_vocabulary(_sayable(model.model, tokenizer), vocabulary, folder)
    return IndependentDrafter(model, banned)


def load_event_drafter(
    source: str,
    target: Callable[[], TokenTable],
    vocabulary: dict[str, int],
    banned: Sequence[int] = (),
    how: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    *,
    packed: bool = True,
    quantize: str | None = None,
    slices: int | None = None,
    patches: int | None = None,
) -> IndependentDrafter | CrossVocabDrafter:
    """An EventGPT as an independent drafter, of the target's vocabulary or another.

    Args:
        source, vocabulary, banned, device, dtype, packed, quantize: as in `load_drafter`.
        target: reads what the target's tokens spell; called where the vocabularies differ or `how` is given.
        how: as in `load_model_drafter`.
        slices, patches: read whole recordings, as so many windows; see `drafters.recordings`.

    Raises:
        CrossdraftError: as `load_target`, or `tli` is asked for and no token is shared.
    """
    model, tokenizer, _ = _event_model(source, device, dtype, packed=packed, quantize=quantize)
    if slices is not None:
        prompt = RecordingPrompt(cast("EventPrompt", model.prepare).processor, slices, patches)
        model = RecordingTarget(model.model, prompt, model.text, tuple(model.eos), tuple(model.reserved))
    if how is None and not _differing(_sayable(model.model, tokenizer), vocabulary):
        return IndependentDrafter(model, banned)
    own = read_token_table(tokenizer, model.vocab_size, tuple(model.eos), tuple(model.reserved))
    return cross_vocab_drafter(model, own, target(), how or "slem")


def _event_model(
    source: str,
    device: str | None,
    dtype: str | None,
    *,
    packed: bool,
    quantize: str | None,
    learns: bool = False,
    reduction: Reduction | None = None,
) -> tuple[Target, PreTrainedTokenizerBase, Path]:
    """An EventGPT behind the adapter, its tokenizer and its folder; one that `learns` has its whole head."""
    from crossdraft.models.eventgpt import EventGPTForConditionalGeneration, EventGPTProcessor

    folder = check_event_model(source)
    ids, dtype = None if learns else read_ids(folder), dtype or _draft_dtype(device)
    kind = EventGPTForConditionalGeneration
    model = _model(kind, folder, device, dtype, packed=packed, quantize=quantize, ids=ids, reduction=reduction)
    processor = EventGPTProcessor.from_pretrained(folder)
    tokenizer = processor.tokenizer
    eos, reserved = _eos(model, tokenizer), _reserved(model, tokenizer)
    return Target(model, EventPrompt(processor), _text(tokenizer), eos, reserved), tokenizer, folder


def load_event_learner(
    source: str, device: str | None = None, dtype: str | None = None, reduction: Reduction | None = None
) -> Target:
    """An EventGPT behind the adapter, with its whole head, its layers as they are: to be trained.

    Args:
        source, device: as in `load_drafter`.
        dtype: default float32.
        reduction: of its weights, which are then never all in memory.

    Raises:
        CrossdraftError: as `load_drafter`.
    """
    dtype = dtype or "float32"
    return _event_model(source, device, dtype, packed=False, quantize=None, learns=True, reduction=reduction)[0]


def load_model_drafter(
    source: str,
    target: TokenTable,
    how: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    *,
    packed: bool = True,
    quantize: str | None = None,
) -> IndependentDrafter | CrossVocabDrafter:
    """A causal language model or a video VLM as an independent drafter, of the target's vocabulary or another.

    Args:
        source: `text` of the reference pair, or the folder of a Hugging Face checkpoint (safetensors).
        target: the target's vocabulary.
        how: `slem`, `tli` or `omni`, see `drafters.cross_vocab`; default none where the vocabularies are the same, else
            `slem`.
        device, dtype, packed, quantize: as in `load_drafter`.

    Raises:
        CrossdraftError: as `load_target`, or the model cannot draft.
    """
    folder, dtype = _folder(source, ("text",)), dtype or _draft_dtype(device)
    sees = read_config(folder).get("model_type") not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    tokenizer = _tokenizer(folder)
    if sees:
        model = load_target(str(folder), device, dtype, packed=packed, quantize=quantize)
    else:
        network = _model(AutoModelForCausalLM, folder, device, dtype, packed=packed, quantize=quantize)
        decode, eos = _text(tokenizer), _eos(network, tokenizer)
        model = text_model(network, TextPrompt(tokenizer), decode, eos, _reserved(network, tokenizer))
    own = read_token_table(tokenizer, model.vocab_size, tuple(model.eos), tuple(model.reserved))
    same = bool(set(own.ids) & set(target.ids)) and map_vocabularies(own, target).identity
    if how is None and same:
        banned = [i for i, text in enumerate(target.token_bytes) if text is None and i not in target.eos]
        return IndependentDrafter(model, banned, sees=sees)
    return cross_vocab_drafter(model, own, target, how or "slem", sees=sees)


def _draft_dtype(device: str | None) -> str | None:
    """Default dtype of a drafter: bfloat16 on a CPU that multiplies it, since drafts need not be exact."""
    where = usable_device(device or None, "device")
    return "bfloat16" if where.type == "cpu" and has_bf16() else None


def event_folder(source: str) -> Path:
    """The folder of an event model; `source` as in `load_drafter`."""
    return _folder(source, EVENT_MODELS)


def text_folder(source: str) -> Path:
    """The folder of a language model: `text` of the reference pair, or a folder."""
    return _folder(source, ("text",))


def event_fingerprint(source: str) -> str:
    """The fingerprint of an event model's weights: `source` as in `load_drafter`; see `fingerprint`."""
    return fingerprint(event_folder(source))


def target_folder(source: str) -> Path:
    """The folder of a target; `source` as in `load_target`."""
    return _folder(source, TARGETS)


def target_fingerprint(source: str) -> str:
    """The fingerprint of a target's weights: `reference`, or the folder of a checkpoint; see `fingerprint`."""
    return fingerprint(target_folder(source))


def tokenizer_of(source: str) -> PreTrainedTokenizerBase:
    """A target's tokenizer."""
    return _tokenizer(_folder(source, TARGETS))


def text_reader(source: str, reserved: Collection[int]) -> Callable[[Request], PromptIds]:
    """A target's prompts for drafters of text that are not beside it: of its configuration and tokenizer alone.

    Args:
        source: as in `load_target`.
        reserved: ids of the target that are no text.

    Raises:
        CrossdraftError: the folder lacks a file, or the class is not supported.
    """
    folder = _folder(source, TARGETS)
    config, tokenizer = _video_class(folder).config_class.from_pretrained(folder), _tokenizer(folder)
    return lambda request: known_ids(text_of(config, tokenizer, reserved, request))


def check_event_drafter(source: str, target: str) -> None:
    """Raise CrossdraftError unless it is an EventGPT that writes the target's vocabulary; only tokenizers are read.

    Args:
        source: as in `load_drafter`.
        target: as in `load_target`.
    """
    folder = check_event_model(source)
    tokenizer = _tokenizer(folder)
    end: Any = tokenizer.eos_token_id
    placeholders = _special(tokenizer) - {end}
    own = {token: i for token, i in tokenizer.get_vocab().items() if i not in placeholders}
    _check_vocabulary(own, vocabulary_of(target), folder)


def vocabulary_of(source: str) -> dict[str, int]:
    """Tokens and ids of a target's tokenizer."""
    return tokenizer_of(source).get_vocab()


@dataclass(frozen=True)
class EventPrompt:
    """Turns a request into the inputs of an EventGPT. A text-only control gets blank frames.

    Of a recording only the window that the model was made for is read (`EventGPTProcessor.window`), from its end; an
    `Excerpt` says otherwise.
    """

    processor: "EventGPTProcessor"

    def __call__(self, request: Request) -> Prompt:
        ids = torch.tensor(self.processor.prompt_ids(request.question))

        def pixels() -> dict[str, Tensor]:
            window = self._blank() if self.processor.options.blind else self._window(request)
            return {PIXELS: self.processor.pixels(window)[None]}

        return Prompt(ids, LazyFeatures({}, (PIXELS,), pixels) if request.known else pixels())

    def _window(self, request: Request) -> Any:
        from crossdraft.events import Events, Excerpt

        events, size = request.events, self.processor.window
        if events is None:
            raise CrossdraftError(
                "The request has no event recording (`events`), which the drafter reads; give one, or name a "
                "drafter that needs none, such as union:memory,ngram."
            )
        if isinstance(events, str | Path):
            events = Excerpt(Path(events))
        if isinstance(events, Excerpt):
            return events.read_windows(size)
        if isinstance(events, Events):
            return size.of(events)
        if not isinstance(events, np.ndarray | Tensor):
            raise CrossdraftError(
                f"The event recording (`events`) is of type {type(events).__name__}; give a path, "
                "an Excerpt, Events, or frames."
            )
        return events

    def _blank(self) -> Tensor:
        size = self.processor.config.vision_config.image_size
        return torch.full((self.processor.config.num_event_frames, size, size, 3), 255, dtype=torch.uint8)


def _folder(source: str, shipped: Sequence[str]) -> Path:
    """The folder of a name, path or repository, checked for what every checkpoint needs."""
    folder = shipped_or_found(source, shipped)
    check_files(folder)
    config = read_config(folder)
    text = config.get("text_config")
    layers = (text if isinstance(text, dict) else config).get("layer_types")
    refuse_recurrent(f"The checkpoint {folder}", layers if isinstance(layers, list) else ())  # before it is read
    return folder


def _model(
    kind: Any,
    folder: Path,
    device: str | None,
    dtype: str | None,
    *,
    packed: bool,
    quantize: str | None,
    ids: Sequence[int] | None = None,
    reduction: Reduction | None = None,
) -> PreTrainedModel:
    """Load strictly: nothing missing, nothing left over, no shape changed; with a head for `ids` alone, if given."""
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
    if ids is not None:
        fill(model.lm_head)
        model.lm_head = ShortHead(model.lm_head, ids)
    if quantize is not None:
        quantize_layers(model, quantize, fill)
    if packed and where.type == "cpu":
        prepack(model, fill)  # layer by layer, each read just before
    fill(model)
    return (model if stored else model.to(where)).eval()  # a library that quantised moves its model itself


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except LIBRARY_ERRORS as error:
        never = " (a checkpoint's own code is never run)" if "custom code" in str(error) else ""
        raise CrossdraftError(
            f"The tokenizer in {folder} cannot be loaded{never}: {first_line(error)}; {repair_hint(folder)}."
        ) from error


def _text(tokenizer: PreTrainedTokenizerBase) -> TokenText:
    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True))

    added = tokenizer.added_tokens_decoder
    special = {token: str(found) for token, found in added.items() if found.special}
    byte_fallback = (token for piece, token in tokenizer.get_vocab().items() if BYTE.fullmatch(piece))
    return TokenText(decode, special, frozenset(byte_fallback), token_speller(tokenizer))


def _eos(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids that end an answer, from the generation config, else the tokenizer."""
    ids: Any = getattr(model.generation_config, "eos_token_id", None)
    ids = tokenizer.eos_token_id if ids is None else ids
    return (ids,) if isinstance(ids, int) else tuple(ids or ())


def _reserved(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    return reserved_ids(tokenizer, model.config.get_text_config().vocab_size, _eos(model, tokenizer))


def reserved_ids(tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos: Sequence[int]) -> tuple[int, ...]:
    """Ids that are no text: special tokens other than the end, and rows of the head that no token has."""
    padded = range(len(tokenizer), vocab_size)
    return (*sorted(_special(tokenizer) - {*eos, *padded}), *padded)


def _special(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Ids of special tokens."""
    # A token may be marked as special without standing among the tokenizer's named ones: EventGPT's `<event>` does.
    marked = {token for token, found in tokenizer.added_tokens_decoder.items() if found.special}
    return {*tokenizer.all_special_ids} | marked


def _sayable(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The tokens that a model can write as text, and the end: all but what is reserved."""
    reserved = set(_reserved(model, tokenizer))
    return {token: i for token, i in tokenizer.get_vocab().items() if i not in reserved}


def _check_vocabulary(drafter: dict[str, int], target: dict[str, int], folder: Path) -> None:
    """Every token that the drafter can write must have the same id in the target."""
    differing = _differing(drafter, target)
    if differing:
        raise CrossdraftError(
            f"The drafter {folder} has another vocabulary than the target: {len(differing)} of its {len(drafter)} "
            f"tokens differ, '{differing[0]}' for one; name a drafter that fits every target, such as "
            "union:memory,ngram, an event model by itself (event:dir=FOLDER), or pair models that share a tokenizer."
        )


def _differing(drafter: dict[str, int], target: dict[str, int]) -> list[str]:
    """The tokens of a drafter that are not the target's at the same id."""
    return [token for token, i in drafter.items() if target.get(token) != i]
