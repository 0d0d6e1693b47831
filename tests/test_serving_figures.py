"""What pages say of requests, the server and streams: rows by hand, and words that follow the figures."""

import copy
import doctest
import json
from pathlib import Path

import pytest

import docs.serving_figures
import docs.setting_figures
from docs.bench_figures import edge_recording, encode, events
from docs.serving_figures import (
    HOSTED,
    SERVE,
    against_vllm,
    hosted,
    hosted_heads,
    serve,
    serve_short,
    soak,
    throughput,
    throughput_hf,
    watch,
)
from tools.figures import Tie, measured

ROOT = Path(__file__).parents[1]


@pytest.fixture
def server():
    """Copies of the cost, the load and the mutants that are kept."""
    return [json.loads((ROOT / path).read_text(encoding="utf-8")) for path in SERVE]


def test_rows_of_the_server_say_what_came_besides(server):
    cost, loaded, fuzzed = server
    loaded["load"] |= {"statuses": {"503": 1200, "200": 5000, "500": 2}, "clients": 50, "seconds": 300.0}
    cost["cancels"] = {"cancels": 200, "left": {"rows": 0, "files": 1}}
    cost["kills"] |= {"kills": 3, "statuses": {"200": 260, "500": 4}, "wrong_answers": 1}
    fuzzed["mutants"] |= {"passed": True, "outcomes": {"json: refused": 7, "a: no room": 1, "b: answered": 1500}}
    rows = list(serve(*server))
    assert "for 5 minutes | 5,000 answers, 1,200 × 503, 2 × 500;" in rows[5]
    assert rows[6] == "| 200 streams that are left before their end | left: 1 files |"
    assert rows[7] == "| the drafter killed 3 times under load | 260 answers, 1 wrong, 4 lost |"
    assert "| 1,500 answered, 7 refused, 1 no room, no other status, " in rows[8]
    assert "mutated requests, heads, streams, clips, recordings and uploads |" in rows[8]
    fuzzed["mutants"]["outcomes"] |= {"edge: refused": 3, "edge: waiting": 2}
    rows = list(serve(*server))
    assert "mutated requests, heads, streams, edges, clips, recordings and uploads |" in rows[8]
    assert "| 1,500 answered, 10 refused, 1 no room, 2 waited for the rest, no other status, " in rows[8]
    fuzzed["mutants"] |= {"growth": 0.0123, "resident_mib": {"first": 1500.0, "last": 1510.0, "most": 1600.0}}
    fuzzed["mutants"] |= {"whole_edge": "answered", "warm_after": 0.25, "most_growth": 0.1}
    assert list(serve(*server))[8].endswith(
        "no other status, and then a whole edge is answered; resident memory after the first 25 % of them 1,500 to "
        "1,510 MiB, medians of its eighths within 1.2 %; asked at most 10 % |"
    )
    loaded["load"]["statuses"].pop("500")
    cost["cancels"]["left"] = {"rows": 0}
    cost["kills"]["statuses"] = {"200": 260}
    rows = list(serve(*server))
    assert "1,200 × 503, nothing else;" in rows[5]
    assert "no row, no file, no recording, no request left" in rows[6]
    assert "none lost" in rows[7]


def test_what_falls_short_follows_the_figures(server):
    cost, loaded, _ = server
    busy, levels = cost["throughput"]["busy"], loaded["vllm"]["clients"]
    again = loaded["throughput"]["busy"]
    in_all = [run["overhead"][kind]["e2e_difference_ms"] for run in (cost, loaded) for kind in ("known", "new")]
    for one in in_all:
        one["p50"] = 2.5
    again |= {"ratio": 0.99, "ci95": [0.97, 1.0]}
    busy |= {"ratio": 0.9, "ci95": [0.8, 0.97]}
    (said,) = serve_short(cost, loaded)
    assert said.startswith("**What falls short.** Throughput is below the bound.")
    busy["ci95"] = [0.8, 0.99]
    assert "below the bound, which lies within its interval." in next(serve_short(cost, loaded))
    busy["ratio"] = 0.99
    for number, level in enumerate(levels.values()):
        level["throughput_ratio"]["value"] = 0.9 if number else 1.1
    assert next(serve_short(cost, loaded)) == "**What falls short.** With 4 and 16 clients vLLM does more."
    for level in levels.values():
        level["throughput_ratio"]["value"] = 1.1
    assert next(serve_short(cost, loaded)).startswith("**Nothing falls short**")
    in_all[2]["p50"] = 5.25
    assert "**What falls short.** In all a request takes 2.5 to 5.2 ms longer" in next(serve_short(cost, loaded))
    in_all[2]["p50"] = 2.5
    cost["overhead"]["known"]["added_ms_p50"] = 3.4
    assert next(serve_short(cost, loaded)).endswith("A request about a known clip takes longer than the bound.")
    again |= {"ratio": 0.9, "ci95": [0.8, 0.97]}  # of two runs the worse one counts
    assert "Throughput is below the bound. A request" in next(serve_short(cost, loaded))


def test_the_table_against_vllm(server):
    level = {"requests": 24, "same_text": 23, "e2e_ms": {"crossdraft": {"p50": 96.3}, "vllm": {"p50": 1237.0}}}
    level |= {"sooner": 2.166, "ci95": [2.0, 2.3], "throughput_ratio": {"value": 2.1, "ci95": [2.0, 2.2], "n": 3}}
    said = list(against_vllm({"vllm": {"clients": {"1": level}}}))
    assert said[0] == "3 blocks for each number of clients; in 23 of 24 answers the text was the same:"
    assert said[-1] == "| 1 | 96 ms | 1,237 ms | 2.17 [2.00, 2.30] | 2.10 [2.00, 2.20] |"


def row(size, name, rate, first, identical="8/8"):
    return {
        "requests": size,
        "name": name,
        "tokens_per_s": {"value": rate},
        "ttft_ms": {"median": first},
        "identical": identical,
    }


def against(size, baseline, faster, value):
    return {
        "requests": size,
        "baseline": baseline,
        "faster": faster,
        "value": value,
        "ci95": [value - 0.1, value + 0.1],
        "n": {1: 20, 4: 12}[size],
    }


RUN = {
    "seconds": 610.0,
    "drafter": "glance",
    "rows": [
        row(1, "glance", 450.4, 80.2), row(1, "target", 241.0, 60.0), row(1, "target-all", 200.0, 56.3),
        row(1, "vllm", 249.0, 70.0), row(4, "glance", 433.0, 1151.0), row(4, "target", 400.0, 150.0),
        row(4, "target-all", 446.0, 136.0), row(4, "vllm", 462.0, 120.0),
    ],
    "against": [
        against(1, "target", "target", 1.87), against(1, "vllm", "vllm", 1.81),
        against(4, "target", "target-all", 0.97), against(4, "vllm", "vllm", 0.94),
    ],
    "least_over_target": {"value": 0.97, "ci95": [0.95, 0.99]},
}  # fmt: skip


def test_many_requests_by_hand():
    said = list(throughput(RUN, RUN))
    assert said[0] == "| requests | `glance` | `target` | `vllm` |"
    assert said[2:4] == ["| 1 | 450 | 241, 1.87 × | 249, 1.81 × |", "| 4 | 433 | 446, 0.97 × | 462, 0.94 × |"]
    assert said[4] == (
        "The run took 10 minutes. All answers are the target's own. The intervals of the ratios, drawn from 12 to 20 "
        "batches of a size, are over `target` [1.77, 1.97] and [0.87, 1.07], over `vllm` [1.71, 1.91] and [0.84, "
        "1.04]. The first token (median; `target` on all cores of the pair in brackets) comes after 80 ms (56) and "
        "1,151 (136)."
    )
    assert said[5] == (
        "**What falls short.** With 4 requests vLLM answers 6 % more. Where drafting helps least, throughput is 0.97 "
        "[0.95, 0.99] times that of the target alone in the same batches; asked is at least 0.98."
    )
    assert said[6].endswith("it gave 1.87 and 0.97 over `target`.")


def test_what_hugging_face_answers_has_a_table_of_its_own():
    run = copy.deepcopy(RUN)
    run["rows"].append(row(4, "hf-batch", 288.7, 120.0))
    run["against"] = [against(4, "target", "target-all", 0.97), against(4, "hf-batch", "hf-batch", 1.5)]
    assert list(throughput_hf(run)) == [
        "| requests | `glance` | `hf-batch` |", "|---|---|---|", "| 4 | 433 | 289, 1.50 × |",
    ]  # fmt: skip


def test_the_words_follow_the_figures_of_many_requests():
    run = copy.deepcopy(RUN)
    run["rows"][3]["identical"] = "7/8"
    run["against"][3]["value"] = 1.02
    run["least_over_target"]["value"] = 0.99
    *_, prose, short, _ = throughput(run, RUN)
    assert "Answers that are not the target's own: 1 of 16 of `vllm`; all others are." in prose
    assert short.startswith("**Nothing falls short**")


def test_the_soak_and_what_went_wrong():
    memory = {"growth": 0.0123, "swing": 0.098, "most": 0.03, "judged": True, "range_mib": [1260.4, 1389.0]}
    run = {"requests": 5000, "seconds": 391.2, "environment": {"cpus": 2}, "kills": 3, "failed": 0, "rows": 0}
    run |= {"left": {"files": []}, "memory": memory}
    assert next(soak(run)) == (
        "5,000 requests took 391 s on 2 cores, with 3 kills: every answer was right, nothing was left, and memory is "
        "flat: the medians lie within 1.2 %. Single samples, one each 0.5 s, lie between 1,260 and 1,389 MiB (9.8 %)."
    )
    run |= {"failed": 2, "left": {"files": ["x"]}, "memory": memory | {"growth": 0.05}}
    assert "2 answers were wrong, something was left, and memory is not flat: the medians lie within 5.0 %" in next(
        soak(run)
    )
    run["memory"] = memory | {"judged": False}
    assert "memory was not judged" in next(soak(run))


def test_a_stream_by_hand():
    def method(name, identical, first):
        return {
            "name": name, "windows_due": 60, "windows_answered": 55, "windows_dropped": 5, "identical": identical,
            "windows_per_s": {"value": 1.9, "ci95": [1.8, 2.0]}, "last_frame_to_first_token_ms": first,
            "last_frame_to_whole_answer_ms": {"p50": 81.4, "p99": 1200.0}, "late_ms": 5.4,
        }  # fmt: skip

    run = {
        "stream": {"seconds": 8, "window_s": 1.0, "every_s": 0.5, "questions": ["a", "b"]},
        "cores": {"glance": "0 + 1", "target": "0"},
        "methods": [method("glance", "50/51", {"p50": 70.4, "p99": 99.6}), method("target", "55/55", None)],
    }
    said = list(watch(run))
    assert said[0].startswith("A stream of 8 s, a window of 1 s each 500 ms, 2 questions, one a run;")
    assert said[3] == "| `glance` | 0 + 1 | 55 of 60 | 5 | 1.90 [1.80, 2.00] | 70, 100 ms | 81, 1,200 ms | 5 ms |"
    assert said[4] == "| `target` | 0 | 55 of 60 | 5 | 1.90 [1.80, 2.00] | none | 81, 1,200 ms | 5 ms |"
    assert said[5].startswith("50 of 51 answers")


def test_a_recording_that_is_sent_up_is_shown_where_it_was_measured():
    def network(rtt, mbit, **ways):
        made = {
            way: {"e2e": {"ms": ms}, "speedup": {"ratio": off / ms, "ci95": [0.5, 2.0]}, "recording_bytes": 570_000.0}
            for way, (ms, off) in ways.items()
        }
        return {"rtt_ms": rtt, "mbit_s": mbit, "ways": made}

    plain = network(20, 100, policy=(150.0, 240.0))
    (absent,) = edge_recording({"networks": [plain]}, {"networks": []})
    assert "Not in these runs" in absent
    found = network(20, 1, policy=(150.0, 240.0), recording=(4800.0, 240.0))
    said = list(edge_recording({"networks": [plain]}, {"networks": [found]}))
    assert "(measured): when the question is asked" in said[0]
    assert "570,000 to 570,000 bytes" in said[0]
    assert said[3:] == ["| 1 Mbit/s, 20 ms | 4,800 | 0.05 [0.50, 2.00] | 1.60 [0.50, 2.00] |"]


def test_drafts_inside_vllm_by_hand():
    row = {"identical": 6, "answers": 6, "tokens": 339, "passes": 18, "preempted": 5}
    cases = dict.fromkeys(HOSTED, row) | {"EAGLE-1": row | {"passes": 102, "identical": 5}}
    cases["known, sampled"] = {"answers": 800, "temperature": 2.0, "accepted": 4114, "deviation": 0.377}
    said = list(hosted({"cases": cases}))
    assert "| vLLM alone | 18 | 18.83 | 6/6 |" in said
    assert (
        "| a drafter that knows the answers, prompts read at once | 18, as worked out by hand | 18.83 | 6/6 |" in said
    )
    assert any("too few blocks for keys and values: 5 preemptions | 18 |" in one for one in said)
    assert "| EAGLE-1 of ours in vLLM, four tokens a draft | 102 | 3.32 | 5/6 |" in said
    assert said[-2].startswith("800 answers drawn at temperature 2 with drafts, of which vLLM accepted 4114 tokens")
    assert "(chi-square 0.38 standard" in said[-1]
    assert list(hosted_heads({"cases": cases})) == ["the target's tokens, τ 3.32 with EAGLE-1"]


def test_parts_that_are_measured_by_themselves():
    machine = {"environment": {"cpu": "AMD EPYC", "cpus": 2}}
    run = machine | {"frames": 8, "dtype": None, "repeats": 9}
    run |= {"speedup": {"value": 2.16, "ci95": [2.1, 2.2]}, "speedup_whole": {"value": 1.24, "ci95": [1.2, 1.3]}}
    (said,) = encode(run)
    assert said == (
        "On 2 cores of a shared AMD EPYC it is 2.16 [2.10, 2.20] times as fast as on one core and 1.24 [1.20, 1.30] "
        "times as on both at once (8 frames, float32, medians of 9 runs). More than twice is the shared machine's "
        "doing."
    )
    run["speedup"]["value"] = 1.96
    assert next(encode(run)).endswith("medians of 9 runs).")
    timings = [
        {"name": f"{name} of 8 s, file to 5 frames", "ms": {"median": ms}, "peak_mb": peak}
        for name, ms, peak in (("our own h5", 26.7, 105.8), ("DSEC's layout", 29.2, 110.0))
    ]
    (said,) = events(machine | {"timings": [{"name": "1 s slice", "ms": {"median": 1.0}, "peak_mb": None}, *timings]})
    assert said == "On a shared AMD EPYC these take 27 and 29 ms, and at most 110 MB."


def test_a_page_is_tied_once_its_file_is_there():
    there, missing = (Tie("docs/serve.md", (source,), serve) for source in (SERVE[0], "docs/results/none.json"))
    assert measured(there, missing) == (there,)


@pytest.mark.parametrize("module", [docs.serving_figures, docs.setting_figures])
def test_the_examples(module):
    ran = doctest.testmod(module)
    assert (ran.attempted > 1, ran.failed) == (True, 0)
