"""The experiments by name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from crossdraft.bench.common import check_names
from crossdraft.bench.experiments.ablations import ABLATIONS
from crossdraft.bench.experiments.alignment import ALIGNMENT
from crossdraft.bench.experiments.breakdown import BREAKDOWN
from crossdraft.bench.experiments.claims import CLAIMS
from crossdraft.bench.experiments.drafters import DRAFTERS
from crossdraft.bench.experiments.prefill_hiding import PREFILL_HIDING
from crossdraft.bench.experiments.quality import QUALITY
from crossdraft.bench.experiments.record import Experiment
from crossdraft.bench.experiments.streaming import STREAMING
from crossdraft.bench.experiments.utilisation import UTILISATION

EXPERIMENTS: Mapping[str, Experiment[Any]] = MappingProxyType(
    {
        one.name: one
        for one in (DRAFTERS, PREFILL_HIDING, BREAKDOWN, ALIGNMENT, STREAMING, QUALITY, ABLATIONS, UTILISATION, CLAIMS)
    }
)


def chosen(names: tuple[str, ...]) -> list[Experiment[Any]]:
    """The experiments of these names, `all` being every one, in the order of their numbers.

    Raises:
        CrossdraftError: an unknown name.
    """
    check_names("experiment", names, ("all", *EXPERIMENTS))
    return [one for name, one in EXPERIMENTS.items() if "all" in names or name in names]
