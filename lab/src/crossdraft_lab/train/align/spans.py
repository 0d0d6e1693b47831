"""`crossdraft train ctpd`: a language model with another vocabulary learns its target's answers by aligned spans.

From CTPD (cross-tokenizer preference distillation, 2601.11865) this takes the aligned span projection: log
probabilities of the target's tokens are summed over the spans that both tokenizers share, and compared with those of
the drafter's tokens over these spans (`aligned_spans`). With one tokenizer the spans are the tokens. Its
preferences between two answers are left out: the target's answer is the only right one. The loss is

    span · KL(probability of the span) + cross_entropy · (the drafter's own tokens of the answer)

OUT/train.ckpt, train.log.jsonl    while it is trained; an interrupted run is resumed from there
OUT/drafter/                       the checkpoint, in bf16, which `--drafter model:dir=OUT/drafter` takes
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from crossdraft.drafters.cross_vocab.assistant import CrossVocabDrafter, complete_text
from crossdraft.drafters.cross_vocab.vocabulary import TokenTable, read_token_table
from crossdraft.drafters.language_model.load import load_model_drafter
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder, fingerprint
from crossdraft.load import load_target, target_fingerprint, text_folder, tokenizer_of
from crossdraft_lab.align.embeddings import load_output_head
from crossdraft_lab.objective import PREFIX, PREFIXES
from crossdraft_lab.train.align.aligned_spans import AlignedSpan, aligned_spans, span_divergence, span_sums
from crossdraft_lab.train.align.pair import DRAFTER
from crossdraft_lab.train.capture.sources import ClipSource
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.dist import LossFn, full_batch, use_threads
from crossdraft_lab.train.core.finite import require_finite
from crossdraft_lab.train.core.log import say
from crossdraft_lab.train.core.provenance import write_provenance
from crossdraft_lab.train.core.trainer import Stage, Trainer
from crossdraft_lab.train.heads.batches import EpochSampler
from crossdraft_lab.train.heads.joint import copy_settings
from crossdraft_lab.train.heads.recipe import MAY_CHANGE, TrainingRecipe
from crossdraft_lab.train.heads.task import (
    captured_source,
    check_of,
    checked_on,
    hidden_figures,
    question_of,
    refuse_shared_clips,
)

RECIPE = Path(__file__).parents[1] / "recipes" / "ctpd.yaml"
END = b"\0"  # represents the end of an answer where texts are compared
CARD = """\
# A language model tuned to another's answers

It is {source}, which learned the answers of a target (`provenance.json` has recipe, versions, data) by spans that both
tokenizers share, in {minutes:.0f} minutes. It drafts for that target: `--drafter model:dir=FOLDER`.
"""


class SpanRecipe(TrainingRecipe):
    """All settings of `crossdraft train ctpd`."""

    span: float = Field(default=1.0, ge=0, description="weight of the divergence over spans")
    cross_entropy: float = Field(default=0.1, ge=0, description="weight of the cross-entropy of its own tokens")

    def check(self) -> None:
        """Refuse settings with which nothing is learned.

        Raises:
            CrossdraftError: both weights are 0.
        """
        if not self.span and not self.cross_entropy:
            raise CrossdraftError("With span=0 and cross_entropy=0 nothing is learned; give one of them a weight.")


@dataclass(frozen=True)
class SpanInputs:
    """Inputs of a tuning.

    Args:
        recipe: settings of the training.
        target: name or folder of the target whose answers are learned.
        model: the drafter: `text` of the reference pair, or the folder of a causal language model.
        store, validation: captures to learn from and to validate on, about different clips.
        out: folder for all files.
    """

    recipe: SpanRecipe
    target: str
    model: str
    store: CaptureStore
    validation: CaptureStore | None
    out: Path

    @property
    def config(self) -> dict[str, Any]:
        """Settings that determine the weights; a checkpoint with other settings belongs to another training."""
        recipe = self.recipe
        return {
            "target": target_fingerprint(self.target),
            "drafter": fingerprint(text_folder(self.model)),
            "capture": self.store.index.asked_sha256,
            **recipe.model_dump(include={"span", "cross_entropy", "seed"}),
            "optim": recipe.optim.model_dump(exclude=MAY_CHANGE),
        }


@dataclass(frozen=True)
class SpanAnswer:
    """One answer of the target, in the drafter's tokens.

    Args:
        ids: [n] ids of the prompt, then of the answer.
        start: position of the answer's first token.
        spans: spans of the answer, whose `right` side is the drafter's tokens.
        log_probs: [M] the target's log probabilities of the spans.
    """

    ids: Tensor
    start: int
    spans: tuple[AlignedSpan, ...]
    log_probs: Tensor


@dataclass(frozen=True)
class SpanAnswers:
    """Answers of a capture for a drafter with another vocabulary; each is read once, and kept in memory.

    Args:
        store: capture with the target's last layer.
        source: clips of the capture.
        drafter: drafter that converts to the target's vocabulary; its tables of both vocabularies are used.
        head: [V, H] output matrix of the target.
    """

    store: CaptureStore
    source: ClipSource
    drafter: CrossVocabDrafter
    head: Tensor
    _known: dict[int, SpanAnswer] = field(default_factory=dict)

    def read(self, number: int) -> SpanAnswer:
        """Return the answer with that number, in the drafter's tokens."""
        if number not in self._known:
            self._known[number] = self._read(number)
        return self._known[number]

    @torch.no_grad()
    def _read(self, number: int) -> SpanAnswer:
        depth, target, own = self.store.index.owner.depth, self.drafter.target, self.drafter.own
        answer = self.store.answer(number, (depth,))
        said = answer.tokens[answer.start :]
        logits = answer.hidden[depth][answer.start - 1 :].float() @ self.head.T
        log_probs = logits.log_softmax(-1).gather(-1, said[:, None])[:, 0]
        prompt = self.drafter.model.prepare(Request(question_of(self.source, number))).input_ids.tolist()
        ids = own_tokens(said.tolist(), target, own, self.drafter.prefix_space(prompt))
        spans = tuple(aligned_spans(spelled(said.tolist(), target), spelled(ids, own)))
        sums = span_sums(log_probs, [(span.left_start, span.left_end) for span in spans]) if spans else log_probs[:0]
        return SpanAnswer(torch.tensor([*prompt, *ids]), len(prompt), spans, sums)


def own_tokens(said: Sequence[int], target: TokenTable, own: TokenTable, prefix_space: bytes = b" ") -> list[int]:
    """Convert the target's tokens into the drafter's ids, with the drafter's end token if the answer ended."""
    ended = bool(said) and said[-1] in target.eos and own.eos_id is not None
    text, _ = complete_text(target.to_bytes(said))
    ids = own.encode(prefix_space.decode() + text.lstrip(" ")) if text else []
    return [*ids, own.eos_id] if ended and own.eos_id is not None else ids


def spelled(ids: Sequence[int], table: TokenTable) -> list[bytes]:
    """Bytes of each token; all end tokens are represented by `END`."""
    return [END if token in table.eos else table.token_bytes[token] or b"" for token in ids]


def span_loss(
    model: PreTrainedModel, answers: Sequence[SpanAnswer], recipe: SpanRecipe
) -> tuple[Tensor, dict[str, float]]:
    """Compute the loss over all spans and tokens of some answers.

    Figures: both losses; `right`, the share of spans that are the drafter's likeliest; `prefix`, the mean number of the
    target's tokens in spans that are right in a row from the first on, which a hidden draft would have accepted.
    """
    # Rows are padded at the end, where a causal model does not look.
    ids = pad_sequence([one.ids for one in answers], batch_first=True)
    logits: Tensor = model(input_ids=ids.to(model.device), use_cache=False).logits
    nothing = logits.new_zeros(0, dtype=torch.float32)  # for answers that share no span with the target's
    divergences, entropies, right, prefixes = [nothing], list[Tensor](), [nothing], list[int]()
    for row, one in enumerate(answers):
        own, wanted = logits[row, one.start - 1 : len(one.ids) - 1].float(), one.ids[one.start :].to(logits.device)
        entropies.append(F.cross_entropy(own, wanted, reduction="none"))
        bounds = [(span.right_start, span.right_end) for span in one.spans]
        if not bounds:
            continue
        divergences.append(span_divergence(span_sums(-entropies[-1], bounds), one.log_probs.to(logits.device)))
        hits = span_sums((own.argmax(-1) == wanted).float(), bounds)
        held = hits == torch.tensor([end - start for start, end in bounds], device=hits.device)
        right.append(held.float())
        kept = int(held.long().cumprod(0).sum())
        prefixes.append(one.spans[kept - 1].left_end if kept else 0)
    count = max(1, sum(map(len, divergences)))
    parts = {"span": torch.cat(divergences).sum() / count, "cross_entropy": torch.cat(entropies).mean()}
    loss = recipe.span * parts["span"] + recipe.cross_entropy * parts["cross_entropy"]
    figures = {name: float(part.detach()) for name, part in parts.items()}
    figures["right"] = float(torch.cat(right).sum() / count)
    return loss, figures | {PREFIX: sum(prefixes) / len(answers), PREFIXES: float(len(answers))}


def tune_by_spans(inputs: SpanInputs) -> dict[str, Any]:
    """Tune a language model and save it in `out/drafter`; return its figures.

    Raises:
        CrossdraftError: as `SpanRecipe.check`, training and validation share clips, the model reads pictures or shares
            no text with the target, the capture lacks the target's last layer or has a feature in it that is NaN or
            infinite, or the training stopped.
    """
    recipe, store = inputs.recipe, inputs.store
    recipe.check()
    refuse_shared_clips(store, inputs.validation)
    use_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    head = load_output_head(inputs.target, "cpu", "float32")
    tokenizer: PreTrainedTokenizerBase = tokenizer_of(inputs.target)
    end: Any = tokenizer.eos_token_id
    target = read_token_table(tokenizer, len(head.weight), (end,), tuple(head.reserved))
    drafter = load_model_drafter(inputs.model, target, "slem", "cpu", "float32", packed=False)
    if not isinstance(drafter, CrossVocabDrafter) or drafter.needs.video:
        raise CrossdraftError(f"{inputs.model} reads pictures; spans are learned by a language model that reads text.")
    model = drafter.model.model.requires_grad_(True)
    require_finite(model, f"the drafter {text_folder(inputs.model)}")

    def loss_over(captured: CaptureStore) -> LossFn:
        captured.require_finite((captured.index.owner.depth,))
        answers = SpanAnswers(captured, captured_source(captured), drafter, head.weight)
        sampler = EpochSampler(len(captured), recipe.seed)

        def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
            return span_loss(model, [answers.read(n) for n in sampler.numbers(step, recipe.optim.clips)], recipe)

        return full_batch(loss_of)

    loss = loss_over(store)
    check = None if inputs.validation is None else check_of(loss_over(inputs.validation))
    stage = Stage(inputs.out, "train", recipe.optim, inputs.config, checked_on(recipe.optim, inputs.validation))
    figures: dict[str, Any] = Trainer(stage, model, loss, check=check).run()
    _save(inputs, model.eval(), figures, target)
    return figures


def _save(inputs: SpanInputs, model: nn.Module, figures: dict[str, Any], target: TokenTable) -> None:
    """Write the checkpoint in bf16, and measure the drafter as loaded from it."""
    source: Any = text_folder(inputs.model)
    network: Any = model.to(torch.bfloat16)
    with atomic_folder(inputs.out / DRAFTER) as folder:
        network.save_pretrained(folder)
        copy_settings(source, folder)
        figures["engine"] = _measured(inputs, folder, target)
        write_provenance(folder / "provenance.json", inputs.recipe, figures, inputs.config)
        card = CARD.format(source=source.name, minutes=figures["wall_s"] / 60)
        (folder / "README.md").write_text(card, encoding="utf-8")
    say(f"ctpd: saved {inputs.out / DRAFTER}")


def _measured(inputs: SpanInputs, folder: Path, target: TokenTable) -> dict[str, object]:
    """Measure the drafter in that folder under the engine; an empty dict without a validation capture."""

    def load() -> tuple[Target, Drafter[Any]]:
        owner = cast("CaptureStore", inputs.validation).index.owner
        loaded = load_target(inputs.target, "cpu", owner.dtype, quantize=owner.quantize or None)
        return loaded, load_model_drafter(str(folder), target, "slem", "cpu")

    return hidden_figures(inputs.validation, inputs.recipe.measure, load, events=False)
