"""Arguments and results of converters (our head, its target, another project's config and tensors), and helpers.

Projects number hidden layers by one of two conventions:

    layer                 embeddings   0    1    2   …    L-1   final norm
    canonical (entering)  0            1    2    3   …    L-1   L           HF's `hidden_states[k]`
    output                -1           0    1    2   …    L-2   L-1

Our numbers are canonical, as are EAGLE's, vLLM's and speculators': the hidden state that *enters* layer k. SpecForge,
ModelOpt, SGLang's `eagle_config` and DFlash name a layer by its *output*, which enters the next layer. The numbers of
one tensor differ by one, and a head that reads the wrong tensor drafts nothing, without an error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.config_keys import agreed, value_at
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import HeadConfig, SharedWeights

Convention = Literal["entering", "output"]
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class TargetInfo:
    """The parts of a target that are needed to convert heads.

    Args:
        shared: the target's weights that heads use.
        num_layers: L, number of layers.
        sha256: hash of its weights, as our own files name it.
        name: hub id or path by which other programs find it; `None` leaves it to their own options.
        architectures: its class, as stated in its `config.json`.
        text_size: number of ids up to the last that is text; 0 = all are.
        visual_ids: ids that stand for what it is shown.
    """

    shared: SharedWeights
    num_layers: int
    sha256: str = ""
    name: str | None = None
    architectures: tuple[str, ...] = ()
    text_size: int = 0
    visual_ids: tuple[int, ...] = ()

    @property
    def vocab_size(self) -> int:
        return self.shared.embeddings.shape[0]

    @property
    def hidden_size(self) -> int:
        return self.shared.embeddings.shape[1]

    @property
    def sizes(self) -> dict[str, int]:
        """The target's sizes, as in every head's configuration."""
        return {"hidden_size": self.hidden_size, "vocab_size": self.vocab_size, "num_layers": self.num_layers}


@dataclass(frozen=True)
class NativeHead:
    """A head in the form of our files: its network's name in `NETWORKS`, its configuration, and its own weights."""

    network: str
    config: HeadConfig
    weights: Mapping[str, Tensor]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of all weights of the head."""
        return next(iter(self.weights.values())).dtype


@dataclass(frozen=True)
class ForeignHead:
    """A head in the form of another project's files; `notes` list settings that other programs don't take from them."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    notes: tuple[str, ...] = ()


def renamed(tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Rename tensors by `names`, whose keys must be exactly the tensors' names.

    Raises:
        CrossdraftError: a tensor is missing, unknown or of whole numbers; the message names it.
    """
    missing = [name for name in names if name not in tensors]
    unknown = [name for name in tensors if name not in names]
    if missing or unknown:
        fault = f"lacks '{missing[0]}'" if missing else f"has '{unknown[0]}', which we do not know"
        raise CrossdraftError(f"The checkpoint {fault} ({len(missing)} missing, {len(unknown)} unknown); is it whole?")
    for name in names:
        if tensors[name].dtype not in FLOATS:
            kind = str(tensors[name].dtype).removeprefix("torch.")
            raise CrossdraftError(
                f"The checkpoint's '{name}' is of {kind}: quantized weights are not read; take the head as it was "
                "before it was quantized."
            )
    return {ours: tensors[theirs] for theirs, ours in names.items()}


def without_embeddings(tensors: Mapping[str, Tensor], host: TargetInfo, *, trained: bool = False) -> dict[str, Tensor]:
    """Return the tensors without token embeddings that are the target's, and without rotary tables.

    Raises:
        CrossdraftError: the embeddings differ from the target's, and are not `trained`.
    """
    rest = {name: value for name, value in tensors.items() if not name.endswith("rotary_emb.inv_freq")}
    own = rest.pop("embed_tokens.weight", None)
    if own is None or alike(own, host.shared.embeddings):
        return rest
    if trained and own.shape[1:] == host.shared.embeddings.shape[1:]:
        return rest | {"embed_tokens.weight": with_rows(own, host.vocab_size)}
    raise CrossdraftError(
        "The checkpoint brings token embeddings that are not this target's; name the target it was made for."
    )


def alike(own: Tensor, theirs: Tensor) -> bool:
    """True if rows are the target's, as far as both have them: either may have padded rows.

    Stored in 16 bits, they equal the target's within rounding: 2^-8 for bfloat16.
    """
    rows, theirs = min(len(own), len(theirs)), theirs.detach().to("cpu", torch.float32)
    fits = own.shape[1:] == theirs.shape[1:]
    return fits and torch.allclose(own[:rows].float(), theirs[:rows], rtol=2**-7, atol=1e-6)


def with_rows(rows: Tensor, count: int) -> Tensor:
    """The first `count` rows of a table, or all of them and zeros."""
    return F.pad(rows[:count], (0, 0, 0, max(0, count - len(rows))))


def shared_ids(config: Mapping[str, Any], host: TargetInfo) -> int:
    """Number of ids that the vocabularies of a head and of its target share; one of both may be padded.

    Raises:
        CrossdraftError: the head's vocabulary lacks some of the target's text.
    """
    stated, text = number(config, "vocab_size"), host.text_size or host.vocab_size
    if stated < text:
        raise CrossdraftError(
            f"The head knows {stated} ids, and the target's text has {text}; name the target it was made for."
        )
    return min(stated, host.vocab_size)


THETA = ("rope_theta", "rope_parameters.rope_theta", "rope_scaling.rope_theta")


def decoder_settings(config: Mapping[str, Any], host: TargetInfo) -> dict[str, Any]:
    """Settings of foreign decoder layers under `DecoderConfig`'s names, with the target's sizes; defaults are Llama's.

    Args:
        config: the foreign config, checked against a table that holds `DECODER`.
        host: the target.

    Raises:
        CrossdraftError: a setting is missing, is no valid number, or contradicts another.
    """
    for key in ("hidden_size", "vocab_size"):  # the target's own sizes, which must be stated nevertheless
        number(config, key)
    heads = number(config, "num_attention_heads")
    return {
        **host.sizes,
        "heads": heads,
        "kv_heads": number(config, "num_key_value_heads", heads),
        "head_dim": number(config, "head_dim", host.hidden_size // heads),
        "intermediate_size": number(config, "intermediate_size"),
        "rope_theta": _positive("rope_theta", agreed({path: value_at(config, path) for path in THETA}), 10000.0),
        "max_positions": number(config, "max_position_embeddings", 2048),
        "eps": _positive("rms_norm_eps", config.get("rms_norm_eps"), 1e-6),
    }


def _positive(key: str, value: Any, default: float) -> float:
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise CrossdraftError(
            f"The checkpoint's config.json has {value!r} as '{key}', which must be a positive number."
        )
    return float(value)


def number(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """Read a positive whole number of a config; `default` if it is absent or null.

    Raises:
        CrossdraftError: it is absent and has no default, or is no positive whole number.
    """
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        fault = "lacks" if value is None else f"has {value!r} as"
        raise CrossdraftError(f"The checkpoint's config.json {fault} '{key}', which must be a positive whole number.")
    return value


def layers_of(value: Any, key: str) -> list[int]:
    """Read a list of layer numbers; null or empty = no layers are named.

    Raises:
        CrossdraftError: the value is no list of whole numbers.
    """
    if not isinstance(value or [], list) or not all(type(one) is int and one >= 0 for one in value or []):
        raise CrossdraftError(
            f"The checkpoint's config.json has {value!r} as '{key}', which must list layers' numbers."
        )
    return list(value or [])


def layer_numbers(layers: Sequence[int], source: Convention, wanted: Convention) -> list[int]:
    """Numbers of the same hidden states in the `wanted` convention.

    >>> layer_numbers([2, 16, 29], "entering", "output")
    [1, 15, 28]

    Raises:
        CrossdraftError: the embeddings have no number in the output convention.
    """
    shift = {"entering": 0, "output": 1}
    found = [layer + shift[source] - shift[wanted] for layer in layers]
    if any(layer < 0 for layer in found):
        raise CrossdraftError(
            f"Hidden states {list(layers)} have no number as layers' outputs: the embeddings are none."
        )
    return found


def draft_ids_of(tensors: Mapping[str, Tensor], count: int, vocab_size: int) -> tuple[int, ...]:
    """Read the ids of `count` LM-head rows from the maps `d2t`, `t2d`, or either; without a map, all of the target's.

    Raises:
        CrossdraftError: the maps disagree, or there is none and `count` is below the vocabulary's size.
    """
    offsets, drafted = tensors.get("d2t"), tensors.get("t2d")
    if offsets is None and drafted is None:
        if count != vocab_size:
            raise CrossdraftError(
                f"The head drafts {count} of {vocab_size} ids and neither 'd2t' nor 't2d' says which; export it whole."
            )
        return tuple(range(vocab_size))
    by_mask = None if drafted is None else drafted.bool().nonzero().flatten()
    if drafted is not None and len(drafted) != vocab_size:
        raise CrossdraftError(f"'t2d' is about {len(drafted)} ids, vocab_size says {vocab_size}.")
    by_offset = None if offsets is None else offsets.long() + torch.arange(len(offsets))
    ids = by_mask if by_offset is None else by_offset
    if ids is None or len(ids) != count:
        raise CrossdraftError(f"The vocabulary's map has {0 if ids is None else len(ids)} ids, not of {count}.")
    if by_mask is not None and by_offset is not None and not torch.equal(by_mask, by_offset):
        raise CrossdraftError(
            "'d2t' and 't2d' do not agree on the draft vocabulary; 'd2t' must hold offsets: target id = i + d2t[i]."
        )
    return tuple(ids.tolist())
