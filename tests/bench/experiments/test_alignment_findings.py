"""What experiment 3 says of planted acceptances: which rung is best, and what training it took."""

from crossdraft_lab.bench.align_rows import CONTROLS, HELD_OUT, TRAINED
from crossdraft_lab.bench.experiments.alignment import (
    ACCEPTANCE,
    CAPTURE,
    DISTILLED,
    FOREIGN,
    AlignmentConfig,
    summarise,
)
from crossdraft_lab.bench.experiments.record import UnitResult
from crossdraft_lab.bench.statistics import Interval
from tests.bench.experiments.planted import block, run

CONFIG = AlignmentConfig(rungs=("linear", "l4"), pairs=2, block=2)


def accepted(prefix):
    mean = Interval(prefix, prefix, prefix, 2).to_json()
    one = {
        "accepted_prefix": mean,
        "tau": mean,
        "features": None,
        "prefixes": [prefix] * 2,
        "clips": [0, 1],
        "equal": 2,
    }
    return {HELD_OUT: one, TRAINED: one}


def trained(parameters, steps, best):
    return {"said": {"parameters": parameters, "steps": float(steps), "best_step": float(best), "wall_s": 99.6}}


def planted():
    prefixes = {FOREIGN: 0, "linear": 1, "l4": 5, DISTILLED: 9, **dict.fromkeys(CONTROLS, 2)}
    rows = {name: [[run(2.0)]] * 2 for name in ("target", "target-all", FOREIGN, "linear", "l4", DISTILLED)}
    return [
        UnitResult(CAPTURE, (), {"train": {"said": {"total_answers": 4800}}}),
        UnitResult("train linear", (), trained(82240, 800, 800)),
        UnitResult("train l4", (), trained(1322561, 800, 600)),
        UnitResult(ACCEPTANCE, (), {name: accepted(prefix) for name, prefix in prefixes.items()}),
        block(CONFIG.plan({}).keys[0], rows),
    ]


def test_what_was_trained_is_a_figure_and_its_time_is_none():
    found = summarise(CONFIG, planted())
    table = found.tables[0]
    rows = {row[0]: dict(zip(table.heads, row, strict=True)) for row in table.rows}
    assert rows["l4"]["parameters trained"] == "1,322,561"
    assert rows["l4"]["steps"] == "800, best 600"
    assert rows[FOREIGN]["parameters trained"] == rows[FOREIGN]["steps"] == "–"
    assert "the same 4,800 answers" in table.note
    assert "so it is no figure" in table.note
    assert found.figures["linear"]["training"] == {"parameters": 82240, "steps": 800, "best_step": 800}
    assert found.figures[DISTILLED]["training"] is None


def test_a_rung_below_a_control_did_not_help():
    found = summarise(CONFIG, planted())
    assert "Best rung: l4, 5.00" in found.found
    (negative,) = found.negative
    assert negative.endswith("which reads no events: linear.")
    assert not found.faults
