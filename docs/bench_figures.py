"""What docs say of single benches, written from what these wrote with `--json-out`; see `docs/figures.py`."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from tools.figures import Tie, interval, measured, minus

JSON = Mapping[str, Any]
RESULTS = "docs/results/bench"
EDGE_RUNS = ("docs/results/edge/networks.json", "docs/results/edge/narrow.json")
EDGE_ASKED, EDGE_LEAST = {20: 1.5, 100: 1.25}, 0.98  # what drafts of the edge alone should gain, and never lose


def frames(pair: JSON, large: JSON) -> Iterator[str]:
    """What reusing features of frames gains."""
    whole, reused = (pair["encode_ms"][way]["median"] for way in ("whole", "reused"))
    yield f"in {reused:.1f} ms instead of {whole:.1f}"
    yield f"all of it {_ratio(pair['encode_speedup'])}; {pair['frames_encoded']} frames encoded, "
    yield f"{pair['frames_reused']:,} reused), and answers {_ratio(pair['speedup'])}"
    same, asked = map(int, pair["identical"].split("/"))
    questions = len(pair["questions"])
    yield (
        f"{questions} questions about each of {asked // questions} windows of {pair['length_s']:g} s, one each "
        f"{1e3 * pair['every_s']:g} ms"
    )
    yield f"{same} of {asked} answers were identical"
    yield f"encoding is {100 * whole / pair['answer_ms']['whole']['median']:.0f} % of an answer"
    two, four = large["shifts"]
    yield (
        f"{two['reused_ms']['median'] / 1e3:.2f} s where {two['new']} of {two['frames']} frames are new, "
        f"the whole clip {two['whole_ms']['median'] / 1e3:.1f} s ({two['speedup']:.1f} times as fast); "
        f"{four['reused_ms']['median'] / 1e3:.1f} s where {four['new']} are new, whole "
        f"{four['whole_ms']['median'] / 1e3:.1f} s ({four['speedup']:.1f} times)"
    )


def shapes_7b(run: JSON) -> Iterator[str]:
    """A tuning at the shapes of the 7B pair: its memory, and the log of its steps."""
    held = {name: mib * 2**20 / 1e9 for name, mib in run["peak_mib"].items()}
    yield f"| {held['capture, int4']:.1f} GB with `--quantize int4`, {held['capture, bfloat16']:.1f} GB in bfloat16"
    saving = f"while the drafter is merged and saved, {held['saving']:.1f} GB"
    yield f"| of the tuning | {held['tuning']:.1f} GB (measured); {saving}"
    steps = run["steps"]
    seconds = [after["seconds"] - before["seconds"] for before, after in pairwise(steps)]
    yield f"| a step | {min(seconds):.0f} s at best, {median(seconds):.0f} s in the median"
    yield (
        f"| {len(steps)} steps | {steps[-1]['seconds'] / 60:.0f} minutes beside other work, over which the loss fell "
        f"from {steps[0]['loss']:.2f} to {steps[-1]['loss']:.2f} (measured)"
    )


def edge(networks: JSON, narrow: JSON) -> Iterator[str]:
    """A row for each round trip, one for each narrow link, and how many answers were the engine's own."""
    drafted = ("hidden", "policy", "cloud alone", "cloud too")
    for one in networks["networks"]:
        off, hidden, policy = (one["ways"][way] for way in ("off", "hidden", "policy"))
        first = ", ".join(f"{way['first']['ms']:.0f}" for way in (off, policy))
        ratios = " | ".join(interval(one["ways"][way]["speedup"], name="ratio") for way in drafted)
        nbytes = ", ".join(f"{way['draft_bytes']:,.0f}" for way in (hidden, policy))
        yield f"| {one['rtt_ms']:g} ms | {off['e2e']['ms']:.0f} | {ratios} | {first} ms | {nbytes} |"
    for one in narrow["networks"]:
        ratios = " | ".join(interval(one["ways"][way]["speedup"], name="ratio") for way in drafted)
        yield f"| {one['mbit_s']:g} Mbit/s, {one['rtt_ms']:g} ms | {ratios} |"
    every = [*networks["networks"], *narrow["networks"]]
    same, asked, cuts = (sum(one[name] for one in every) for name in ("identical", "answers", "cuts"))
    yield f"{same} of {asked} answers were the engine's own, token for token; the connections of {cuts} were cut"
    yield edge_against_what_was_asked(every)
    commits = [one["ways"]["policy"]["commit_bytes"] for one in networks["networks"]]
    yield f"{min(commits):.0f} to {max(commits):,.0f} for its commits"


def edge_recording(networks: JSON, narrow: JSON) -> Iterator[str]:
    """The edge's recording sent up instead of its drafts, where that was measured."""
    every = [one for found in (networks, narrow) for one in found["networks"] if "recording" in one["ways"]]
    if not every:
        yield (
            "**Sending the recording instead.** Not in these runs: what its bytes take is computed, above. "
            "`--recording` measures it."
        )
        return
    sent = [one["ways"]["recording"]["recording_bytes"] for one in every]
    yield (
        "**Sending the recording instead** (measured): when the question is asked the edge uploads the recording over "
        f"the same link, {min(sent):,.0f} to {max(sent):,.0f} bytes in the mean, and the cloud drafts from it by the "
        "same drafter, on the core that is the edge's else. Off over it, and over the edge as the policy wants:"
    )
    yield "| | the recording sent up, ms | off over it | off over the policy |"
    yield "|---|---|---|---|"
    for one in every:
        recording, policy = (one["ways"][way] for way in ("recording", "policy"))
        ratios = " | ".join(interval(way["speedup"], name="ratio") for way in (recording, policy))
        yield f"| {one['mbit_s']:g} Mbit/s, {one['rtt_ms']:g} ms | {recording['e2e']['ms']:,.0f} | {ratios} |"


def edge_against_what_was_asked(networks: Sequence[JSON]) -> str:
    """The edge alone, as the policy wants, beside what it should reach by round trip, and nowhere fall below."""
    found, least = [], min(one["ways"][way]["speedup"]["ratio"] for one in networks for way in ("hidden", "policy"))
    for rtt, asked in EDGE_ASKED.items():
        reached = [one["ways"]["policy"]["speedup"]["ratio"] for one in networks if one["rtt_ms"] == rtt]
        short = "" if min(reached) >= asked else ", which falls short"
        found.append(f"{min(reached):.2f} to {max(reached):.2f} at {rtt:g} ms, where the aim was {asked:g}{short}")
    return (
        f"The edge alone makes answers as many times as fast: {'; '.join(found)}; nowhere less than {least:.2f}, where "
        f"the aim was {EDGE_LEAST:g}."
    )


def adaedl(*found: JSON) -> Iterator[str]:
    """What ending drafts early takes of their depth, and of what is accepted."""
    for run in found:
        plain, ended = (run["drafters"][name] for name in ("event", "adaedl:event"))
        yield (
            f"| {run['workload']['temperature']:g} | {interval(plain, name='tau')} | {interval(ended, name='tau')} "
            f"| {interval(run['ratio'])} | {plain['depth']:.1f} | {ended['depth']:.1f} |"
        )


def _ratio(found: JSON) -> str:
    low, high = found["ci95"]
    return f"{found['value']:.2f} times as fast [{low:.2f}, {high:.2f}]"


def h100(plain: JSON, compiled: JSON) -> Iterator[str]:
    """The stages of the 7B shapes on one GPU, passes as they are and compiled."""
    both = plain, compiled
    steps = [run["decode"]["step_ms"]["median"] for run in both]
    yield _row("prefill: the clip, the text behind it", *map(_pieces, both))
    yield _row("a decode step", *(f"{step:.1f} ms" for step in steps))
    bound = plain["decode"]["bound_ms"]
    shares = (f"{100 * run['decode']['share']:.0f} %" for run in both)
    yield _row(f"of it to read weights and cache ({bound:.1f} ms)", *shares)
    yield _row("V(8) / V(1)", *(f"{next(r['over_v1'] for r in run['verify'] if r['n'] == 8):.2f}" for run in both))
    drafters = [run["drafters"][0] for run in both]
    reads = (f"{one['read_ms']['median']:.0f} ms, {one['step_ms']['median']:.1f} ms" for one in drafters)
    yield _row("EventGPT-7B reads, writes a token", *reads)
    before, beside = zip(*(one["placements"][:2] for one in drafters), strict=True)
    yield _row(
        "drafting before the prefill: tokens, the first token",
        *(f"{one['hidden_tokens']:.0f}, {_instead(one)}" for one in before),
    )
    yield _row(
        "beside it: tokens, part of them hidden",
        *(f"{one['hidden_tokens']:.0f}, {100 * one['hidden_share']:.0f} %" for one in beside),
    )
    longer = (f"{100 * one['prefill_slowdown']:.0f} % longer, {_instead(one)}" for one in beside)
    yield _row("beside it: the prefill takes, the first token", *longer)
    later = [one["ttft_ms"] - one["ttft_alone_ms"] for one in beside]
    yield f"the first token comes {min(later):.0f} to {max(later):.0f} ms later for it"
    yield _row("the GPU is busy (NVML), target alone, drafting beside it", *map(_busy, beside))
    yield _row("the engine's own work in a round", *(f"{one['engine_ms_per_round']:.1f} ms" for one in before))


def passes_h100(run: JSON) -> Iterator[str]:
    """V(n) both ways."""
    for one in run["passes"]:
        lean, compiled = one["lean_ms"]["median"], one["compiled_ms"]["median"]
        yield f"| {one['n']} | {lean:.1f} ms | {compiled:.1f} ms | {interval(one['ratio'])} |"


def reference_h100(run: JSON) -> Iterator[str]:
    """The reference pair on a GPU."""
    target, hf, event = run["methods"]
    yield f"writes {target['tokens_per_s']:.0f} tokens/s there, Hugging Face's `generate` {hf['tokens_per_s']:.0f}"
    same = event["identical"]
    yield f"with `event` answers came {interval(event['speedup'])} times as fast"
    yield f"{same['equal']} of {same['total']} answers were the target's own"


def tests_h100(run: JSON) -> Iterator[str]:
    """The tests for CUDA."""
    tests = run["tests"]
    whole, half = (tests["identity"][name] for name in ("float32", "bfloat16"))
    yield f"{tests['passed']} of {tests['passed'] + tests['failed']} passed"
    yield f"{tests['files']['test_identity']} of identity, {tests['files']['test_passes']} of single passes"
    same = [f"{one['identical']} of {one['answers']}" for one in (whole, half)]
    yield f"{same[0]} answers in float32 and {same[1]} in bfloat16"


def _row(name: str, *cells: str) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def _pieces(run: JSON) -> str:
    clip, text = (run["prefill_ms"][name]["median"] for name in ("clip", "text"))
    return f"{clip:.0f} ms, {text:.0f} ms"


def _busy(placed: JSON) -> str:
    uses = (placed[name][0] for name in ("gpu_alone", "gpu"))
    return ", ".join(f"{100 * use['busy']:.0f} % ({use['watts']:.0f} W)" for use in uses)


LADDER = {
    "foreign": "`foreign` as it is",
    "no adapter": "no adapter: its feature, padded with zeros",
    "contrastive": "`l4`, `loss={info_nce: 1, mse: 0.1}`",
    "l4v as frames come": "`l4v`, `config.frames_dropped=0.5`",
    "l4v contrastive": "`l4v`, `contrastive: 0.1` among the losses",
    "l4 of three layers": "`l4`, `config.source_layers=0,1,2`",
    "l5 without tokens": "`l5`, `config.reads_tokens=false`",
    "l6": "`l6`, LoRA of rank 16",
    "l6 whole": "`l6`, the whole language model (`rank=0`)",
    "l6 by the target's head": "`l6`, LoRA of rank 16, `head=target`",
    "l6 whole by the target's head": "`l6`, the whole language model, `head=target`",
    "event": "`event`, distilled from the beginning",
    "constant": "control: the best constant sentence",
    "template": "control: the best one for each kind of question",
    "memory": "control: `memory` of 1,024 answers",
    "blind": "control: the blind twin",
    "the target's own feature": "the target's own feature, offered as itself",
}
FEATURES = ("cosine", "acceptance@0.90", "consecutive@0.90", "same_position", "shifted")


def ladder(found: JSON) -> Iterator[str]:
    """Experiment 3: a row for each rung and control, and what one is worth over another."""
    for name, row in found["figures"].items():
        if name == "differences":
            continue
        accepted = ("accepted_prefix", "accepted_prefix_trained_wordings", "tau", "speedup")
        held, seen, tau, times = ("" if row[key] is None else interval(row[key]) for key in accepted)
        cells = ("", "", "", "", "")
        if row["features"] is not None:
            cosine, above, in_a_row, same, shifted = (row["features"][key]["value"] for key in FEATURES)
            cells = (minus(f"{cosine:.2f}"), _share(above), f"{in_a_row:.1f}", _share(same), f"{100 * shifted:.1f} %")
        yield f"| {LADDER.get(name, f'`{name}`')} | {held} | {seen} | {tau} | {' | '.join(cells)} | {times} |"
    tokens_alone, features = (found["figures"][name]["features"] for name in ("sequence_distillation", "l4"))
    yield (
        f"has a cosine of {tokens_alone['cosine']['value']:.2f} and {_share(tokens_alone['acceptance@0.90']['value'])} "
        f"of positions above 0.90, and accepts as much as `l4` with {features['cosine']['value']:.2f}."
    )
    for one in found["figures"]["differences"]:
        more = minus(interval(one["more"]))
        yield f"| {_rung(one['name'])} | {_rung(one['than'])} | {more} | {_p(one['p_holm'])} |"


def costs(found: list[JSON]) -> Iterator[str]:
    """`scale adapters`: a row for each network."""
    for row in found:
        per = "token" if "ms_per_token" in row else "clip"
        took, size = row[f"ms_per_{per}"], row["stored_bytes"] / 1e6
        name, stored = (f"`{row['network']}`", f"{size:,.0f} MB") if size else (row["network"], "shared")
        shown = f"{took:.0f}" if took >= 100 else f"{took:.1f}"
        yield f"| {name} | {row['parameters'] / 1e6:,.1f} M | {stored} | {shown} ms a {per} |"


ALIGNED = {
    "as it was": "`foreign` as it was", "tuned": "tuned, whole language model",
    "tuned, and memory:seed": "tuned, in a union with `memory:seed`",
    "constant": "control: the best constant sentence", "template": "control: the best one for each kind of question",
    "memory": "control: `memory` seeded with all captured answers", "blind": "control: the blind twin",
}  # fmt: skip


def aligned(run: JSON, experiment: JSON) -> Iterator[str]:
    """What `align` made of the foreign drafter, beside the controls; end to end by experiment 3."""
    for name, label in ALIGNED.items():
        held, seen = run["results"][name].values()
        tau = "" if held["tau"] is None else f"{held['tau']['value']:.2f}"
        yield f"| {label} | {interval(held['accepted_prefix'])} | {seen['accepted_prefix']['value']:.2f} | {tau} |"
    more = [next(one for one in steps if "memory" in one["drafter"]) for steps in run["ladder"].values()]
    held, seen = (interval(one, name="more") for one in more)
    yield f"The union accepts {held} tokens more than its better part in held-out wordings, {seen} in those of the"
    yield f"800 steps took {run['tuning']['wall_s'] / 60:.0f} minutes"
    whole, low_rank = (experiment["figures"][rung] for rung in ("l6 whole", "l6"))
    yield f"{interval(whole['speedup'])} times as fast as the target alone"
    yield f"LoRA of rank 16 accepts {low_rank['accepted_prefix']['value']:.2f}"
    by_theirs = experiment["figures"]["l6 by the target's head"]["accepted_prefix"]
    yield f"with losses of features {by_theirs['value']:.2f}"


def encode(run: JSON) -> Iterator[str]:
    """A vision encoder over two groups of cores."""
    one, both = run["speedup"], run["speedup_whole"]
    yield (
        f"On {run['environment']['cpus']} cores of a shared {run['environment']['cpu']} it is {interval(one)} times as "
        f"fast as on one core and {interval(both)} times as on both at once ({run['frames']} frames, "
        f"{run['dtype'] or 'float32'}, medians of {run['repeats']} runs)."
        + (" More than twice is the shared machine's doing." if one["value"] > 2 else "")
    )


REAL_SIZE = ("our own h5", "DSEC's layout")


def events(run: JSON) -> Iterator[str]:
    """From recordings of real size to the drafter's frames."""
    rows = {name: row for row in run["timings"] for name in REAL_SIZE if row["name"].startswith(name)}
    times = " and ".join(f"{rows[name]['ms']['median']:.0f}" for name in REAL_SIZE)
    peak = max(rows[name]["peak_mb"] for name in REAL_SIZE)
    yield f"On a shared {run['environment']['cpu']} these take {times} ms, and at most {peak:.0f} MB."


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _rung(name: str) -> str:
    return LADDER.get(name, f"`{name}`").removeprefix("control: ")


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _instead(placed: JSON) -> str:
    return f"{placed['ttft_ms']:.0f} ms instead of {placed['ttft_alone_ms']:.0f}"


TIES = (
    Tie("docs/drafters.md", tuple(f"{RESULTS}/{name}.json" for name in ("adaedl", "adaedl_sampled")), adaedl),
    Tie("docs/align_your_own_pair.md", ("docs/results/align/shapes_7b.json",), shapes_7b),
    Tie("docs/heads.md", ("docs/results/alignment/summary.json",), ladder),
    Tie("docs/heads.md", ("docs/results/scale/adapters.json",), costs),
    Tie(
        "docs/align_your_own_pair.md",
        ("docs/results/align/reference.json", "docs/results/alignment/summary.json"),
        aligned,
    ),
    Tie("docs/large_models.md", tuple(f"docs/results/scale/7b_h100{way}.json" for way in ("", "_compiled")), h100),
    Tie("docs/large_models.md", ("docs/results/scale/7b_h100_passes.json",), passes_h100),
    Tie("docs/large_models.md", ("docs/results/scale/reference_h100.json",), reference_h100),
    Tie("docs/large_models.md", ("docs/results/scale/tests_h100.json",), tests_h100),
    Tie("docs/edge.md", EDGE_RUNS, edge),
    Tie("docs/edge.md", EDGE_RUNS, edge_recording, "edge recording"),
    Tie("docs/streams.md", tuple(f"{RESULTS}/{name}.json" for name in ("frames", "frames_7b")), frames),
    *measured(
        Tie("docs/large_models.md", (f"{RESULTS}/encode.json",), encode, "encode"),
        Tie("docs/formats.md", (f"{RESULTS}/events.json",), events, "events"),
    ),
)
