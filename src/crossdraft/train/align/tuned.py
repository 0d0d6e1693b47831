"""`crossdraft train l6`: a foreign drafter that learns to say what its target says, by its own head.

Low-rank additions (LoRA: Hu et al. 2022) to its attention, or all of its language model; its vision is left as it is.
Adapters (`train.heads.align_task`) translate what a frozen drafter makes of the target's words; here it may make
something else of them. What comes out is an ordinary drafter in a folder, which `--drafter DIR` takes.

OUT/train.ckpt, train.log.jsonl    while it is trained; an interrupted run is resumed from there
OUT/drafter/                       the merged checkpoint, with `draft_ids.json`, the ids of the target's answers
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from crossdraft.drafters.short_head import FILE
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.objective import LOSSES, Objective
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.load import (
    event_fingerprint,
    event_folder,
    load_drafter,
    load_target,
    target_fingerprint,
    vocabulary_of,
)
from crossdraft.models.eventgpt import EventGPTForConditionalGeneration
from crossdraft.train.capture.store import CaptureStore
from crossdraft.train.core.dist import LossFn
from crossdraft.train.core.log import say
from crossdraft.train.core.provenance import write_provenance
from crossdraft.train.core.recipe import Optim, Section
from crossdraft.train.core.trainer import Stage, Trainer
from crossdraft.train.heads.align_data import PairedAnswers, drafter_states, train_batch
from crossdraft.train.heads.align_task import TargetHead, alignment_loss, paired_answers
from crossdraft.train.heads.event_data import clip_events
from crossdraft.train.heads.joint import add_low_rank, copy_settings, low_rank_of, merge_low_rank
from crossdraft.train.heads.measure import figures_json, measure_hidden
from crossdraft.train.heads.recipe import Measure
from crossdraft.train.heads.task import answer_ids, captured_source, check_of, validation_questions
from crossdraft.train.reference.models import TrainableEventGPT

RECIPE = Path(__file__).parents[1] / "recipes" / "l6.yaml"
CARD = """\
# A drafter tuned to its target

It is {source}, which {how} on the target's own answers (target {target}…; recipe, versions, data: `provenance.json`),
in {minutes:.0f} minutes. It drafts for that target: `--drafter FOLDER`. What it says is the target's wording; what it
sees is what it saw before.

{measured}
"""


class TuneRecipe(Section):
    """Everything that `crossdraft train l6` does."""

    rank: int = Field(default=16, ge=0, description="of the additions to its attention; 0: its whole language model")
    alpha: float = Field(default=32.0, gt=0, description="additions are scaled by alpha / rank")
    loss: dict[str, float] = Field(min_length=1, description="losses of logits or labels by name, and their weights")
    most: int = Field(default=0, ge=0, description="only so many of the most frequent ids are drafted; 0: all")
    seed: int = 0
    threads: int = Field(default=2, gt=0)
    optim: Optim = Field(description="`clips` counts answers")
    measure: Measure = Measure()


@dataclass(frozen=True)
class TuneInputs:
    """What a tuning begins with.

    Args:
        recipe: what to do.
        target, event: where the target and the drafter are loaded from.
        store, validation: captures to learn from, and of other clips.
        out: where everything is written.
    """

    recipe: TuneRecipe
    target: str
    event: str
    store: CaptureStore
    validation: CaptureStore | None
    out: Path

    @property
    def config(self) -> dict[str, Any]:
        """What decides the weights; a checkpoint of anything else is another training's."""
        return {
            "target": target_fingerprint(self.target),
            "drafter": event_fingerprint(self.event),
            "capture": self.store.index.asked_sha256,
            "answers": len(self.store),
            **self.recipe.model_dump(include={"rank", "alpha", "loss", "most", "seed"}),
            "optim": self.recipe.optim.model_dump(exclude={"checkpoint_every", "watch", "patience"}),
        }


class TunedDrafter(nn.Module):
    """An EventGPT whose language model learns.

    Args:
        model: it is changed in place, so load it for this.
        draft_ids: [D] ids that it shall draft.
        rank, scale: of the additions; rank 0 = all of the language model learns.
    """

    def __init__(
        self, model: EventGPTForConditionalGeneration, draft_ids: Sequence[int], rank: int, scale: float
    ) -> None:
        super().__init__()
        self.model, self.draft_ids = model.float(), torch.tensor(draft_ids)
        self.vlm = TrainableEventGPT(model)
        model.requires_grad_(False)
        self.layers = add_low_rank(model, rank, scale) if rank else []
        if not rank:
            self.vlm.llama.requires_grad_(True)
            model.lm_head.requires_grad_(True)
        additions = [low_rank_of(layer) for layer in self.layers]
        self.learning = nn.ModuleList(additions or [self.vlm.llama, model.lm_head])
        """What learns, and therefore what a checkpoint holds."""

    def batch_of(self, answers: PairedAnswers, step: int) -> tuple[TrainBatch, Tensor]:
        """The drafter's last state along the step's answers, with its gradients; and the target's features."""
        rows, features = answers.read(answers.numbers(step))
        states = drafter_states(self.vlm, answers.codec, answers.visual(step), rows)
        return train_batch(rows, {len(states) - 1: states[-1]}), features

    def predict(self, batch: TrainBatch) -> list[DraftLogits]:
        """What it says by its own head."""
        (states,) = batch.hidden.values()
        return [DraftLogits(0, states @ self.model.lm_head.weight[self.draft_ids].T)]

    def merge(self) -> None:
        """Make the additions part of its weights: an ordinary model again."""
        merge_low_rank(self.layers)
        self.layers = []


def tune_drafter(inputs: TuneInputs) -> dict[str, Any]:
    """Tune a drafter and leave it in `out/drafter`; returns its figures.

    Raises:
        CrossdraftError: the drafter cannot draft for the target, a loss is none of logits or labels, or the training
            stopped.
    """
    recipe = inputs.recipe
    wrong = [name for name in recipe.loss if name in LOSSES and LOSSES[name].compares == "features"]
    if wrong:
        raise CrossdraftError(
            f"A tuned drafter has its own head, and features of its own width: it cannot learn by '{wrong[0]}'; take "
            "losses such as cross_entropy and kl."
        )
    objective = Objective(recipe.loss)
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    target = load_target(inputs.target, "cpu", "float32", packed=False)
    reserved, vocabulary = tuple(sorted(target.reserved)), vocabulary_of(inputs.target)
    plain = load_drafter(inputs.event, "cpu", "float32", reserved, vocabulary, packed=False).model
    ids = sorted(answer_ids(inputs.store, target, recipe.most))
    network = EventGPTForConditionalGeneration.from_pretrained(event_folder(inputs.event), attn_implementation="sdpa")
    tuned = TunedDrafter(network, ids, recipe.rank, recipe.alpha / max(recipe.rank, 1))
    head = TargetHead(SharedWeights.of(target.model).lm_head[tuned.draft_ids], tuned.draft_ids, target.vocab_size)

    def loss_of(store: CaptureStore) -> LossFn:
        answers = paired_answers(store, plain, inputs.event, inputs.out, recipe.seed, recipe.optim.clips)
        return alignment_loss(tuned.predict, lambda step: tuned.batch_of(answers, step), objective, head)

    check = None if inputs.validation is None else check_of(loss_of(inputs.validation))
    stage = Stage(inputs.out, "train", recipe.optim, inputs.config)
    figures: dict[str, Any] = Trainer(stage, tuned.learning, loss_of(inputs.store), check=check).run()
    figures["parameters"] = sum(weight.numel() for weight in tuned.learning.parameters())
    _save(inputs, tuned, target, figures)
    return figures


def _save(inputs: TuneInputs, tuned: TunedDrafter, target: Target, figures: dict[str, Any]) -> None:
    """The merged checkpoint in bf16, measured as it will be loaded."""
    source = event_folder(inputs.event)
    tuned.merge()
    with atomic_folder(inputs.out / "drafter") as folder:
        tuned.model.bfloat16().save_pretrained(folder)
        (folder / FILE).write_text(json.dumps(tuned.draft_ids.tolist()) + "\n", encoding="utf-8")
        copy_settings(source, folder)
        figures["engine"] = _measured(inputs, target, folder)
        write_provenance(folder / "provenance.json", inputs.recipe, figures, inputs.config)
        (folder / "README.md").write_text(_card(inputs, source, figures), encoding="utf-8")
    say(f"l6: saved {inputs.out / 'drafter'}")


def _measured(inputs: TuneInputs, target: Target, folder: Path) -> dict[str, object]:
    """Of the drafter in that folder, under the engine; nothing where there is no validation capture."""
    settings, store = inputs.recipe.measure, inputs.validation
    questions = validation_questions(store, settings.pairs)
    if store is None or not questions:
        return {}
    source = captured_source(store)
    requests = [replace(request, events=clip_events(source, clip)) for clip, request in questions]
    drafter = load_drafter(str(folder), "cpu", "float32", sorted(target.reserved), vocabulary_of(inputs.target))
    return figures_json(measure_hidden(target, drafter, requests, settings.nodes))


def _card(inputs: TuneInputs, source: Path, figures: dict[str, Any]) -> str:
    recipe, engine = inputs.recipe, cast("dict[str, Any]", figures["engine"])
    how = f"learned low-rank additions (rank {recipe.rank}) to its attention" if recipe.rank else "learned as a whole"
    measured = "Its drafts were not measured."
    if engine:
        measured = (
            "Tokens of a verify pass, bonus included, on questions about validation clips: "
            f"{engine['hidden']['tau']:.2f} of the hidden draft's, {engine['rounds']['tau']:.2f} of those after it."
        )
    minutes, target = figures["wall_s"] / 60, inputs.config["target"][:12]
    return CARD.format(source=source.name, how=how, target=target, minutes=minutes, measured=measured)
