"""What docs/ray.md says was run, written from the JSON of `make interop-ray` and of `crossdraft bench replicas`.

Both are blocks (see `tools/figures.py`): a run may have other numbers of runs and of contestants, and other words.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from docs.serving_figures import ANSWERED, listed
from tools.figures import Tie, interval, minus

JSON = Mapping[str, Any]
RESULTS = "docs/results"
ALONE, OF = "server", "of_the_server"


def interop(run: JSON) -> Iterator[str]:
    """The cases on a cluster of two nodes."""
    cases, clients, versions = run["cases"], run["clients"], run["versions"]
    asked, several, capture, scaled = (cases[name] for name in ("questions", "sessions", "capture", "autoscaling"))
    ray, python, torch = (
        ".".join(version.split(".")[:2]) for version in (versions["ray"], run["python"], versions["torch"])
    )
    yield (
        f"Ray {ray}, Python {python}, PyTorch {torch}, {run['cpus']} CPU cores. "
        "`make interop-ray INTEROP_JSON=docs/results/ray.json` makes its environment and runs all rows, on a cluster "
        "of two nodes (`ray.cluster_utils.Cluster`: two raylets on one machine, one core each, tokens on), replicas of "
        f"the reference pair, answers of {asked['tokens']} tokens:"
    )
    yield "| case | result |"
    yield "|---|---|"
    yield (
        f"| {asked['answers']} questions about {asked['clips']} clips | all {asked['answers']} the target's own text; "
        f"of the {asked['later']} later ones {asked['cached']} found their clip in the prefix cache |"
    )
    yield (
        f"| {several['sessions']} sessions | both replicas answered, {listed(several['by_replica'])} of them; all "
        "texts right |"
    )
    kills = cases["kills"]
    yield f"| one node killed (SIGKILL) under {clients} clients' streams, {len(kills)} runs | {killed(kills)} |"
    answers = sum(one["by_two"] for one in kills)
    yield f"| a new node, after each | gets a replica; {answers} answers, all right |"
    left = cases["left"]["streams"]
    yield f"| {left} streams left by their clients | nothing runs, waits or holds a row afterwards |"
    yield (
        f"| capture by {capture['workers']} workers, {capture['shards']} shards | equal to those of one process to the "
        "last bit |"
    )
    yield (
        f"| the same with a shard removed | resumed from there, {capture['clips_of_the_resumed']} of "
        f"{capture['clips']} clips again; equal again |"
    )
    yield (
        f"| autoscaling from 1 to 2, {clients} clients, `--max-batch 1` | the second replica had answered after "
        f"{scaled['seconds']} s; {scaled['answers']} answers, all 200, all texts right |"
    )


def killed(kills: list[JSON]) -> str:
    """What became of the streams of each run; the file is written only if none was wrong.

    >>> run = {"whole": 3, "broken": 1, "refused": 0, "retried": 0, "later": 3, "broken_after_s": [0.21]}
    >>> killed([run])
    "of 4 streams 3 came whole and 1 ended with an error, at most 0.21 s after the kill; 0 wrong; the 3 later \
answers are the other node's, and right"
    """
    whole, broken, refused, retried = (
        [one[name] for one in kills] for name in ("whole", "broken", "refused", "retried")
    )
    streams = map(sum, zip(whole, broken, refused, strict=True))
    again = f", some of them asked again ({', '.join(map(str, retried))})," if any(retried) else ""
    said = f"of {listed([*streams])} streams {listed(whole)} came whole{again} and {listed(broken)} ended with an error"
    latest = max((second for one in kills for second in one["broken_after_s"]), default=None)
    said += "" if latest is None else f", at most {latest:.2f} s after the kill"
    said += f"; {listed(refused)} were refused with 503" if any(refused) else ""
    return f"{said}; 0 wrong; the {sum(one['later'] for one in kills)} later answers are the other node's, and right"


def replicas(drafted: JSON, alone: JSON) -> Iterator[str]:
    """Both halves of the table, with a drafter and without, and what is said around it."""
    clients, pairs, blocks = (drafted[name] for name in ("clients", "pairs", "repeats"))
    yield (
        f"`OMP_NUM_THREADS=1 crossdraft bench replicas --pairs {pairs} --clients {clients} --repeats {blocks}`, so one "
        "core a replica, and the same with `--drafter none`. All servers are up at once and are asked in turn; "
        "**clients, proxy and Ray's own processes share the "
        f"{drafted['environment']['cpus']} cores with the replicas**. Intervals of what is added are over the {pairs} "
        f"questions, those of rates over the {blocks} blocks:"
    )
    added, of = "added to the server alone, p50", "of the server alone"
    yield f"| | one client, p50 | {added} | tokens/s of {clients} clients | {of} |"
    yield "|---|---|---|---|---|"
    for before, run in {"": drafted, "without a drafter: ": alone}.items():
        for name, row in run["contestants"].items():
            label, more, share = number(name), f" {minus(interval(row['added_ms_p50'], 1))} ms", interval(row[OF])
            if name == ALONE:
                label, more, share = f"{before}server alone", "", "1"
            yield f"| {label} | {row['e2e_ms']['p50']:.0f} ms |{more} | {interval(row['tokens_per_s'], 0)} | {share} |"
    fewest, found = drafted["fewest_replicas"], alone["of_the_fewest"]
    times = [
        f"{number(name)} answer {interval(one)} times as many tokens a second as {number(fewest)}, and without a "
        f"drafter {interval(found[name])}."
        for name, one in drafted["of_the_fewest"].items()
    ]
    yield " ".join([statuses(drafted, alone), *times])


def number(name: str) -> str:
    """A contestant's replicas.

    >>> number("replicas-1"), number("replicas-2")
    ('1 replica', '2 replicas')
    """
    count = name.removeprefix("replicas-")
    return f"{count} replica{'' if count == '1' else 's'}"


def statuses(*runs: JSON) -> str:
    """How many answers were wrong, and of which status they were."""
    rows = [row for run in runs for row in run["contestants"].values()]
    found, wrong = Counter[str](), sum(row["wrong_answers"] for row in rows)
    for row in rows:
        found.update(row["statuses"])
    others = [f"{count:,} × {status}" for status, count in found.items() if status != ANSWERED]
    return f"{wrong} wrong answers of {found.total():,}, {', '.join(others) or f'all {ANSWERED}'}."


TIES = (
    Tie("docs/ray.md", (f"{RESULTS}/ray.json",), interop, "interop"),
    Tie("docs/ray.md", tuple(f"{RESULTS}/bench/{name}.json" for name in ("replicas", "replicas_no_drafter")), replicas,
        "replicas"),
)  # fmt: skip
