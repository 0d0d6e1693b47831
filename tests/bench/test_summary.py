"""From runs to figures: exact by hand, and a method that is not lossless must be caught."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from crossdraft.api import Engine, Options
from crossdraft.comparisons import first_difference
from crossdraft.engine.cost_model import CostModel
from crossdraft_lab.bench.assembly import EngineMethod, Models
from crossdraft_lab.bench.measure import Results, Run, divergences, measure
from crossdraft_lab.bench.summary import BenchReport, headline, label, method_json, tables
from crossdraft_lab.bench.summary import summarise as rows_of
from crossdraft_lab.bench.workload import Workload, items


@pytest.fixture(scope="module")
def target(pair):
    return Models(str(pair.target), str(pair.event), str(pair.blind), device="cpu", dtype="float32").load_target()


@pytest.fixture(scope="module")
def pairs():
    return list(items(Workload(pairs=2, max_new_tokens=12)))


def summarise(results, pairs, target):
    """The rows, with the divergences that the target's logits explain."""
    greedy = pairs[0].request.sampling.greedy
    return rows_of(results, [pair.kind for pair in pairs], divergences(results, pairs, target), greedy=greedy)


class Lossy:
    """A method that writes one wrong token at a known position of its second answer."""

    cores = None

    def __init__(self, honest, position):
        self.honest, self.position, self.calls = honest, position, 0

    def answer(self, item):
        run = self.honest.answer(item)
        self.calls += 1
        if self.calls != 2:
            return run
        wrong = [*run.tokens]
        wrong[self.position] = (wrong[self.position] + 1) % 200
        return replace(run, tokens=tuple(wrong))

    def close(self):
        pass


def test_a_planted_lossy_method_is_reported(target, pairs, monkeypatch):
    own = EngineMethod(Engine(target, None, Options(), CostModel()))
    results = measure({"target": own, "lossy": Lossy(own, 5)}, pairs, 1)
    honest, lossy = summarise(results, pairs, target)
    assert (honest["identical"], honest["lossless"]) == ({"equal": 2, "total": 2}, True)
    divergence = lossy["divergences"][0]
    assert (divergence["seed"], divergence["position"]) == (pairs[1].seed, 5)
    assert divergence["top2_gap"] > 64 * 1.2e-7
    assert not divergence["near_tie"]
    monkeypatch.setattr("crossdraft_lab.bench.measure.NEAR", divergence["top2_gap"] / 1.19e-7)
    assert divergences(results, pairs, target)["lossy"][0]["near_tie"]
    assert method_json(lossy)["identical"] == {"equal": 1, "total": 2}
    assert method_json(lossy)["lossless"] is False


def test_figures_by_hand(target, pairs):
    tokens = (5, 6, 7, 8)
    alone = Run(tokens, 4.0, 1.0, {"prefill": 1.0, "verify": 3.0}, rounds=4, prefill_s=1.0)
    method = Run(
        tokens,
        2.0,
        1.1,
        {"prefill": 1.1, "verify": 0.9},
        rounds=2,
        accepted_at=(1, 1),
        offered_at=(2, 1),
        prefill_s=1.1,
        hidden_drafting_s=1.0,
        hidden_inside_s=0.9,
        rounds_s=0.9,
        overhead_s=0.09,
    )
    results = Results({"target": [[alone], [alone]], "event": [[method], [method]]})
    _, found = summarise(results, pairs, target)
    assert headline(found).value == pytest.approx(2)
    assert found["tau"].value == pytest.approx(2)
    assert (method_json(found)["tau"], method_json(found)["tau_ci95"]) == (2.0, [2.0, 2.0])
    assert found["accepted_per_position"] == pytest.approx((0.5, 1.0))
    assert found["hidden_share"].value == pytest.approx(0.9)
    assert (found["prefill_slowdown"].value, found["prefill_slowdown"].n) == (pytest.approx(0.1), 2)
    assert found["overhead_share"].value == pytest.approx(0.1)
    assert (method_json(found)["hidden_share"], method_json(found)["hidden_share_ci95"]) == (0.9, [0.9, 0.9])
    assert found["tokens_per_s"] == pytest.approx(2)
    assert found["ttft_ms"].median == pytest.approx(1.1)
    assert sum(found["stage_means"].values()) == pytest.approx(2)
    assert method_json(found)["speedup"] == {
        "value": 2.0, "ci95": [2.0, 2.0], "n": 2, "against": "target", "per": "answer"
    }  # fmt: skip


def test_the_headline_is_against_the_fastest_way_to_run_the_target_alone(target, pairs):
    def two(*seconds):
        return [[plain((1, 2), each)] for each in seconds]

    # Pair by pair either may win: over both, 4 + 6 s on its own share against 5 + 2 s on all cores.
    runs = {"target": two(4.0, 6.0), "target-all": two(5.0, 2.0), "event": two(2.0, 1.5)}
    methods = summarise(Results(runs), pairs, target)
    assert {method["against"] for method in methods} == {"target-all"}
    own, both, event = map(method_json, methods)
    assert (event["speedup"]["against"], event["speedup"]["value"]) == ("target-all", 2.0)
    assert {each["against"]: each["value"] for each in event["speedups"]} == {"target": 2.857143, "target-all": 2.0}
    assert (own["speedup"]["value"], both["speedup"]["value"]) == (0.7, 1.0)
    shown = printed(methods)
    assert "× target-all" in shown
    assert "2.00 [1.33, 2.50; n=2]" in shown
    assert "2.86" not in shown
    runs["target"] = two(1.0, 1.0)
    assert {method["against"] for method in summarise(Results(runs), pairs, target)} == {"target"}
    runs |= {"hf-all": two(0.5, 1.0), "hf-assisted": two(0.1, 0.1)}  # the latter drafts
    methods = summarise(Results(runs), pairs, target)
    assert {method["against"] for method in methods} == {"hf-all"}
    shown = " ".join(printed(methods).split())
    assert "× hf-all (the fastest of target, target-all, hf-all)" in shown
    assert shown.count("× hf-all ") == 2, "its column is not repeated in the table of further baselines"
    runs = {"event": runs["event"]}
    (alone,) = summarise(Results(runs), pairs, target)
    assert method_json(alone)["speedup"] is None
    assert "not measured: target, target-all, hf, hf-all, hf-lookup, blind" in printed([alone])
    assert "blind" not in printed([alone], prompts="asked.jsonl"), "nobody can answer prompts with it"


def test_figures_by_kind_are_of_the_pairs_of_that_kind():
    first = {"target": (4.0, 6.0, 9.0), "hf": (8.0, 5.0, 2.0), "event": (1.0, 2.0, 6.0)}
    runs = {name: [[plain((1, 2), each)] for each in seconds] for name, seconds in first.items()}
    *_, event = rows_of(Results(runs), ["code", "prose", "code"], {"event": []})
    found = method_json(event)["by_kind"]
    shown = {kind: (one["pairs"], round(one["speedup"]["value"], 3)) for kind, one in found.items()}
    assert shown == {"all": (3, 1.667), "code": (2, 1.429), "prose": (1, 2.5)}
    assert (event["against"], found["code"]["over_target"]["value"]) == ("hf", pytest.approx(13 / 7))
    assert (found["code"]["tokens_per_s"], found["code"]["ttft"]["value"]) == (pytest.approx(4 / 7, abs=1e-3), 1.0)


def test_provisional_text_is_timed_where_there_was_some(target, pairs):
    shown, unshown = replace(plain((1,), 2.0), provisional_s=0.25), plain((1,), 2.0)
    drafted, alone = summarise(
        Results({"event": [[shown], [unshown]], "memory": [[unshown], [unshown]]}), pairs, target
    )
    assert method_json(drafted)["first_provisional_ms"]["median"] == 250
    assert method_json(alone)["first_provisional_ms"] is None
    assert "250.0" in printed([drafted, alone])


def plain(tokens, total_s):
    return Run(tokens, total_s, 0.5, {"other": total_s}, rounds=1)


def printed(methods, pairs=1, width=160, prompts=None):
    """The tables as text."""
    work = {"pairs": pairs, "repeats": 1, "mean_tokens": 3, "prompts": prompts}
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(*tables(BenchReport({}, work, methods)))
    return console.export_text()


def test_tau_has_an_interval_over_pairs_repeats_added_up(target, pairs):
    def drafted(tokens, rounds):
        return replace(plain((1,) * tokens, 2.0), rounds=rounds)

    # Pair by pair 8 tokens in 2 passes and 7 in 4, as two repeats each: 15/6, between 7/4 and 8/2.
    runs = {
        "target": [[plain((1, 2), 4.0)] * 2] * 2,
        "event": [[drafted(3, 1), drafted(5, 1)], [drafted(5, 2), drafted(2, 2)]],
    }
    own, ours = summarise(Results(runs), pairs, target)
    assert (ours["tau"].low, ours["tau"].value, ours["tau"].high) == pytest.approx((1.75, 2.5, 4))
    assert method_json(ours)["tau_ci95"] == [1.75, 4.0]
    shown = printed([own, ours])
    assert "2.50 [1.75, 4.00; n=2]" in shown
    causes = shown.partition("how it comes")[2].partition("by kind")[0]
    assert "1.00 [1.00, 1.00" not in causes  # of the target there is no more to say


def test_a_long_spec_leaves_the_figures_whole(target, pairs):
    name = "phased:event,(union:event,(phased:event,(union:blind,ngram,memory:capacity=2))),[memory]"
    runs = {"target": [[plain((1, 2), 4.0)], [plain((1, 2), 6.0)]]}
    runs |= {name: runs["target"], "hf": runs["target"], "hf-lookup": runs["target"]}
    methods = summarise(Results(runs), pairs, target)
    shown = printed(methods, width=110)
    assert "…" not in shown
    assert "phased:event,(" in shown
    assert "[memory]" in shown  # and not taken for markup
    assert shown.count("2/2") == 4


def test_sampled_tokens_are_not_compared_and_speedups_are_per_token(target):
    pairs = list(items(Workload(pairs=1, temperature=1.0)))
    # 4 tokens in 4 s against 1 token in 2 s: a shorter answer, at half the pace.
    runs = {"target": [[plain((1, 2, 3, 4), 4.0)]], "event": [[plain((3,), 2.0)]]}
    methods = summarise(Results(runs), pairs, target)
    assert headline(methods[1]).value == pytest.approx(0.5)
    found = method_json(methods[1])
    assert found["identical"] is found["lossless"] is None
    assert found["speedup"]["per"] == "token"
    shown = printed(methods)
    assert "time per token of the baseline" in shown
    assert "the tokens may differ, so none are compared" in shown
    assert "1/1" not in shown


def test_greedy_speedups_are_of_whole_answers(target, pairs):
    ours = [[plain((1, 2), 2.0)], [plain((1, 2), 3.0)]]
    runs = {"target": [[plain((1, 2), 4.0)], [plain((1, 2), 6.0)]], "event": ours}
    methods = summarise(Results(runs), pairs, target)
    assert headline(methods[1]).value == pytest.approx(2)
    shown = printed(methods, pairs=2)
    assert "Σ time of the baseline / Σ time of the method" in shown
    assert "2/2" in shown
    assert "fewer than 10 pairs" in shown
    assert "fewer than" not in printed(methods, pairs=10)


def test_a_lossy_rule_is_named_in_the_table_and_never_called_lossless(target, pairs):
    ours = replace(plain((1, 2), 2.0), lossy="relaxed:r=3")
    runs = {"target": [[plain((1, 2), 4.0)], [plain((1, 2), 4.0)]], "event": [[ours], [ours]]}
    own, lossy = summarise(Results(runs), pairs, target)
    assert (own["lossy"], own["lossless"], label(own)) == (None, True, "target")
    assert (lossy["identical"]["equal"], lossy["lossless"]) == (2, False)  # the same tokens, this time
    assert method_json(lossy)["lossy"] == "relaxed:r=3"
    assert printed([own, lossy]).count("event (lossy: relaxed:r=3)") == 3


def test_the_engine_says_the_benchmark_of_a_lossy_rule(target, pairs):
    lossy = EngineMethod(Engine(target, None, Options(rule="relaxed:r=3"), CostModel()))
    exact = EngineMethod(Engine(target, None, Options(), CostModel()))
    assert lossy.answer(pairs[0]).lossy == "relaxed:r=3"
    assert exact.answer(pairs[0]).lossy is None


def test_without_the_target_nothing_is_called_lossless(target, pairs):
    methods = summarise(Results({"hf": [[plain((1, 2), 4.0)], [plain((1, 2), 4.0)]]}), pairs, target)
    assert method_json(methods[0])["lossless"] is None
    assert "the target alone did not run: no tokens are compared" in printed(methods)


@pytest.mark.parametrize(
    ("left", "right", "position"), [([1, 2, 3], [1, 5, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [1], 0)]
)
def test_first_difference(left, right, position):
    assert first_difference(left, right) == position
