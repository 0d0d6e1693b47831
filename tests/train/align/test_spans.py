"""A language model of another vocabulary learns its target's answers by spans, and drafts them."""

import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from crossdraft.cli.main import main
from crossdraft.drafters.cross_vocab.vocabulary import TokenTable
from crossdraft.drafters.language_model.load import load_model_drafter
from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.align.aligned_spans import AlignedSpan, span_divergence
from crossdraft_lab.train.align.spans import END, SpanAnswer, SpanRecipe, own_tokens, span_loss, spelled
from tests.drafters.bigram import bigram_model
from tests.drafters.cross_vocab.tokenizers import byte_level_from
from tests.train.capture.both import both_captures, capture_both


def table(*texts):
    """A tokenizer of these, the last of which is its end."""
    spelling = (*(text.encode() for text in texts), None)
    ids = {text: i for i, text in enumerate(spelling) if text}

    def encode(text):
        found, rest = [], text.encode()
        while rest:
            token = max((own for own in ids if rest.startswith(own)), key=len)
            found.append(ids[token])
            rest = rest[len(token) :]
        return found

    return TokenTable(spelling, encode, ids, frozenset([len(texts)]), len(texts))


def test_an_answer_in_the_drafters_tokens_has_its_own_end():
    target, own = table("The", " red", " car"), table(" The", " r", "ed", " car", " ")
    assert own_tokens([0, 1, 2, 3], target, own) == [0, 1, 2, 3, 5]
    assert own_tokens([0, 1], target, own) == [0, 1, 2]
    assert own_tokens([], target, own) == []
    assert spelled([0, 3], target) == [b"The", END]
    assert spelled([0, 5], own) == [b" The", END]


@dataclass
class Says:
    """A model that says token t + 1 after token t, with logits of `sure`."""

    sure: float
    device: str = "cpu"

    def __call__(self, input_ids, use_cache):
        assert use_cache is False
        return SimpleNamespace(logits=self.sure * torch.nn.functional.one_hot((input_ids + 1) % 8, 8).double())


def test_the_loss_is_that_of_the_spans_by_hand():
    """Of the answer 3 4 5 after the prompt 2, whose first span is a token and whose second are two; all are right."""
    log_probs = torch.tensor([0.9, 0.5], dtype=torch.double).log()
    answer = SpanAnswer(torch.tensor([2, 3, 4, 5]), 1, (AlignedSpan(0, 2, 0, 1), AlignedSpan(2, 3, 1, 3)), log_probs)
    recipe = SpanRecipe(optim={"steps": 1, "learning_rate": 1, "clips": 1})
    loss, figures = span_loss(Says(3.0), [answer], recipe)
    own = 3 - torch.tensor([3.0, *[0.0] * 7], dtype=torch.double).logsumexp(0)
    wanted = span_divergence(torch.stack((own, 2 * own)), log_probs).mean()
    assert figures["span"] == pytest.approx(float(wanted), rel=1e-5)
    assert float(loss) == pytest.approx(float(wanted - 0.1 * own), rel=1e-5)
    assert (figures["right"], figures["prefix"]) == (1.0, 3.0)
    wrong = SpanAnswer(torch.tensor([2, 3, 4, 6]), 1, answer.spans, log_probs)
    assert span_loss(Says(3.0), [wrong], recipe)[1]["prefix"] == 2
    unrelated = SpanAnswer(answer.ids, 1, (), log_probs[:0])
    assert span_loss(Says(3.0), [unrelated], recipe)[1]["span"] == 0


def test_nothing_to_learn_is_refused():
    with pytest.raises(CrossdraftError, match="nothing is learned"):
        SpanRecipe(span=0, cross_entropy=0, optim={"steps": 1, "learning_rate": 1, "clips": 1}).check()


def test_a_model_of_another_vocabulary_learns_and_loads(pair, tmp_path, capsys):
    own, settings = tmp_path / "own", "--clips 2 --prompts 4 --max-new-tokens 12 --workers 0 --device cpu --json"
    captured = capture_both(pair, tmp_path / "captured", settings)
    texts = ["the car in front is turning left near the red light."] * 3
    tokenizer = byte_level_from(texts, 276)
    bigram_model(tokenizer, texts).save_pretrained(own)
    tokenizer.save_pretrained(own)
    capsys.readouterr()
    where = [*both_captures(captured), "--target", str(pair.target)]
    small = [
        "optim.steps=30",
        "optim.decay_steps=0",
        "optim.warmup_steps=1",
        "optim.clips=8",
        "optim.ema=0",
        "threads=1",
    ]
    small += ["optim.checkpoint_every=15", "optim.learning_rate=0.01", "optim.bf16=false", "measure.pairs=2"]
    out = ["--model", str(own), "--out", str(tmp_path / "out"), "--json"]
    assert main(["train", "ctpd", *where, "--validation", str(captured), *out, *small]) == 2
    assert "is named for training and validation; give another" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["train", "ctpd", *where, *out, *small]) == 0
    assert set(json.loads(capsys.readouterr().out)["engine"]) == {"hidden", "rounds"}
    log = [json.loads(line) for line in (tmp_path / "out" / "train.log.jsonl").read_text().splitlines()]
    steps = [entry for entry in log if "loss" in entry]
    assert steps[-1]["span"] < 0.8 * steps[0]["span"]
    drafter = load_model_drafter(str(tmp_path / "out" / "drafter"), table("a"), "slem", "cpu")
    assert drafter.model.vocab_size == load_model_drafter(str(own), table("a"), "slem", "cpu").model.vocab_size
