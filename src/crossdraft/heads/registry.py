"""Every way of drafting with a head by its name: the network, how it is listened to, and the trees it grows."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossdraft.heads.drafting.head_drafter import HeadDrafter


@dataclass(frozen=True)
class HeadRecord:
    """A way of drafting with a head.

    Args:
        network: see `networks.registry`.
        around: module and name of the class around it.
        tree: which of `growth.TREES` it grows unless told otherwise, or `STATIC`.
        what: one line for the table of methods.
        source: where it comes from.
        weights: the shipped weights, where another method's serve; default its own name.
        sees: whether it reads the target's visual features.
    """

    network: str
    around: str
    tree: str
    what: str
    source: str
    weights: str | None = None
    sees: bool = False

    @property
    def drafter(self) -> "type[HeadDrafter[Any]]":
        """The class around the head, which needs PyTorch; this table does not."""
        module, _, name = self.around.partition(".")
        return getattr(import_module(f"crossdraft.heads.drafting.{module}"), name)


AUTOREGRESSIVE, BLOCK = "autoregressive.AutoregressiveDrafter", "block.BlockDrafter"
RECURRENT = "recurrent.RecurrentDrafter"
STATIC = "static"  # a shape chosen by measured acceptance, which lies beside the weights; see `static`

HEADS: Mapping[str, HeadRecord] = {
    "eagle1": HeadRecord(
        "eagle", AUTOREGRESSIVE, "static", "extrapolates the target's last feature; a fixed tree",
        "EAGLE: Li 2024", weights="eagle",
    ),
    "eagle2": HeadRecord(
        "eagle", AUTOREGRESSIVE, "dynamic", "the same head with dynamic trees by its own probabilities",
        "EAGLE-2: Li 2024", weights="eagle",
    ),
    "eagle3": HeadRecord(
        "eagle3", AUTOREGRESSIVE, "dynamic", "fuses three levels of the target; training-time test",
        "EAGLE-3: Li 2025",
    ),
    "glide": HeadRecord(
        "glide", AUTOREGRESSIVE, "cape", "a small decoder that attends to the target's own keys and values",
        "GLIDE with a CaPE: Du 2024",
    ),
    "chimera": HeadRecord(
        "chimera", AUTOREGRESSIVE, "static", "a trigram encoder that attends to the target's last features",
        "Chimera: Zeng 2024",
    ),
    "dream": HeadRecord(
        "dream", AUTOREGRESSIVE,
        "dynamic", "EAGLE's layer and gated cross-attention to a middle layer of the target",
        "DREAM: Hu 2025",
    ),
    "dflash": HeadRecord(
        "dflash", BLOCK, "chain", "a block of masked tokens in one pass, from several layers of the target",
        "DFlash: z-lab 2026",
    ),
    "hivis": HeadRecord(
        "hivis", AUTOREGRESSIVE,
        "dynamic", "no visual tokens in the drafter; a learned embedding per draft step",
        "HiViS: Xie 2025",
    ),
    "vispec": HeadRecord(
        "vispec", AUTOREGRESSIVE,
        "dynamic", "the clip compressed to a few tokens, and a global visual vector in every row",
        "ViSpec: Kang 2025", sees=True,
    ),
    "eaglevlm": HeadRecord(
        "eaglevlm", AUTOREGRESSIVE, "dynamic", "EAGLE-2 that reads every visual token",
        "SpecVLM: Huang 2025", sees=True,
    ),
    "specvlm": HeadRecord(
        "specvlm", AUTOREGRESSIVE, "dynamic", "the same, behind a compressor chosen for each question",
        "SpecVLM: Huang 2025", sees=True,
    ),
    "massv": HeadRecord(
        "massv", AUTOREGRESSIVE, "chain", "a small language model that sees through the target's vision encoder",
        "MASSV: Ganesan 2025", sees=True,
    ),
    "specllava": HeadRecord(
        "massv", AUTOREGRESSIVE, "dynamic", "the same small model with dynamic trees by its own probabilities",
        "Spec-LLaVA: Huo 2025", weights="massv", sees=True,
    ),
    "medusa": HeadRecord(
        "medusa", RECURRENT, "static", "one small head per future token, independent of the others",
        "Medusa-1: Cai 2024",
    ),
    "hydra": HeadRecord(
        "hydra", RECURRENT, "static", "Medusa's heads, conditioned on the tokens drafted before",
        "Hydra: Ankner 2024",
    ),
    "hydra++": HeadRecord(
        "hydra++", RECURRENT, "static", "deeper ones behind a layer over all features of the text",
        "Hydra++: Ankner 2024",
    ),
    "redrafter": HeadRecord(
        "redrafter", RECURRENT, "beams", "a small recurrent network with beam search",
        "ReDrafter: Cheng 2024",
    ),
}  # fmt: skip


def heads_of_network(network: str) -> dict[str, HeadRecord]:
    """Ways of drafting with a network, by name; none of one that is no reader of the target's features."""
    return {name: method for name, method in HEADS.items() if method.network == network}


def weights_of(name: str) -> str:
    """The shipped weights that serve a method; a name that is none of `HEADS` stands for its own."""
    method = HEADS.get(name)
    return (method.weights if method else None) or name
