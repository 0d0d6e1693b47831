"""`crossdraft train l6`: a foreign drafter learns to predict its target's answers, by its own head or the target's.

It learns by low-rank additions (LoRA: Hu et al. 2022) to its attention, over 4-bit weights where memory is short
(QLoRA: Dettmers et al. 2023), or in all of its language model; its vision is unchanged. Adapters
(`train.heads.align_task`) translate the features of a frozen drafter; here the features themselves change. The result
is an ordinary drafter in a folder, which `--drafter DIR` takes.

With `head=target` its last feature goes through the target's frozen LM head, as in level 6 of xifan-zhang/EventGPT, and
may learn to be the target's. If the two models differ in width, a projection [H, S] stands between them and learns,
too; it is initialised so that the target's head comes closest to the drafter's own (least squares). The finished
drafter has the target's rows as its head, or their product with the projection; its embeddings stay unchanged, even if
they were its head before.

OUT/train.ckpt, train.log.jsonl    while it is trained; an interrupted run is resumed from there
OUT/drafter/                       the merged checkpoint, with `draft_ids.json`, the ids of the target's answers
"""

import json
import math
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from crossdraft.drafters.event.load import load_drafter
from crossdraft.drafters.short_head import FILE
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder
from crossdraft.load import (
    event_fingerprint,
    event_folder,
    load_target,
    target_fingerprint,
    target_folder,
    vocabulary_of,
)
from crossdraft_lab.align.embeddings import load_output_head
from crossdraft_lab.objective import LOSSES, Objective
from crossdraft_lab.train.align.pair import DRAFTER, check_pair, check_shares
from crossdraft_lab.train.align.tuned_drafter import Base, TunedDrafter, closest_projection, load_tuned
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.dist import SINGLE, Distributed, LossFn, MicroBatch, rank_mesh, use_threads
from crossdraft_lab.train.core.finite import require_finite, require_finite_tensor
from crossdraft_lab.train.core.log import say
from crossdraft_lab.train.core.provenance import write_provenance
from crossdraft_lab.train.core.trainer import Stage, Trainer, require_figure
from crossdraft_lab.train.heads.align_task import TargetHead, alignment_loss
from crossdraft_lab.train.heads.clip_answers import PairedAnswers, paired_answers
from crossdraft_lab.train.heads.joint import copy_settings
from crossdraft_lab.train.heads.recipe import MAY_CHANGE, TrainingRecipe
from crossdraft_lab.train.heads.task import (
    CHECKED,
    answer_ids,
    capture_config,
    captured_source,
    check_of,
    checked_on,
    hidden_figures,
    refuse_shared_clips,
)

RECIPE, WHOLE_RECIPE = (Path(__file__).parents[1] / "recipes" / name for name in ("l6.yaml", "l6_whole.yaml"))
TRAINING = "train"  # name of the stage in a training's folder
PROVENANCE = "provenance.json"
CHECKS = ("right_0", "tau", "prefix")  # figures of a validation check, besides the losses
CARD = """\
# A drafter tuned to its target

It is {source}, which {how} on the target's own answers (target {target}…; recipe, versions, data: `provenance.json`),
in {minutes:.0f} minutes. It drafts for that target: `--drafter FOLDER`. What it says is the target's wording; what it
sees is what it saw before.

{measured}
"""


class TuneRecipe(TrainingRecipe):
    """All settings of `crossdraft train l6`."""

    rank: int = Field(default=16, ge=0, description="of the additions to its attention; 0: its whole language model")
    alpha: float = Field(default=32.0, gt=0, description="additions are scaled by alpha / rank")
    base: Base = Field(
        default="float32", description="how the frozen weights are held; in 16 or 4 bits, additions alone can learn"
    )
    head: Literal["own", "target"] = Field(
        default="own", description="whose LM head its last feature goes through; the target's is frozen"
    )
    loss: dict[str, float] = Field(
        min_length=1, description="losses of logits or labels by name, and their weights; of features with head=target"
    )
    most: int = Field(default=0, ge=0, description="only so many of the most frequent ids are drafted; 0: all")

    def check(self) -> None:
        """Refuse settings with which nothing can be learned.

        Raises:
            CrossdraftError: a loss that is unknown, of features or whose weight is no number, a watched figure that
                the checks do not give, shared weights, or a frozen base when nothing else learns.
        """
        wrong = [name for name in self.loss if name in LOSSES and LOSSES[name].compares == "features"]
        if wrong and self.head == "own":
            raise CrossdraftError(
                f"A tuned drafter has its own head, and features of its own width: it cannot learn by '{wrong[0]}'; "
                "take losses such as cross_entropy and kl, or head=target."
            )
        Objective(self.loss)
        odd = [name for name, weight in self.loss.items() if not math.isfinite(weight)]
        if odd:
            raise CrossdraftError(f"The loss '{odd[0]}' weighs {self.loss[odd[0]]}; give it a number, such as 0.5.")
        if self.optim.watch is not None:
            require_figure(("loss", *self.loss, *CHECKS), self.optim.watch)
        if not self.rank and self.base != "float32":
            raise CrossdraftError(
                f"With rank=0 the whole language model learns, which base={self.base} would freeze; give a rank, such "
                "as 16, or leave base out."
            )


@dataclass(frozen=True)
class TuneInputs:
    """Inputs of a tuning.

    Args:
        recipe: settings of the training.
        target, event: names or folders of the target and the drafter.
        store, validation: captures to learn from and to validate on, about different clips.
        out: folder for all files.
        device: device of the training; `None` = the CPU.
    """

    recipe: TuneRecipe
    target: str
    event: str
    store: CaptureStore
    validation: CaptureStore | None
    out: Path
    device: str | None = None

    @property
    def config(self) -> dict[str, Any]:
        """Settings that determine the weights; a checkpoint with other settings belongs to another training."""
        recipe = self.recipe
        base = {} if recipe.base == "float32" else {"base": recipe.base}  # earlier checkpoints do not name it
        head = {} if recipe.head == "own" else {"head": recipe.head}
        return {
            "target": target_fingerprint(self.target),
            "drafter": event_fingerprint(self.event),
            "capture": self.store.index.asked_sha256,
            "answers": len(self.store),
            **recipe.model_dump(include={"rank", "alpha", "loss", "most", "seed"}),
            **base,
            **head,
            "optim": recipe.optim.model_dump(exclude=MAY_CHANGE),
        }

    @property
    def data(self) -> dict[str, Any]:
        """`config` and the answers used for validation and figures, for the provenance."""
        return {**self.config, "validation": capture_config(self.validation)}

    def check(self, processes: int = 1) -> None:
        """Refuse inputs that cannot be tuned, before a model is loaded.

        Args:
            processes: number of processes that share the steps.

        Raises:
            CrossdraftError: as `TuneRecipe.check`, `check_pair` and `check_shares`, a capture
                lacks the target's last layer, or training and validation share clips.
        """
        self.recipe.check()
        check_pair(self.target, self.event, self.out)
        for store in filter(None, (self.store, self.validation)):
            store.require_layers((store.index.owner.depth,), ())
        refuse_shared_clips(self.store, self.validation)
        check_shares(self.recipe.optim, captured_source(self.store), processes)


def tune_drafter(inputs: TuneInputs, ranks: Distributed = SINGLE) -> dict[str, Any]:
    """Tune a drafter and save it in `out/drafter`; return its figures. A finished tuning is not repeated.

    Raises:
        CrossdraftError: as `TuneInputs.check`, a weight of the pair is not finite, or the training stopped.
    """
    recipe = inputs.recipe
    inputs.check(ranks.count)
    saved = saved_figures(inputs)
    if saved is not None:
        return saved
    objective = Objective(recipe.loss)
    use_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    where = inputs.device or "cpu"
    head = load_output_head(inputs.target, where, "float32")
    require_finite_tensor("of the head", head.weight, f"the target {target_folder(inputs.target)}")
    if head.weight.shape[1] != inputs.store.index.owner.hidden_size:
        raise CrossdraftError(
            f"The capture {inputs.store.folder} holds features of width {inputs.store.index.owner.hidden_size}, and "
            f"the target's head reads {head.weight.shape[1]}; capture anew with this target."
        )
    drafted = sorted(answer_ids(inputs.store, head.reserved, recipe.most))
    ids = torch.tensor(drafted, device=head.weight.device)
    shared = TargetHead(head.weight[ids], ids, len(head.weight))
    make = partial(
        TunedDrafter,
        draft_ids=ids,
        rank=recipe.rank,
        scale=recipe.alpha / max(recipe.rank, 1),
        head=head.weight if recipe.head == "target" else None,
        projection=closest_projection(head.weight, event_folder(inputs.event)) if recipe.head == "target" else None,
    )
    del head
    shares_weights = ranks.count > 1 and recipe.optim.parallel == "fsdp"
    mesh = rank_mesh(torch.device(where), ranks) if shares_weights else None
    plain, tuned = load_tuned(inputs.event, where, recipe.base, make, mesh)
    network, name = cast("nn.Module", plain.model), f"the drafter {event_folder(inputs.event)}"
    ranks.agree(lambda: require_finite(network, name))
    del make  # also frees the target's head

    def answers_of(store: CaptureStore) -> PairedAnswers:
        return paired_answers(store, plain, inputs.event, recipe.seed, recipe.optim.clips)

    def loss_of(answers: PairedAnswers) -> LossFn:
        def of_share(step: int, share: MicroBatch) -> tuple[Tensor, dict[str, float]]:
            whole = alignment_loss(tuned.predict, lambda step: tuned.batch_of(answers, step, share), objective, shared)
            return whole(step, MicroBatch())

        return of_share

    check = None
    if inputs.validation is not None:
        back = answers_of(inputs.validation)
        check = check_of(loss_of(back), min(CHECKED, ceil(len(back.by_clip) / back.clips)))  # each clip once
    answers = answers_of(inputs.store)

    stage = Stage(inputs.out, TRAINING, recipe.optim, inputs.config, checked_on(recipe.optim, inputs.validation))
    trainer = Trainer(
        stage,
        tuned.learning,
        loss_of(answers),
        check=check,
        describe=answers.describe,
        ranks=ranks,
        shares=answers.clips,
        network=tuned,
    )
    figures: dict[str, Any] = trainer.run()
    figures["parameters"] = sum(weight.numel() for weight in tuned.learning.parameters())
    if ranks.first:
        _save(inputs, tuned, figures)
    elif shares_weights:
        tuned.write(event_folder(inputs.event), None)
    ranks.barrier()
    return figures


def saved_figures(inputs: TuneInputs) -> dict[str, Any] | None:
    """Figures of the finished drafter if the same recipe and answers made it; else `None`.

    Records of earlier versions do not name the validation answers, and are accepted. The training's checkpoint must
    exist, too: removing it asks for a new training.
    """
    path = inputs.out / DRAFTER / PROVENANCE
    if not path.is_file() or not (inputs.out / f"{TRAINING}.ckpt").is_file():
        return None
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
        kept = record["recipe"], record["data"], record["figures"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # it is written anew
    data = inputs.data if "validation" in kept[1] else inputs.config
    kept[1].get("optim", {}).pop("parallel", None)  # records of earlier versions name it
    same = json.loads(json.dumps([inputs.recipe.model_dump(), data])) == [kept[0], kept[1]]
    return kept[2] if same else None


def _save(inputs: TuneInputs, tuned: TunedDrafter, figures: dict[str, Any]) -> None:
    """Write the merged checkpoint in bf16, and measure the drafter as loaded from it."""
    source = event_folder(inputs.event)
    with atomic_folder(inputs.out / DRAFTER) as folder:
        tuned.write(source, folder)
        (folder / FILE).write_text(json.dumps(tuned.draft_ids.tolist()) + "\n", encoding="utf-8")
        copy_settings(source, folder)
        figures["engine"] = _measured(inputs, folder)
        write_provenance(folder / PROVENANCE, inputs.recipe, figures, inputs.data)
        (folder / "README.md").write_text(_card(inputs, source, figures), encoding="utf-8")
    say(f"l6: saved {inputs.out / DRAFTER}")


def _measured(inputs: TuneInputs, folder: Path) -> dict[str, object]:
    """Measure the drafter in that folder under the engine; an empty dict without a validation capture."""

    def load() -> tuple[Target, Drafter[Any]]:
        owner, device = cast("CaptureStore", inputs.validation).index.owner, inputs.device or "cpu"
        target = load_target(inputs.target, device, owner.dtype, quantize=owner.quantize or None)
        vocabulary, reserved = vocabulary_of(inputs.target), sorted(target.reserved)
        return target, load_drafter(str(folder), device, owner.dtype, reserved, vocabulary)

    return hidden_figures(inputs.validation, inputs.recipe.measure, load)


def _card(inputs: TuneInputs, source: Path, figures: dict[str, Any]) -> str:
    recipe, engine = inputs.recipe, cast("dict[str, Any]", figures["engine"])
    how = "learned as a whole"
    if recipe.rank:
        over = "" if recipe.base == "float32" else f", over frozen weights in {recipe.base}"
        how = f"learned low-rank additions (rank {recipe.rank}) to its attention{over}"
    if recipe.head == "target":
        how += ", by the target's LM head, which is its own now,"
    measured = "No drafts of it were measured."
    if engine:
        measured = (
            "Tokens of a verify pass, bonus included, on questions about validation clips: "
            f"{engine['hidden']['tau']:.2f} of the hidden draft's, {engine['rounds']['tau']:.2f} of those after it."
        )
    minutes, target = figures["wall_s"] / 60, inputs.config["target"][:12]
    return CARD.format(source=source.name, how=how, target=target, minutes=minutes, measured=measured)
