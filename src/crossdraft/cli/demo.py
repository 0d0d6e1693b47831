"""`crossdraft demo`: answers questions about a clip, and compares each answer with the target alone."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile, which
from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.checkpoints.locate import REFERENCE
from crossdraft.cli.options import AsJson, MaxNewTokens, NoColour, PairOptions, check_values
from crossdraft.errors import CrossdraftError
from crossdraft.files import check_folder
from crossdraft.options import Options
from crossdraft.plugins import LAB, Table

if TYPE_CHECKING:
    from rich.console import Console

    from crossdraft.cli.compare import AnswerComparison
    from crossdraft.engine.request import Answer

app = typer.Typer(help="Ask questions about a clip.", add_completion=False)

REPEATS = 2


@dataclass(frozen=True)
class DemoQuestion:
    """A question about the demo's clip.

    Args:
        kind: one or two words for the table.
        question: text of the question.
        score: returns, for each fact asked for, whether an answer states it; `None` = no scoring.
    """

    kind: str
    question: str
    score: Callable[[str], dict[str, bool]] | None = None


@dataclass(frozen=True)
class DemoClip:
    """A clip with its events, and questions about it."""

    video: Path
    events: Path
    questions: Sequence[DemoQuestion]


@dataclass(frozen=True)
class DemoSource:
    """The source of the demo's clip: the entry point `scene` of the group `crossdraft.clips`, else the shipped one.

    Args:
        name: name of the entry point.
        make: writes the clip into a folder; the number selects one of several clips.
    """

    name: str
    make: Callable[[Path, int], DemoClip]


def shipped_clip(out: Path, _seed: int = 0) -> DemoClip:
    """Copy the only shipped clip into a folder.

    Raises:
        CrossdraftError: the folder cannot be written to.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in (VIDEO, EVENTS):
            copyfile(CLIP / name, out / name)
    except OSError as error:
        raise CrossdraftError(f"Cannot write the clip into {out}: {error.strerror}; name another folder.") from None
    asked = json.loads((CLIP / "questions.json").read_text(encoding="utf-8"))
    return DemoClip(out / VIDEO, out / EVENTS, [DemoQuestion(one["kind"], one["question"]) for one in asked])


SHIPPED = DemoSource("shipped", shipped_clip)
SOURCES: Table[DemoSource] = Table("crossdraft.clips", DemoSource, "clip", {})
CLIP, VIDEO, EVENTS = REFERENCE / "clip", "road.mp4", "road.h5"


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the clip.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Which scene; other than 0 takes crossdraft-lab.")] = 0,
    target: Annotated[str, typer.Option(help="'reference', or the folder of a checkpoint.")] = "reference",
    drafter: Annotated[
        str | None, typer.Option(help="glance (by default), event, … or the folder of an EventGPT.")
    ] = None,
    max_new_tokens: MaxNewTokens = None,
    as_json: AsJson = False,
    no_color: NoColour = False,
) -> None:
    """Ask questions about a clip, and compare each answer with the target alone.

    The clip is the shipped one; with crossdraft-lab it is made of a scene that no training saw.
    """
    if drafter == "none":
        raise CrossdraftError("The demo compares a drafter with the target alone; name a drafter.")
    # Without a prefix cache: the target alone, with which the answers are compared, has none either.
    pair = PairOptions(target, drafter, options=Options(cache_bytes=0))
    pair.check()
    check_values(max_new_tokens=max_new_tokens)
    check_folder(out)
    source = SOURCES.get("scene", SHIPPED)
    if seed and source is SHIPPED:
        raise CrossdraftError(f"--seed {seed} is another clip; more come with {LAB}.")

    from crossdraft.cli.reporting import import_engine

    import_engine()
    from crossdraft.api import Request
    from crossdraft.cli.ask import report, typical
    from crossdraft.cli.compare import compare
    from crossdraft.cli.outputs import json_text
    from crossdraft.cli.reporting import console_for
    from crossdraft.cli.session import opened, stream, with_drafter
    from crossdraft.cli.view import answer_console, say, show

    pair = with_drafter(pair, events=True)
    console = console_for(as_json=True) if as_json else answer_console(plain=no_color)
    clip = source.make(out, seed)
    say(console, f"A road scene: {clip.video} and {clip.events}")
    requests = [Request(one.question, clip.video, clip.events, max_new_tokens) for one in clip.questions]
    results, found = [], []
    with opened(pair, requests[0]) as engine:
        for asked, request in zip(clip.questions, requests, strict=True):
            console.rule() if console.color_system else console.print()
            say(console, asked.question, "bold")
            answer = stream(engine, request, None if as_json else console)
            comparison = compare(engine, request, answer, REPEATS)
            timed, baseline = typical(answer, comparison)
            show(console, timed, engine.target, baseline)
            say(console, f"\n{comparison.sentence()}")
            results.append((asked, timed, comparison))
            facts = {} if asked.score is None else {"facts": asked.score(timed.text)}
            found.append(report(request, timed, engine, comparison) | facts)
    summarise(console, results)
    command = "crossdraft" if which("crossdraft") else ".venv/bin/crossdraft"
    say(console, "\nAsk it yourself:")
    say(console, f'{command} ask --video {clip.video} --events {clip.events} "…"')
    if as_json:
        typer.echo(json_text(found))


def summarise(console: "Console", results: "list[tuple[DemoQuestion, Answer, AnswerComparison]]") -> None:
    """Print one line for each question, and the totals; `hidden` is accepted/drafted of the hidden draft."""
    from rich.table import Table

    from crossdraft.cli.view import say

    heads = ("question", "facts", "tokens", "τ", "hidden", "alone", "drafter", "speedup", "identical")
    table = Table(*heads, box=None, pad_edge=False)  # 80 columns are enough
    for asked, answer, comparison in results:
        facts = None if asked.score is None else asked.score(answer.text)
        table.add_row(
            asked.kind,
            "" if facts is None else f"{sum(facts.values())}/{len(facts)}",
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
