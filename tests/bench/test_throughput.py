"""Batches of N requests: figures worked by hand, Hugging Face's inputs, children that die, a run of a tiny pair."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from crossdraft.cli.cores import Cores
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target, text_folder
from crossdraft.options import Options
from crossdraft_lab.bench import child_batches, throughput
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.batch_child import Asked
from crossdraft_lab.bench.batches import BatchRun, EngineBatch, PaddedBatch, Served, padded, until_end
from crossdraft_lab.bench.child_batches import ChildBatches, ChildMethod, in_words
from crossdraft_lab.bench.hf_continuous import ClipEmbedding, ContinuousBatches
from crossdraft_lab.bench.serving.llama import LlamaFiles
from crossdraft_lab.bench.throughput import SizeResults, Throughput, lines, results_table, rows_of, run_throughput
from crossdraft_lab.bench.workload import Item, Workload, items

TWO = Cores((0,), (1,))


def batch(*seconds, tokens=(1, 2)):
    return BatchRun(tuple(Served(tokens, one / 4, one) for one in seconds))


def test_figures_worked_by_hand():
    """Two batches of two; ours takes 2 s for each, the target 4 and 4, on all cores 3 and 4."""
    asked = [[Item(seed, "kind", Request("?")) for seed in pair] for pair in ((1, 2), (3, 4))]
    found = SizeResults(2, asked, {
        "memory": [batch(1.0, 2.0), batch(2.0, 2.0)],
        "target": [batch(4.0, 3.0), batch(1.0, 4.0)],
        "target-all": [batch(3.0, 3.0), batch(4.0, 4.0)],
    })  # fmt: skip
    assert found.seconds("target") == [4.0, 4.0]  # until the last of a batch
    assert found.tokens("target") == [4, 4]
    assert found.faster("target") == "target-all"
    ours, target, every = rows_of(found, "memory", dict.fromkeys((1, 2, 3, 4), (1, 2)), None)
    assert (ours["tokens_per_s"]["value"], ours["tokens_per_s"]["n"]) == (2.0, 2)
    assert target["engine_over_it"]["value"] == 2
    assert every["engine_over_it"] == {"value": 1.75, "ci95": [1.5, 2.0], "n": 2}  # drawn from the batches
    assert ours["e2e_ms"] == {"median": 2000, "p95": 2000}
    assert target["ttft_ms"]["median"] == 1000 * (3 / 4 + 4 / 4) / 2
    assert (ours["identical"], ours["divergences"]) == ("4/4", [])


def test_small_sizes_get_more_batches_and_cores_that_are_no_other_are_left_out(tmp_path):
    plan = Throughput(Models(), Workload(1, files=tmp_path), (1, 8), "memory", repeats=2, least=10, cores=TWO)
    assert [plan.repeats_of(size) for size in plan.sizes] == [10, 2]
    assert plan.questions == 16
    assert plan.names[:4] == ("memory", "target", "target-all", "hf-batch")
    assert not any("vllm" in name for name in plan.names)  # no environment was named
    assert replace(plan, cores=None).names == ("memory", "target", "hf-batch", "hf-continuous")
    assert replace(plan, vllm_python=Path("python"), cores=None).names[-1] == "vllm"


WRONG = ({"sizes": (0,)}, {"sizes": (2, 2)}, {"drafter": "evnt"}, {"repeats": 0}, {"baselines": ("hf-bach",)})


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_plans_are_refused(wrong):
    with pytest.raises(CrossdraftError):
        Throughput(Models(), Workload(1), **{"sizes": (1,), **wrong})


def test_padding_goes_on_the_left():
    one = {"input_ids": torch.tensor([[5, 6, 7]]), "attention_mask": torch.ones(1, 3), "pixels": torch.ones(1, 2)}
    two = {"input_ids": torch.tensor([[8]]), "attention_mask": torch.ones(1, 1), "pixels": torch.zeros(1, 2)}
    found = padded([one, two])
    assert found["input_ids"].tolist() == [[5, 6, 7], [0, 0, 8]]
    assert found["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    assert found["pixels"].tolist() == [[1, 1], [0, 0]]
    assert until_end((4, 4), (2,)) == (4, 4)


def test_ids_behind_the_vocabulary_are_features():
    layer = ClipEmbedding(torch.nn.Embedding.from_pretrained(torch.tensor([[0.0], [1.0], [2.0]])))
    layer.clips = torch.tensor([[7.0], [8.0]])
    assert layer(torch.tensor([[2, 4, 0, 3]])).flatten().tolist() == [2.0, 8.0, 0.0, 7.0]


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """Three questions about three clips, of other lengths, from files."""
    return list(items(Workload(3, max_new_tokens=12, files=tmp_path_factory.mktemp("clips"))))


def test_everybody_writes_the_target_s_tokens(pair, asked):
    target, plain = load_target(str(pair.target)), load_target(str(pair.target), packed=False)
    alone = [answer.tokens for answer in DecodeLoop(target).generate([item.request for item in asked])]
    for method in (EngineBatch(target, None, Options(), None), PaddedBatch(plain)):
        for size in (3, 1):
            run = method.answer(asked[:size])
            assert [one.tokens for one in run.served] == alone[:size]
            assert all(0 < one.ttft_s <= one.total_s <= run.seconds for one in run.served)
        method.close()
    batches = ContinuousBatches(str(pair.target))
    for _ in range(2):
        found = batches.answer([Asked(item.request.prompt, item.request.video, 12) for item in asked])
        assert [tuple(one["tokens"]) for one in found] == alone
        assert all(0 < one["ttft_s"] <= one["total_s"] for one in found)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_children_get_the_target_s_device_and_dtype(pair, dtype, tmp_path, monkeypatch):
    for module in (throughput, child_batches):
        monkeypatch.setattr(module, "ChildBatches", lambda name, module, *_: module)
    models = Models(str(pair.target), device="cpu", dtype=dtype)
    plan = Throughput(
        models, Workload(1), (1,), "ngram", cores=TWO, vllm_python=tmp_path, baselines=("hf-continuous", "vllm")
    )
    made = dict(throughput._methods(plan, models.load_target()))
    assert made["hf-continuous"] == ["crossdraft_lab.bench.hf_continuous", str(pair.target), "cpu", dtype, "0"]
    assert made["vllm"] == ["crossdraft_lab.bench.vllm_child", str(pair.target), dtype]


def test_a_child_answers_and_says_why_it_failed(pair, asked, tmp_path):
    child = ChildBatches(
        "hf-continuous", ["crossdraft_lab.bench.hf_continuous", str(pair.target), "cpu", "float64", "0"], (0,)
    )
    try:
        assert "transformers" in child.about
        assert (child.about["device"], child.about["dtype"]) == ("cpu", "float64")
        (answer,) = child.answer(asked[:1]).served
        assert len(answer.tokens) > 0
        missing = replace(asked[0], request=replace(asked[0].request, video=str(tmp_path / "missing.mp4")))
        with pytest.raises(CrossdraftError, match=r"hf-continuous failed: .*missing\.mp4"):
            child.answer([missing])
        assert child.answer(asked[:1]).served[0].tokens == answer.tokens
        child._process.kill()
        with pytest.raises(CrossdraftError, match="hf-continuous ended"):
            child.answer(asked[:1])
    finally:
        child.close()
    with pytest.raises(CrossdraftError, match="No module named"):
        ChildBatches("vllm", ["no_such_module"])
    with pytest.raises(CrossdraftError, match="cannot be run"):
        ChildBatches("vllm", ["x"], python=tmp_path / "python")


def test_a_small_run_of_a_tiny_pair(pair, asked, tmp_path):
    models = Models(str(pair.target), str(pair.event), str(pair.blind), "cpu", "float32")
    work = Workload(1, max_new_tokens=6, files=tmp_path)
    plan = Throughput(models, work, (1, 2), "ngram", 1, 1, baselines=("target", "hf-batch"))
    ticks = []
    report = run_throughput(plan, ticks.append)
    assert len(ticks) == plan.runs
    rows = [(row["requests"], row["name"]) for row in report["rows"]]
    assert rows == [(size, name) for size in (1, 2) for name in plan.names]
    assert all(row["identical"] == "{0}/{0}".format(row["requests"]) for row in report["rows"])
    assert [row["requests"] for row in report["against"]] == [1, 1, 2, 2]
    kept = json.loads((Path(__file__).parents[2] / "docs/results/throughput.json").read_text())
    assert kept.keys() == report.keys()
    assert kept["rows"][0].keys() == report["rows"][0].keys()
    assert len(results_table(report).rows) == 6
    assert not any("vLLM" in line for line in lines(plan, report))  # nobody asked for it
    assert "vllm was left out" in lines(replace(plan, baselines=("target", "vllm")), report)[-1]


@pytest.fixture
def words(tmp_path):
    """Three prompts for the tiny text model."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": each}) + "\n" for each in ("One.", "And two, and three?", "Four!")))
    return Workload(3, max_new_tokens=6, prompts=path)


def test_prompts_are_asked_again_and_again_but_never_twice_at_once(words):
    with pytest.raises(CrossdraftError, match="3 prompts for 4 requests"):
        Throughput(Models(), words, (4,), "ngram")
    with pytest.raises(CrossdraftError, match="is asked prompts, not clips"):
        Throughput(Models(), Workload(1), (1,), "ngram", llama=LlamaFiles(Path("server"), Path("gguf")))
    plan = Throughput(Models(), words, (1, 2), "ngram", repeats=2, least=2, vllm_python=Path("python"))
    assert plan.others == ("target", "hf-batch", "vllm")  # no llama.cpp was named, and hf-continuous takes clips
    assert replace(plan, llama=LlamaFiles(Path("s"), Path("g"))).others[2] == "llama.cpp"
    asked, warm_ups = plan.asked()
    assert [item.seed for item in asked] == [0, 1, 2, 0]
    assert len(warm_ups) == 2


def test_a_small_run_in_words(words):
    models = Models(str(text_folder("text")), device="cpu", dtype="float32")
    plan = Throughput(models, words, (1, 3), "ngram", 2, 2, baselines=("target", "hf-batch", "llama.cpp"), warm_ups=0)
    ticks = []
    report = run_throughput(plan, ticks.append)
    assert len(ticks) == plan.runs == 3 * (2 + 2)
    assert [row["identical"] for row in report["rows"]] == ["2/2"] * 3 + ["6/6"] * 3
    assert report["workload"]["prompts"] == "prompts.jsonl"
    assert "llama.cpp was left out" in lines(plan, report)[-1]


# A child that answers with the ids that it was sent, and a penalty behind them.
ECHO = """
import json, sys
print(json.dumps({"echo": 1}), flush=True)
for line in sys.stdin:
    each = [{"tokens": [*one["ids"], one["penalty"]], "ttft_s": 0.5, "total_s": 1.0} for one in json.loads(line)]
    print(json.dumps({"served": each}), flush=True)
"""


def test_a_program_that_is_asked_in_words_gets_the_same_ids_and_settings(words, tmp_path, monkeypatch):
    (tmp_path / "echo.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    target = load_target(str(text_folder("text")), device="cpu")
    item = next(items(words))
    method = ChildMethod(ChildBatches("vllm", ["echo"], send=lambda one: in_words(target, one, "vllm")))
    try:
        run = method.answer(item)
        assert run.tokens == (*target.prepare(item.request).input_ids.tolist(), 1.0)
        assert (run.ttft_s, run.total_s, run.rounds, method.about) == (0.5, 1.0, len(run.tokens), {"echo": 1})
    finally:
        method.close()
    with pytest.raises(CrossdraftError, match="asks for stop strings, and vllm is not told"):
        in_words(target, replace(item.request, stop=("x",)), "vllm")
