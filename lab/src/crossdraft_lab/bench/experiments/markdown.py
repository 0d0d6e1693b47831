"""Experiments as Markdown: the page of an experiment, and the report."""

from collections.abc import Iterator, Sequence

from crossdraft_lab.bench.experiments.record import ExperimentOutcome, FigureTable

SPECIAL = str.maketrans({"|": r"\|", "<": "&lt;", ">": "&gt;", "\n": " "})


def cell(text: str) -> str:
    r"""Text with the characters escaped that a cell of a Markdown table may not hold.

    >>> cell("a|b <i>")
    'a\\|b &lt;i&gt;'
    """
    return text.translate(SPECIAL)


def prose(text: str) -> str:
    """Text with its markup escaped; a `|` stays.

    >>> prose("a|b <i>")
    'a|b &lt;i&gt;'
    """
    return text.translate({one: mark for one, mark in SPECIAL.items() if one != ord("|")})


def table_lines(table: FigureTable) -> Iterator[str]:
    """Lines of a table, with its title and its note."""
    yield f"**{prose(table.title)}**"
    yield ""
    yield "| " + " | ".join(map(cell, table.heads)) + " |"
    yield "|" + "---|" * len(table.heads)
    for row in table.rows:
        yield "| " + " | ".join(map(cell, row)) + " |"
    if table.note:
        yield from ("", prose(table.note))


def outcome_lines(found: ExperimentOutcome, level: int = 1, machines: Sequence[str] = ()) -> Iterator[str]:
    """Lines of an experiment: question, findings, certainty, tables, and machines."""
    experiment, summary = found.experiment, found.summary
    yield f"{'#' * level} {experiment.number}. {experiment.title}"
    yield from ("", f"**Asked.** {prose(experiment.asked)}")
    yield from ("", f"**Found.** {prose(summary.found)}")
    yield from ("", f"**How sure.** {prose(summary.sure)}")
    for table in summary.tables:
        yield from ("", *table_lines(table))
    if summary.faults.sentences:
        yield from ("", "Of the rows:", "", *(f"- {prose(sentence)}" for sentence in summary.faults.sentences))
    if summary.negative:
        yield from ("", "What did not help:", "", *(f"- {prose(sentence)}" for sentence in summary.negative))
    yield from ("", f"`{found.command}` ({found.took}{ran_on(found, machines)})")


def outcome_page(found: ExperimentOutcome) -> str:
    """The page of one experiment."""
    return "\n".join([*outcome_lines(found), *setting_lines(machines_of([found]))]) + "\n"


def setting_lines(machines: Sequence[str]) -> Iterator[str]:
    """Lines about the machines, a paragraph each."""
    for number, machine in enumerate(machines, 1):
        yield from ("", f"Machine{f' {number}' if len(machines) > 1 else ''}: {prose(machine)}.")


def machines_of(found: Sequence[ExperimentOutcome]) -> list[str]:
    """Descriptions of the machines with their versions, each once."""
    return list(dict.fromkeys(machine for outcome in found for machine in outcome.machines))


def ran_on(found: ExperimentOutcome, machines: Sequence[str]) -> str:
    """Numbers of the machines that an experiment ran on, if there are several; ends a sentence."""
    numbers = [str(machines.index(machine) + 1) for machine in found.machines] if len(machines) > 1 else []
    return f"; machine {' and '.join(numbers)}" if numbers else ""
