"""What docs say of many requests, of the server and of streams, written from the JSON of their benches.

Most of it is written block by block (see `tools/figures.py`): what is said in words depends on the figures, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from crossdraft_lab.bench.serving.overhead import MOST_OVERHEAD_MS
from crossdraft_lab.bench.serving.throughput import LEAST_THROUGHPUT
from crossdraft_lab.bench.soak import INTERVAL_S
from crossdraft_lab.bench.specs import ALONE
from crossdraft_lab.bench.statistics import Interval
from crossdraft_lab.bench.throughput import ALL
from crossdraft_lab.bench.throughput_report import FLOOR
from tools.figures import Tie, interval, measured, minus

JSON = Mapping[str, Any]
RESULTS = "docs/results"
SERVE = tuple(f"{RESULTS}/serve/{name}.json" for name in ("overhead", "load", "mutants"))
ENDS = {"waiting": "waited for the rest"}  # how a mutant ended, as a page says it
ANSWERED, FULL = "200", "503"


def listed(parts: Sequence[object]) -> str:
    """`1, 2 and 4`.

    >>> listed([1, 2, 4]), listed([1])
    ('1, 2 and 4', '1')
    """
    *others, last = map(str, parts)
    return f"{', '.join(others)} and {last}" if others else last


def percent(share: float, digits: int = 0) -> str:
    """A share as pages have it.

    >>> percent(0.0123, 1)
    '1.2 %'
    """
    return f"{100 * share:.{digits}f} %"


def spread(shares: Sequence[float]) -> str:
    """The least and the largest of some shares: `6 to 24 %`, or `6 %` where both are that.

    >>> spread([0.238, 0.061]), spread([0.061, 0.062])
    ('6 to 24 %', '6 %')
    """
    low, high = (f"{100 * share:.0f}" for share in (min(shares), max(shares)))
    return f"{high} %" if low == high else f"{low} to {high} %"


def serve(cost: JSON, loaded: JSON, fuzzed: JSON) -> Iterator[str]:
    """The table: what the server costs, and what it bears."""
    known, new = (cost["overhead"][kind] for kind in ("known", "new"))
    yield "| | |"
    yield "|---|---|"
    yield (
        "| a request about a known clip, over the engine called directly (p50 of what passes beside the engine's own "
        f"time) | {minus(interval(known, 1, 'added_ms_p50'))} ms; asked at most {MOST_OVERHEAD_MS:g}. "
        f"In all (p50 of the pairs) {in_all('known', cost, loaded)} |"
    )
    through, direct = (new["e2e_ms"][way]["p50"] for way in ("server", "direct"))
    yield (
        "| a clip that is new, in all, over a direct call that reads the same files (p50 of the pairs) "
        f"| {in_all('new', cost, loaded)}: {through:.0f} against {direct:.0f} ms. Decoding "
        f"included, {new['added_ms_p50']:.1f} ms pass before the engine has the request; a direct call decodes in the "
        "engine's time |"
    )
    busy, matched = (cost["throughput"][name] for name in ("busy", "matched"))
    again = loaded["throughput"]["busy"]
    yield (
        f"| throughput over the same engine called directly by {busy['threads']} threads, so that every row is taken "
        f"again at once | {interval(busy, 3, 'ratio')} over {busy['n']} starts, in a shorter run "
        f"{interval(again, 3, 'ratio')} over {again['n']}; asked at least {LEAST_THROUGHPUT:g}. By "
        f"{matched['threads']}, as many as rows: {interval(matched, 3, 'ratio')}, in the shorter run "
        f"{interval(loaded['throughput']['matched'], 3, 'ratio')}. The server's thread takes "
        f"{cost['throughput']['server_cpu_ms']:.1f} ms of CPU time for each request |"
    )
    yield under_load(loaded["load"])
    left = [f"{count} {name}" for name, count in cost["cancels"]["left"].items() if count]
    kept = f"left: {', '.join(left)}" if left else "no row, no file, no recording, no request left"
    yield f"| {cost['cancels']['cancels']:,} streams that are left before their end | {kept} |"
    yield killed(cost["kills"])
    yield mutated(fuzzed["mutants"])


def in_all(kind: str, *runs: JSON) -> str:
    """What requests of a kind take longer than direct calls, of each run."""
    first, *shorter = (minus(interval(run["overhead"][kind]["e2e_difference_ms"], 1, "p50")) for run in runs)
    return f"{first} ms, in a shorter run {', '.join(shorter)} ms"


def under_load(load: JSON) -> str:
    """The row of many clients."""
    memory, statuses = load["resident_mib"], load["statuses"]
    others = [f"{count:,} × {status}" for status, count in statuses.items() if status not in (ANSWERED, FULL)]
    return (
        f"| {load['clients']} clients on a queue of 8 for {load['seconds'] / 60:g} minutes | {statuses[ANSWERED]:,} "
        f"answers, {statuses.get(FULL, 0):,} × {FULL}, {', '.join(others) or 'nothing else'}; {load['wrong_answers']} "
        f"wrong; p99 {load['latency_ms']['p99'] / 1e3:.2f} s; resident memory {memory['first']:,.0f} to "
        f"{memory['last']:,.0f} MiB, medians of eighths within {percent(load['growth'], 1)} |"
    )


def killed(kills: JSON) -> str:
    """The row of a drafter that is killed."""
    lost = sum(count for status, count in kills["statuses"].items() if status != ANSWERED)
    return (
        f"| the drafter killed {kills['kills']} times under load | {kills['statuses'][ANSWERED]:,} answers, "
        f"{kills['wrong_answers']} wrong, {lost or 'none'} lost |"
    )


def mutated(mutants: JSON) -> str:
    """The row of mutated requests."""
    counts = dict.fromkeys(("answered", "refused", "no room"), 0)
    for outcome, count in mutants["outcomes"].items():
        way = ENDS.get(end := outcome.rpartition(": ")[2], end)
        counts[way] = counts.get(way, 0) + count
    said = [f"{count:,} {way}" for way, count in counts.items() if count]
    said.append("no other status" if mutants["passed"] else "and not all as it should be")
    edges = sum(count for outcome, count in mutants["outcomes"].items() if outcome.startswith("edge: "))
    sent = ["requests", "heads", "streams", *(["edges"] if edges else []), "clips", "recordings", "uploads"]
    memory, asked = mutants["resident_mib"], ""
    held = f"{memory['first']:,.0f} to {memory['last']:,.0f} MiB"
    if "whole_edge" in mutants:
        said.append(f"and then a whole edge is {mutants['whole_edge']}")
        held = f"after the first {percent(mutants['warm_after'])} of them {held}"
        asked = f"; asked at most {percent(mutants['most_growth'])}"
    return (
        f"| `--fuzz {mutants['mutants']}`: mutated {listed(sent)} | {', '.join(said)}; resident memory {held}, medians "
        f"of its eighths within {percent(mutants['growth'], 1)}{asked} |"
    )


def against_vllm(loaded: JSON) -> Iterator[str]:
    """The table of both servers."""
    levels = loaded["vllm"]["clients"]
    same, asked = (sum(level[name] for level in levels.values()) for name in ("same_text", "requests"))
    blocks = max(level["throughput_ratio"]["n"] for level in levels.values())
    yield f"{blocks} blocks for each number of clients; in {same} of {asked} answers the text was the same:"
    yield "| clients | ours, p50 | vLLM, p50 | answers sooner by | tokens/s over vLLM's |"
    yield "|---|---|---|---|---|"
    for clients, level in levels.items():
        ours, theirs = (level["e2e_ms"][name]["p50"] for name in ("crossdraft", "vllm"))
        yield (
            f"| {clients} | {ours:,.0f} ms | {theirs:,.0f} ms | {interval(level, name='sooner')} "
            f"| {interval(level['throughput_ratio'])} |"
        )


def serve_short(cost: JSON, loaded: JSON) -> Iterator[str]:
    """What falls short of its bound, and of vLLM's server."""
    found = list[str]()
    runs = [Interval.from_json(run["throughput"]["busy"], "ratio") for run in (cost, loaded)]
    rate = min(runs, key=lambda run: run.value)
    if rate.value < LEAST_THROUGHPUT:
        within = ", which lies within its interval" if rate.high >= LEAST_THROUGHPUT and rate.n >= FEW_STARTS else ""
        found.append(f"Throughput is below the bound{within}.")
    if cost["overhead"]["known"]["added_ms_p50"] > MOST_OVERHEAD_MS:
        found.append("A request about a known clip takes longer than the bound.")
    longer = [run["overhead"][kind]["e2e_difference_ms"]["p50"] for run in (cost, loaded) for kind in ("known", "new")]
    if max(longer) > MOST_OVERHEAD_MS:
        found.append(
            f"In all a request takes {min(longer):.1f} to {max(longer):.1f} ms longer than a direct call (clips known "
            "and new, two runs)."
        )
    levels = loaded["vllm"]["clients"]
    slower = [clients for clients, level in levels.items() if level["throughput_ratio"]["value"] < AS_MUCH]
    if slower:
        found.append(f"With {listed(slower)} clients vLLM does more.")
    if found:
        yield " ".join(["**What falls short.**", *found])
    else:
        yield "**Nothing falls short** of its bound, and vLLM does not do more with any of these numbers of clients."


def throughput(run: JSON, again: JSON) -> Iterator[str]:
    """The table of the target alone and vLLM, and what is said under it; and of another run, what drafting is worth."""
    ours, rows, over = run["drafter"], by_size(run), baselines(run, ("target", "vllm"))
    yield from contestants(run, over)
    took = f"The run took {run['seconds'] / 60:.0f} minutes."
    yield " ".join([took, answers(run), intervals(over), first_tokens(rows, ours, list(over))])
    yield shortfalls(run, over)
    rates = listed([f"{one['target']['value']:.2f}" for one in baselines(again, ("target",)).values()])
    yield f"Run again by a script that also logged whether cores were lent, it gave {rates} over `target`."


def throughput_hf(run: JSON) -> Iterator[str]:
    """The table of Hugging Face's two ways."""
    yield from contestants(run, baselines(run, ("hf-batch", "hf-continuous")))


def by_size(run: JSON) -> dict[tuple[int, str], JSON]:
    """Rows by the number of requests and the contestant."""
    return {(row["requests"], row["name"]): row for row in run["rows"]}


def baselines(run: JSON, names: Sequence[str]) -> dict[int, dict[str, JSON]]:
    """By the number of requests and the name, our ratio over each of these."""
    over: dict[int, dict[str, JSON]] = {}
    for one in run["against"]:
        if one["baseline"] in names:
            over.setdefault(one["requests"], {})[one["baseline"]] = one
    return over


def contestants(run: JSON, over: Mapping[int, Mapping[str, JSON]]) -> Iterator[str]:
    """A table: tokens per second, and our engine over each."""
    ours, rows, names = run["drafter"], by_size(run), list(next(iter(over.values())))
    yield f"| requests | `{ours}` | {' | '.join(f'`{name}`' for name in names)} |"
    yield "|---" * (2 + len(names)) + "|"

    def rate(size: int, name: str) -> str:
        return f"{rows[size, name]['tokens_per_s']['value']:.0f}"

    for size, found in over.items():
        cells = (f"{rate(size, one['faster'])}, {one['value']:.2f} ×" for one in found.values())
        yield f"| {size} | {rate(size, ours)} | {' | '.join(cells)} |"


def answers(run: JSON) -> str:
    """Whose answers are the target's own."""
    others: dict[str, list[int]] = {}
    for row in run["rows"]:
        same, total = map(int, row["identical"].split("/"))
        count = others.setdefault(row["name"].removesuffix(ALL), [0, 0])
        count[0] += total - same
        count[1] += total
    differ = [f"{count:,} of {total:,} of `{name}`" for name, (count, total) in others.items() if count]
    if not differ:
        return "All answers are the target's own."
    return f"Answers that are not the target's own: {', '.join(differ)}; all others are."


def intervals(over: Mapping[int, Mapping[str, JSON]]) -> str:
    """Those of our ratios over the target alone, and over vLLM."""
    found = []
    for name in ("target", "vllm"):
        drawn = [one[name]["ci95"] for one in over.values() if name in one]
        if drawn:
            found.append(f"over `{name}` {listed([f'[{low:.2f}, {high:.2f}]' for low, high in drawn])}")
    drawn_from = sorted({one["n"] for found in over.values() for one in found.values()})
    batches = " to ".join(str(count) for count in dict.fromkeys((drawn_from[0], drawn_from[-1])))
    return f"The intervals of the ratios, drawn from {batches} batches of a size, are {', '.join(found)}."


def first_tokens(rows: Mapping[tuple[int, str], JSON], ours: str, sizes: Sequence[int]) -> str:
    """When they come, of our pair and of the target alone on as many cores."""
    alone = "target" + ALL if (sizes[0], "target" + ALL) in rows else "target"
    shown = [[rows[size, name]["ttft_ms"]["median"] for name in (ours, alone)] for size in sizes]
    first, *others = shown
    said = [f"{first[0]:,.0f} ms ({first[1]:,.0f})", *(f"{pair:,.0f} ({target:,.0f})" for pair, target in others)]
    return f"The first token (median; `target` on all cores of the pair in brackets) comes after {listed(said)}."


def shortfalls(run: JSON, over: Mapping[int, Mapping[str, JSON]]) -> str:
    """Where vLLM answers more, and where drafting costs more than it may."""
    found, least = list[str](), run["least_over_target"]
    behind = {size: 1 / one["vllm"]["value"] - 1 for size, one in over.items() if "vllm" in one}
    behind = {size: more for size, more in behind.items() if more > 0}
    if behind:
        found.append(f"With {listed(list(behind))} requests vLLM answers {spread(list(behind.values()))} more.")
    if least["value"] < FLOOR:
        found.append(
            f"Where drafting helps least, throughput is {interval(least)} times that of the target alone in the same "
            f"batches; asked is at least {FLOOR:g}."
        )
    if not found:
        return "**Nothing falls short**: nobody answers more, and drafting costs nowhere more than it may."
    return " ".join(["**What falls short.**", *found])


def soak(run: JSON) -> Iterator[str]:
    """How it ended, and what memory did."""
    memory, (low, high) = run["memory"], run["memory"]["range_mib"]
    right = f"{run['failed']} answers were wrong" if run["failed"] else "every answer was right"
    left = run["rows"] or any(run["left"].values())
    flat = "memory is flat" if memory["growth"] <= memory["most"] else "memory is not flat"
    if not memory["judged"]:
        flat = "memory was not judged"
    kills = f"{run['kills']} kill{'' if run['kills'] == 1 else 's'}"
    yield (
        f"{run['requests']:,} requests took {run['seconds']:.0f} s on {run['environment']['cpus']} cores, with "
        f"{kills}: {right}, {'something' if left else 'nothing'} was left, and {flat}: the medians lie "
        f"within {percent(memory['growth'], 1)}. Single samples, one each {INTERVAL_S:g} s, lie between {low:,.0f} and "
        f"{high:,.0f} MiB ({percent(memory['swing'], 1)})."
    )


def watch(run: JSON) -> Iterator[str]:
    """A row for each method, and how many answers were the target's own."""
    stream, rows = run["stream"], run["methods"]
    yield (
        f"A stream of {stream['seconds']:g} s, a window of {stream['window_s']:g} s each {1e3 * stream['every_s']:g} "
        f"ms, {len(stream['questions'])} questions, one a run; times from a window's last frame on, p50 and p99:"
    )
    yield "| | cores | windows answered | dropped | a second | first token | whole answer | frames late, at most |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        times = (_both(row[f"last_frame_to_{what}_ms"]) for what in ("first_token", "whole_answer"))
        yield (
            f"| `{row['name']}` | {run['cores'][row['name']]} | {row['windows_answered']} of {row['windows_due']} "
            f"| {row['windows_dropped']} | {interval(row['windows_per_s'])} | {' | '.join(times)} "
            f"| {row['late_ms']:.0f} ms |"
        )
    others = [row["identical"].split("/") for row in rows if row["name"] != ALONE[0]]
    same, compared = (sum(int(one[part]) for one in others) for part in (0, 1))
    yield f"{same} of {compared} answers to windows that the target alone answered, too, were its own, token for token."


HOSTED = {
    "alone": "vLLM alone",
    "known": "a drafter that knows the answers, prompts read at once",
    "known, riding": "the same, prompts in two chunks, drafts ride along",
    "wrong": "a drafter that is always wrong",
    "event": "`event`",
    "event, riding": "`event`, prompts in two chunks",
    "union, batches": "`union:event,memory`, six requests at once",
    "known, preempted": "six requests at once, too few blocks for keys and values: {preempted} preemptions",
    "event, killed": "the drafter's process killed after the first answer",
    "EAGLE-1": "EAGLE-1 of ours in vLLM, four tokens a draft",
    "event, then EAGLE-3": "the first draft `event`'s, the others EAGLE-3's in vLLM",
}
TIMED = {
    "event": "`event`",
    "event, riding": "`event`, prompts in two chunks",
    "known": "a drafter that knows the answers",
    "known, riding": "the same, prompts in two chunks",
}
AS_MUCH = 0.98  # of another server's throughput
FEW_STARTS = 4  # the interval of fewer says little
BY_HAND = ("known", "known, riding")  # whose passes the bench holds against a count that was worked out


def hosted(run: JSON) -> Iterator[str]:
    """Drafts inside vLLM: a row for each case, and what was drawn."""
    cases = run["cases"]
    for name, label in HOSTED.items():
        row = cases[name]
        passes = f"{row['passes']}, as worked out by hand" if name in BY_HAND else f"{row['passes']}"
        same = f"{row['identical']}/{row['answers']}"
        yield f"| {label.format(**row)} | {passes} | {row['tokens'] / row['passes']:.2f} | {same} |"
    drawn = cases["known, sampled"]
    yield (
        f"{drawn['answers']} answers drawn at temperature {drawn['temperature']:g} with drafts, of which vLLM accepted "
        f"{drawn['accepted']} tokens"
    )
    yield f"(chi-square {drawn['deviation']:.2f} standard deviations above its mean, at most)"


def hosted_times(run: JSON) -> Iterator[str]:
    """A row for each case: the first token and the whole answer in vLLM, alone and with drafts."""
    yield "| case | first token: alone, with drafts | as fast | whole answer: alone, with drafts | as fast |"
    yield "|---|---|---|---|---|"
    for name, label in TIMED.items():
        row = run["cases"][name]
        cells = [
            f"{one['alone_ms']['median']:,.0f}, {one['drafted_ms']['median']:,.0f} ms | {interval(one['speedup'])}"
            for one in (row["first"], row["whole"])
        ]
        yield f"| {label} | {' | '.join(cells)} |"
    rows = run["cases"].values()
    same, answers = (sum(row[name] for row in rows) for name in ("identical", "answers"))
    first = next(iter(rows))
    yield (
        f"{first['questions']} questions, {first['runs']} runs of each with drafts and without, in turn; {same} of "
        f"{answers} answers were our own engine's. Intervals are over the questions."
    )


def hosted_heads(run: JSON) -> Iterator[str]:
    """What vLLM accepts of an exported head."""
    row = run["cases"]["EAGLE-1"]
    yield f"the target's tokens, τ {row['tokens'] / row['passes']:.2f} with EAGLE-1"


def _both(times: JSON | None) -> str:
    return "none" if times is None else f"{times['p50']:,.0f}, {times['p99']:,.0f} ms"


TIES = (
    Tie("docs/serve.md", SERVE, serve, "serve"),
    Tie("docs/serve.md", SERVE[1:2], against_vllm, "serve against vLLM"),
    Tie("docs/serve.md", SERVE[:2], serve_short, "serve falls short"),
    Tie("docs/vllm.md", (f"{RESULTS}/vllm.json",), hosted),
    Tie("docs/heads.md", (f"{RESULTS}/vllm.json",), hosted_heads),
    *measured(
        Tie("docs/vllm.md", (f"{RESULTS}/vllm_times.json",), hosted_times, "vllm times"),
        Tie(
            "docs/many_requests.md",
            (f"{RESULTS}/throughput.json", f"{RESULTS}/throughput_again.json"),
            throughput,
            "throughput",
        ),
        Tie("docs/many_requests.md", (f"{RESULTS}/throughput_hf.json",), throughput_hf, "throughput_hf"),
        Tie("docs/many_requests.md", (f"{RESULTS}/soak.json",), soak, "soak"),
        Tie("docs/streams.md", (f"{RESULTS}/watch.json",), watch, "watch"),
    ),
)
