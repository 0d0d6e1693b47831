"""The experiments by name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from crossdraft_lab.bench.common import check_names
from crossdraft_lab.bench.experiments.ablations import ABLATIONS
from crossdraft_lab.bench.experiments.alignment import ALIGNMENT
from crossdraft_lab.bench.experiments.breakdown import BREAKDOWN
from crossdraft_lab.bench.experiments.drafters import DRAFTERS
from crossdraft_lab.bench.experiments.prefill_hiding import PREFILL_HIDING
from crossdraft_lab.bench.experiments.quality import QUALITY
from crossdraft_lab.bench.experiments.record import Experiment
from crossdraft_lab.bench.experiments.streaming import STREAMING
from crossdraft_lab.bench.experiments.utilisation import UTILISATION

EXPERIMENTS: Mapping[str, Experiment[Any]] = MappingProxyType(
    {
        one.name: one
        for one in (DRAFTERS, PREFILL_HIDING, BREAKDOWN, ALIGNMENT, STREAMING, QUALITY, ABLATIONS, UTILISATION)
    }
)


def chosen(names: tuple[str, ...]) -> list[Experiment[Any]]:
    """Experiments of these names, `all` being every one, in the order of their numbers.

    Raises:
        CrossdraftError: an unknown name.
    """
    check_names("experiment", names, ("all", *EXPERIMENTS))
    return [one for name, one in EXPERIMENTS.items() if "all" in names or name in names]
