"""Text models with recurrent layers, from a checkpoint folder: as targets, and as drafters."""

import pytest
import torch

import crossdraft as cd
from crossdraft.load import load_target
from tests.engine.recurrent.tiny import TEXT, tiny
from tests.tiny_families import BYTES, IDS, SPECIAL, byte_tokenizer

OTHERS = ("qwen3_next", "kimi_linear")  # transformers' steps of Nemotron-H differ from its forward: it is refused
OPTIONS = cd.Options(device="cpu", dtype="float32", placement="inline", adaptive=False)
REQUESTS = [cd.Request(question, max_new_tokens=24) for question in ("What is ahead?", "Why?", "What is ahead?")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base, found = tmp_path_factory.mktemp("recurrent"), {}
    for kind in TEXT:
        found[kind] = base / kind
        tiny(kind, torch.float32, vocab_size=len(BYTES) + len(SPECIAL)).save_pretrained(found[kind])
        byte_tokenizer(None).save_pretrained(found[kind])
    return found


@pytest.mark.parametrize(
    ("kind", "drafter"),
    [
        ("lfm2", "union:memory,ngram"),
        ("lfm2", "model:dir={lfm2}"),
        *(pytest.param(kind, "model:dir={lfm2}", marks=pytest.mark.slow) for kind in OTHERS),
        *(pytest.param("lfm2", f"model:dir={{{kind}}}", marks=pytest.mark.slow) for kind in OTHERS),
    ],
)
def test_answers_are_those_of_generate(kind, drafter, folders):
    with cd.Engine.load(str(folders[kind]), drafter.format(**folders), OPTIONS) as engine:
        found = [engine.generate(request) for request in REQUESTS]
        prompts = [engine.target.prepare(request).input_ids for request in REQUESTS]
    model = load_target(str(folders[kind]), "cpu", packed=False).model
    for answer, ids in zip(found, prompts, strict=True):
        said = model.generate(ids[None], max_new_tokens=24, do_sample=False, eos_token_id=IDS["</s>"])
        assert answer.tokens == tuple(said[0, len(ids) :].tolist())
    assert sum(answer.stats.drafted for answer in found)
    assert drafter != f"model:dir={{{kind}}}" or sum(answer.stats.accepted for answer in found) > 40
