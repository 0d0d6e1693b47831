"""`crossdraft replay`: drafters and policies on recorded answers."""

from pathlib import Path
from typing import Annotated

import typer

from crossdraft.cli.options import option_groups
from crossdraft.cli.reporting import progress
from crossdraft.errors import CrossdraftError
from crossdraft.methods import check_spec, read_spec
from crossdraft_lab.cli.bench_options import ReportOptions

REPLAYED = {"memory", "ngram", "trace"}  # drafters that need no target

app = typer.Typer(add_completion=False)


@app.command()
@option_groups
def replay(
    traces: Annotated[
        Path,
        typer.Argument(
            help="Recorded answers, a JSON object a line, as bench --record writes them; one to try: "
            "examples/reference_answers.jsonl.",
            show_default=False,
        ),
    ],
    output: ReportOptions,
    drafter: Annotated[
        str, typer.Option(help="memory, ngram, trace (the recorded drafter), or a union or phased of these.")
    ] = "memory",
    nodes: Annotated[int, typer.Option(help="Most nodes of a draft tree.")] = 32,
    adaptive: Annotated[
        bool, typer.Option("--adaptive", help="Prune nodes whose expected gain is below their cost.")
    ] = False,
    ride_along: Annotated[bool, typer.Option(help="Draft for the prefill's own pass too.")] = True,
    shuffle: Annotated[
        int | None, typer.Option(min=0, help="Seed of another order of the traces, in place of their own.")
    ] = None,
    shared_clip: Annotated[
        bool,
        typer.Option(
            "--shared-clip", help="Only the first question about a clip pays the prefill, as with a prefix cache."
        ),
    ] = False,
    prefill: Annotated[float | None, typer.Option(help="Milliseconds, where the traces hold none.")] = None,
    step: Annotated[float | None, typer.Option(help="Milliseconds of a pass over one token, likewise.")] = None,
    verify: Annotated[float, typer.Option(help="V(2) / V(1).")] = 1.05,
    per_node: Annotated[float, typer.Option(help="What each further node adds, in V(1).")] = 0.0,
    draft_ms: Annotated[
        float | None, typer.Option(help="Milliseconds of drafting a tree; by default as measured here.")
    ] = None,
    question_tokens: Annotated[
        int, typer.Option(help="Length of a question's text, the first pass where its clip is known.")
    ] = 16,
) -> None:
    """Run a drafter on recorded answers: tokens per pass exactly, times simulated.

    Greedy and online, in the order of the traces (or --shuffle): nothing is known of an answer before it is over.
    """
    output.check()
    spec = read_spec(drafter)
    check_spec(spec, own=("trace",))
    if not {leaf.name for leaf in spec.leaves} <= REPLAYED:
        raise CrossdraftError(
            f"The drafter '{drafter}' needs a target, which recorded answers lack; name {', '.join(sorted(REPLAYED))}, "
            "or a union or phased of these."
        )
    from crossdraft_lab.bench.replay import RecordedDrafter, ReplayConfig, StageCosts
    from crossdraft_lab.bench.replay import replay as run
    from crossdraft_lab.bench.statistics import Interval
    from crossdraft_lab.bench.traces import read_traces, shuffled

    recorded = read_traces(traces)
    if shuffle is not None:
        recorded = shuffled(recorded, shuffle)
    costs = StageCosts(prefill, step, verify, per_node, draft_ms, question_tokens)
    config = ReplayConfig(nodes, ride_along, adaptive, shared_clip)

    from rich.table import Table

    from crossdraft.methods import build
    from crossdraft.records import DrafterContext, Method

    trace = Method("trace", "what was recorded", "crossdraft", lambda *_: RecordedDrafter(recorded))
    context = DrafterContext(target=None, methods={"trace": trace})
    with progress("replaying", len(recorded)) as tick:
        found = run(recorded, build(drafter, context), config, costs, tick)

    def shown(name: str, key: str = "value") -> str:
        return Interval.from_json(found[name] if key == "value" else found, key).shown("clips")

    table = Table("figure", "value", title=f"{drafter} on {found['traces']} recorded answers")
    table.add_row("τ, tokens per pass [95 % bootstrap over clips]", shown("", "tau"))
    if found["hidden_accepted"] is not None:
        table.add_row("hidden draft: tokens accepted", shown("hidden_accepted"))
    table.add_row("nodes per pass", f"{found['nodes_per_pass']:.1f}")
    table.add_row("time of a draft, ms, measured here", f"{found['draft_ms']['median']:.3f}")
    if found["simulated_speedup"] is not None:
        table.add_row("target alone, ms, simulated", f"{found['simulated_alone_ms']:.1f}")
        if shared_clip:
            table.add_row("target alone, shared clip, ms, simulated", f"{found['simulated_alone_shared_ms']:.1f}")
        table.add_row("with the drafter, ms, simulated", f"{found['simulated_ms']:.1f}")
        table.add_row("speedup, simulated", shown("simulated_speedup"))
        if shared_clip:
            table.add_row("speedup over the shared clip alone, simulated", shown("simulated_speedup_shared"))
    else:
        table.add_row("speedup, simulated", "needs --prefill and --step: the traces hold no times")
    output.console.print(table)
    settings = {"traces": traces.name, "drafter": drafter, "nodes": nodes, "adaptive": adaptive,
                "ride_along": ride_along, "shuffle": shuffle, "verify": verify, "per_node": per_node,
                "draft_ms": draft_ms, "shared_clip": shared_clip, "question_tokens": question_tokens}  # fmt: skip
    output.write({"settings": settings, **found})
