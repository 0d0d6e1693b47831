"""`crossdraft train medusa2`: a target and its head are trained together, and saved in two folders at the end.

OUT/train.ckpt, train.log.jsonl    while they are trained; an interrupted run is resumed from there
OUT/target/                        the new target, an ordinary checkpoint
OUT/head/                          its head; provenance.json and README.md say what has changed
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from crossdraft.checkpoints.locate import REFERENCE, shipped_at
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.files import put_in_place, temporary_folder
from crossdraft.heads.drafting.head_drafter import ACCEPTANCE
from crossdraft.heads.files import WEIGHTS, load_head, read_config
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.load import load_target, target_fingerprint
from crossdraft_lab.objective import Objective
from crossdraft_lab.train.capture.recorder import FeatureRecorder
from crossdraft_lab.train.capture.shard import CaptureSpec
from crossdraft_lab.train.capture.sources import ClipSource, SceneSource
from crossdraft_lab.train.core.dist import Distributed, init_distributed, use_threads
from crossdraft_lab.train.core.log import say
from crossdraft_lab.train.core.provenance import sha256, write_provenance
from crossdraft_lab.train.core.recipe import RECIPES
from crossdraft_lab.train.core.trainer import Stage, Trainer
from crossdraft_lab.train.heads.batches import CLIPS, cycled, describe_cycled
from crossdraft_lab.train.heads.joint import HEADS_WEIGHT, RANK, JointModel, PromptAnswer, save_joint
from crossdraft_lab.train.heads.measure import DraftFigures, figures_json, measure_methods, methods_of
from crossdraft_lab.train.heads.ranks import MeasuredRanks
from crossdraft_lab.train.heads.recipe import MAY_CHANGE, Measure, TrainingRecipe
from crossdraft_lab.train.heads.task import CHECKED, LONGEST, Check, check_of


@dataclass(frozen=True)
class JointInputs:
    """Inputs of a joint training of target and head.

    Args:
        source: the target, `reference` or a folder.
        head: folder of the head.
        target, weights: fingerprint of the target, and hash of the head's weights.
        online: number of training scenes whose questions the target answers.
    """

    source: str
    head: Path
    target: str
    weights: str
    online: int

    @classmethod
    def of(cls, source: str, head: Path | None, online: int) -> "JointInputs":
        """Find and check the inputs; without a head take the shipped `medusa`.

        Raises:
            CrossdraftError: there are no scenes, no such target or head, or the head belongs to another target.
        """
        if online < 1:
            raise CrossdraftError(
                f"Target and head learn from the target's answers, and --online asks for {online} scenes; give 1 "
                "or more."
            )
        folder, own = head or shipped_at("heads/medusa"), target_fingerprint(source)
        if read_config(folder).target != own:
            raise CrossdraftError(
                f"The head in {folder} was trained for another target than '{source}'; give --head FOLDER, a head that "
                "this one has learned with."
            )
        if not (folder / WEIGHTS).is_file():
            raise CrossdraftError(f"The head in {folder} lacks its weights, {WEIGHTS}; copy the whole folder.")
        return cls(source, folder, own, sha256(folder / WEIGHTS), online)

    @property
    def folder(self) -> Path:
        """Folder of the target."""
        return REFERENCE / "target" if self.source == "reference" else Path(self.source)

    @property
    def provenance(self) -> dict[str, object]:
        """Values that distinguish these inputs from others."""
        return {"target": self.target, "head_sha256": self.weights, "online_scenes": self.online}


BATCH = 4  # answers decoded in one batch
CARD = """\
# {network}: a head, and the target that learned with it

**The target's answers have changed.** Target and head were trained together (Medusa-2: Cai et al. 2024, §2.2.2) by
`crossdraft train medusa2` on the target's earlier answers (recipe, versions, data: `provenance.json`), in {minutes:.0f}
minutes. This head belongs to the target that came of it, fingerprint {new}…, which lies beside it in `target`; drafting
with it is lossless with respect to that one, and says nothing of the target it began from, {old}….

{measured}
"""
MEASURED = """\
Of {answers} answers to questions about validation scenes, **{kept} are still the old target's word for word** (greedy,
each target alone).

Tokens a verify pass under the engine, bonus included, on the same questions; trees of {nodes} nodes, chains of {chain}.
Before: the old target and its head. After: the new target and its own.

| drafts | τ before | τ after |
|---|---|---|
{rows}"""


@dataclass(frozen=True)
class PairFigures:
    """Figures of a target and its head, before or after the joint training.

    Args:
        answers: the target's own greedy answers.
        found, counts: figures of its head; see `measure.measure_methods`.
    """

    answers: list[tuple[int, ...]]
    found: dict[str, DraftFigures]
    counts: MeasuredRanks


def evaluate_pair(
    source: str, folder: Path, requests: Sequence[Request], settings: Measure, device: str
) -> PairFigures:
    """Load a target and its head as for drafting, and measure both."""
    target = load_target(source, device)
    network = read_config(folder).network
    head = load_head(folder, SharedWeights.of(target.model), target_fingerprint(source), network)
    answers = DecodeLoop(target, max_batch=BATCH).generate(requests)
    found, counts = measure_methods(target, head.to(target.device, target.model.dtype), network, requests, settings)
    return PairFigures([tuple(answer.tokens) for answer in answers], found, counts)


def compare_pairs(before: PairFigures, after: PairFigures) -> dict[str, object]:
    """Figures of both pairs, and the number of answers that are equal word for word."""
    kept = sum(old == new for old, new in zip(before.answers, after.answers, strict=True))
    return {
        "kept": kept,
        "answers": len(before.answers),
        "before": figures_json(before.found),
        "engine": figures_json(after.found),
    }


def joint_card(network: str, old: str, new: str, figures: Mapping[str, Any], settings: Measure) -> str:
    """The card's text; `old` and `new` are the targets' fingerprints."""
    return CARD.format(
        network=network,
        minutes=figures["wall_s"] / 60,
        new=new[:12],
        old=old[:12],
        measured=_measured(figures, settings),
    )


def _measured(figures: Mapping[str, Any], settings: Measure) -> str:
    if "engine" not in figures:
        return "How far its answers have changed was not measured: do so before replacing the old target."
    rows = [
        f"| {name} | {figures['before'][name]['tau']:.2f} | {found['tau']:.2f} |"
        for name, found in figures["engine"].items()
    ]
    return MEASURED.format(
        answers=figures["answers"],
        kept=figures["kept"],
        nodes=settings.nodes,
        chain=settings.chain,
        rows="\n".join(rows),
    )


class OnPolicyData:
    """On-policy data: prompts of an endless cycle through a source, and the target's answers before training.

    The answers of a step are a function of the step alone. They are generated by the target that is trained, with its
    additions off, so that it need not be held twice.

    Args:
        target: adapter over the model of `joint`.
        joint: model that is trained.
        source: source of the questions; all answers are kept, and the prompts of the last `CLIPS` clips.
        count: number of answers in a step.
    """

    def __init__(self, target: Target, joint: JointModel, source: ClipSource, count: int) -> None:
        self.target, self.joint, self.source, self.count = target, joint, source, count
        spec = CaptureSpec((joint.head.config.num_layers,), max_new_tokens=LONGEST)
        self._recorder = FeatureRecorder(target, spec, learns=False)
        self._answers: dict[int, list[list[int]]] = {}
        self._prompted = lru_cache(CLIPS)(self._prompt)

    def __call__(self, step: int) -> list[PromptAnswer]:
        """Return the prompts and answers that a step learns from."""
        return [self._prompted(clip)[prompt] for clip, prompt in cycled(self.source, step, self.count)]

    def describe(self, step: int) -> str:
        """Describe a step's prompts and answers, for people."""
        return describe_cycled(step, self.count)

    def _prompt(self, index: int) -> list[PromptAnswer]:
        clip = self.source.read(index)
        if index not in self._answers:
            with self.joint.without_additions():
                answers = self._recorder.record([clip])[0]
            self._answers[index] = [answer.tokens[answer.start :].tolist() for answer in answers]
        prompts = [self.target.prepare(request) for request in clip.requests(LONGEST)]
        return list(zip(prompts, self._answers[index], strict=True))


JOINT_RECIPE = RECIPES / "medusa2.yaml"


class JointRecipe(TrainingRecipe):
    """All settings of `crossdraft train medusa2`, except the head's shape, which is given."""

    loss: dict[str, float] = Field(min_length=1, description="losses of the head by name, and their weights")
    step_weight: float = Field(default=1.0, gt=0, le=1, description="weight of a step, relative to the one before")
    rank: int = Field(default=RANK, gt=0, description="of the additions to the target's attention")
    heads_weight: float = Field(default=HEADS_WEIGHT, ge=0, description="of the head's loss beside the target's")


def train_medusa2(
    recipe: JointRecipe,
    out: Path,
    online: int,
    source: str = "reference",
    head: Path | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Train a target together with its trained head; return their figures.

    Args:
        out: folder for all files.
        online: number of training scenes whose questions the target answers.
        source: the target, `reference` or a folder; it stays unchanged.
        head: folder of the head; default the shipped `medusa`.

    Raises:
        CrossdraftError: as `JointInputs`, `JointModel` and `Trainer`.
    """
    inputs = JointInputs.of(source, head, online)
    network = read_config(inputs.head).network
    methods_of(network)
    use_threads(recipe.threads)
    with init_distributed(device or ("cuda" if torch.cuda.is_available() else "cpu")) as (ranks, own):
        torch.manual_seed(recipe.seed)
        joint, figures = _train(recipe, inputs, out, own, ranks)
        if ranks.first:
            _save(recipe, inputs, joint, network, out, figures)
        ranks.barrier()
    return figures


def _train(
    recipe: JointRecipe, inputs: JointInputs, out: Path, device: torch.device, ranks: Distributed
) -> tuple[JointModel, dict[str, Any]]:
    dtype = None if device.type == "cuda" else "float32"
    target = load_target(inputs.source, str(device), dtype, packed=False)
    head = load_head(inputs.head, SharedWeights.of(target.model), inputs.target).to(device)
    objective = Objective(recipe.loss, recipe.step_weight)
    joint = JointModel(target.model, head, objective, target.traits.visual_ids, recipe.rank, recipe.heads_weight)
    stage = Stage(out, "train", recipe.optim, training_config(recipe, inputs))
    data = OnPolicyData(target, joint, SceneSource(clips=inputs.online, seed=recipe.seed), recipe.optim.clips)
    check = _check(recipe, target, joint)
    loss = joint.loss_of(data)
    return joint, dict(Trainer(stage, joint.learning, loss, check=check, describe=data.describe, ranks=ranks).run())


def training_config(recipe: JointRecipe, inputs: JointInputs) -> dict[str, Any]:
    """Settings that decide the weights; a checkpoint with other settings is another training's."""
    return {
        **inputs.provenance,
        **recipe.model_dump(include={"loss", "step_weight", "rank", "heads_weight", "seed"}),
        "optim": recipe.optim.model_dump(exclude=MAY_CHANGE),
    }


def _check(recipe: JointRecipe, target: Target, joint: JointModel) -> Check | None:
    """Validation on scenes, for recipes that watch a figure; a check takes longer than the steps between two checks.

    Its scenes come after those of the final measurement, so that reported figures have not chosen the weights.
    """
    if recipe.optim.watch is None:
        return None
    validation = SceneSource("validation", CHECKED, recipe.measure.pairs, seed=recipe.seed)
    return check_of(joint.loss_of(OnPolicyData(target, joint, validation, recipe.optim.clips)))


def _save(
    recipe: JointRecipe, inputs: JointInputs, joint: JointModel, network: str, out: Path, figures: dict[str, Any]
) -> None:
    """Measure target and head as loaded for drafting, and put their folders in place; each is whole or absent."""
    device, settings = str(joint.model.device), recipe.measure
    with temporary_folder(out / "target") as folder:
        save_joint(folder, joint, network, inputs.folder)
        target, head = folder / "target", folder / "head"
        requests = validation_scenes(settings.pairs, recipe.seed)
        if requests:
            before = evaluate_pair(inputs.source, inputs.head, requests, settings, device)
            after = evaluate_pair(str(target), head, requests, settings, device)
            after.counts.save(head / ACCEPTANCE)
            figures |= compare_pairs(before, after)
        new = target_fingerprint(str(target))
        data = inputs.provenance | {"new_target": new}
        text = joint_card(network, inputs.target, new, figures, settings)
        for made in (target, head):
            write_provenance(made / "provenance.json", recipe, figures, data)
            (made / "README.md").write_text(text, encoding="utf-8")
        for made in (target, head):  # a head alone would be refused by the old target
            put_in_place(made, out / made.name)
    say(f"{network}: saved {out / 'target'} and {out / 'head'}")


def validation_scenes(pairs: int, seed: int) -> list[Request]:
    """Questions about `pairs` validation scenes, one about each."""
    if not pairs:
        return []
    source = SceneSource("validation", pairs, prompts=1, seed=seed)
    return [request for clip in range(pairs) for request in source.read(clip).requests(LONGEST)]
