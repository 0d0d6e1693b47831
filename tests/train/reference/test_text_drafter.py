"""The stage `text` at micro size, and the vocabulary it learns."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.core.provenance import sha256
from crossdraft_lab.train.reference.recipe import load_recipe
from crossdraft_lab.train.reference.run import ReferenceRun
from crossdraft_lab.train.reference.stages import run_stages
from crossdraft_lab.train.reference.text_drafter import PROMPT, minify_json
from crossdraft_lab.train.reference.tokenizer import TEXT_ALPHABET, TEXT_SPECIALS, train_text_tokenizer

MICRO = Path(__file__).parent / "micro.yaml"
TEXTS = ["the car in front is turning left near the red light"] * 4


def run_to(folder: Path, steps: int, *overrides: str) -> ReferenceRun:
    changed = [f"text_drafter.optim.steps={steps}", "text_drafter.optim.decay_steps=0", *overrides]
    run = ReferenceRun(load_recipe(MICRO, changed), folder)
    run_stages(run, ["text"])
    return run


def losses(run: ReferenceRun) -> list[float]:
    lines = (run.out / "text" / "train.log.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_the_stage_leaves_a_folder_that_can_ship(tmp_path):
    run = run_to(tmp_path, 2)
    folder = run.out / "text" / "model"
    model, tokenizer = LlamaForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert len(tokenizer) == model.config.vocab_size == 160
    record = json.loads((folder / "provenance.json").read_text())
    assert record["data"]["weights_sha256"] == sha256(folder / "model.safetensors")
    assert record["figures"]["parameters"] == sum(p.numel() for p in model.parameters())
    shares = record["figures"]["evaluation"]
    card = (folder / "README.md").read_text()
    for wordings in ("train_wordings", "held_out_wordings"):
        assert f"{shares[wordings]['top1']:.1%}" in card
        # A round ends at a wrong token: there are as many as those, or more.
        assert 1 <= shares[wordings]["tau_8"] <= 1 / (1 - shares[wordings]["top1"]) + 1e-3


def test_a_resumed_run_repeats_the_losses(tmp_path):
    run_to(tmp_path / "broken", 2)
    broken, whole = run_to(tmp_path / "broken", 4), run_to(tmp_path / "whole", 4)
    assert losses(broken) == losses(whole)
    assert len(losses(whole)) == 4


def test_a_vocabulary_of_another_size_is_refused(tmp_path):
    run_to(tmp_path, 1)
    with pytest.raises(CrossdraftError, match="has 160 ids where the recipe asks for 150"):
        run_to(tmp_path, 1, "text_drafter.vocab_size=150")


def test_the_vocabulary_encodes_ascii_and_nothing_else():
    tokenizer = train_text_tokenizer(TEXTS, 120)
    assert len(tokenizer) == 120
    assert tokenizer.convert_tokens_to_ids(list(TEXT_SPECIALS)) == list(range(len(TEXT_SPECIALS)))
    ids = tokenizer(TEXT_ALPHABET)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids[1:]) == TEXT_ALPHABET
    assert tokenizer.unk_token_id in tokenizer("né")["input_ids"]


def test_texts_with_too_few_merges_are_refused():
    with pytest.raises(CrossdraftError, match=r"not 400; raise text_drafter\.scenes"):
        train_text_tokenizer(TEXTS, 400)


def test_a_minified_tokenizer_is_the_same(tmp_path):
    tokenizer = train_text_tokenizer(TEXTS, 120)
    tokenizer.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    before = path.stat().st_size
    minify_json(path)
    assert path.stat().st_size < before / 2
    text = PROMPT.format(question="Is the car turning?")
    assert AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"] == tokenizer(text)["input_ids"]
