"""`crossdraft head`: shows and imports heads."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossdraft.cli.options import AsJson, LocalTarget
from crossdraft.errors import CrossdraftError
from crossdraft.heads.convert.layouts import check_early, check_new

if TYPE_CHECKING:
    from crossdraft.engine.target import Target
    from crossdraft.heads.convert.convert import ConversionReport
    from crossdraft.heads.convert.converter import TargetInfo

app = typer.Typer(help="Show heads, and convert those of other projects.", no_args_is_help=True, add_completion=False)


@app.command("import")
def import_(
    head: Annotated[Path, typer.Argument(help="Folder of another project's head: config.json and weights.")],
    out: Annotated[Path, typer.Argument(help="New folder, written whole or not at all.")],
    target: LocalTarget = "reference",
    rope_theta: Annotated[
        float | None, typer.Option(help="Base of the rotary positions that it was trained with, if its file is wrong.")
    ] = None,
    levels: Annotated[
        str | None, typer.Option(help="Hidden states that it was trained on, as 2,14,25; 0 = the embeddings.")
    ] = None,
    probe: Annotated[
        bool, typer.Option(help="Draft eight short answers of the target with it, a minute at most, and say its τ.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Make a head of ours from a folder in the layout of EAGLE, speculators, Medusa or DFlash, and try it."""
    corrections: dict[str, Any] = {} if rope_theta is None else {"rope_theta": rope_theta}
    if rope_theta is not None and not 0 < rope_theta < float("inf"):
        raise CrossdraftError(f"--rope-theta is {rope_theta}; give a positive number, as --rope-theta 10000.")
    if levels is not None:
        numbers = [int(level) for level in levels.split(",")] if re.fullmatch(r"\d+(,\d+)*", levels) else [0, 0]
        if sorted({*numbers}) != numbers:
            raise CrossdraftError(f"--levels is '{levels}'; give numbers of layers, ascending, as --levels 2,14,25.")
        corrections["levels"] = tuple(numbers)
    check_new(out)
    check_early(head, target)
    from crossdraft.heads.convert.convert import import_head
    from crossdraft.heads.probe import method_of

    loaded, host = target_and_host(target)
    done = import_head(head, out, host, corrections)
    said, probed = _probed(loaded, target, out, done.network) if probe else ([], None)
    what = f"{done.network}, from the layout of {done.layout}; draft with {method_of(done.network)}:dir={out}"
    report_conversion(done, out, what, *said, as_json=as_json, probe=probed)


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def export() -> None:
    """Say where heads are exported."""
    raise CrossdraftError("Heads are exported by the laboratory: crossdraft train export, in crossdraft-lab.")


@app.command()
def show(
    head: Annotated[str, typer.Argument(help="Folder of a head, or the name of a shipped one.")],
    as_json: AsJson = False,
) -> None:
    """Say what a head is: its network, size, target, draft vocabulary and layers."""
    from crossdraft.cli.reporting import report
    from crossdraft.heads.files import summarize

    facts = summarize(folder_of(head))
    report(asdict(facts), *facts.lines(), as_json=as_json)


def folder_of(head: str) -> Path:
    """Return a folder unchanged, or the folder of a shipped head, which may also be named by its drafters.

    Raises:
        CrossdraftError: neither a folder nor a shipped head.
    """
    from crossdraft.checkpoints.locate import shipped_at, shipped_heads
    from crossdraft.heads.registry import weights_of

    if Path(head).exists():
        return Path(head)
    shipped = shipped_at(f"heads/{weights_of(head)}")
    if not shipped.is_dir():
        raise CrossdraftError(
            f"'{head}' is neither a folder nor a shipped head; there are {', '.join(shipped_heads())}."
        )
    return shipped


def target_and_host(target: str, name: str | None = None) -> "tuple[Target, TargetInfo]":
    """Load a target, with the information about it that converting heads needs."""
    from crossdraft.checkpoints.locate import REFERENCE
    from crossdraft.cli.reporting import hush, waiting
    from crossdraft.heads.convert.converter import TargetInfo
    from crossdraft.heads.networks.base import SharedWeights
    from crossdraft.load import load_target, target_fingerprint

    hush()
    with waiting("loading the target"):
        loaded = load_target(target, "cpu", "float32", packed=False)
    named = name or str(REFERENCE / "target" if target == "reference" else target)
    kinds = tuple(getattr(loaded.model.config, "architectures", None) or (type(loaded.model).__name__,))
    layers, shared = loaded.text_config.num_hidden_layers, SharedWeights.of(loaded.model)
    text = 1 + max({*range(len(shared.embeddings))} - loaded.reserved)
    visual = tuple(sorted(loaded.traits.visual_ids))
    return loaded, TargetInfo(shared, layers, target_fingerprint(target), named, kinds, text, visual)


def _probed(loaded: "Target", target: str, out: Path, network: str) -> tuple[list[str], dict[str, Any]]:
    """Probe an imported head: lines for people, and facts."""
    from crossdraft.cli.reporting import saying
    from crossdraft.heads.probe import FITS, probe

    try:
        with saying("drafting answers of the target's own") as tell:
            answers, tau = probe(loaded, target, out, network, tell)
    except CrossdraftError as error:
        return [f"- It was not tried: {error}"], {"answers": 0, "tau": None, "why": str(error)}
    said = f"- Tried on {answers} short answers of the target's own, in chains of 4: τ {tau:.2f}."
    wrong = "- Warning: this head does not fit: wrong rope theta, levels or norm order (--rope-theta, --levels)."
    return [said, wrong][: 2 if tau < FITS else 1], {"answers": answers, "tau": tau, "fits": tau >= FITS}


def report_conversion(done: "ConversionReport", out: Path, what: str, *more: str, as_json: bool, **facts: Any) -> None:
    """Report a conversion; `facts` stand in the JSON alone."""
    from crossdraft.cli.reporting import report

    first = f"{out}: {what}, {done.tensors} tensors, {done.parameters:,} parameters"
    report(asdict(done) | {"out": str(out), **facts}, first, *more, as_json=as_json)
