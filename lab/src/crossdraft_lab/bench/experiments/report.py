"""The report: one self-contained HTML page, the same in Markdown, and the leaderboard of drafters."""

from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossdraft import __version__
from crossdraft.drawing.svg import to_svg
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path
from crossdraft_lab.bench.experiments.markdown import (
    machines_of,
    outcome_lines,
    prose,
    ran_on,
    setting_lines,
    table_lines,
)
from crossdraft_lab.bench.experiments.record import Experiment, ExperimentOutcome, FigureTable
from crossdraft_lab.bench.experiments.registry import EXPERIMENTS
from crossdraft_lab.bench.experiments.runner import SUMMARY, UnfinishedError, kept_outcome, read_outcome
from crossdraft_lab.bench.experiments.runs import RUNS

if TYPE_CHECKING:
    from jinja2 import Environment

HTML, MARKDOWN, LEADERBOARD = "report.html", "report.md", "leaderboard.html"
REAL_PAIR, REAL_PAIR_TEXT = "real_pair.html", "real_pair.md"
DRAFTERS = "drafters"  # experiment that the table of all drafters is made of
TITLE = "crossdraft: the experiments"
SETTING = (
    "All figures are of the shipped reference pair unless a section says otherwise: a target of 13.6 M parameters, an "
    "event drafter of 3.0 M that was trained on its answers, held-out scenes of a synthetic road world, and wordings "
    "of questions that no training has seen. The target computes in float32. On a CPU the target has one core and a "
    "drafter's process another; the baseline of every speed-up is the faster of the target alone on its own core and "
    "on both."
)
THREATS = (
    (
        "The reference pair is small and its world is regular: its answers are easier to draft than those of a model "
        "of 7 billion parameters. What its figures say of such a pair is the mechanism, not the size of the gain."
    ),
    (
        "One run of each experiment, on the machines and of the commits that the head names. A machine may have been "
        "shared; rows of one table were interleaved, so that a disturbance falls on all of them, but another "
        "hour gives other milliseconds."
    ),
    (
        "Intervals are bootstrapped over scenes, those of streams over questions. They cover which were asked, and not "
        "other trainings of the pair, other machines or other worlds."
    ),
    (
        "The share of facts that an answer gets right is judged by rules that know the synthetic world. It is no human "
        "judgement."
    ),
    "Nothing here was measured on a GPU unless the machine of a section names one.",
)


def has_experiments(out: Path) -> bool:
    """True if the folder holds any experiment."""
    return any((out / name / file).exists() for name in EXPERIMENTS for file in (RUNS, SUMMARY))


def write_report(out: Path) -> tuple[list[Path], tuple[str, ...]]:
    """Write report.html, report.md and, where the drafters were compared, leaderboard.html.

    Returns:
        The files, and a sentence for each experiment that is left out because it is not finished.

    All figures come from the runs themselves; an experiment of which only the summary is left is shown by its summary,
    and its section says so.

    Raises:
        CrossdraftError: no experiment ran there to its end, or an experiment cannot be read.
        ModuleNotFoundError: jinja2 is not installed.
    """
    found, left_out = list[ExperimentOutcome](), list[str]()
    for one in EXPERIMENTS.values():
        try:
            found += [] if (outcome := _outcome(one, out)) is None else [outcome]
        except UnfinishedError as error:
            left_out.append(str(error))
    if not found and left_out:
        raise UnfinishedError(" ".join(left_out))
    if not found:
        raise CrossdraftError(
            f"{out} holds no experiment; run one first: crossdraft experiment all --quick --out {out}"
        )
    pages = {HTML: html_report(found, left_out), MARKDOWN: markdown_report(found, left_out)}
    ranked = next((outcome for outcome in found if outcome.experiment.name == DRAFTERS), None)
    if ranked is None:
        (out / LEADERBOARD).unlink(missing_ok=True)  # of another report
    else:
        pages[LEADERBOARD] = leaderboard(ranked)
    for name, content in pages.items():
        with atomic_path(out / name) as temporary:
            temporary.write_text(content, encoding="utf-8")
    return [out / name for name in pages], tuple(left_out)


def _outcome(one: Experiment[Any], out: Path) -> ExperimentOutcome | None:
    """Read an outcome from its runs where there are any, else from the summary that was kept."""
    return read_outcome(one, out) if (out / one.name / RUNS).exists() else kept_outcome(one, out)


def write_real_pair(page: tuple[str, Sequence[FigureTable]], out: Path) -> list[Path]:
    """Write real_pair.html and real_pair.md; `page` holds the text on how the figures came about, and the tables.

    Raises:
        CrossdraftError: the files cannot be written.
        ModuleNotFoundError: jinja2 is not installed.
    """
    title, command = "The real pair under replay", "crossdraft experiment report --traces FILE --out results"
    setting, shown = page
    html = _templates().get_template("real_pair.html.j2").render(
        title=title, version=__version__, setting=setting, tables=shown, command=command
    )  # fmt: skip
    tables = [line for table in shown for line in ("", *table_lines(table))]
    text = "\n".join([f"# {title}", "", prose(setting), *tables, "", f"`{command}`"]) + "\n"
    for name, content in ((REAL_PAIR, html), (REAL_PAIR_TEXT, text)):
        with atomic_path(out / name) as temporary:
            temporary.write_text(content, encoding="utf-8")
    return [out / REAL_PAIR, out / REAL_PAIR_TEXT]


def html_report(found: Sequence[ExperimentOutcome], left_out: Sequence[str] = ()) -> str:
    """HTML page of the report; every text is escaped, and nothing is loaded from another address."""
    machines = machines_of(found)
    drafters = next((outcome for outcome in found if outcome.experiment.name == DRAFTERS), None)
    return _templates().get_template("report.html.j2").render(
        title=TITLE,
        version=__version__,
        setting=SETTING,
        machines=machines,
        left_out=left_out,
        drafters=drafters,
        sections=[outcome for outcome in found if outcome is not drafters],
        ran_on=ran_on,
        svg=to_svg,
        negative=list(negative_results(found)),
        threats=THREATS,
        sizes=sorted({outcome.size for outcome in found}),
        leaderboard=LEADERBOARD,
    )  # fmt: skip


def leaderboard(ranked: ExperimentOutcome) -> str:
    """HTML page of all drafters, over all questions and by kind of question, in tables that sort by any column."""
    return _templates().get_template("leaderboard.html.j2").render(
        title="Leaderboard of drafters",
        version=__version__,
        outcome=ranked,
        machines=machines_of([ranked]),
        report=HTML,
    )  # fmt: skip


def markdown_report(found: Sequence[ExperimentOutcome], left_out: Sequence[str] = ()) -> str:
    """Report in Markdown, with links to the pictures in the experiments' folders."""
    return "\n".join(_markdown(found, left_out)) + "\n"


def _markdown(found: Sequence[ExperimentOutcome], left_out: Sequence[str]) -> Iterator[str]:
    machines = machines_of(found)
    yield f"# {TITLE}"
    yield from ("", SETTING, *setting_lines(machines), "", f"Written by crossdraft {__version__}.")
    for sentence in left_out:
        yield from ("", f"Left out: {prose(sentence)}")
    for outcome in found:
        yield from ("", *outcome_lines(outcome, level=2, machines=machines))
        if outcome.summary.figure is not None or outcome.picture:
            yield from ("", f"![{outcome.experiment.title}]({outcome.experiment.name}/figure.svg)")
    yield from ("", "## Negative results", "")
    yield from (f"- {prose(sentence)}" for sentence in negative_results(found))
    yield from ("", "## Threats to validity", "", *(f"- {threat}" for threat in THREATS))
    yield from ("", "## How to reproduce", "", "```")
    yield from (outcome.command for outcome in found)
    yield from ("crossdraft experiment report --out results", "```")


def negative_results(found: Sequence[ExperimentOutcome]) -> Iterator[str]:
    """Yield sentences about what did not help, for all experiments."""
    for outcome in found:
        for sentence in outcome.summary.negative:
            yield f"{outcome.experiment.title}: {sentence}"


def sort_key(text: str) -> float | str:
    """Sort key of a cell: its first number, else the text.

    >>> sort_key("1.98 [1.77, 2.21]"), sort_key("glance"), sort_key("32/32")
    (1.98, 'glance', 32.0)
    """
    first = text.replace("%", " ").replace("/", " ").split(" ")[0]
    try:
        return float(first)
    except ValueError:
        return text


def _templates() -> "Environment":
    from jinja2 import DictLoader, Environment, StrictUndefined

    here = files("crossdraft_lab.bench.experiments")
    texts = {path.name: path.read_text(encoding="utf-8") for path in here.iterdir() if path.name.endswith(".j2")}
    made = Environment(loader=DictLoader(texts), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    made.filters["sort_key"] = sort_key
    return made
