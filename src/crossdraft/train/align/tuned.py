"""`crossdraft train l6`: a foreign drafter that learns to say what its target says, by its own head or the target's.

Low-rank additions (LoRA: Hu et al. 2022) to its attention, over weights in 4 bits if they are to be small (QLoRA:
Dettmers et al. 2023), or all of its language model; its vision is left as it is. Adapters (`train.heads.align_task`)
translate what a frozen drafter makes of the target's words; here it may make something else of them. What comes out is
an ordinary drafter in a folder, which `--drafter DIR` takes.

With `head=target` its last feature goes through the target's frozen LM head, as in level 6 of xifan-zhang/EventGPT, and
may learn to be the target's. Where the two models differ in width a projection [H, S] stands between them and learns,
too; at first the target's head comes closest to the drafter's own by it (least squares). The finished drafter has the
target's rows for its own, or their product with the projection; its embeddings stay what they are, also where they were
its head before.

OUT/train.ckpt, train.log.jsonl    while it is trained; an interrupted run is resumed from there
OUT/drafter/                       the merged checkpoint, with `draft_ids.json`, the ids of the target's answers
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from crossdraft.drafters.short_head import FILE
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder
from crossdraft.heads.networks.objective import LOSSES, Objective
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft.load import (
    event_fingerprint,
    event_folder,
    load_drafter,
    load_event_learner,
    load_output_head,
    load_target,
    target_fingerprint,
    target_folder,
    vocabulary_of,
)
from crossdraft.models.eventgpt import EventGPTForConditionalGeneration
from crossdraft.train.align.checks import DRAFTER, check_pair, check_shares
from crossdraft.train.align.low_rank import attach_low_rank, to_int4_base
from crossdraft.train.align.merge import write_changed, write_untied
from crossdraft.train.capture.store import CaptureStore
from crossdraft.train.core.dist import SINGLE, Distributed, LossFn, MicroBatch
from crossdraft.train.core.finite import require_finite, require_finite_tensor
from crossdraft.train.core.log import say
from crossdraft.train.core.provenance import write_provenance
from crossdraft.train.core.recipe import Optim, Section
from crossdraft.train.core.trainer import Stage, Trainer, require_figure
from crossdraft.train.heads.align_data import PairedAnswers, drafter_states, train_batch
from crossdraft.train.heads.align_task import TargetHead, alignment_loss, paired_answers
from crossdraft.train.heads.event_data import clip_events
from crossdraft.train.heads.joint import copy_settings
from crossdraft.train.heads.measure import figures_json, measure_hidden
from crossdraft.train.heads.recipe import Measure
from crossdraft.train.heads.task import (
    CHECKED,
    answer_ids,
    capture_config,
    captured_source,
    check_of,
    checked_on,
    refuse_shared_clips,
    validation_questions,
)
from crossdraft.train.reference.models import TrainableEventGPT

RECIPE, WHOLE_RECIPE = (Path(__file__).parents[1] / "recipes" / name for name in ("l6.yaml", "l6_whole.yaml"))
LM_HEAD = "lm_head.weight"
TRAINING = "train"  # in a training's folder: its stage
PROVENANCE = "provenance.json"
CHECKS = ("right_0", "tau", "prefix")  # figures of a validation check, besides the losses
MAY_CHANGE = {"checkpoint_every", "watch", "patience", "accumulate"}  # of `Optim`, in a run that is resumed
LANGUAGE = "model.language_model."  # where the language model's layers are, by name
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
    base: Literal["float32", "bfloat16", "int4"] = Field(
        default="float32", description="how the frozen weights are held; in 16 or 4 bits, additions alone can learn"
    )
    head: Literal["own", "target"] = Field(
        default="own", description="whose LM head its last feature goes through; the target's is frozen"
    )
    loss: dict[str, float] = Field(
        min_length=1, description="losses of logits or labels by name, and their weights; of features with head=target"
    )
    most: int = Field(default=0, ge=0, description="only so many of the most frequent ids are drafted; 0: all")
    seed: int = 0
    threads: int = Field(default=2, gt=0)
    optim: Optim = Field(description="`clips` counts answers")
    measure: Measure = Measure()

    def check(self) -> None:
        """Refuse what cannot learn.

        Raises:
            CrossdraftError: an unknown loss, one of features or with a weight that is no number, a watched figure that
                the checks do not give, shared weights, or a frozen base where nothing else would learn.
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
        if self.optim.parallel != "ddp":
            raise CrossdraftError(
                "Processes that tune a drafter share steps, not weights: leave out "
                f"optim.parallel={self.optim.parallel}; where frozen weights do not fit, take base=int4."
            )
        if not self.rank and self.base != "float32":
            raise CrossdraftError(
                f"With rank=0 the whole language model learns, which base={self.base} would freeze; give a rank, such "
                "as 16, or leave base out."
            )


@dataclass(frozen=True)
class TuneInputs:
    """What a tuning begins with.

    Args:
        recipe: what to do.
        target, event: where the target and the drafter are loaded from.
        store, validation: captures to learn from, and of other clips.
        out: where everything is written.
        device: of the training; `None` = the CPU.
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
        """What decides the weights; a checkpoint of anything else is another training's."""
        recipe = self.recipe
        base = {} if recipe.base == "float32" else {"base": recipe.base}  # earlier checkpoints knew no other
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
        """The same, and which answers it is checked and measured on, for the provenance."""
        return {**self.config, "validation": capture_config(self.validation)}

    def check(self, processes: int = 1) -> None:
        """Refuse what cannot be tuned, before a model is loaded.

        Args:
            processes: that share the steps.

        Raises:
            CrossdraftError: as `TuneRecipe.check`, `check_pair` and `check_shares`, a capture
                lacks the target's last layer, or validation clips are learned from.
        """
        self.recipe.check()
        check_pair(self.target, self.event, self.out)
        for store in filter(None, (self.store, self.validation)):
            store.require_layers((store.index.owner.depth,), ())
        refuse_shared_clips(self.store, self.validation)
        check_shares(self.recipe.optim, captured_source(self.store), processes)


@torch.no_grad()
def closest_projection(head: Tensor, own: Tensor) -> Tensor:
    """[H, S] by which the LM head [V, H] of one model comes closest to the head [V', S] of another (least squares).

    Checkpoints pad their heads differently: the ids that both have are compared.
    """
    rows = min(len(head), len(own))
    return torch.linalg.lstsq(head[:rows].double().cpu(), own[:rows].double().cpu()).solution.to(head)


class TunedDrafter(nn.Module):
    """An EventGPT whose language model learns.

    Args:
        model: it is changed in place, so load it for this.
        draft_ids: [D] ids that it shall draft.
        rank, scale: of the additions; rank 0 = all of the language model learns.
        head: [V, H] of the target, frozen, which stands for its own, behind a projection that learns where the drafter
            is not as wide; `None` = its own does.
    """

    def __init__(
        self,
        model: EventGPTForConditionalGeneration,
        draft_ids: Sequence[int],
        rank: int,
        scale: float,
        head: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.head = None if head is None else head.detach().to(torch.bfloat16).cpu()  # as it is written
        self.draft_ids = torch.tensor(draft_ids, device=model.lm_head.weight.device)
        self.rows = None if head is None else head.detach()[self.draft_ids.to(head.device)].to(self.draft_ids.device)
        self.projection: nn.Parameter | None = None
        if head is not None and head.shape[1] != model.lm_head.weight.shape[1]:
            fitting = closest_projection(head.detach(), model.lm_head.weight)
            self.projection = nn.Parameter(fitting.to(self.draft_ids.device))
        self.vlm = TrainableEventGPT(model)
        model.requires_grad_(False)
        self.additions = attach_low_rank(self.vlm.llama, rank, scale) if rank else {}
        if not rank:
            self.vlm.llama.requires_grad_(True)
            if head is None:
                model.lm_head.requires_grad_(True)
        for layer in self.additions.values():
            layer.down.requires_grad_(True)
            layer.up.requires_grad_(True)
        self.learning = nn.ModuleList(
            [nn.ParameterList((layer.down, layer.up)) for layer in self.additions.values()]
            or [self.vlm.llama, *([model.lm_head] if head is None else [])]
        )
        if self.projection is not None:
            self.learning.append(nn.ParameterList((self.projection,)))
        """What learns, and therefore what a checkpoint holds."""

    def batch_of(self, answers: PairedAnswers, step: int, share: MicroBatch) -> tuple[TrainBatch, Tensor]:
        """The drafter's last state along the share's answers, with its gradients; and the target's features."""
        numbers, where = answers.numbers(step, share), self.draft_ids.device
        rows, features = answers.read(numbers)
        rows = rows.to(where)
        visual = answers.visual(step, share).to(where)
        states = drafter_states(self.vlm, answers.codec, visual, rows)
        return train_batch(rows, {len(states) - 1: states[-1]}), features.to(where)

    def predict(self, batch: TrainBatch) -> list[DraftLogits]:
        """What it says by its own head, or by the target's, to which its last state is a feature."""
        (states,) = batch.hidden.values()
        if self.rows is None:
            return [DraftLogits(0, states @ self.model.lm_head.weight[self.draft_ids].T)]
        features = states if self.projection is None else states @ self.projection.to(states.dtype).T
        return [DraftLogits(0, features @ self.rows.to(features.dtype).T, features)]

    @torch.no_grad()
    def changed(self, name: str, weight: Tensor) -> Tensor:
        """The weight of that name as it is now, `weight` being what it was before."""
        if self.head is not None and name == LM_HEAD:
            rows = min(len(weight), len(self.head))  # checkpoints pad their heads differently
            head = self.head[:rows]
            if self.projection is not None:
                head = (head.float() @ self.projection.detach().float().cpu()).to(torch.bfloat16)
            return torch.cat((head, weight[rows:].to(head)))
        if not self.additions:
            return self._state.get(name, weight)
        layer = self.additions.get(name.removeprefix(LANGUAGE).removesuffix(".weight"))
        if layer is None or not name.startswith(LANGUAGE):
            return weight
        return weight.float() + layer.addition().to("cpu", torch.float32)

    @property
    def names(self) -> set[str]:
        """Names of the weights that changed."""
        head = set() if self.head is None or self.unties else {LM_HEAD}
        if self.additions:
            return head | {f"{LANGUAGE}{name}.weight" for name in self.additions}
        return head | {name for name, weight in self.model.named_parameters() if weight.requires_grad}

    @property
    def unties(self) -> bool:
        """Whether its LM head was its embeddings, and is the target's now."""
        return self.head is not None and self.model.lm_head.weight is self.vlm.llama.embed_tokens.weight

    @property
    def added(self) -> dict[str, Tensor]:
        """Weights that its checkpoint does not have."""
        return {LM_HEAD: self.changed(LM_HEAD, self.model.lm_head.weight.detach().cpu())} if self.unties else {}

    @property
    def _state(self) -> dict[str, Tensor]:
        return dict(self.model.named_parameters(remove_duplicate=False))


def tune_drafter(inputs: TuneInputs, ranks: Distributed = SINGLE) -> dict[str, Any]:
    """Tune a drafter and leave it in `out/drafter`; returns its figures. Where this was done, nothing is done again.

    Raises:
        CrossdraftError: as `TuneInputs.check`, a weight of the pair is not finite, or the training stopped.
    """
    recipe = inputs.recipe
    inputs.check(ranks.count)
    saved = saved_figures(inputs)
    if saved is not None:
        return saved
    objective = Objective(recipe.loss)
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    where = inputs.device or "cpu"
    head = load_output_head(inputs.target, where, "float32")
    require_finite_tensor("of the head", head.weight, f"the target {target_folder(inputs.target)}")
    if head.weight.shape[1] != inputs.store.index.owner.hidden_size:
        raise CrossdraftError(
            f"The capture {inputs.store.folder} holds features of width {inputs.store.index.owner.hidden_size}, and "
            f"the target's head reads {head.weight.shape[1]}; capture anew with this target."
        )
    ids = sorted(answer_ids(inputs.store, head.reserved, recipe.most))
    plain = load_event_learner(
        inputs.event,
        where,
        "float32" if recipe.base == "float32" else "bfloat16",
        to_int4_base if recipe.base == "int4" else None,
    )
    require_finite(cast("nn.Module", plain.model), f"the drafter {event_folder(inputs.event)}")
    network = cast("EventGPTForConditionalGeneration", plain.model)
    rows = head.weight if recipe.head == "target" else None
    tuned = TunedDrafter(network, ids, recipe.rank, recipe.alpha / max(recipe.rank, 1), rows)
    shared = TargetHead(head.weight[tuned.draft_ids], tuned.draft_ids, len(head.weight))
    del head, rows

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

    def describe(step: int) -> str:
        return f"answers {', '.join(map(str, answers.numbers(step)))} of {inputs.store.folder}"

    stage = Stage(inputs.out, TRAINING, recipe.optim, inputs.config, checked_on(recipe.optim, inputs.validation))
    trainer = Trainer(
        stage, tuned.learning, loss_of(answers), check=check, describe=describe, ranks=ranks, shares=answers.clips
    )
    figures: dict[str, Any] = trainer.run()
    figures["parameters"] = sum(weight.numel() for weight in tuned.learning.parameters())
    if ranks.first:
        _save(inputs, tuned, figures)
    ranks.barrier()
    return figures


def saved_figures(inputs: TuneInputs) -> dict[str, Any] | None:
    """The figures of the finished drafter, if it came out of this very recipe and these answers; else `None`.

    Records of earlier versions do not say which validation answers there were, and are believed. The training's
    checkpoint must be there, too: whoever removes it wants it trained again.
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
    same = json.loads(json.dumps([inputs.recipe.model_dump(), data])) == [kept[0], kept[1]]
    return kept[2] if same else None


def _save(inputs: TuneInputs, tuned: TunedDrafter, figures: dict[str, Any]) -> None:
    """The merged checkpoint in bf16, measured as it will be loaded."""
    source = event_folder(inputs.event)
    with atomic_folder(inputs.out / DRAFTER) as folder:
        write_changed(source, folder, tuned.names, tuned.changed, tuned.added)
        if tuned.unties:
            write_untied(source, folder)
        (folder / FILE).write_text(json.dumps(tuned.draft_ids.tolist()) + "\n", encoding="utf-8")
        copy_settings(source, folder)
        figures["engine"] = _measured(inputs, folder)
        write_provenance(folder / PROVENANCE, inputs.recipe, figures, inputs.data)
        (folder / "README.md").write_text(_card(inputs, source, figures), encoding="utf-8")
    say(f"l6: saved {inputs.out / DRAFTER}")


def _measured(inputs: TuneInputs, folder: Path) -> dict[str, object]:
    """Of the drafter in that folder, under the engine; nothing where there is no validation capture."""
    settings, store = inputs.recipe.measure, inputs.validation
    questions = validation_questions(store, settings.pairs)
    if store is None or not questions:
        return {}
    source = captured_source(store)
    requests = [replace(request, events=clip_events(source, clip)) for clip, request in questions]
    owner, device = store.index.owner, inputs.device or "cpu"
    target: Target = load_target(inputs.target, device, owner.dtype, quantize=owner.quantize or None)
    vocabulary, reserved = vocabulary_of(inputs.target), sorted(target.reserved)
    drafter = load_drafter(str(folder), device, owner.dtype, reserved, vocabulary)
    return figures_json(measure_hidden(target, drafter, requests, settings.nodes))


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
