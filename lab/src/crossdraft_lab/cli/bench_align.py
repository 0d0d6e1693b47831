"""`crossdraft bench align`: how well a foreign drafter, with an adapter or tuned, predicts the target's answers."""

from typing import Annotated

import typer

from crossdraft.cli.options import option_groups
from crossdraft.cli.reporting import hush, progress
from crossdraft_lab.cli.bench_options import BenchModels, Blind, MaxTokens, ReportOptions


@option_groups
def align(
    models: BenchModels,
    output: ReportOptions,
    drafters: Annotated[
        list[str],
        typer.Option(
            "--drafter", metavar="SPEC", help="A drafter, such as aligned:dir=FOLDER,model=FOLDER. May be repeated."
        ),
    ],
    clips: Annotated[int, typer.Option(help="Test clips.", min=1)] = 64,
    each: Annotated[int, typer.Option("--questions", help="Questions about each.", min=1)] = 4,
    learned: Annotated[int, typer.Option(help="Questions about training clips, of which the controls are made.")] = 256,
    nodes: Annotated[int, typer.Option(help="Tokens of the chains after the hidden draft.")] = 8,
    max_new_tokens: MaxTokens = 96,
    blind: Blind = "blind",
) -> None:
    """Measure drafters made of a foreign one: the hidden draft's accepted prefix, and features, beside controls.

    Controls: the best constant sentence, the best one for each kind of question, memory, the blind twin, and the
    drafter's feature read by the target's head as it is.
    """
    output.check()
    from crossdraft_lab.bench.align import AlignBench, run_align, scene_questions, to_json
    from crossdraft_lab.bench.align_rows import lines, results_table
    from crossdraft_lab.bench.study import terminal_table
    from crossdraft_lab.bench.workload import Workload

    work = Workload(clips * each, max_new_tokens=max_new_tokens, questions=each)
    plan = AlignBench(models.models(blind), scene_questions(work, learned), tuple(drafters), nodes)
    plan.check()
    hush()
    with progress("measuring", plan.ticks) as tick:
        results = run_align(plan, tick)
    output.console.print(terminal_table(results_table(results)))
    output.lines(list(lines(plan.drafters, results)))
    output.write(to_json(plan, results))
