"""Comparison of a checkpoint's weights with its configuration, by name and shape, before any weight is read.

The model is built on the `meta` device, which allocates nothing, and the names in the files are rewritten by
transformers' own rules for older layouts. So what does not fit costs no more than reading the files' headers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, GenerationConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.quantizers.auto import AutoHfQuantizer
from transformers.utils import is_accelerate_available
from transformers.utils import logging as hf_logging
from transformers.utils.loading_report import LoadStateDictInfo

from crossdraft.checkpoints.files import StoredTensor, quantised_error, quantization_method, read_config, stored_tensors
from crossdraft.checkpoints.memory import check_memory
from crossdraft.checkpoints.mtp import mtp_names
from crossdraft.checkpoints.reader import STORED, DeferredWeights
from crossdraft.checkpoints.shrunk import built
from crossdraft.errors import CrossdraftError

# What transformers may raise on a checkpoint that is damaged, or needs a package that is not there.
LIBRARY_ERRORS = (
    OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, ImportError, ArithmeticError,
    AssertionError, MemoryError, StrictDataclassError, SafetensorError,
)  # fmt: skip

LONGEST = 200  # letters of a library's error that are shown

Fill = Callable[[nn.Module], None]
"""Reads the weights of a module that are still in their files."""


Settings = dict[str, Any]  # of `from_pretrained`
DeviceMap = str | Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of a checkpoint's tensors with those of its model.

    Args:
        report: missing, unexpected and misshapen tensors, in the form of transformers' loading report.
        names: names in the files by the parameters' names in the model; `None` if some are merged from several.
        model: the model, without memory for its weights.
    """

    report: dict[str, Iterable[Any]]
    names: dict[str, str] | None
    model: PreTrainedModel


def load_weights(
    kind: Any,
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    saved: Callable[[PreTrainedModel], int] = lambda model: 0,
) -> tuple[PreTrainedModel, Fill]:
    """Load a model from its folder, with no tensor missing, left over or of another shape.

    Args:
        kind: the class to load, or an auto class.
        folder: as `files.check_files` has passed it.
        dtype: dtype of the weights in memory.
        device: where they shall be.
        saved: number of bytes of a model's weights that the caller gives up while the rest is read.

    Returns:
        The model, and a function that reads a module's weights. Call the function with the model last, to complete it;
        a caller that converts layers saves a second copy of the model by calling it layer by layer before.

    Raises:
        CrossdraftError: configuration and weights do not fit each other, the class, or the free memory.
    """
    with quiet():
        stored, method = stored_tensors(folder), quantization_method(read_config(folder))
        if method is not None:
            settings = _settings(dtype, _build(kind, folder, len(stored)))
            return _load_quantised(kind, folder, method, settings, device), _nothing
        found = _compare(kind, folder, stored)
        settings = _settings(dtype, found.model)
        refuse_misfit(folder, found.report)
        numbers = sum(parameter.numel() for parameter in found.model.parameters())
        check_memory(folder, numbers, saved(found.model), device, dtype)
        plain = found.names is not None and all(tensor.dtype in STORED for tensor in stored.values())
        try:
            if plain:
                deferred = DeferredWeights(stored, dtype, device)
                settings |= {"config": found.model.config, "state_dict": deferred.placeholders()}
                own: Any = type(found.model)  # an auto class takes no state dict
                model, report = own.from_pretrained(None, **settings)
                _name(model, folder)
                deferred.attach(model, found.names or {})
                fill = deferred.fill
            else:
                model, report = _from_folder(kind, folder, settings)
                fill = _nothing
        except LIBRARY_ERRORS as error:
            raise CrossdraftError(f"The checkpoint {folder} cannot be loaded: {first_line(error)}") from error
    refuse_misfit(folder, report)
    return model, fill


def _settings(dtype: torch.dtype, model: PreTrainedModel) -> Settings:
    """Arguments with which a model is loaded that was built without weights: misfits are reported, and refused here."""
    attention = model.config._attn_implementation
    return {
        "dtype": dtype, "output_loading_info": True, "attn_implementation": attention, "ignore_mismatched_sizes": True,
    }  # fmt: skip


def load_mapped(kind: Any, folder: Path, dtype: torch.dtype, device_map: DeviceMap) -> PreTrainedModel:
    """Load a model whose layers transformers and accelerate place on several devices; compare it as `load_weights`.

    Args:
        kind: the class to load.
        folder: as `files.check_files` has passed it.
        dtype: dtype of the weights in memory.
        device_map: devices of the layers, as `from_pretrained` takes them.

    Raises:
        CrossdraftError: accelerate is not installed, configuration and weights do not fit each other, or the map does
            not fit the model or the machine.
    """
    if not is_accelerate_available():
        raise CrossdraftError("device_map needs the package accelerate: pip install -e '.[gpus]' in the checkout.")
    if (method := quantization_method(read_config(folder))) is not None:
        raise CrossdraftError(f"{folder} is quantised ({method}), which device_map does not load; leave it out.")
    with quiet():
        found = _compare(kind, folder, stored_tensors(folder))
        refuse_misfit(folder, found.report)
        settings = _settings(dtype, found.model)
        try:
            model, report = _from_folder(kind, folder, settings | {"device_map": device_map})
        except LIBRARY_ERRORS as error:
            raise CrossdraftError(f"device_map={device_map!r} does not work here: {first_line(error)}.") from error
    refuse_misfit(folder, report)
    return model


def _load_quantised(kind: Any, folder: Path, method: str, settings: Settings, device: torch.device) -> PreTrainedModel:
    """Load a model whose weights are stored quantised, by transformers and the quantisation method's own library.

    Raises:
        CrossdraftError: the method is unknown, or its library is missing or cannot load the model on the device.
    """
    what = f"quantization_config: {method}"
    # transformers would load the weights of an unknown method as if they were not quantised.
    if not AutoHfQuantizer.supports_quant_method(read_config(folder)["quantization_config"]):
        raise quantised_error(folder, what, "which transformers does not know")
    where = {"device_map": {"": str(device)}} if is_accelerate_available() else {}
    try:
        model, report = _from_folder(kind, folder, settings | where)
    except LIBRARY_ERRORS as error:
        why = f"which cannot be loaded here ({first_line(error)})"
        raise quantised_error(folder, what, why) from error
    refuse_misfit(folder, report)
    return model


def _from_folder(kind: Any, folder: Path, settings: Settings) -> tuple[PreTrainedModel, dict[str, Iterable[Any]]]:
    return kind.from_pretrained(str(folder), local_files_only=True, use_safetensors=True, **settings)


def _name(model: Any, folder: Path) -> None:
    """Set what `from_pretrained` of a folder adds to a model besides the weights."""
    model.config.name_or_path = model.name_or_path = str(folder)
    if model.can_generate():
        own = (folder / "generation_config.json").is_file()
        where = {} if own else {"config_file_name": "config.json", "_from_model_config": True}
        model.generation_config = GenerationConfig.from_pretrained(str(folder), local_files_only=True, **where)


def _nothing(module: nn.Module) -> None:
    """Do nothing: the `Fill` of a model whose weights are all read already."""


def _compare(kind: Any, folder: Path, stored: Mapping[str, StoredTensor]) -> Comparison:
    """Compare names and shapes of a checkpoint's tensors with its model's.

    Raises:
        CrossdraftError: the configuration describes no model.
    """
    model = _build(kind, folder, len(stored))
    names: dict[str, str] = {}
    merged = False
    expected: dict[str, Any] = model.state_dict()
    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    mismatched: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
    report = LoadStateDictInfo(
        missing_keys=set(expected),
        unexpected_keys=set(),
        mismatched_keys=set(),
        error_msgs=[],
        conversion_errors={},
        skipped_pp_keys=set(),
    )
    for key, tensor in stored.items():
        name, pattern = rename_source_key(key, renamings, converters, model.base_model_prefix, expected)
        if name not in expected and key in expected:
            name = key
        if name not in expected:
            report.unexpected_keys.add(name)
            continue
        report.missing_keys.discard(name)
        if pattern is not None:  # merged or split from several: the loading itself will tell
            report.missing_keys.clear()
            merged = True
        elif tensor.shape != tuple(expected[name].shape):
            mismatched.append((name, tensor.shape, tuple(expected[name].shape)))
        else:
            names[name] = key
    report.missing_keys -= model.all_tied_weights_keys.keys()
    model._adjust_missing_and_unexpected_keys(report)  # noqa: SLF001 - the exceptions that the class makes
    differing = {
        "missing_keys": report.missing_keys,
        "unexpected_keys": report.unexpected_keys,
        "mismatched_keys": mismatched,
    }
    return Comparison(differing, None if merged else names, model)


def _build(kind: Any, folder: Path, stored: int) -> PreTrainedModel:
    """Build the model without memory for its weights; the folder holds `stored` tensors."""
    where = folder / "config.json"
    try:
        reader = getattr(kind, "config_class", None) or AutoConfig
        config: Any = reader.from_pretrained(str(folder), local_files_only=True)
        for part in (config.get_text_config(), getattr(config, "vision_config", None)):
            layers = getattr(part, "num_hidden_layers", None) or getattr(part, "depth", None) or 0
            if layers > stored:
                raise CrossdraftError(
                    f"{where} describes {layers} layers, but only {stored} tensors are stored; take both from one "
                    "checkpoint."
                )
        with torch.device("meta"):
            return built(kind, config)
    except LIBRARY_ERRORS as error:
        raise CrossdraftError(
            f"{where} describes no model that can be built: {first_line(error)}; take it from the checkpoint again."
        ) from error


def refuse_misfit(folder: Path, report: dict[str, Iterable[Any]]) -> None:
    """Raise CrossdraftError unless a loading report is empty."""
    mends = "take configuration and weights from one checkpoint"
    if "text_config" not in (config := read_config(folder)) and "hidden_size" not in config:
        mends = "config.json has no text_config, so that the class's own sizes stand; take it from the checkpoint again"
    for what, key in (
        ("has a wrong shape for", "mismatched_keys"),
        ("lacks", "missing_keys"),
        ("has an unknown", "unexpected_keys"),
    ):
        ours = {name for layer in mtp_names(map(str, report[key]), config) for name in layer.values()}
        found = sorted(set(report[key]) - ours, key=str)
        if found:
            first = found[0]
            if isinstance(first, tuple):
                name, stored, wanted = first
                first = f"{name}, {list(stored)} where config.json asks for {list(wanted)}"
            raise CrossdraftError(f"The checkpoint {folder} {what} {first} ({len(found)} such); {mends}.")


def first_line(error: BaseException) -> str:
    """The first line of a library's error that says something itself."""
    if isinstance(error, KeyError):
        return f"{error} is unknown or missing"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = next((line for line in lines if not line.endswith(":")), lines[0] if lines else "")
    if len(message) > LONGEST:  # its first sentence says what is wrong
        message = message.partition(". ")[0][:LONGEST]
    return message.rstrip(".:; ") or type(error).__name__


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' bars and reports: our own error says what matters."""
    bars, level = hf_logging.is_progress_bar_enabled(), hf_logging.get_verbosity()
    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()
