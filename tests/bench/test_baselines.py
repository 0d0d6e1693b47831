"""Hugging Face as a peer: the same tokens, and an assistant that is as good as it can be made."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from crossdraft.api import Engine, Options
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.load import load_target, tokenizer_of
from crossdraft_lab.bench.assembly import EngineMethod
from crossdraft_lab.bench.baselines import Assistant, HFBaseline, blank_window
from crossdraft_lab.bench.workload import Workload, items


@pytest.fixture(scope="module")
def item():
    return next(items(Workload(pairs=1, max_new_tokens=16)))


@pytest.fixture(scope="module")
def assistant(models, target):
    return Assistant(target, models.drafter(models.blind, target)())


def test_all_peers_write_the_targets_tokens(target, item, assistant):
    own = EngineMethod(Engine(target, None, Options(), CostModel())).answer(item)
    for peer in (HFBaseline(target), HFBaseline(target, lookup=True), HFBaseline(target, assistant=assistant)):
        run = peer.answer(item)
        assert run.tokens == own.tokens
        assert 0 < run.ttft_s < run.total_s
        assert sum(run.stages_s.values()) == pytest.approx(run.total_s)
        assert 0 < run.rounds <= len(run.tokens)


@pytest.mark.parametrize(
    "fields",
    [
        {"no_repeat_ngram_size": 2, "min_new_tokens": 9},
        {"repetition_penalty": 1.4, "stop_strings": ["th", "e "]},
        {"do_sample": True, "top_k": 1, "typical_p": 0.9, "max_new_tokens": 5},
    ],
)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(repetition_penalty=1.0, no_repeat_ngram_size=0)])
def test_baselines_follow_the_checkpoints_settings_and_the_requests(pair, tmp_path, item, fields, sampling):
    """Also where a request switches off what the checkpoint has on, which `generate` would fill in again."""
    folder = tmp_path / "target"
    shutil.copytree(pair.target, folder)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    target = load_target(str(folder), packed=False)
    before = target.model.generation_config.to_dict()
    changed = replace(item, request=replace(item.request, sampling=sampling, max_new_tokens=None))
    own = EngineMethod(Engine(target, None, Options(), CostModel())).answer(changed)
    tokenizer = tokenizer_of(str(folder))
    peers = [HFBaseline(target, tokenizer=tokenizer)]
    if "stop_strings" not in fields:  # prompt lookup looks for them only after a round's last token
        peers.append(HFBaseline(target, lookup=True, tokenizer=tokenizer))
    for peer in peers:
        assert peer.answer(changed).tokens == own.tokens
    assert target.model.generation_config.to_dict() == before


def test_the_engines_stages_add_up(target, item):
    run = EngineMethod(Engine(target, None, Options(), CostModel())).answer(item)
    assert sum(run.stages_s.values()) == pytest.approx(run.total_s)
    assert run.rounds == len(run.tokens)
    assert run.stages_s["draft"] == 0


def test_the_assistant_reads_exactly_the_twins_own_prompt(models, target, item, assistant):
    twin = models.drafter(models.blind, target)()
    blank = Request(item.request.prompt, events=blank_window(models.blind))
    expected = twin.begin([blank])[0].logits[0] + twin.banned
    prompt = target.prepare(item.request)
    with torch.inference_mode():
        found = assistant(prompt.input_ids[None]).logits[0, -1]
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_stock_assistant_would_read_something_else(models, target, item, assistant):
    from transformers import LlamaForCausalLM

    prompt = target.prepare(item.request)
    with torch.inference_mode():
        stock = LlamaForCausalLM.forward(assistant, prompt.input_ids[None]).logits
        found = assistant(prompt.input_ids[None]).logits
    assert stock is not None
    assert not torch.allclose(stock[0, -1], found[0, -1], atol=1e-2)
