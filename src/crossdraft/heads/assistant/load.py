"""Loads an assistant for its target."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedModel

from crossdraft.checkpoints.files import read_config, stored_tensors
from crossdraft.checkpoints.reader import read
from crossdraft.checkpoints.weights import LIBRARY_ERRORS, first_line
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.assistant import BLOCKS
from crossdraft.heads.assistant.drafter import AssistantDrafter
from crossdraft.heads.assistant.network import AssistantHead, Clusters
from crossdraft.heads.drafting.block import BlockDrafter
from crossdraft.heads.drafting.head_drafter import TREES, HeadDrafter
from crossdraft.heads.networks.base import HeadConfig, SharedWeights
from crossdraft.heads.networks.dflash import DFlash, DFlashConfig

TIED = "lm_head.weight"  # the decoder's own embeddings once more
ENCODER = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}


@torch.inference_mode()
def load_assistant(host: Target, folder: Path, tree: str = "dynamic", banned: Sequence[int] = ()) -> HeadDrafter[Any]:
    """Load an assistant, in the target's dtype and on its device, and run it once on the target's keys or features.

    Args:
        host: the target, in whose process it runs.
        folder: the assistant's checkpoint.
        tree: one of `TREES`.
        banned: ids that must never be drafted.

    Raises:
        CrossdraftError: an unknown tree; weights that do not fit the configuration; or another target's assistant.
    """
    if tree not in TREES:
        raise CrossdraftError(f"Unknown tree '{tree}'; choose one of {', '.join(TREES)}.")
    kind, own = read_config(folder)["model_type"], host.model.config.model_type
    if own.removesuffix("_text") != (family := kind.removesuffix("_assistant")):
        raise CrossdraftError(
            f"The assistant in {folder} drafts for models of type '{family}', and this target is of type '{own}'; take "
            "the assistant of this checkpoint."
        )
    try:
        if kind == BLOCKS:
            return BlockDrafter(_made_blocks(host, folder), TREES[tree], sorted(host.eos), banned)
        head = _made(host, folder)
    except LIBRARY_ERRORS as error:
        raise CrossdraftError(
            f"The assistant in {folder} cannot be loaded: {first_line(error)}; take configuration and weights from one "
            "checkpoint."
        ) from error
    drafter = AssistantDrafter(head, TREES[tree], sorted(host.eos), banned)
    try:
        _try(host, head)
    except (RuntimeError, ValueError, LookupError) as error:
        raise CrossdraftError(
            f"The assistant in {folder} cannot attend to the keys of {type(host.model).__name__}, which are of another "
            "shape; take the assistant of this checkpoint."
        ) from error
    return drafter


def _made(host: Target, folder: Path) -> AssistantHead:
    """Make the network, with its weights."""
    whole: Any = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    config, size = whole.get_text_config(), host.text_config.hidden_size
    if (whole.backbone_hidden_size, config.vocab_size) != (size, host.vocab_size):
        raise ValueError(
            f"it is for a target of {whole.backbone_hidden_size} features and {config.vocab_size} tokens, and this one "
            f"has {size} and {host.vocab_size}"
        )
    kept = _kept_layers(host)
    kinds = dict.fromkeys(config.layer_types)
    if lacking := [kind for kind in kinds if kind not in kept]:
        raise ValueError(f"it attends to layers of the type {lacking[0]}, of which the target has none")
    clusters = None
    if whole.use_ordered_embeddings:
        count, top = whole.num_centroids, whole.centroid_intermediate_top_k
        clusters = Clusters(config.hidden_size, config.vocab_size, count, top)
    ids = tuple(range(host.vocab_size))
    layers = host.text_config.num_hidden_layers
    sizes = HeadConfig(hidden_size=size, vocab_size=len(ids), num_layers=layers, draft_ids=ids)
    embedder: Any = host.model.get_input_embeddings()
    head = AssistantHead(sizes, borrowing_decoder(config), embedder, {kind: kept[kind] for kind in kinds}, clusters)
    weights = {name: read(tensor) for name, tensor in stored_tensors(folder).items() if name != TIED}
    _fill(head, weights)
    return head.to(host.device, host.model.dtype).eval()


def _made_blocks(host: Target, folder: Path) -> DFlash:
    """Make a Muse Glimmer's DFlash, with its weights; it reads the embeddings without the norm that the target adds."""
    theirs: Any = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    rope, shared = theirs.rope_parameters, SharedWeights.of(host.model)
    if theirs.hidden_size != shared.embeddings.shape[1]:
        raise ValueError(
            f"it is for a target of {theirs.hidden_size} features, and this one has {shared.embeddings.shape[1]}"
        )
    if rope["rope_type"] != "default" or theirs.hidden_act != "silu":
        raise ValueError(f"its rope_type {rope['rope_type']} or hidden_act {theirs.hidden_act} is not known")
    config = DFlashConfig(
        hidden_size=theirs.hidden_size,
        vocab_size=host.vocab_size,
        num_layers=host.text_config.num_hidden_layers,
        draft_ids=tuple(range(host.vocab_size)),
        heads=theirs.num_attention_heads,
        kv_heads=theirs.num_key_value_heads,
        head_dim=theirs.head_dim,
        intermediate_size=theirs.intermediate_size,
        rope_theta=rope["rope_theta"],
        max_positions=theirs.max_position_embeddings,
        eps=theirs.rms_norm_eps,
        steps=theirs.block_size - 1,
        layers=theirs.num_hidden_layers,
        read_layers=tuple(layer + 1 for layer in theirs.target_layer_ids),
        mask_token=theirs.mask_token_id,
        windows=tuple(theirs.sliding_window + 1 if "sliding" in kind else 0 for kind in theirs.layer_types),
        whole_prompt=True,
    )
    head = DFlash(config, shared).to(host.device, host.model.dtype)
    del head.lm_head
    weights = {ENCODER.get(name, name): read(tensor) for name, tensor in stored_tensors(folder).items()}
    _fill(head, weights)
    output: Any = host.model.get_output_embeddings()
    head.lm_head = output
    return head.eval()


def _fill(head: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load the weights of an assistant; a ValueError names one that does not fit."""
    own = head.state_dict()
    wrong = sorted(own.keys() ^ weights.keys()) or [name for name in own if own[name].shape != weights[name].shape]
    if wrong:
        raise ValueError(f"its '{wrong[0]}' is missing, left over or of another shape ({len(wrong)} such)")
    head.load_state_dict(weights)


def borrowing_decoder(config: Any) -> PreTrainedModel:
    """The decoder of a configuration, all of whose layers borrow their keys.

    transformers 5.23 builds none: `kv_sharing_modes` refuses a model in which no layer keeps keys of its own.
    """
    kind: Any = type(config)
    modes = property(lambda own: ["reuse"] * own.num_hidden_layers)
    config.__class__ = type(kind.__name__, (kind,), {"kv_sharing_modes": modes})
    config._attn_implementation = "sdpa"
    classes: Any = AutoModel._model_mapping  # noqa: SLF001 - the class of the decoder, by its configuration's
    return classes[kind](config)


def _kept_layers(host: Target) -> dict[str, int]:
    """The last layer of each type that keeps keys of its own."""
    text = host.text_config
    kinds: list[str] = getattr(text, "layer_types", None) or []
    own = len(kinds) - (getattr(text, "num_kv_shared_layers", 0) or 0)
    return {kind: layer for layer, kind in enumerate(kinds[:own])}


def _try(host: Target, head: AssistantHead) -> None:
    """Draft behind two siblings, so that another target's assistant fails now."""
    cache = host.new_cache()
    cache.add_row(2)
    layer = head.config.num_layers
    out = host.extend(cache, [PassRow(0, Chunk(torch.zeros(2, dtype=torch.long)), capture=(layer,))])
    kept = cache.row_views(0, [*head.kv_layers.values()])
    shared = {kind: (kept[one][0][None], kept[one][1][None]) for kind, one in head.kv_layers.items()}
    head.step(torch.zeros(1, 2, dtype=torch.long, device=host.device), out.hidden[0][0][None], shared, 2)
