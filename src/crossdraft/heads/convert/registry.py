"""Every layout by name, and which of them a folder is in."""

from collections.abc import Mapping
from typing import Any

from crossdraft.errors import CrossdraftError
from crossdraft.heads.convert.converter import Converter
from crossdraft.heads.convert.dflash import DFLASH
from crossdraft.heads.convert.eagle import EAGLE
from crossdraft.heads.convert.medusa import MEDUSA
from crossdraft.heads.convert.speculators import SPECULATORS

CONVERTERS: Mapping[str, Converter] = {"eagle": EAGLE, "speculators": SPECULATORS, "medusa": MEDUSA, "dflash": DFLASH}


def converter_for(name: str, network: str) -> Converter:
    """The layout of that name, for a head of that network.

    Raises:
        CrossdraftError: there is none, or it cannot hold such a head.
    """
    if name not in CONVERTERS:
        raise CrossdraftError(f"There is no layout '{name}'; there are {', '.join(CONVERTERS)}.")
    layout = CONVERTERS[name]
    if network not in layout.networks:
        fitting = [other for other, known in CONVERTERS.items() if network in known.networks]
        hint = f"it fits into {' and '.join(fitting)}" if fitting else "no other project has such a head"
        raise CrossdraftError(
            f"The layout '{name}' holds {' and '.join(layout.networks)}, this head is a '{network}'; {hint}."
        )
    return layout


def recognised(config: Mapping[str, Any], where: str) -> str:
    """The name of the layout that a `config.json` is in; `where` it stood begins the complaint.

    Raises:
        CrossdraftError: it is none that we can read.
    """
    for name, layout in CONVERTERS.items():
        if layout.owns(config):
            return name
    kind = config.get("architectures") or config.get("model_type") or "no architecture"
    raise CrossdraftError(
        f"{where} describes {kind}, which is no head that we can read; we read the layouts of {', '.join(CONVERTERS)}."
    )
