"""`crossdraft train medusa2`: a target and its head together, in two folders at the end.

OUT/train.ckpt, train.log.jsonl    while they learn; an interrupted run is resumed from there
OUT/target/                        the new target, an ordinary checkpoint
OUT/head/                          its head; provenance.json and README.md say what has changed
"""

from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from crossdraft.drafters.heads.static import ACCEPTANCE
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.folders import put_in_place, temporary_folder
from crossdraft.load import load_target, target_fingerprint
from crossdraft.models.heads.base import TargetTables
from crossdraft.models.heads.files import load_head, read_config
from crossdraft.models.heads.objective import Objective
from crossdraft.train.capture.scenery import SceneSource
from crossdraft.train.core.console import say
from crossdraft.train.core.dist import Ranks, joined
from crossdraft.train.core.loop import optimise
from crossdraft.train.core.provenance import write_provenance
from crossdraft.train.core.recipe import RECIPES, Optim, Section
from crossdraft.train.core.stage import Stage
from crossdraft.train.heads.asked import LONGEST
from crossdraft.train.heads.beginning import Beginning
from crossdraft.train.heads.change import card, change, look_at
from crossdraft.train.heads.course import CHECKED, Check, check_of
from crossdraft.train.heads.joint import HEADS_WEIGHT, RANK, Joint, save_joint
from crossdraft.train.heads.recipe import Measure
from crossdraft.train.heads.run import HOW_NOT_WHAT
from crossdraft.train.heads.said import Said
from crossdraft.train.heads.worth import methods_of

JOINT_RECIPE = RECIPES / "medusa2.yaml"


class JointRecipe(Section):
    """Everything that `crossdraft train medusa2` does; the head's shape is its own."""

    loss: dict[str, float] = Field(min_length=1, description="losses of the head by name, and their weights")
    step_weight: float = Field(default=1.0, gt=0, le=1, description="weight of a guess, relative to the one before")
    rank: int = Field(default=RANK, gt=0, description="of the additions to the target's attention")
    heads_weight: float = Field(default=HEADS_WEIGHT, ge=0, description="of the head's loss beside the target's")
    seed: int = 0
    threads: int = Field(default=2, gt=0)
    optim: Optim = Field(description="`clips` counts answers")
    measure: Measure = Measure()


def train_together(
    recipe: JointRecipe,
    out: Path,
    online: int,
    source: str = "reference",
    head: Path | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Train a target and a head of it that has learned already; returns their figures.

    Args:
        out: where everything is written.
        online: training scenes that the target is asked about.
        source: the target, `reference` or a folder; it is not touched.
        head: the folder of the head; default the shipped `medusa`.

    Raises:
        CrossdraftError: as `Beginning`, `Joint` and `optimise`.
    """
    beginning = Beginning.of(source, head, online)
    network = read_config(beginning.head).network
    methods_of(network)
    torch.set_num_threads(recipe.threads)
    with joined(device or ("cuda" if torch.cuda.is_available() else "cpu")) as (ranks, own):
        torch.manual_seed(recipe.seed)
        joint, figures = _learn(recipe, beginning, out, own, ranks)
        if ranks.first:
            _save(recipe, beginning, joint, network, out, figures)
        ranks.wait()
    return figures


def _learn(
    recipe: JointRecipe, beginning: Beginning, out: Path, device: torch.device, ranks: Ranks
) -> tuple[Joint, dict[str, Any]]:
    dtype = None if device.type == "cuda" else "float32"
    target = load_target(beginning.source, str(device), dtype, packed=False)
    head = load_head(beginning.head, TargetTables.of(target.model), beginning.target).to(device)
    objective = Objective(recipe.loss, recipe.step_weight)
    visual = target.traits.visual_ids
    joint = Joint(target.model, head, objective, visual, recipe.rank, recipe.heads_weight)
    stage = Stage(out, "train", recipe.optim, identity(recipe, beginning))
    said = Said(target, joint, SceneSource(clips=beginning.online, seed=recipe.seed), recipe.optim.clips)
    return joint, dict(
        optimise(
            stage,
            joint.learning,
            joint.loss_of(said),
            check=_check(recipe, target, joint),
            describe=said.describe,
            ranks=ranks,
        )
    )


def identity(recipe: JointRecipe, beginning: Beginning) -> dict[str, Any]:
    """What decides the weights; a checkpoint of anything else is another training's. See `run.identity`."""
    return {
        **beginning.known,
        **recipe.model_dump(include={"loss", "step_weight", "rank", "heads_weight", "seed"}),
        "optim": recipe.optim.model_dump(exclude=HOW_NOT_WHAT),
    }


def _check(recipe: JointRecipe, target: Target, joint: Joint) -> Check | None:
    """A look at validation scenes, for recipes that watch a figure; it costs more than the steps between two of them.

    They lie behind those that both are measured on in the end: what chooses weights does not judge them.
    """
    if recipe.optim.watch is None:
        return None
    kept_back = SceneSource("validation", CHECKED, recipe.measure.pairs, seed=recipe.seed)
    return check_of(joint.loss_of(Said(target, joint, kept_back, recipe.optim.clips)))


def _save(
    recipe: JointRecipe, beginning: Beginning, joint: Joint, network: str, out: Path, figures: dict[str, Any]
) -> None:
    """Measure both as they will be loaded, and put their folders in place; each is whole or absent."""
    device, settings = str(joint.model.device), recipe.measure
    with temporary_folder(out / "target") as folder:
        save_joint(folder, joint, network, beginning.folder)
        target, head = folder / "target", folder / "head"
        requests = held_out(settings.pairs, recipe.seed)
        if requests:
            before = look_at(beginning.source, beginning.head, requests, settings, device)
            after = look_at(str(target), head, requests, settings, device)
            after.counts.save(head / ACCEPTANCE)
            figures |= change(before, after)
        new = target_fingerprint(str(target))
        data = beginning.known | {"new_target": new}
        text = card(network, beginning.target, new, figures, settings)
        for place in (target, head):
            write_provenance(place / "provenance.json", recipe, figures, data)
            (place / "README.md").write_text(text, encoding="utf-8")
        for place in (target, head):  # a head without its target is refused by the other one
            put_in_place(place, out / place.name)
    say(f"{network}: saved {out / 'target'} and {out / 'head'}")


def held_out(pairs: int, seed: int) -> list[Request]:
    """As many questions about validation scenes, one about each."""
    if not pairs:
        return []
    source = SceneSource("validation", pairs, prompts=1, seed=seed)
    return [request for clip in range(pairs) for request in source.read(clip).requests(LONGEST)]
