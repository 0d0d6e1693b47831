"""What README, docs and model cards say that was measured, written from the JSON of the command that measured it.

`python -m tools.figures`, a part of `make check`, looks for each sentence and row in its page. What a page says of a
figure changes here and there together; a new figure needs a JSON file, or the check fails.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from crossdraft.methods import METHODS
from crossdraft_lab.bench.experiments.markdown import cell, prose
from crossdraft_lab.bench.experiments.record import RowFaults
from crossdraft_lab.cli.align import CLIPS, PROMPTS
from docs import bench_figures, method_figures, ray_figures, serving_figures, setting_figures
from tools.figures import ANY, ROOT, Tie, interval

JSON = Mapping[str, Any]
RESULTS = "docs/results"
CARDS = ("src/crossdraft/reference", "lab/src/crossdraft_lab/reference")


def by_name(rows: list[JSON]) -> dict[str, JSON]:
    """Rows of a report by their name."""
    return {row["name"]: row for row in rows}


LABELS = {
    "hf": "Hugging Face `generate` | 1",
    "hf-all": "Hugging Face `generate` | 2",
    "target": "the target alone, our engine | 1",
    "target-all": "the target alone, our engine | 2",
}


def readme(bench: JSON) -> Iterator[str]:
    """The table, and the sentences under it."""
    methods = by_name(bench["methods"])
    for name, method in methods.items():
        first, speedup = method["first_provisional_ms"], method["speedup"]
        identical = "{equal}/{total}".format(**method["identical"])
        label, first_ms = LABELS.get(name, f"`{name}` | 1 + 1"), "" if first is None else round(first["median"])
        times = f"{method['ttft_ms']['median']:.0f} | {method['total_ms']['median']:.0f}"
        yield (
            f"| {label} | {identical} | {first_ms} | {times} | {method['tau']:.2f} "
            f"| {'1' if name == speedup['against'] else interval(speedup)} |"
        )
    glance, alone = methods["glance"], methods["target-all"]
    over = {one["against"]: one["value"] for one in glance["speedups"]}
    yield f"answers of {bench['workload']['mean_tokens']:.0f} tokens on average"
    yield f"Against the faster `generate` `glance` is {min(over['hf'], over['hf-all']):.1f} times as fast."
    used, needs = (one["memory"]["total_mib"] for one in (alone, glance))
    yield (
        f"the drafter's process needs {needs - used:.0f} MiB more ({needs:.0f} MiB in all, where the target alone "
        f"needs {used:.0f})"
    )
    speed = {name: method["speedup"]["value"] for name, method in methods.items()}
    yield f"{speed['glance']:.1f}× here, or `event_medusa` without the frames, {speed['event_medusa']:.1f}×"
    drafted = (method["ttft_ms"]["median"] for name, method in methods.items() if name not in LABELS)
    later = [first / alone["ttft_ms"]["median"] for first in drafted]
    yield f"{_range(later)} times as late as from the target alone"


STAGES = ("drafters", "prefill-hiding", "breakdown", "quality", "ablations")


def readme_stages(
    bench: JSON, drafters: JSON, hiding: JSON, breakdown: JSON, quality: JSON, ablations: JSON
) -> Iterator[str]:
    """The same drafter on other stages, and in the headline the range of all."""
    found = (
        drafters["figures"]["glance"]["speedup"],
        hiding["figures"]["8"]["glance"]["speedup"],
        breakdown["figures"]["speedup"]["glance"],
        quality["figures"]["greedy"]["glance"]["speedup"],
        ablations["figures"]["ride-along"]["glance, rides along"]["speedup"],
    )
    speeds = [by_name(bench["methods"])["glance"]["speedup"]["value"], *(one["value"] for one in found)]
    yield f"is {_range(speeds)} times as fast as its target alone on the same two cores"
    all_frames, eight, files, questions, rides = map(interval, found)
    yield (
        f"`glance` {all_frames} (0), {eight} (1), {files} (2), {questions} (5: {quality['config']['pairs']} "
        f"questions) and {rides} (6)"
    )
    event = (
        drafters["figures"]["event"]["speedup"],
        hiding["figures"]["8"]["event"]["speedup"],
        breakdown["figures"]["speedup"]["event"],
        quality["figures"]["greedy"]["event"]["speedup"],
    )
    yield "`event` {}, {}, {} and {} (0, 1, 2, 5)".format(*map(interval, event))


def readme_pair(target: JSON, event: JSON) -> Iterator[str]:
    """What the shipped models are."""
    millions = (one["figures"]["parameters"] / 1e6 for one in (target, event))
    yield "a {:.1f} M-parameter target, a {:.1f} M event drafter".format(*millions)


def readme_heads(drafters: JSON) -> Iterator[str]:
    """What some heads gain, the fastest first."""
    speed = {name: drafters["figures"][name]["speedup"]["value"] for name in ("redrafter", "hydra++", "eagle2")}
    yield f"here {', '.join(f'`{name}` {value:.1f}×' for name, value in speed.items())}"


RECORDINGS = {"one_question": "one question, 550 clips", "ten_questions": "ten questions, 10 clips",
              "staged_5s": "one question, 117 clips of 5 s"}  # fmt: skip
REPLAYED = {"trace": "`trace`: EventGPT", "ngram": "`ngram`", "memory": "`memory`", "union": "`union:trace,memory`"}
REPLAYS = tuple(f"{RESULTS}/replay/{recording}-{drafter}.json" for recording in RECORDINGS for drafter in REPLAYED)
PLAN = f"{RESULTS}/plan/acceptance_0.80.json"


def _replays(found: tuple[JSON, ...]) -> dict[str, dict[str, JSON]]:
    each = iter(found)
    return {recording: {drafter: next(each) for drafter in REPLAYED} for recording in RECORDINGS}


def _range(values: list[float], digits: int = 1) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def readme_real_pair(plan: JSON, *replays: JSON) -> Iterator[str]:
    """What recorded answers say, and what a plan says."""
    found = _replays(replays)
    one = found["one_question"]["trace"]
    gains = _range([each["memory"]["simulated_speedup"]["value"] for each in found.values()])
    yield f"first token was the target's in {one['first_token_accepted']} of {one['traces']} answers to one question"
    yield f"gives τ {one['tau']:.2f} and {one['simulated_speedup']['value']:.2f}× (simulated)"
    yield f"gives {gains}× there (simulated)"
    yield f"repeat (`memory` alone {gains}×, simulated, above)"
    yield f"acceptance of {plan['stages']['alpha']}, `crossdraft plan` gives {best(plan):.2f}×"


def best(plan: JSON) -> float:
    """The speed-up of the best way."""
    return by_name(plan["ways"])[plan["best"]]["speedup"]


def real_pair(plan: JSON, *replays: JSON) -> Iterator[str]:
    """Both tables of recordings, and the bound."""
    found = _replays(replays)
    for recording, title in RECORDINGS.items():
        for drafter, name in REPLAYED.items():
            row = found[recording][drafter]
            hidden = row["hidden_accepted"]
            accepted = interval(hidden, 1) if hidden["value"] >= 0.05 else "0.0"
            yield (
                f"| {title if drafter == 'trace' else ''} | {name} | {interval(row, name='tau')} | {accepted} "
                f"| {interval(row['simulated_speedup'])} |"
            )
    begun = [f"{each['trace']['first_token_accepted']} of {each['trace']['traces']}" for each in found.values()]
    yield f"first token is the target's in {begun[0]}, {begun[1]} and {begun[2]} answers"
    stages = plan["stages"]
    yield from by_question(found["ten_questions"], stages)
    prefill, step = stages["prefill"], stages["step"]
    yield f"of answers of this length: {prefill:g} ms of {prefill:g} + {step:g} · (tokens − 1)"
    one = found["one_question"]["memory"]["settings"]
    yield f"trees of {one['nodes']} nodes, a ride-along, V(2) = {one['verify']:g} · V(1)"
    staged = found["staged_5s"]["memory"]
    seconds = staged["settings"]["traces"].split("_")[1].removesuffix("s")
    yield f"{staged['traces']} clips of {seconds} s with the stage times of each"
    yield (
        f"prefill {prefill:g} ms, {step:g} ms a token; EventGPT {stages['draft_prefill']:g} ms and "
        f"{stages['draft_step']:g} ms a token. With an assumed acceptance of {stages['alpha']}"
    )
    yield f"gives {best(plan):.2f}× (simulated). EventGPT-7B costs {stages['c']:.2f} of a target step per token"
    yield f"1/ρ = {plan['bound']:.2f}× bounds all hiding"


def bound(stages: JSON, tokens: float) -> float:
    """1/ρ of answers of so many tokens: what hiding all of the prefill would gain."""
    return (stages["prefill"] + stages["step"] * (tokens - 1)) / stages["prefill"]


def by_question(found: Mapping[str, JSON], stages: JSON) -> Iterator[str]:
    """Ten questions; the bound 1/ρ is of answers of this length, by the plan's times of the target."""
    for question, row in found["trace"]["by_question"].items():
        tokens = row["mean_tokens"]
        taus = [found[drafter]["by_question"][question]["tau"]["value"] for drafter in ("trace", "memory", "ngram")]
        yield (
            f"| {question} | {row['first_token_accepted']} of {row['answers']} | {row['hidden_accepted']['value']:.1f} "
            f"| {tokens:.1f} | {bound(stages, tokens):.2f} | {' | '.join(f'{tau:.2f}' for tau in taus)} |"
        )


CONVERSATION = {
    "trace": "`trace`: EventGPT as released, 32", "ngram": "`ngram`, 10", "memory_32": "`memory`, 32",
    "memory_64": "`memory`, 64", "memory_64_adaptive": "`memory`, 64, `--adaptive`",
    "memory_64_shuffled": "`memory`, 64, answers shuffled",
}  # fmt: skip
COSTS = ("narrow", "widening", "recorded")
SHARED = tuple(f"{RESULTS}/replay/shared-{row}-{cost}.json" for row in CONVERSATION for cost in COSTS)


def conversation(plan: JSON, *replays: JSON) -> Iterator[str]:
    """Ten questions about each clip, with the prefix cache; in brackets over the target alone with the same."""
    each = iter(replays)
    found = {row: [next(each) for _ in COSTS] for row in CONVERSATION}
    narrow, widening, recorded = (one["settings"] for one in found["trace"])
    tokens, pass_ms = plan["stages"]["passes"][-1]
    yield (
        f"| drafter, `--nodes` | τ | a pass of n > 1 tokens takes {narrow['verify']:g} t | {widening['verify']:g} t "
        f"and {widening['per_node']:g} t a further node | {recorded['verify']:g} t, the recorded 4-bit pass "
        f"({pass_ms:g} ms at {tokens} tokens) |"
    )
    alone = [f"{one['simulated_alone_ms'] / one['simulated_alone_shared_ms']:.2f}×" for one in found["trace"]]
    yield f"| none: the cache alone | 1 | {' | '.join(alone)} |"
    for row, ones in found.items():
        taus = f"{ones[0]['tau']:.2f}"
        if f"{ones[1]['tau']:.2f}" != taus:
            taus += f"; {ones[1]['tau']:.2f} at 0.01 t"
        cells = (
            f"{one['simulated_speedup']['value']:.2f}× ({one['simulated_speedup_shared']['value']:.2f}×)"
            for one in ones
        )
        yield f"| {CONVERSATION[row]} | {taus} | {' | '.join(cells)} |"
    one = found["memory_64"][0]
    low, high = one["simulated_speedup"]["ci95"]
    yield f"reads every time ({one['simulated_alone_ms']:,.0f} ms an answer)"
    yield f"({one['simulated_speedup']['value']:.2f}×: {low:.1f} to {high:.1f})"


def your_own_models(plan: JSON, *replays: JSON) -> Iterator[str]:
    """What to expect."""
    found = _replays(replays)
    traces, memories = ([one[drafter] for one in found.values()] for drafter in ("trace", "memory"))
    taus, speeds = ([one["tau"] for one in traces], [one["simulated_speedup"]["value"] for one in traces])
    yield f"τ {_range(taus, 2)}, {_range(speeds, 2)}×"
    gains = [one["simulated_speedup"]["value"] for one in memories]
    yield f"τ {_range([one['tau'] for one in memories], 0)}, {_range(gains)}×"
    stages = plan["stages"]
    bounds = [bound(stages, row["mean_tokens"]) for row in found["ten_questions"]["trace"]["by_question"].values()]
    yield f"{_range(bounds)}× here; with an"
    yield (
        f"acceptance of {stages['alpha']} hidden drafting gives {best(plan):.2f}×, for EventGPT-7B costs "
        f"{stages['c']:.2f} of a target step"
    )


ORDERS = ("memory", "memory_64", *(f"memory_shuffled_{seed}" for seed in range(3)))
RECALLED = tuple(f"{RESULTS}/replay/{recording}-{order}.json" for recording in RECORDINGS for order in ORDERS)


def memory(*replays: JSON) -> Iterator[str]:
    """What votes by age accept, with more nodes and in other orders."""
    each = iter(replays)
    titles = ("one question, 550 clips in order", "ten questions about each of 10 clips")
    for title in (*titles, "one question, 117 clips of 5 s"):
        own, wide, *shuffled = (next(each) for _ in ORDERS)
        accepted, more = (one["hidden_accepted"]["value"] for one in (own, wide))
        other, tau = mean(one["hidden_accepted"]["value"] for one in shuffled), mean(one["tau"] for one in shuffled)
        yield (f"| {title} | {accepted:.1f} (64 nodes: {more:.1f}) | {own['tau']:.2f} | {other:.1f}; τ {tau:.2f} |")


def trained_head(eagle: JSON) -> Iterator[str]:
    """What as many answers as the reference pair's heads saw are worth."""
    yield f"gave τ {eagle['figures']['engine']['eagle2, T=0']['tau']:.0f} (trees of 60 nodes)"


def planning(plan: JSON) -> Iterator[str]:
    """The rows that the example prints, and its advice."""
    for way in plan["ways"]:
        shares = way["shares"]
        cells = " │ ".join(f"{shares[part]:.0%}" for part in ("prefill", "waiting", "drafting", "passes"))
        yield f"│ {way['name']} │ {way['total']:.1f} │ {way['speedup']:.2f} │ {cells} │"
    yield plan["advice"]


def seeded(*replays: JSON) -> Iterator[str]:
    """Half of the ten clips asked, where a memory knows the answers about the other half; both ways round."""
    each = iter(replays)
    found = {drafter: [next(each) for _ in HALVES] for drafter in SEEDED}
    for drafter, name in SEEDED.items():
        taus = ", ".join(f"{one['tau']:.2f}" for one in found[drafter])
        accepted = ", ".join(f"{one['hidden_accepted']['value']:.2f}" for one in found[drafter])
        yield f"| {name} | {taus} | {accepted} |"
    behind = [1 - union["tau"] / part["tau"] for union, part in zip(found["union"], found["seeded"], strict=True)]
    yield f"The union is as good as the better part, or {100 * max(behind):.1f} % behind it in one direction"


HALVES = ("last_five", "first_five")  # clips of the recorded ten questions that are asked
SEEDED = {"trace": "`trace`", "memory": "`memory`", "seeded": "`memory:seed`", "union": "`union:trace,(memory:seed)`"}
SPLIT = tuple(f"{RESULTS}/replay/{half}-{drafter}.json" for drafter in SEEDED for half in HALVES)
PLANS = tuple(f"{RESULTS}/plan/acceptance_{one}.json" for one in ("0.80", "0.90", "0.94", "0.94_shared", "0.94_narrow"))
ALIGNED = f"{RESULTS}/align/reference.json"


def align(run: JSON, *plans: JSON) -> Iterator[str]:
    """What a plan says of an acceptance, on a second device and on one, and of the time that a capture takes."""
    prefix = run["results"]["tuned"]["held-out wordings"]["accepted_prefix"]["value"]
    alpha = prefix / (1 + prefix)
    yield f"{alpha:.2f} is what a mean accepted prefix of {prefix:.2f} tokens means ({prefix:.2f} = A / (1 − A))"
    low, middle, high, shared, narrow = map(best, plans)
    first, second, third, *_ = (f"{plan['stages']['alpha']:.2f}" for plan in plans)
    hidden = by_name(plans[3]["ways"])[plans[3]["best"]]["hidden"]
    yield f"| {first} | {low:.2f}× | |"
    yield f"| {second} | {middle:.2f}× | |"
    yield f"| {third} | {high:.2f}× | {shared:.2f}×, and {hidden or 'none'} of it hidden |"
    yield f"| {third}, a wide pass costs little more than a narrow one (`22:17`) | {narrow:.2f}× | |"
    stages = plans[0]["stages"]
    yield f"a drafter of {stages['c']:.2f} of the target's step"
    clip, token = stages["prefill"], stages["step"]
    hours = CLIPS * (clip + PROMPTS * stages["tokens"] * token) / 3.6e6
    yield (
        f"capture, {CLIPS:,} clips × {PROMPTS} questions of {stages['tokens']} tokens | | {hours:.1f} hours "
        f"({clip:.0f} ms a clip, {token:.1f} ms a token, one answer at a time)"
    )


def _ms(ms: float) -> str:
    return f"{ms / 1e3:.1f} s" if ms >= 1e3 else f"{ms:.2g} ms" if ms < 1 else f"{ms:.0f} ms"


def _times(ratio: float) -> str:
    return f"{ratio:.2f} ×" if ratio < 1 else f"{ratio:.2g} ×"


def growth(found: JSON) -> Iterator[str]:
    """The first and the last point of each curve, and the memory of some."""
    curves = {curve["of"]: {point["size"]: point for point in curve["points"]} for curve in found["curves"]}
    titles = {"frames": "frames of a clip", "prompt": "tokens of a prompt", "answer": "tokens of an answer",
              "requests": "requests at a time", "memory": "tokens in `memory`"}  # fmt: skip
    for of, points in curves.items():
        (first, least), *_, (last, most) = points.items()
        ends = [(_ms(point["ours"]["ms"]), _times(point["hf"]["ms"] / point["ours"]["ms"])) for point in (least, most)]
        named = " as fast as Hugging Face" if of == "frames" else ""
        yield (
            f"| {titles[of]}, {first:,} → {last:,} | {ends[0][0]}, {ends[0][1]}{named} | {ends[1][0]}, {ends[1][1]} |"
        )

    def held(of: str, size: int) -> str:
        point = curves[of][size]
        return "{:.0f} and {:.0f} MB".format(*(point[side]["bytes"] / 1e6 for side in ("ours", "hf")))

    yield f"({held('prompt', 30_000)} at 30,000 tokens, {held('prompt', 10_000)} at 10,000)"
    yield f"({held('requests', 32)} at 32 requests)"
    short = [point for size, point in curves["prompt"].items() if size <= 1000]
    lost = max(1 - point["hf"]["ms"] / point["ours"]["ms"] for point in short)
    yield f"up to 1,000 tokens may lose {100 * lost:.0f} %"


def experiments(drafters: JSON) -> Iterator[str]:
    """The headline of the full run."""
    found = drafters["figures"]["glance"]
    yield f"`glance` is {interval(found['speedup'])} times as fast as the target alone"
    yield f"over {drafters['config']['pairs']} pairs"
    yield f"all {len(drafters['figures'].keys() & METHODS)} drafters was the target's own"


def adaedl(drafters: JSON) -> Iterator[str]:
    """What ending drafts early is worth end to end."""
    ended, plain = (interval(drafters["figures"][name]["speedup"]) for name in ("adaedl", "event"))
    yield f"experiment 0 has `adaedl` {ended} and `event` {plain} times as fast as the target alone"


FULL_RUN = (
    "drafters", "prefill-hiding", "breakdown", "alignment", "streaming", "quality", "ablations", "utilisation",
    "claims",
)  # fmt: skip


def report(*summaries: JSON) -> Iterator[str]:
    """All tables, and the sentences around them."""
    for summary in summaries:
        yield from (prose(summary[part]) for part in ("found", "sure"))
        yield from map(prose, (*summary["negative"], *RowFaults(**summary["faults"]).sentences))
        for table in summary["tables"]:
            yield from ("| " + " | ".join(map(cell, row)) + " |" for row in table["rows"])
            if table["note"]:
                yield prose(table["note"])
        yield f"`{summary['command']}` ({summary['size']}, {ANY}, {summary['units']} units"


def report_pair(target: JSON, event: JSON) -> Iterator[str]:
    """What the report says of the models."""
    millions = (one["figures"]["parameters"] / 1e6 for one in (target, event))
    yield "a target of {:.1f} M parameters, an event drafter of {:.1f} M".format(*millions)


def rules(judge: JSON) -> Iterator[str]:
    """How the shipped judge was trained, and how well it judges."""
    found = judge["figures"]
    yield (
        f"learned from {judge['recipe']['clips']} scenes, {found['tokens']:,.0f} such tokens, of which "
        f"{found['harmless']:.0%} are harmless.".replace("%", " %")
    )
    yield f"{found['held_out_tokens']:.0f} such tokens, the area under its ROC curve is {found['auc']:.2f}"
    yield _kept(found)


def judge_card(judge: JSON) -> Iterator[str]:
    """The same on its card."""
    found = judge["figures"]
    yield f"Of {found['tokens']:,.0f} tokens".replace("%", " %")
    yield f"{found['harmless']:.0%} did no harm".replace("%", " %")
    yield f"({found['held_out_tokens']:.0f} such tokens): area under the ROC curve {found['auc']:.2f}"
    yield _kept(found)


def _kept(found: JSON) -> str:
    return (
        f"it keeps {found['harmless_kept']:.0%} of the harmless tokens and {found['harmful_kept']:.0%} of the harmful"
    ).replace("%", " %")


def head_card(provenance: JSON) -> Iterator[str]:
    """Size, time of training, and what was accepted of its drafts."""
    found = provenance["figures"]
    yield f"{found['parameters']:,} parameters of its own"
    yield f"in {found['wall_s'] / 60:.0f} minutes"
    for name, one in found.get("engine", {}).items():  # of a packer nothing is drafted
        shares = " ".join(f"{share:.2f}" for share in one["per_position"])
        yield f"| {name} | {one['tau']:.2f} | {shares} |"


def reference_card(provenance: JSON) -> Iterator[str]:
    """Facts right, and the drafter's tokens along the target's answers."""
    found, scenes = provenance["figures"], provenance["recipe"]["evaluate"]
    train, held = (found["evaluation"][name] for name in ("train_wordings", "held_out_wordings"))
    yield f"{scenes['scenes']} scenes of the test split"
    for label, row in (("training wordings", train), ("held-out wordings", held)):
        cells = [f"{row['facts_right']['all']:.1%}"]
        if "tau_8" in row:
            cells += [f"{row['top1']:.1%}", f"{row['tau_8']:.2f}", f"{row['tau_16']:.2f}"]
        if "hidden_prefix" in row:
            cells += [f"{row['first_token']:.1%}", f"{row['hidden_prefix']:.2f} tokens"]
        yield f"| {label} | {' | '.join(cells)} |"
    for kind, share in train["facts_right"].items():
        if kind != "all":
            other = held["facts_right"].get(kind)
            yield f"| {kind} | {share:.1%} | {'—' if other is None else f'{other:.1%}'} |"
    yield f"parameters: {found['parameters'] / 1e6:.1f} M"


def text_card(provenance: JSON) -> Iterator[str]:
    """The text drafter's."""
    found = provenance["figures"]
    for key, label in (("train_wordings", "training wordings"), ("held_out_wordings", "held-out wordings")):
        row = found["evaluation"][key]
        yield f"| {label} | {row['top1']:.1%} | {row['tau_8']:.2f} |"


def _card(name: str) -> str:
    """The folder of a shipped model, in the distribution that ships it."""
    return next(f"{folder}/{name}" for folder in CARDS if (ROOT / folder / name).is_dir())


def _provenance(*names: str) -> tuple[str, ...]:
    return tuple(f"{_card(name)}/provenance.json" for name in names)


def _cards() -> Iterator[Tie]:
    for folder in CARDS:
        for path in sorted((ROOT / folder).rglob("provenance.json")):
            name = path.parent.relative_to(ROOT / folder).as_posix()
            said = {"judge": judge_card, "text": text_card}.get(
                name, reference_card if Path(name).name == name else head_card
            )
            yield Tie(f"{folder}/{name}/README.md", _provenance(name), said)


TIES: tuple[Tie, ...] = (
    Tie("README.md", (f"{RESULTS}/readme.json",), readme),
    Tie("README.md", (f"{RESULTS}/readme.json", *(f"{RESULTS}/{name}/summary.json" for name in STAGES)), readme_stages),
    Tie("README.md", _provenance("target", "event"), readme_pair),
    Tie("README.md", (f"{RESULTS}/drafters/summary.json",), readme_heads),
    Tie("README.md", (PLAN, *REPLAYS), readme_real_pair),
    Tie("docs/real_pair.md", (PLAN, *REPLAYS), real_pair),
    Tie("docs/real_pair.md", (PLAN, *SHARED), conversation),
    Tie("docs/your_own_models.md", (PLAN, *REPLAYS), your_own_models),
    Tie("docs/your_own_models.md", _provenance("heads/eagle"), trained_head),
    Tie("docs/drafters.md", RECALLED, memory),
    Tie("docs/planning.md", (PLAN,), planning),
    Tie("docs/align_your_own_pair.md", (ALIGNED, *PLANS), align),
    Tie("docs/align_your_own_pair.md", SPLIT, seeded),
    Tie("docs/growth.md", ("docs/growth.json",), growth),
    Tie("docs/drafters.md", (f"{RESULTS}/drafters/summary.json",), adaedl),
    Tie("docs/experiments.md", (f"{RESULTS}/drafters/summary.json",), experiments),
    Tie("docs/results/report.md", tuple(f"{RESULTS}/{name}/summary.json" for name in FULL_RUN), report),
    Tie("docs/results/report.md", _provenance("target", "event"), report_pair),
    Tie("docs/rules.md", _provenance("judge"), rules),
    *bench_figures.TIES,
    *method_figures.TIES,
    *ray_figures.TIES,
    *serving_figures.TIES,
    *setting_figures.TIES,
    *_cards(),
)
