"""The stage `text`: a text model with a vocabulary of its own, which drafts for targets with other vocabularies.

It sees no picture. It learns from the questions and the true answers of training scenes, which are cheap to draw:
neither clips nor a target are needed.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from crossdraft.files import atomic_folder, atomic_path
from crossdraft_lab.train.core.dist import LossFn, full_batch
from crossdraft_lab.train.core.log import say
from crossdraft_lab.train.core.provenance import sha256, write_provenance
from crossdraft_lab.train.core.trainer import Stage, Trainer
from crossdraft_lab.train.reference.answers import agreement_figures, evaluation_questions
from crossdraft_lab.train.reference.batches import IGNORE, QAPair, augment_questions
from crossdraft_lab.train.reference.losses import ground_truth_qa
from crossdraft_lab.train.reference.models import text_config, to_bf16
from crossdraft_lab.train.reference.run import WEIGHTS, WORDINGS, ReferenceRun
from crossdraft_lab.train.reference.tokenizer import EOS, PAD, load_tokenizer, token_id, token_ids, train_text_tokenizer

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


def run_text(run: ReferenceRun) -> None:
    """Learn the vocabulary, train the model, and save both for shipping in `<out>/text/model`."""
    tokenizer = _tokenizer(run)
    torch.manual_seed(run.recipe.seed)
    model = LlamaForCausalLM(text_config(run.recipe.text_drafter.text, tokenizer))
    stage = Stage(run.out / "text", "train", run.recipe.text_drafter.optim)
    figures = Trainer(stage, model, text_loss(run, model, tokenizer)).run()
    to_bf16(model.eval())  # for measurement and shipping
    measured = {key: measure(run, model, tokenizer, held_out=held_out) for key, held_out in WORDINGS.items()}
    say(f"text: {measured}")
    _save(run, model, tokenizer, figures, measured)


def text_loss(run: ReferenceRun, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> LossFn:
    """Next-token cross-entropy on the answers to augmented questions about the scenes of a step."""
    section, seed = run.recipe.text_drafter, run.recipe.seed
    qa_of = ground_truth_qa(section.questions, seed)
    count = section.optim.clips

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        clips = [(step * count + i) % run.recipe.cache.train_clips for i in range(count)]
        pairs = augment_questions(qa_of(step, clips), section.word_dropout, seed, step)
        logits, targets = _teacher_forced(model, tokenizer, pairs)
        loss = F.cross_entropy(logits, targets)
        return loss, {"right": float((logits.argmax(-1) == targets).float().mean())}

    return full_batch(loss_of)


@torch.inference_mode()
def measure(
    run: ReferenceRun, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, *, held_out: bool
) -> dict[str, float]:
    """Measure, teacher-forced on test scenes, the share of next tokens right, and tokens a round with chains of 8."""
    size, hits = run.recipe.evaluate, []
    by_clip = evaluation_questions("test", range(size.scenes), size.questions, run.recipe.seed, held_out=held_out)
    for question in (question for questions in by_clip for question in questions):
        logits, targets = _teacher_forced(model, tokenizer, [QAPair(question.question, question.expected)])
        hits.append((logits.argmax(-1) == targets).tolist())
    return agreement_figures(hits, (8,))


def _teacher_forced(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, pairs: Sequence[QAPair]
) -> tuple[Tensor, Tensor]:
    """Logits [n, V] and ids [n] at every token of the answers, end tokens included; the head runs nowhere else."""
    rows, wanted = [], []
    for pair in pairs:
        prompt = token_ids(tokenizer, PROMPT.format(question=pair.question), bos=True)
        answer = [*token_ids(tokenizer, f" {pair.answer}"), token_id(tokenizer, EOS)]
        rows.append(torch.tensor([*prompt, *answer[:-1]]))
        wanted.append(torch.tensor([IGNORE] * (len(prompt) - 1) + answer))
    # Rows are padded at the end, where a causal model does not look.
    ids = pad_sequence(rows, batch_first=True, padding_value=token_id(tokenizer, PAD))
    targets = pad_sequence(wanted, batch_first=True, padding_value=IGNORE)
    states: Tensor = model.model(input_ids=ids, use_cache=False).last_hidden_state
    loss_positions = targets != IGNORE
    return model.lm_head(states[loss_positions]).float(), targets[loss_positions]


def _tokenizer(run: ReferenceRun) -> PreTrainedTokenizerFast:
    """Learn the vocabulary of the training scenes' texts once, or load the kept one.

    Raises:
        CrossdraftError: the kept one was learned for a recipe of another size.
    """
    folder, section = run.out / "text" / "tokenizer", run.recipe.text_drafter
    if not (folder / "tokenizer.json").is_file():
        texts = run.texts(section.scenes, PROMPT, " {answer}")
        with atomic_folder(folder) as new:
            train_text_tokenizer(texts, section.vocab_size).save_pretrained(new)
    return load_tokenizer(folder, section.vocab_size)


def _save(
    run: ReferenceRun,
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    trained: dict[str, float],
    measured: dict[str, dict[str, float]],
) -> None:
    folder, parameters = run.out / "text" / "model", sum(p.numel() for p in model.parameters())
    size, tokens = run.recipe.evaluate, run.recipe.text_drafter.vocab_size
    card = CARD.format(parameters=parameters, tokens=tokens, scenes=size.scenes, questions=size.questions, **measured)
    with atomic_folder(folder) as new:
        model.save_pretrained(new)
        (new / WEIGHTS).chmod(0o644)  # written private, meant for a package
        tokenizer.save_pretrained(new)
        minify_json(new / "tokenizer.json")
        figures = trained | {"evaluation": measured, "parameters": parameters}
        data = run.training_data(weights_sha256=sha256(new / WEIGHTS))
        write_provenance(new / "provenance.json", run.recipe, figures, data)
        (new / "README.md").write_text(card, encoding="utf-8")
    say(f"text: saved {folder}, {sum(path.stat().st_size for path in folder.iterdir())} bytes")


def minify_json(path: Path) -> None:
    """Write a JSON file without its white space, which is more than half of a tokenizer's."""
    value = json.loads(path.read_text(encoding="utf-8"))
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
