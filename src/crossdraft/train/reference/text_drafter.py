"""The stage `text`: a text model with a vocabulary of its own, which drafts for targets that share none of it.

It sees no picture. It learns from the questions and the ground-truth answers of training scenes, which cost nothing to
draw: neither clips nor a target are needed.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from crossdraft import scenes
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder, atomic_path
from crossdraft.train.core.dist import LossFn, full_batch
from crossdraft.train.core.log import say
from crossdraft.train.core.provenance import sha256, write_provenance
from crossdraft.train.core.trainer import Stage, Trainer
from crossdraft.train.reference.batches import Spoken, draw_questions, question_words, wear
from crossdraft.train.reference.clips import clip_seed
from crossdraft.train.reference.evaluate import mean_accepted
from crossdraft.train.reference.losses import drawn_texts
from crossdraft.train.reference.packing import IGNORE
from crossdraft.train.reference.shapes import text_config
from crossdraft.train.reference.stages import Reference
from crossdraft.train.reference.text_tokenizer import train_text_tokenizer
from crossdraft.train.reference.tokenizer import load_tokenizer

PROMPT = "USER: {question} ASSISTANT:"
CARD = """\
---
license: apache-2.0
library_name: transformers
---
# crossdraft text drafter

A Llama of {parameters} parameters with {tokens} tokens of its own, which knows the questions and answers of
crossdraft's synthetic road world and sees no picture. It drafts for targets of another vocabulary.

- weights: bf16; prompt: `"USER: {{question}} ASSISTANT:"`; answers end with `</s>`
- trained by `crossdraft train reference --stage text` on ground-truth answers (recipe, versions, seeds:
  `provenance.json`)

## Held-out figures

{scenes} scenes of the test split, {questions} questions each, teacher-forced along the ground-truth answers.

| questions in | next token right | τ, chains of 8 |
|---|---|---|
| training wordings | {train_wordings[top1]:.1%} | {train_wordings[tau_8]:.2f} |
| held-out wordings | {held_out_wordings[top1]:.1%} | {held_out_wordings[tau_8]:.2f} |

τ here is tokens of its own a round, bonus included, of greedy chains of 8 laid along the ground-truth answers.
"""


def run_text(run: Reference) -> None:
    """Learn the vocabulary, train the model, and leave both as they ship in `<out>/text/model`."""
    tokenizer = _tokenizer(run)
    model = _build(run, tokenizer)
    stage = Stage(run.out / "text", "train", run.recipe.text_drafter.optim)
    figures = Trainer(stage, model, text_loss(run, model, tokenizer)).run()
    model.eval().to(torch.bfloat16)  # as it ships, and as it is judged
    measured = {
        "train_wordings": measure(run, model, tokenizer, held_out=False),
        "held_out_wordings": measure(run, model, tokenizer, held_out=True),
    }
    say(f"text: {measured}")
    _save(run, model, tokenizer, figures, measured)


def text_loss(run: Reference, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> LossFn:
    """Next-token cross-entropy on the answers to worn questions about the scenes of a step."""
    section, seed = run.recipe.text_drafter, run.recipe.seed
    texts_of, words = drawn_texts(section.questions, seed), question_words()
    count = section.optim.clips

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        clips = [(step * count + i) % run.recipe.cache.train_clips for i in range(count)]
        rng = np.random.default_rng([seed, step, 3])
        spoken = [
            replace(s, question=wear(s.question, section.question_wear, words, rng)) for s in texts_of(step, clips)
        ]
        logits, targets = _along(model, tokenizer, spoken)
        loss = F.cross_entropy(logits, targets)
        return loss, {"right": float((logits.argmax(-1) == targets).float().mean())}

    return full_batch(loss_of)


@torch.inference_mode()
def measure(
    run: Reference, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, *, held_out: bool
) -> dict[str, float]:
    """Teacher-forced on test scenes: share of next tokens right, and tokens a round of chains of 8."""
    size = run.recipe.evaluate
    hits: list[list[bool]] = []
    for clip in range(size.scenes):
        rng = np.random.default_rng([run.recipe.seed, clip, int(held_out)])
        asked = draw_questions("test", clip, size.questions, rng, held_out=held_out)
        for qa in asked:
            logits, targets = _along(model, tokenizer, [Spoken(qa.question, qa.answer)])
            hits.append((logits.argmax(-1) == targets).tolist())
    flat = [hit for row in hits for hit in row]
    return {"top1": round(float(np.mean(flat)), 4), "tau_8": round(mean_accepted(hits, 8), 3)}


def _along(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, spoken: Sequence[Spoken]
) -> tuple[Tensor, Tensor]:
    """Logits [n, V] and ids [n] at every token of the answers, the ends among them; the head runs nowhere else."""
    rows, wanted = [], []
    for s in spoken:
        prompt: list[int] = tokenizer(PROMPT.format(question=s.question))["input_ids"]
        answer: list[int] = tokenizer(f" {s.answer}", add_special_tokens=False)["input_ids"]
        answer.append(int(tokenizer.eos_token_id))
        rows.append(torch.tensor([*prompt, *answer[:-1]]))
        wanted.append(torch.tensor([IGNORE] * (len(prompt) - 1) + answer))
    # Rows are padded behind their end, where a causal model does not look.
    ids = pad_sequence(rows, batch_first=True, padding_value=int(tokenizer.pad_token_id))
    targets = pad_sequence(wanted, batch_first=True, padding_value=IGNORE)
    states = model.model(input_ids=ids, use_cache=False).last_hidden_state
    spots = targets != IGNORE
    return model.lm_head(states[spots]).float(), targets[spots]


def _tokenizer(run: Reference) -> PreTrainedTokenizerFast:
    """The vocabulary of training scenes' texts; learned once.

    Raises:
        CrossdraftError: it was learned for a recipe of another size.
    """
    folder, size = run.out / "text" / "tokenizer", run.recipe.text_drafter.vocab_size
    if not (folder / "tokenizer.json").is_file():
        texts = []
        for clip in range(run.recipe.text_drafter.scenes):
            rng = np.random.default_rng([run.recipe.seed, clip, 1])
            for qa in draw_questions("train", clip, len(scenes.KINDS), rng):
                texts += [PROMPT.format(question=qa.question), f" {qa.answer}"]
        with atomic_folder(folder) as new:
            train_text_tokenizer(texts, size).save_pretrained(new)
    tokenizer = load_tokenizer(folder)
    if len(tokenizer) != size:
        raise CrossdraftError(
            f"The tokenizer in {folder} has {len(tokenizer)} ids where the recipe asks for {size}; choose another "
            f"--out, or remove {folder.parent}."
        )
    return tokenizer


def _build(run: Reference, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(run.recipe.seed)
    return LlamaForCausalLM(text_config(run.recipe.text_drafter.text, tokenizer))


def _save(
    run: Reference,
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    trained: dict[str, float],
    measured: dict[str, dict[str, float]],
) -> None:
    folder, parameters = run.out / "text" / "model", sum(p.numel() for p in model.parameters())
    with atomic_folder(folder) as new:
        model.save_pretrained(new)
        (new / "model.safetensors").chmod(0o644)  # written private, meant for a package
        tokenizer.save_pretrained(new)
        squeeze(new / "tokenizer.json")
        data = {
            "split": "train",
            "first_seed": clip_seed("train", 0),
            "weights_sha256": sha256(new / "model.safetensors"),
        }
        figures = trained | {"evaluation": measured, "parameters": parameters}
        write_provenance(new / "provenance.json", run.recipe, figures, data)
        (new / "README.md").write_text(_card(run, parameters, measured), encoding="utf-8")
    say(f"text: saved {folder}, {sum(path.stat().st_size for path in folder.iterdir())} bytes")


def _card(run: Reference, parameters: int, measured: dict[str, dict[str, float]]) -> str:
    size, tokens = run.recipe.evaluate, run.recipe.text_drafter.vocab_size
    return CARD.format(parameters=parameters, tokens=tokens, scenes=size.scenes, questions=size.questions, **measured)


def squeeze(path: Path) -> None:
    """Write a JSON file without its white space, which is more than half of a tokenizer's."""
    value = json.loads(path.read_text(encoding="utf-8"))
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
