"""What lies in the package: three models that load, fit the limit, share a vocabulary, and say where they are from."""

import json

import pytest
from transformers import AutoConfig, AutoTokenizer

import crossdraft.models.eventgpt  # noqa: F401 - registers EventGPT with the auto classes
from crossdraft.train.provenance import sha256
from crossdraft.train.reference import MODELS
from crossdraft.train.ship import LIMIT_MB, SHIPPED
from crossdraft.train.tokenizer import SPECIALS


def test_all_three_fit_the_limit() -> None:
    files = [path for name in MODELS for path in (SHIPPED / name).rglob("*")]
    assert 0 < sum(path.stat().st_size for path in files) / 1e6 <= LIMIT_MB


@pytest.mark.parametrize("name", MODELS)
def test_a_shipped_model_is_whole(name: str) -> None:
    folder = SHIPPED / name
    config = AutoConfig.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert config.text_config.vocab_size == len(tokenizer) == 4096
    assert tokenizer.convert_tokens_to_ids(list(SPECIALS)) == list(range(4090, 4096))
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["data"]["weights_sha256"] == sha256(folder / "model.safetensors")


@pytest.mark.parametrize("name", MODELS)
def test_the_card_tells_the_measured_figures(name: str) -> None:
    folder = SHIPPED / name
    figures = json.loads((folder / "provenance.json").read_text())["figures"]["evaluation"]
    text = (folder / "README.md").read_text()
    for wordings in ("train_wordings", "held_out_wordings"):
        assert f"{figures[wordings]['facts_right']['all']:.1%}" in text


def test_the_vocabulary_is_shared() -> None:
    vocabularies = [(SHIPPED / name / "tokenizer.json").read_bytes() for name in MODELS]
    assert vocabularies[0] == vocabularies[1] == vocabularies[2]
