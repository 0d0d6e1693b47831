"""`crossdraft demo`: a clip made on the spot, questions answered, each compared with the target alone."""

import json
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.cli.options import AsJson, MaxNewTokens, NoColour, PairOptions, check_values
from crossdraft.errors import CrossdraftError
from crossdraft.files import check_folder

if TYPE_CHECKING:
    from rich.console import Console

    from crossdraft.cli.compare import AnswerComparison
    from crossdraft.engine.request import Answer
    from crossdraft.scenes import QA

app = typer.Typer(help="Make a clip and ask it questions.", add_completion=False)

KINDS = ("describe", "lead motion", "watch for", "layout")
REPEATS = 2


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the clip.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Which of the test scenes.")] = 0,
    target: Annotated[str, typer.Option(help="'reference', or the folder of a checkpoint.")] = "reference",
    drafter: Annotated[
        str | None, typer.Option(help="glance (by default), event, … or the folder of an EventGPT.")
    ] = None,
    max_new_tokens: MaxNewTokens = None,
    as_json: AsJson = False,
    no_color: NoColour = False,
) -> None:
    """Make a clip of a held-out scene, ask held-out questions about it, and compare each with the target alone."""
    if drafter == "none":
        raise CrossdraftError("The demo compares a drafter with the target alone; name a drafter.")
    pair = PairOptions(target, drafter, cache_bytes=0)  # the target alone, which is compared with, has no cache either
    pair.check()
    check_values(max_new_tokens=max_new_tokens)
    check_folder(out)

    from crossdraft.cli.reporting import import_engine

    import_engine()
    from crossdraft.api import Request
    from crossdraft.cli.ask import report, typical
    from crossdraft.cli.compare import compare
    from crossdraft.cli.reporting import console_for
    from crossdraft.cli.session import opened, stream, with_drafter
    from crossdraft.cli.view import answer_console, say, show
    from crossdraft.scenes import ask, make_scene, score, split_seeds, write_clip

    test = split_seeds("test")
    if seed >= len(test):
        raise CrossdraftError(f"There are {len(test)} test scenes; give a --seed below that.")
    pair = with_drafter(pair, events=True)
    console = console_for(as_json=True) if as_json else answer_console(plain=no_color)
    scene = make_scene(test[seed])
    clip = write_clip(scene, out)
    say(console, f"A road scene: {clip.video} and {clip.events}")
    questions = [ask(scene, kind, 0, held_out=True) for kind in KINDS]
    requests = [Request(qa.question, clip.video, clip.events, max_new_tokens) for qa in questions]
    results, found = [], []
    with opened(pair, requests[0]) as engine:
        for qa, request in zip(questions, requests, strict=True):
            console.rule() if console.color_system else console.print()
            say(console, qa.question, "bold")
            answer = stream(engine, request, None if as_json else console)
            comparison = compare(engine, request, answer, REPEATS)
            timed, baseline = typical(answer, comparison)
            show(console, timed, engine.target, baseline)
            say(console, f"\n{comparison.sentence()}")
            results.append((qa, timed, comparison))
            found.append(report(request, timed, engine, comparison) | {"facts": score(qa.facts, timed.text)})
    summarise(console, results)
    command = "crossdraft" if which("crossdraft") else ".venv/bin/crossdraft"
    say(console, "\nAsk it yourself:")
    say(console, f'{command} ask --video {clip.video} --events {clip.events} "…"')
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False, indent=1))


def summarise(console: "Console", results: "list[tuple[QA, Answer, AnswerComparison]]") -> None:
    """One line for each question, and the whole; `hidden` is accepted/drafted of the hidden draft."""
    from rich.table import Table

    from crossdraft.cli.view import say
    from crossdraft.scenes import score

    heads = ("question", "facts", "tokens", "τ", "hidden", "alone", "drafter", "speedup", "identical")
    table = Table(*heads, box=None, pad_edge=False)  # 80 columns are enough
    for qa, answer, comparison in results:
        facts = score(qa.facts, answer.text)
        table.add_row(
            qa.kind,
            f"{sum(facts.values())}/{len(facts)}",
            str(answer.stats.new_tokens),
            f"{answer.stats.tau:.2f}",
            f"{answer.stats.hidden_accepted}/{answer.stats.hidden_drafted}",
            f"{comparison.alone_ms:.0f} ms",
            f"{comparison.drafted_ms:.0f} ms",
            f"{comparison.speedup:.2f}x",
            "yes" if comparison.identical else "NO",
        )
    console.print()
    console.print(table)
    alone = sum(comparison.alone_ms for _, _, comparison in results)
    drafted = sum(comparison.drafted_ms for _, _, comparison in results)
    identical = all(comparison.identical for _, _, comparison in results)
    same = "the tokens are identical" if identical else "the tokens are NOT identical"
    tried = " and ".join(map(str, results[0][2].compared_cores))
    where = f" on the faster of {tried} cores" if " and " in tried else ""
    say(console, f"All questions together: {alone / drafted:.2f}x as fast as the target alone{where}; {same}.")
