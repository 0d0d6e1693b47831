"""Check a checkpoint's files before a model is built: present, whole, and of a supported kind."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

from crossdraft.checkpoints.locate import repair_hint
from crossdraft.errors import CrossdraftError
from crossdraft.files import parse_json
from crossdraft.video.classes import model_class

POINTER = b"version https://git-lfs"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MOST_HEADER = 100_000_000  # bytes; the limit of safetensors itself
BITS = (  # bits of a number, by safetensors' name of its dtype
    dict.fromkeys(("F64", "I64", "U64", "C64"), 64)
    | dict.fromkeys(("F32", "I32", "U32"), 32)
    | dict.fromkeys(("F16", "BF16", "I16", "U16"), 16)
    | dict.fromkeys(("BOOL", "I8", "U8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8)
    | {"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}
)
TEXT_ENDINGS = ("ForCausalLM", "LMHeadModel")  # of classes of text models
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: `bytes` of a safetensors file from `begin` on; `dtype` in the format's words, as `BF16`."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    bytes: int


ASSISTANT = "_assistant"  # ends the type of a model that drafts for one target alone


def check_files(folder: Path) -> None:
    """Refuse a folder that holds no checkpoint of a kind that is loaded. Reads no weights, only what describes them.

    Raises:
        CrossdraftError: a file is missing, cut off or a Git LFS pointer; the weights are an adapter's, pickled, or
            quantised in a way that nothing here reads.
    """
    config = read_config(folder)
    if (folder / "adapter_config.json").is_file():
        raise CrossdraftError(
            f"{folder} holds an adapter (adapter_config.json), which is not loaded by itself; merge it into its model "
            "(merge_and_unload in peft) and save that."
        )
    if config.get("network"):
        raise CrossdraftError(
            f"{folder} is no model: it is a head, which a drafter takes as its dir (METHOD:dir={folder})."
        )
    if str(config.get("model_type")).endswith(ASSISTANT):
        raise CrossdraftError(f"{folder} is a drafter's folder, an assistant's; it drafts as assistant:dir={folder}.")
    _refuse_quantised(folder, config)
    check_tokenizer(folder)
    stored_tensors(folder)


def read_config(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's `config.json`.

    Raises:
        CrossdraftError: the file is missing, or holds no JSON object.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise CrossdraftError(f"The checkpoint {folder} lacks config.json; {repair_hint(folder)}.")
    return _json_object(path, "configuration")


def target_class(folder: Path) -> str:
    """Name of the class in `transformers` that a target's checkpoint loads into.

    Raises:
        CrossdraftError: its type is unknown, or known not to work.
    """
    config = read_config(folder)
    kind, classes = config.get("model_type"), config.get("architectures")
    speaks = isinstance(classes, list) and any(str(one).endswith(TEXT_ENDINGS) for one in classes)
    return model_class(kind, text=speaks and not any(key.endswith("_config") and "vision" in key for key in config))


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """List every tensor of a checkpoint by name, from the headers of its safetensors files.

    Raises:
        CrossdraftError: a file is missing, cut off, a Git LFS pointer, or no safetensors file; or there are only
            pickled weights.
    """
    found: dict[str, StoredTensor] = {}
    for path in _weight_files(folder):
        found |= _tensors(path)
    return found


def quantization_method(config: Mapping[str, Any]) -> str | None:
    """The quantisation method of a checkpoint's weights, in transformers' word; None if they are not quantised."""
    found = config.get("quantization_config")
    method = found.get("quant_method") if isinstance(found, dict) else None
    return None if method is None else str(method)


def _refuse_quantised(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that says it is quantised in a way that transformers does not read from `config.json`."""
    text = config.get("text_config")
    parts = [config, text] if isinstance(text, dict) else [config]
    for part in parts:
        for key in ("quantization_config", "compression_config"):
            if part.get(key) is not None and not (part is config and quantization_method(config)):
                found = part[key]
                method = found.get("quant_method") if isinstance(found, dict) else None
                raise quantised_error(folder, f"{key}: {method or found}", "which is not supported")
    for name in ("quantize_config.json", "quant_config.json"):  # how GPTQ and AWQ once said it
        if (folder / name).is_file():
            raise quantised_error(folder, name, "which is not supported")


def quantised_error(folder: Path, method: str, why: str) -> CrossdraftError:
    """The error of a quantised checkpoint that is not loaded."""
    return CrossdraftError(
        f"The checkpoint {folder} is quantised ({method[:60]}), {why}; give the checkpoint in 16 or 32 bits that it "
        "was made from."
    )


def check_tokenizer(folder: Path) -> None:
    """Raise CrossdraftError unless a checkpoint's tokenizer is there and whole."""
    if not (folder / "tokenizer_config.json").is_file():
        raise CrossdraftError(f"The checkpoint {folder} lacks tokenizer_config.json; {repair_hint(folder)}.")
    _json_object(folder / "tokenizer_config.json", "configuration")
    if not any((folder / name).is_file() for name in VOCABULARIES):
        raise CrossdraftError(f"The checkpoint {folder} lacks its tokenizer (tokenizer.json); {repair_hint(folder)}.")
    path = folder / "tokenizer.json"
    if path.is_file():
        _refuse_pointer(path)
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16))
            if not file.read().rstrip().endswith(b"}"):
                raise CrossdraftError(f"The tokenizer {path} is empty or cut off; {repair_hint(folder)}.")


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold a checkpoint's weights; CrossdraftError if one is missing."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        shards = sorted(folder.glob("*.safetensors"))
        if shards:
            raise CrossdraftError(
                f"The checkpoint {folder} holds {shards[0].name} but lacks {INDEX}, which says what lies where; "
                f"{repair_hint(folder)}."
            )
        pickled = [path for end in ("*.bin", "*.pt", "*.pth") for path in sorted(folder.glob(end))]
        if pickled:
            raise CrossdraftError(
                f"The checkpoint {folder} lacks safetensors, and its {pickled[0].name} is not read, because pickled "
                "weights can run code; where you trust them, load them with transformers and save_pretrained them anew."
            )
        raise CrossdraftError(f"The checkpoint {folder} lacks its weights (model.safetensors); {repair_hint(folder)}.")
    found = _json_object(folder / INDEX, "index")
    listed = found.get("weight_map")
    if not isinstance(listed, dict) or not listed or "metadata" not in found:
        raise CrossdraftError(f"{folder / INDEX} is no index: it lacks weight_map or metadata; {repair_hint(folder)}.")
    names = sorted({str(name) for name in listed.values()})
    for name in names:
        if Path(name).name != name:
            raise CrossdraftError(
                f"{folder / INDEX} names {name!r}, which lies outside the folder; {repair_hint(folder)}."
            )
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CrossdraftError(
            f"The checkpoint {folder} lacks {missing[0]} ({len(missing)} of {len(names)} weight files are missing); "
            f"{repair_hint(folder)}."
        )
    return [folder / name for name in names]


def _tensors(path: Path) -> dict[str, StoredTensor]:
    """Read the tensors that the header of a safetensors file describes, checked as the format demands."""
    header, begin = _header(path)
    found: dict[str, StoredTensor] = {}
    for name, entry in header.items():
        if name != "__metadata__":
            try:
                first, end = map(index, entry["data_offsets"])
                shape = tuple(map(index, entry["shape"]))
                found[name] = StoredTensor(path, str(entry["dtype"]), shape, begin + first, end - first)
            except (KeyError, TypeError, ValueError) as error:
                raise CrossdraftError(
                    f"{path} has a header that is damaged: its entry of {name!r} lacks a dtype, shape or "
                    f"data_offsets; {repair_hint(path.parent)}."
                ) from error
    _check_spans(path, found, begin)
    return found


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file, and the byte at which the tensors begin."""
    _refuse_pointer(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(MOST_HEADER, size - 8):
            raise CrossdraftError(f"{path} is empty, cut off or no safetensors file; {repair_hint(path.parent)}.")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise CrossdraftError(f"{path} has a header that is damaged; {repair_hint(path.parent)}.") from error
    if not isinstance(header, dict):
        raise CrossdraftError(f"{path} has a header that is damaged; {repair_hint(path.parent)}.")
    return header, 8 + length


def _check_spans(path: Path, tensors: Mapping[str, StoredTensor], begin: int) -> None:
    """Refuse a file whose tensors are not as long as they say, do not follow each other, or do not fill it.

    A reader of such a file would get one tensor's numbers for another's, and no error.
    """
    end = begin
    for name, tensor in sorted(tensors.items(), key=lambda named: (named[1].begin, named[1].bytes)):
        bits = BITS.get(tensor.dtype)  # of a dtype that is unknown here, what reads it knows the length
        fits = tensor.bytes >= 0 and min(tensor.shape, default=0) >= 0
        if not fits or tensor.begin != end or (bits is not None and tensor.bytes * 8 != math.prod(tensor.shape) * bits):
            span = f"bytes {tensor.begin - begin} to {tensor.begin - begin + tensor.bytes}"
            raise CrossdraftError(
                f"{path} is damaged: its header puts {name!r}, {tensor.dtype} {list(tensor.shape)}, at {span}, which "
                f"is not its size or does not follow the tensor before it, which ends at {end - begin}; "
                f"{repair_hint(path.parent)}."
            )
        end += tensor.bytes
    if (size := path.stat().st_size) != end:
        raise CrossdraftError(
            f"{path} has {size} bytes where its header asks for {end}: it is cut off or damaged; "
            f"{repair_hint(path.parent)}."
        )


def _refuse_pointer(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise CrossdraftError(
                f"{path} is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`, or `hf download`."
            )


def _json_object(path: Path, what: str) -> dict[str, Any]:
    _refuse_pointer(path)
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CrossdraftError(f"{path} is not valid JSON: {str(error)[:100]}; {repair_hint(path.parent)}.") from error
    if not isinstance(found, dict):
        raise CrossdraftError(f"{path} is no {what}: it must hold a JSON object.")
    return found
