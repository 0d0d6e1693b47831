"""What docs say of single methods, written from the JSON of their benches; see `docs/figures.py`."""

import re
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from tools.figures import Tie, interval, minus

JSON = Mapping[str, Any]
RESULTS = "docs/results/bench"
OWN, LAB = "src/crossdraft/reference", "lab/src/crossdraft_lab/reference"
SHIPPED = (f"{OWN}/event", f"{LAB}/heads/vision_queries", f"{LAB}/heads/griffin")
GATE = f"{LAB}/heads/vision_queries"
ON_THEIR_OWN = ("event_medusa", "fast", "glance", "pass")  # draft on another core, or in the target's own passes
LETTERS = {"eagle1": "EAGLE-1", "eagle2": "EAGLE-2", "medusa": "Medusa", "hydra": "Hydra"}  # names of methods in prose


def rules(run: JSON) -> Iterator[str]:
    """A row for each rule, in the order it was asked for."""
    named = set[str]()
    for row in run["rules"]:
        name, _, settings = row["rule"].partition(":")
        label = f"`{name}:{settings.split(',')[0]}`" if name in named else f"`{name}`"
        named.add(name)
        facts = interval(row["facts"])
        if name == "target":
            yield f"| the target alone | yes | 1 | {facts} | |"
        else:
            lossless = "yes" if row["lossless"] else "no"
            tau, gained = interval(row["tau"]), minus(interval(row["facts_gained"]))
            yield f"| {label} | {lossless} | {tau} | {facts} | {gained} |"
    yield f"`crossdraft bench rules --pairs {run['workload']['pairs']}"
    _, low, lower = (
        row["rule"].partition("threshold=")[2].split(",")[0] for row in run["rules"] if "judge" in row["rule"]
    )
    yield f"at {low} and {lower} no fewer facts are right that this many answers could show"
    coupled, drawn = (next(row for row in run["rules"] if row["rule"] == name) for name in ("gumbel", "rejection"))
    yield f"Its τ is {coupled['tau']['value']:.2f}, that of `rejection` {drawn['tau']['value']:.2f}"


def kseq(run: JSON) -> Iterator[str]:
    """Tokens a pass on trees of independent siblings."""
    tau = {row["rule"]: interval(row["tau"]) for row in run["rules"]}
    yield f"{tau['kseq']} tokens a pass, {tau['rejection']} by `rejection`"


def recordings(run: JSON) -> Iterator[str]:
    """A row for each kind of recording, the time until a drafter begins, and what adaptive windows are worth."""
    drafters = list(dict.fromkeys(row["drafter"] for row in run["recordings"]))
    kinds = dict.fromkeys((row["seconds"], row["way"]) for row in run["recordings"])
    found = {(row["seconds"], row["way"], row["drafter"]): row for row in run["recordings"]}
    for seconds, way in kinds:
        first, *others = (found[seconds, way, drafter] for drafter in drafters)
        title = f"{seconds:g} s, {way.replace('at its own speed', 'one second of it')}"
        cells = (f"{row['accepted_at_equal_time']['value']:.1f} ({_signed(row['gained'])})" for row in others)
        yield f"| {title} | {first['accepted']['value']:.1f} | {' | '.join(cells)} |"
    begins = [median(found[*kind, drafter]["begin_ms"] for kind in kinds) for drafter in drafters]
    yield f"| begins after | {' | '.join(f'{ms:.1f} ms' for ms in begins)} |"
    token = median(row["token_ms"] for row in run["recordings"])
    yield f"one token takes {token:.1f} ms with each"
    yield f"`event` drafts a token in {token:.1f} ms"
    after = dict(zip(drafters, begins, strict=True))
    whole, sparse = (after[f"event:slices=10{patches}"] for patches in ("", ",patches=31"))
    yield f"sparsity saves about {whole - sparse:.0f} ms of {whole:.0f}"
    longest = max(seconds for seconds, _ in kinds)
    for words in ("(where {} are spread", "and little on {}", "On {} that are slowed down"):
        yield words.format(f"{longest:g} s")
    windows = [
        found[*kind, drafters[1]]["accepted_at_equal_time"]["value"] / found[*kind, drafters[0]]["accepted"]["value"]
        for kind in kinds
        if kind[0] > 1
    ]
    yield f"five adaptive ones accept {min(windows):.1f} to {max(windows):.1f} times as much of 4 and 16 s"
    yield f"`crossdraft bench recordings --clips {run['clips']}`"


def partial(run: JSON) -> Iterator[str]:
    """Both tables, lossless and lossy, a row for each length of the prompt."""
    for row in run["prompts"]:
        prompt, kept = row["prompt_tokens"], row["kept_tokens"]
        cut = "all" if kept >= prompt else f"{kept}"
        own, lossy = row["own_answers"], row["lossy"]
        refused = "" if row["refused"] is None else f"{100 * row['refused']['value']:.1f} %"
        one, verify, step = (f"{row[name]:.1f} ms" for name in ("one_ms", "verify_ms", "step_ms"))
        whole = interval(row["measured_speedup"])
        yield (
            f"| {prompt:,} | {cut} | {own['equal']}/{own['total']} | {row['tau']['value']:.2f} | {refused} "
            f"| {one} | {verify} | {step} | {row['computed_speedup']:.2f} | {whole} |"
        )
        yield (
            f"| {prompt:,} | {cut} | {row['tau']['value']:.2f} | {lossy['tau']['value']:.2f} | {refused} "
            f"| {lossy['own_answers']['equal']}/{lossy['own_answers']['total']} | {lossy['rouge_l']['value']:.2f} |"
        )


def heads(run: JSON, timed: JSON) -> Iterator[str]:
    """A row for each trained drafter, the orders that papers report, and how many answers were the target's own."""
    costs = {row["name"]: row["drafting"]["over_verifying_pass"] for row in timed["drafters"]}
    rows = {row["name"]: row for row in run["drafters"]}
    for name, row in rows.items():
        tree, chain, sampled = row["accepted"]
        taus = " | ".join(interval(one, name="tau") for one in (tree, sampled, chain))
        cost = "" if name in ON_THEIR_OWN else f"{costs[name]:.2f}"
        own, all_of_it = row["trained_parameters"] / 1e6, row["parameters"] / 1e6
        size = f"{own:.2f} M" if own == all_of_it else f"{all_of_it:.2f} M ({own:.2f} M)"
        yield f"| `{name}` | {taus} | {cost} | {size} |"
    totals = {row["identical"]["total"] for row in rows.values()}
    if len(totals) == 1 and all(row["identical"]["equal"] == row["identical"]["total"] for row in rows.values()):
        yield f"All {totals.pop()} greedy answers of every drafter were the target's own"
    claims = {(one["better"], one["worse"]): one for one in run["claims"]}
    for (better, worse), one in claims.items():
        if worse in LETTERS and better in LETTERS:
            yield f"{interval(one['ratio'])} times {LETTERS[worse]}'s"
    tree, chain = ({name: row["accepted"][shape]["tau"] for name, row in rows.items()} for shape in (0, 1))
    yield (
        f"**EAGLE-3 ≥ EAGLE-2 does not hold:** {interval(claims['eagle3', 'eagle2']['ratio'], 3)} with trees, "
        f"{chain['eagle3']:.2f} against {chain['eagle2']:.2f} with chains"
    )
    yield f"is a tie with trees ({tree['vispec']:.2f} and {tree['eaglevlm']:.2f})"
    yield f"with chains ViSpec is worse ({chain['vispec']:.2f} against {chain['eaglevlm']:.2f})"
    more = rows["griffin"]["parameters"] / rows["eagle2"]["parameters"]
    yield f"drafts as well as EAGLE-2's ([below](#measured)) with {more:.1f} times the parameters"


def questions(run: JSON) -> Iterator[str]:
    """A row for each drafter: ten questions about each clip, with the prefix cache, over three baselines."""
    for row in run["methods"]:
        name, over = row["name"], row["speedup"]
        if name in ("glance", "event", "eagle2"):
            ratios = " | ".join(_over(over[one]) for one in ("hf", "target without cache", "target with cache"))
            yield f"| `{name}` | {row['first_ms']:.0f} ms | {row['next_ms']:.0f} ms | {ratios} |"
    if len({row["identical"] for row in run["methods"]}) == 1:
        asked, each = (run["workload"][name] for name in ("pairs", "questions"))
        yield f"{asked // each} clips, ten questions about each, from files; all {asked} answers"


def _over(found: JSON) -> str:
    low, high = found["ci95"]
    return f"{found['value']:.1f} × [{low:.1f}, {high:.1f}]"


def spans(run: JSON) -> Iterator[str]:
    """A language model before and after CTPD."""
    after, before = (interval(one, name="tau") for one in run["drafters"].values())
    yield f"τ {after} after it, {before} before, ratio {interval(run['ratio'])}"


VISUAL = 400  # visual tokens of the reference target's clips
NO_FOLDER = re.compile(r"dir=[^,: ]+,?")


def compression(run: JSON, timed: JSON) -> Iterator[str]:
    """A row for each target that reads less, alone, with times of a run of their own; cosines of what is predicted."""
    saved = {row["target"]: f"{100 * row['ttft_saved']['value']:.0f} %" for row in timed["targets"]}
    whole, *others = run["targets"]
    yield f"| as it is | {VISUAL} | | {interval(whole['facts'])} | | 1 | {run['workload']['pairs']} |"
    for row in others:
        target, share = row["target"], row["predicted"]
        checked = f"{100 * share['value']:.0f} % predicted" if share is not None else ""
        yield (
            f"| {_compressed(target)} | {_visual(row, whole)} | {minus(saved.get(target, checked))} "
            f"| {interval(row['facts'])} | {minus(interval(row['facts_gained']))} | {interval(row['rouge_l'])} "
            f"| {row['agreed']} |"
        )
    for one in run["cosines"]:
        yield f"| {one['compared']} | {one['same_clip']['value']:.3f} | {one['another_clip']['value']:.3f} |"


def compressed_drafts(run: JSON) -> Iterator[str]:
    """A row for each target, alone and drafted for."""
    rows = {(row["target"], row["drafter"]): row for row in run["targets"]}
    whole = rows["target", None]
    for (target, drafter), row in rows.items():
        if drafter is not None:
            continue
        tau = interval(rows[target, "eaglevlm"]["tau"])
        label, lossless, gained = "as it is", "yes", ""
        if target != "target":
            label, lossless, gained = _compressed(target), "no", minus(interval(row["facts_gained"]))
        yield f"| {label} | {lossless} | {_visual(row, whole)} | {interval(row['facts'])} | {gained} | 1 | {tau} |"
    asked = run["workload"]["pairs"]
    if all(row["own_answers"]["equal"] == asked for (_, drafter), row in rows.items() if drafter is not None):
        yield f"({asked} of {asked} in each row)"


def _compressed(spec: str) -> str:
    """A compression without the folder that it reads."""
    spec, _, budget = spec.partition(" within ")
    spec = NO_FOLDER.sub("", spec).rstrip(":,")
    return f"`{spec}`, checked, budget {budget}" if budget else f"`{spec}`"


def _visual(row: JSON, whole: JSON) -> str:
    """Visual tokens that are read; of FastV in its first layers and after them."""
    keep = re.match(r"fastv:keep=([\d.]+)", row["target"])
    if keep:
        return f"{VISUAL}, then {VISUAL * float(keep[1]):.0f}"
    return f"{VISUAL + row['prompt_tokens'] - whole['prompt_tokens']:.0f}"


def _signed(found: JSON) -> str:
    """`+0.1 [−0.1, +0.3]`."""
    low, high = found["ci95"]
    return minus(f"{found['value']:+.1f} [{low:+.1f}, {high:+.1f}]")


PREDICTED = {
    "predicted": "`predicted`",
    "view:frames=1": "`view:frames=1`: the same with a true frame, positions closed up",
    "event": "`event`",
    "glance": "`glance`",
    "constant": "control: the best constant sentence",
    "template": "control: the best one for each kind of question",
    "memory": "control: `memory` of {learned} answers",
    "blind": "control: the blind twin",
}


def predicted(run: JSON) -> Iterator[str]:
    """What the target accepts of drafts by its own language model on predicted visual tokens, beside others' drafts."""
    yield "| drafter | accepted, held-out wordings | training wordings | τ after it |"
    yield "|---|---|---|---|"
    for name, label in PREDICTED.items():
        held, seen = run["results"][name].values()
        tau = "" if held["tau"] is None else f"{held['tau']['value']:.2f}"
        more = f"{seen['accepted_prefix']['value']:.2f}"
        yield f"| {label.format(learned=run['learned'])} | {interval(held['accepted_prefix'])} | {more} | {tau} |"


def shipped(event: JSON, vision: JSON, griffin: JSON) -> Iterator[str]:
    """The event model's size, and how the predictor of visual tokens and GRIFFIN's head were trained."""
    yield f"heads and the event model ({event['figures']['parameters'] / 1e6:.1f} M)"
    figures, recipe = vision["figures"], vision["recipe"]
    steps = recipe["optim"]["steps"]
    yield (
        f"of `vision_queries`, as it is shipped, is {figures['best']:.1f} tokens ({steps:,} steps, the last "
        f"{steps - recipe['feature_steps']:,} with the language model"
    )
    steps, answers = griffin["recipe"]["optim"]["steps"], griffin["data"]["answers"]
    yield f"trained as EAGLE's was, {steps:,} steps on {answers:,} answers"


def predicted_speed(run: JSON) -> Iterator[str]:
    """The same drafters end to end."""
    yield "| drafter | × target | first provisional token, ms |"
    yield "|---|---|---|"
    rows = {row["name"]: row for row in run["methods"]}
    for name, row in rows.items():
        if not name.startswith("target"):
            yield f"| `{name}` | {interval(row['speedup'])} | {row['first_provisional_ms']['median']:.0f} |"
    prefill = rows["target"]["ttft_ms"]["median"]
    yield (
        "Each drafted token costs a pass of the target's own language model, and the target alone has its first token "
        f"after {prefill:.0f} ms: few fit in between. Where the target's prefill is long and the drafter has a device "
        "of its own, more would fit; that was not measured."
    )


def gate(found: JSON) -> Iterator[str]:
    """How well the shipped gate knows the clips that judge it."""
    yield (
        f"the {found['clips']} validation clips which judge it could show: what it expects and what is found have a "
        f"correlation of {found['correlation']:.2f}"
    ).replace("-", "−")


TIES = (
    Tie("docs/how_it_works.md", (f"{RESULTS}/questions.json",), questions),
    Tie("docs/rules.md", (f"{RESULTS}/rules.json",), rules),
    Tie("docs/rules.md", (f"{RESULTS}/kseq.json",), kseq),
    Tie("docs/drafters.md", (f"{RESULTS}/recordings.json",), recordings),
    Tie("docs/drafters.md", (f"{RESULTS}/partial.json",), partial),
    Tie("docs/heads.md", (f"{RESULTS}/heads.json", f"{RESULTS}/heads_times.json"), heads),
    Tie("docs/heads.md", (f"{RESULTS}/ctpd.json",), spans),
    Tie("docs/heads.md", tuple(f"{folder}/provenance.json" for folder in SHIPPED), shipped),
    Tie("docs/heads.md", (f"{RESULTS}/predicted.json",), predicted, "predicted tokens"),
    Tie("docs/heads.md", (f"{RESULTS}/predicted_speed.json",), predicted_speed, "predicted tokens end to end"),
    Tie("docs/compression.md", (f"{RESULTS}/compression.json", f"{RESULTS}/compression_times.json"), compression),
    Tie("docs/compression.md", (f"{RESULTS}/compression_drafts.json",), compressed_drafts),
    Tie("docs/compression.md", (f"{GATE}/gate.json",), gate),
)
