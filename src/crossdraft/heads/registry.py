"""The table of heads: one record each, from which networks, drafters and the tables of methods are derived.

Importing this table needs no PyTorch; the classes that a record names are imported at first use.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from crossdraft.plugins import Table

if TYPE_CHECKING:
    from crossdraft.heads.networks.base import Head, HeadConfig


@dataclass(frozen=True)
class HeadRecord:
    """A head, or another method with the same network and weights.

    Args:
        network: name of the network in `config.json` and in recipes.
        model, drafter: module (below `package`) and class of the network, and
            of the drafter around it.
        summary: one line for the table of methods.
        paper: its source.
        tree: its default tree: one of `head_drafter.TREES`, or `STATIC`; empty = the drafter's own.
        weights: name of the shipped weights; default the method's own.
        sees: true if the head reads the target's visual features.
        package: package of the modules.
    """

    network: str
    model: str
    drafter: str = ""
    summary: str = ""
    paper: str = ""
    tree: str = ""
    weights: str | None = None
    sees: bool = False
    package: str = "crossdraft.heads"

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
    return getattr(import_module(f"{package}.{module}"), name)


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
    "dflash": HeadRecord(
        "dflash", "networks.dflash.DFlash", BLOCK,
        "a block of masked tokens in one pass, from several layers of the target", "DFlash: z-lab 2026", "chain",
    ),
    "dspark": HeadRecord(
        "dspark", "networks.dspark.DSpark", BLOCK,
        "DFlash's block, and a bias of each token by the one before it", "DSpark: DeepSeek 2026", "dynamic",
    ),
    "peagle": HeadRecord(
        "peagle", "networks.peagle.PEagle", AUTOREGRESSIVE,
        "EAGLE-3 that drafts all tokens in one pass, over masks", "P-EAGLE: AWS 2026", "dynamic",
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
        "eaglevlm", "networks.eaglevlm.EagleVLM", AUTOREGRESSIVE,
        "EAGLE-2 that reads every visual token", "SpecVLM: Huang 2025", "dynamic", sees=True,
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
        HeadRecord("glance", "glance.network.Glance"),
    )
}
"""Heads with drafters of their own, each in its own folder: `methods.SHIPPED` has the rest of their records."""

OWN = {record.network: record for record in HEADS.values()} | OTHER_HEADS
NETWORKS: Table[HeadRecord] = Table("crossdraft.networks", HeadRecord, "network", OWN)
"""Every network that a head's folder may hold: those in `OWN`, and those of other installed packages."""


def weights_of(name: str) -> str:
    """The name of a method's shipped weights; for a method outside `HEADS` the method's own name."""
    record = HEADS.get(name)
    return (record.weights if record else None) or name
