"""Derivations against values worked by hand, and the claims against their derivations."""

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crossdraft.cli.main import app
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.experiments.claims import CLAIMS, CONFIRMED, REFUTED, Claim, claims, measured
from crossdraft_lab.bench.experiments.derivations import DERIVATIONS, derived
from crossdraft_lab.bench.experiments.registry import EXPERIMENTS
from crossdraft_lab.bench.experiments.runner import run_experiment

RESULTS = Path(__file__).parents[3] / "docs" / "results"
COUNT = re.compile(r": \d+/\d+$")
INTERVAL = re.compile(r": -?\d+\.\d+ \[-?\d+\.\d+, -?\d+\.\d+; n=\d+\]$")


@pytest.mark.parametrize(
    ("settings", "value"),
    [
        ({"kind": "accepted", "alpha": 0.5, "drafted": 3}, 0.875),
        ({"kind": "emitted", "alpha": 0.5, "gamma": 3}, 1.875),
        ({"kind": "steady", "alpha": 0.5, "c": 0.25, "verify": 1.0, "gamma": 1}, 1.2),
        ({"kind": "steady", "alpha": 1.0, "c": 0.0, "verify": 1.0, "gamma": 4}, 5.0),
        ({"kind": "least alpha", "c": 0.2, "verify": 1.0, "gamma": 1}, 0.2),
        ({"kind": "hidden", "prefill": 100, "drafting": 90, "verify": 20, "accepted": 8, "tokens": 8, "step": 9}, 120),
        ({"kind": "bound", "prefill": 50.0, "total": 200.0}, 4.0),
        ({"kind": "sum", "parts": [2.0, 3.0, -1.0]}, 4.0),
        ({"kind": "product", "factors": [2.0, 3.0, 4.0]}, 24.0),
        ({"kind": "ratio", "top": 3.0, "bottom": 4.0}, 0.75),
        ({"kind": "amdahl", "share": 0.5, "factor": 1e9}, 2.0),
    ],
)
def test_values_worked_by_hand(settings, value):
    assert derived(settings) == pytest.approx(value, abs=1e-6)


def test_hiding_is_one_pass_for_the_draft_and_plain_steps_after_it():
    # 100 + 4 steps of 10 alone; hidden: 100 + 10 for the pass + (5 - 2 - 1) steps: one accepted of one drafted.
    settings = {"kind": "hiding speedup", "prefill": 100.0, "step": 10.0, "verify": 10.0, "alpha": 1.0, "drafted": 1}
    assert derived({**settings, "tokens": 5}) == pytest.approx(140 / 130)


def test_unknown_derivations_are_refused():
    with pytest.raises(CrossdraftError, match="no derivation 'magic'"):
        derived({"kind": "magic"})
    with pytest.raises(CrossdraftError, match="takes other settings"):
        derived({"kind": "bound", "prefill": 1.0})


def test_every_claim_stands_with_its_reason_and_command():
    found = claims()
    assert len(found) > 150
    assert len({(one.document, one.claim) for one in found}) == len(found)
    assert len({one.document for one in found}) == 5
    for one in found:
        assert one.why.endswith("."), one.claim
        assert one.command.startswith("crossdraft "), one.claim
        assert not one.measured or one.measured[0] in EXPERIMENTS, one.claim


def test_every_claim_is_held_against_something_or_says_why_not():
    for one in claims():
        assert (one.derive is not None or bool(one.measured)) != one.no_figure.endswith("."), one.claim
    with pytest.raises(CrossdraftError, match="derive or measured, or else no_figure"):
        Claim("survey", "fast", REFUTED, "No.", "crossdraft plan")
    with pytest.raises(CrossdraftError, match="both measured and figure, or neither"):
        Claim("survey", "fast", REFUTED, "No.", "crossdraft plan", measured=("drafters", "event", "speedup"))


@pytest.mark.parametrize("experiment", sorted({one.measured[0] for one in claims() if one.measured}))
def test_every_figure_of_ours_is_in_the_results_with_its_interval(experiment):
    """A path that leads nowhere is an empty cell, which says nothing; a plain number has no n."""
    for one in claims():
        if one.measured[:1] != (experiment,):
            continue
        found = measured(RESULTS, one.measured)["measured"]
        assert found is not None, f"{experiment} has no {' → '.join(one.measured[1:])}: {one.claim}"
        counted = isinstance(found, list) and len(found) == 2 and all(isinstance(count, int) for count in found)
        assert counted or (isinstance(found, dict) and found.keys() >= {"value", "ci95", "n"}), (one.claim, found)


def test_every_cell_of_ours_says_what_it_is_and_of_how_many(tmp_path):
    for summary in RESULTS.glob("*/summary.json"):
        shutil.copytree(summary.parent, tmp_path / summary.parent.name)
    table = run_experiment(CLAIMS, CLAIMS.full, tmp_path, None).summary.tables[0]
    assert table.heads[5] == "measured here"
    cells = {row[2]: row[5] for row in table.rows if row[5]}
    assert len(cells) > 50
    for claim, cell in cells.items():
        assert INTERVAL.search(cell) or COUNT.search(cell), (claim, cell)


def test_commands_print_the_figure_of_the_claim():
    """`plan` with the claim's numbers, the experiment that was measured, or the table of claims."""
    planned = 0
    for one in claims():
        _, command, *rest = one.command.split()
        assert "--help" not in rest, one.claim
        if command == "plan" and one.derive is not None:
            planned += 1
            done = CliRunner().invoke(app, ["plan", *rest, "--json"])
            assert done.exit_code == 0, (one.claim, done.output)
            found = json.loads(done.stdout)
            alone, *_ = found["ways"]
            said = [*(way["speedup"] for way in found["ways"]), found["least_alpha"], alone["shares"]["prefill"]]
            assert any(value == pytest.approx(one.value, rel=0.005) for value in said), (one.claim, one.value, said)
        elif command == "experiment" and rest[0] != "claims":
            assert one.measured[:1] == (rest[0],) or one.derive is not None, one.claim
    assert planned > 10


def test_claims_agree_with_their_arithmetic_or_not_as_they_say():
    """A figure that is confirmed is within 2 % of its derivation, or below 1 where it says that nothing is gained."""
    for one in claims():
        if one.value is None or one.claimed is None:
            continue
        off = abs(one.value / one.claimed - 1)
        if one.status == CONFIRMED:
            assert off < 0.02, (one.claim, one.value)
        elif one.status == REFUTED:
            assert off > 0.005, (one.claim, one.value)


def test_all_kinds_are_used():
    assert {str(one.derive["kind"]) for one in claims() if one.derive is not None} == set(DERIVATIONS)


def summary_of(folder, name, figures, size="full size"):
    """As an experiment leaves it."""
    (folder / name).mkdir(exist_ok=True)
    path = folder / name / "summary.json"
    path.write_text(json.dumps({"figures": figures, "size": size}))
    return path


SPEEDUP = {"value": 1.25, "ci95": [1.0, 1.5], "n": 32}
SHOWN = "speed-up of eagle3: 1.25 [1.00, 1.50; n=32]"


def test_figures_of_other_experiments_are_looked_up(tmp_path):
    nothing = {"measured": None, "size": None}
    assert measured(tmp_path, ("drafters", "event", "speedup")) == nothing
    summary = summary_of(tmp_path, "drafters", {"eagle3": {"speedup": SPEEDUP}})
    found = measured(tmp_path, ("drafters", "eagle3", "speedup"))
    assert found == {"measured": SPEEDUP, "size": "full size"}
    assert measured(tmp_path, ("drafters", "dream", "speedup")) == nothing
    assert measured(tmp_path, ()) == nothing
    summary_of(tmp_path, "quality", {"metrics": [{"name": "BLEU-4", **SPEEDUP}]})
    assert measured(tmp_path, ("quality", "metrics", "BLEU-4"))["measured"]["value"] == 1.25
    assert measured(tmp_path, ("quality", "metrics", "CIDEr")) == nothing
    outcome = run_experiment(CLAIMS, CLAIMS.full, tmp_path, None)
    assert [row[5] for row in outcome.summary.tables[0].rows if row[5]] == [SHOWN]
    assert sum(outcome.summary.figures["statuses"].values()) == len(claims())
    with pytest.raises(CrossdraftError, match=r"eagle3 of .* has no interval; run drafters again"):
        measured(tmp_path, ("drafters", "eagle3"))
    summary.write_text("nonsense")
    with pytest.raises(CrossdraftError, match="run drafters again"):
        measured(tmp_path, ("drafters", "event"))


def test_figures_of_another_size_are_named(tmp_path):
    """A quick run takes two pairs: what it gives does not stand unnamed beside what a full one gave."""
    summary_of(tmp_path, "drafters", {"eagle3": {"speedup": SPEEDUP}}, "quick size")
    summary_of(tmp_path, "quality", {"greedy": {"event": {"equal": [96, 96]}}}, "a size of its own")
    found = run_experiment(CLAIMS, CLAIMS.full, tmp_path, None).summary
    cells = [row[5] for row in found.tables[0].rows if row[5]]
    assert cells == [f"{SHOWN} (quick size)", "answers of event that are the target's own: 96/96 (a size of its own)"]
    assert "quick size" in {one["size"] for one in found.figures["claims"]}
