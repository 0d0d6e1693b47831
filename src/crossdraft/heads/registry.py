"""The table of heads: one record each, from which networks, drafters and the tables of methods are derived.

Importing this table needs no PyTorch; the classes that a record names are imported at first use.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossdraft.heads.networks.base import Head, HeadConfig


@dataclass(frozen=True)
class HeadRecord:
    """A head, or another method with the same network and weights.

    Args:
        network: its name in `config.json` and in recipes.
        model, drafter: module (below `crossdraft.heads`, unless `package` says otherwise) and class of the network, and
            of the drafter around it.
        summary: one line for the table of methods.
        paper: its source.
        tree: its default tree: one of `head_drafter.TREES`, or `STATIC`; empty = the drafter's own.
        weights: name of the shipped weights; default the method's own.
        sees: whether it reads the target's visual features.
        package: below `crossdraft`.
    """

    network: str
    model: str
    drafter: str = ""
    summary: str = ""
    paper: str = ""
    tree: str = ""
    weights: str | None = None
    sees: bool = False
    package: str = "heads"

    @property
    def network_class(self) -> "type[Head]":
        return _imported(self.package, self.model)

    @property
    def config_class(self) -> "type[HeadConfig]":
        return self.network_class.config_class

    @property
    def drafter_class(self) -> type[Any]:
        return _imported(self.package, self.drafter)


def _imported(package: str, path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"crossdraft.{package}.{module}"), name)


AUTOREGRESSIVE = "drafting.autoregressive.AutoregressiveDrafter"
BLOCK, RECURRENT = "drafting.block.BlockDrafter", "drafting.recurrent.RecurrentDrafter"
STATIC = "static"  # the best shape for the acceptance measured of the head, which is stored with the weights

HEADS: Mapping[str, HeadRecord] = {
    "eagle1": HeadRecord(
        "eagle", "networks.eagle.Eagle", AUTOREGRESSIVE,
        "extrapolates the target's last feature; a fixed tree", "EAGLE: Li 2024", STATIC, weights="eagle",
    ),
    "eagle2": HeadRecord(
        "eagle", "networks.eagle.Eagle", AUTOREGRESSIVE,
        "the same head with dynamic trees by its own probabilities", "EAGLE-2: Li 2024", "dynamic", weights="eagle",
    ),
    "eagle3": HeadRecord(
        "eagle3", "networks.eagle3.Eagle3", AUTOREGRESSIVE,
        "fuses three levels of the target; training-time test", "EAGLE-3: Li 2025", "dynamic",
    ),
    "griffin": HeadRecord(
        "griffin", "networks.griffin.Griffin", AUTOREGRESSIVE,
        "EAGLE-2 with token-guided fusion, and an output of its own for the next step", "GRIFFIN: Hu 2025", "dynamic",
    ),
    "glide": HeadRecord(
        "glide", "networks.glide.Glide", AUTOREGRESSIVE,
        "a small decoder that attends to the target's own keys and values", "GLIDE with a CaPE: Du 2024", "cape",
    ),
    "chimera": HeadRecord(
        "chimera", "networks.chimera.Chimera", AUTOREGRESSIVE,
        "a trigram encoder that attends to the target's last features", "Chimera: Zeng 2024", STATIC,
    ),
    "dream": HeadRecord(
        "dream", "networks.dream.Dream", AUTOREGRESSIVE,
        "EAGLE's layer and gated cross-attention to a middle layer of the target", "DREAM: Hu 2025", "dynamic",
    ),
    "dflash": HeadRecord(
        "dflash", "networks.dflash.DFlash", BLOCK,
        "a block of masked tokens in one pass, from several layers of the target", "DFlash: z-lab 2026", "chain",
    ),
    "hivis": HeadRecord(
        "hivis", "networks.eagle.HiViS", AUTOREGRESSIVE,
        "no visual tokens in the drafter; a learned embedding per draft step", "HiViS: Xie 2025", "dynamic",
    ),
    "vispec": HeadRecord(
        "vispec", "networks.vispec.ViSpec", AUTOREGRESSIVE,
        "the clip compressed to a few tokens, and a global visual vector in every row", "ViSpec: Kang 2025", "dynamic",
        sees=True,
    ),
    "eaglevlm": HeadRecord(
        "eaglevlm", "networks.specvlm.EagleVLM", AUTOREGRESSIVE,
        "EAGLE-2 that reads every visual token", "SpecVLM: Huang 2025", "dynamic", sees=True,
    ),
    "specvlm": HeadRecord(
        "specvlm", "networks.specvlm.SpecVLM", AUTOREGRESSIVE,
        "the same, after a compressor chosen for each question", "SpecVLM: Huang 2025", "dynamic", sees=True,
    ),
    "massv": HeadRecord(
        "massv", "networks.massv.MASSV", AUTOREGRESSIVE,
        "a small language model that sees through the target's vision encoder", "MASSV: Ganesan 2025", "chain",
        sees=True,
    ),
    "specllava": HeadRecord(
        "massv", "networks.massv.MASSV", AUTOREGRESSIVE,
        "the same small model with dynamic trees by its own probabilities", "Spec-LLaVA: Huo 2025", "dynamic",
        weights="massv", sees=True,
    ),
    "medusa": HeadRecord(
        "medusa", "networks.medusa.Medusa", RECURRENT,
        "one small head per future token, independent of the others", "Medusa-1: Cai 2024", STATIC,
    ),
    "hydra": HeadRecord(
        "hydra", "networks.medusa.Hydra", RECURRENT,
        "Medusa's heads, conditioned on the tokens drafted before", "Hydra: Ankner 2024", STATIC,
    ),
    "hydra++": HeadRecord(
        "hydra++", "networks.medusa.HydraPlus", RECURRENT,
        "deeper ones after a layer over all features of the text", "Hydra++: Ankner 2024", STATIC,
    ),
    "redrafter": HeadRecord(
        "redrafter", "networks.redrafter.ReDrafter", RECURRENT,
        "a small recurrent network with beam search", "ReDrafter: Cheng 2024", "beams",
    ),
}  # fmt: skip
"""Heads on the target's features, all with the drafters of `drafting`."""

OTHER_HEADS: Mapping[str, HeadRecord] = {
    record.network: record
    for record in (
        HeadRecord("event_medusa", "event_medusa.network.DrafterMedusa"),
        HeadRecord("fast", "fast.network.Fast"),
        HeadRecord("glance", "glance.network.Glance"),
        HeadRecord("pass", "pass_.network.LookaheadEmbeddings"),
    )
}
"""Heads with drafters of their own, each in its own folder: `methods.SHIPPED` has the rest of their records."""


def _adapter(name: str, model: str, summary: str, paper: str) -> HeadRecord:
    return HeadRecord(name, f"networks.{model}", "drafter.AlignedDrafter", summary, paper, package="align")


LEVELS = "the levels of xifan-zhang/EventGPT"
ADAPTERS: Mapping[str, HeadRecord] = {
    record.network: record
    for record in (
        _adapter("none", "pointwise.NoAdapter", "the drafter's feature padded with zeros: the control", "crossdraft"),
        _adapter("linear", "pointwise.LinearAdapter", "a linear map", "crossdraft"),
        _adapter("mlp", "pointwise.MLPAdapter", "a linear map and an inner layer beside it", "LLaVA 1.5: Liu 2023"),
        _adapter("l1", "pointwise.Bottleneck", "a residual bottleneck", LEVELS),
        _adapter("l2", "pointwise.Bottleneck", "three of them", LEVELS),
        _adapter("l3", "pointwise.Wide", "three wide blocks", LEVELS),
        _adapter("l4", "attention.AttentionAdapter", "a causal decoder layer", LEVELS),
        _adapter(
            "l4v", "visual.VisualAdapter", "l4 with cross-attention to the target's visual features",
            "ParallelPrefillAdapter of xifan-zhang/EventGPT",
        ),
        _adapter("l5", "attention.AutoregressiveAdapter", "l4 with positions, tokens and its own outputs", LEVELS),
        _adapter("b1", "fused.TargetAdapter", "l5 on the target's features alone: the ceiling", LEVELS),
        _adapter("l5f", "fused.GatedAdapter", "l5 on a gated mean of both models' features", LEVELS),
        _adapter("token", "token.TokenAdapter", "rewrites the drafter's own answer, token by token", LEVELS),
        _adapter("levels", "pointwise.FusedAdapter", "fuses several layers of the drafter", "EAGLE-3: Li 2025"),
    )
}  # fmt: skip
"""Adapters from a drafter's features to the target's, all with the drafter `aligned`."""

ANSWER_ADAPTERS: Mapping[str, HeadRecord] = {
    record.network: record
    for record in (
        _adapter(
            "token_projection", "own_answer.TokenProjection", "maps the drafter's i-th token to the target's i-th",
            "TokenProjection of xifan-zhang/EventGPT",
        ),
        _adapter(
            "logit_alignment", "own_answer.LogitAlignment", "an MLP of the drafter's largest logits at the i-th token",
            "LogitAlignment of xifan-zhang/EventGPT",
        ),
    )
}  # fmt: skip
"""Adapters from what a drafter says by itself, likewise."""

ALIGNED: Mapping[str, HeadRecord] = {**ADAPTERS, **ANSWER_ADAPTERS}


def _vision_adapter(name: str, model: str, summary: str, paper: str) -> HeadRecord:
    drafter = "predicted.PredictedPrefill"
    return HeadRecord(name, f"networks.vision.{model}", drafter, summary, paper, package="align")


VISION_ADAPTERS: Mapping[str, HeadRecord] = {
    record.network: record
    for record in (
        _vision_adapter("vision_linear", "LinearVision", "a mixture of patches and a linear map", "crossdraft"),
        _vision_adapter("vision_mlp", "MLPVision", "the same and an inner layer beside it", "LLaVA 1.5: Liu 2023"),
        _vision_adapter("vision_queries", "QueriesVision", "queries that attend to all patches", "BLIP-2: Li 2023"),
    )
}
"""Adapters from an event encoder to the target's visual tokens, all with the drafter `predicted`."""

PACKERS: Mapping[str, HeadRecord] = {
    "token_packer": HeadRecord("token_packer", "packer_network.TokenPacker", package="compression")
}
"""Networks that read the target's own vision encoder, each with the compression of its name."""

NETWORKS: Mapping[str, HeadRecord] = (
    {record.network: record for record in HEADS.values()} | OTHER_HEADS | ALIGNED | VISION_ADAPTERS | PACKERS
)


def heads_of_network(network: str) -> dict[str, HeadRecord]:
    """The methods of `HEADS` that draft with a network, by name."""
    return {name: record for name, record in HEADS.items() if record.network == network}


def weights_of(name: str) -> str:
    """The name of the shipped weights of a method; that of a method outside `HEADS` is its own."""
    record = HEADS.get(name)
    return (record.weights if record else None) or name
