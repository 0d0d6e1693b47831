"""Curves of `bench compression`: quality against the share of the time to the first token that is saved."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from crossdraft.compressions import settings_of
from crossdraft.drawing.charts import ChartCurve, below_one_another, curves
from crossdraft.drawing.shapes import Drawing
from crossdraft_lab.align.prefill import PrefillSettings
from crossdraft_lab.bench.compression import WHOLE, WITHIN, CompressionResult
from crossdraft_lab.bench.statistics import Interval

TITLE = "Quality against the prefill that is saved (LOSSY but for the target)"
ACROSS = "time to the first token saved, % of the target's own"


def _share(row: CompressionResult) -> Interval:
    share = row.agreed / row.total
    return Interval(share, share, share, row.total)


QUALITIES: Mapping[str, Callable[[CompressionResult], Interval]] = MappingProxyType(
    {
        "facts right": lambda row: row.facts,
        "ROUGE-L with the target's answer": lambda row: row.rouge_l,
        "share of the target's own answers": _share,
    }
)


def quality_curves(found: Sequence[CompressionResult]) -> Drawing:
    """Facts, ROUGE-L and agreement below one another; a curve for each compression, of its settings' points.

    What a drafter changes is time alone: rows with one are left out.
    """
    by_name: dict[str, list[CompressionResult]] = {}
    for row in found:
        if row.drafter is None:
            by_name.setdefault(curve_of(row.target), []).append(row)
    fields = [
        curves(upwards, [_curve(name, rows, of) for name, rows in by_name.items()], ACROSS, upwards)
        for upwards, of in QUALITIES.items()
    ]
    return below_one_another(TITLE, fields)


def curve_of(target: str) -> str:
    """The curve that a row belongs to.

    >>> [curve_of(target) for target in ("target", "fastv:keep=0.5", "predicted:dir=x", "predicted:dir=x,frames=2")]
    ['target', 'fastv', 'predicted', 'predicted']
    >>> curve_of("predicted:dir=x,confidence=0.9"), curve_of("predicted:dir=x within 0.1")
    ('predicted, where the gate is confident', 'predicted, checked')
    """
    if target == WHOLE:
        return target
    spec, within, _ = target.partition(WITHIN)
    one, settings = settings_of(spec)
    if within:
        return f"{one.name}, checked"
    gated = isinstance(settings, PrefillSettings) and settings.confidence > 0
    return f"{one.name}, where the gate is confident" if gated else one.name


def _curve(name: str, rows: Sequence[CompressionResult], of: Callable[[CompressionResult], Interval]) -> ChartCurve:
    points = sorted((100 * row.saved.value, of(row).value, of(row).low, of(row).high) for row in rows)
    return ChartCurve(name, tuple(points))
