"""`crossdraft train METHOD`: makes a head from its recipe, trains it by its task, and saves it as one folder.

OUT/train.ckpt, train.log.jsonl    while it is trained; an interrupted run is resumed from there
OUT/head/                          config.json, model.safetensors, provenance.json, README.md, and files for drafting
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder
from crossdraft.heads.files import config_of, make, save_head
from crossdraft.heads.networks.base import Head, HeadConfig
from crossdraft.heads.registry import NETWORKS
from crossdraft.load import load_target, target_fingerprint
from crossdraft_lab.networks import task_of
from crossdraft_lab.sizes import sizes_of
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.dist import SINGLE, Distributed, init_distributed, require_one_piece, use_threads
from crossdraft_lab.train.core.log import say
from crossdraft_lab.train.core.provenance import sha256, write_provenance
from crossdraft_lab.train.core.trainer import Stage, Trainer, load_weights
from crossdraft_lab.train.heads.align_task import AlignTask
from crossdraft_lab.train.heads.event_task import EventTask
from crossdraft_lab.train.heads.feature_task import FeatureTask
from crossdraft_lab.train.heads.recipe import MAY_CHANGE, HeadRecipe
from crossdraft_lab.train.heads.task import Check, HeadTask, TaskData, TaskInputs, checked_on, refuse_shared_clips
from crossdraft_lab.train.heads.vision_task import PackerTask, VisionTask

# Task by what a network learns from; see `methods.Method.task`.
TASKS: Mapping[str, type[HeadTask]] = {
    "features": FeatureTask,
    "events": EventTask,
    "alignment": AlignTask,
    "vision": VisionTask,
    "packing": PackerTask,
}
CARD = """\
---
license: apache-2.0
---
# {network}: a head for crossdraft

{parameters} parameters of its own, bf16. Trained by `crossdraft train {network}` on its target's answers
(target: `config.json`; recipe, versions, data: `provenance.json`) in {minutes:.0f} minutes.

{table}
"""


def head_card(recipe: HeadRecipe, figures: Mapping[str, Any], about: str) -> str:
    """Text of the head's card; `about` says how it was measured."""
    return CARD.format(
        network=recipe.network,
        parameters=f"{figures['parameters']:,}",
        minutes=figures["wall_s"] / 60,
        table=_table(figures.get("engine", {}), about),
    )


def _table(engine: Mapping[str, Any], about: str) -> str:
    if not engine:
        return "No drafts of it were measured."
    lines = [about, "", "| drafts | τ | accepted up to each position |", "|---|---|---|"]
    lines += [
        f"| {name} | {found['tau']:.2f} | {' '.join(f'{share:.2f}' for share in found['per_position'])} |"
        for name, found in engine.items()
    ]
    return "\n".join(lines)


def train_recipe(
    recipe: HeadRecipe,
    out: Path,
    target: str = "reference",
    device: str | None = None,
    capture: Path | None = None,
    validation: Path | None = None,
    online: int = 0,
    event: str = "event",
) -> dict[str, Any]:
    """Train a head by `train_head`; return its figures.

    Args:
        device: `None` = a GPU if there is one and the task can use it, else the CPU.
        event: event model for heads and adapters on one, `event` or a folder.

    Raises:
        CrossdraftError: neither capture nor scenes to ask about, a capture of another target, training and validation
            share clips, `out` is another training's, and as `train_head`.
    """
    if (capture is None) == (online == 0):
        raise CrossdraftError(
            "A head learns from a capture or from a target that answers while it trains; give one of --capture FOLDER "
            "and --online SCENES."
        )
    digest = target_fingerprint(target)
    store, back = (folder and CaptureStore.open(folder, digest) for folder in (capture, validation))
    refuse_shared_clips(store, back, online)
    task_class = TASKS[task_of(recipe.network)]
    with init_distributed(device or task_class.default_device(recipe)) as (ranks, own):
        if task_class.in_one_piece:
            require_one_piece(recipe.optim.accumulate * ranks.count)
        loaded = load_target(target, str(own), None if own.type == "cuda" else "float32", packed=False)
        source: dict[str, object] = {"target": digest}
        if store is None:
            source["online_scenes"] = online
        else:
            source |= {"capture": store.index.asked_sha256, "answers": len(store)}
            source["max_new_tokens"] = store.index.wanted.max_new_tokens
        inputs = TaskInputs(recipe, loaded, target, digest, event, store, back, online)
        task = task_class(inputs)
        return train_head(HeadRun(recipe, task, source, out, back), ranks)


@dataclass(frozen=True)
class HeadRun:
    """Training of one head: recipe, task and folder.

    Args:
        recipe: settings of the training.
        task: the task, which knows the head's host and trains the head.
        source: description of the training data, for the provenance.
        out: folder for all files.
        validation: answers that choose the weights, if a figure is watched.
    """

    recipe: HeadRecipe
    task: HeadTask
    source: Mapping[str, object]
    out: Path
    validation: CaptureStore | None = None

    @property
    def folder(self) -> Path:
        """Folder of the finished head."""
        return self.out / "head"


def train_head(run: HeadRun, ranks: Distributed = SINGLE) -> dict[str, Any]:
    """Train a head and save it in `run.folder`; return its figures.

    Raises:
        CrossdraftError: the recipe needs something that the network or the capture lacks, or the training stopped.
    """
    recipe, task = run.recipe, run.task
    use_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    config = head_config(recipe, task)
    chosen_by = checked_on(recipe.optim, run.validation)
    stage = Stage(run.out, "train", recipe.optim, training_config(run, config), chosen_by)
    head, data = _fresh(run, config)
    trainer = Trainer(stage, head, data.loss_of, check=data.check, describe=data.describe, ranks=ranks)
    figures: dict[str, Any] = trainer.run()
    if ranks.count > 1 and recipe.optim.parallel == "fsdp":
        head, data = _fresh(run, config)  # a whole head: each rank kept only its part of the trained one
        load_weights(stage, head)
    figures["parameters"] = sum(value.numel() for value in head.stored().values())
    if ranks.first:
        save(run, head.eval(), figures, data.check)
    ranks.barrier()
    return figures


def training_config(run: HeadRun, config: HeadConfig) -> dict[str, Any]:
    """Settings that determine the weights: a checkpoint with other settings belongs to another training.

    The interval of checks, the processes and the number of passes are left out: they may change in a resumed run.
    """
    recipe = run.recipe
    return {
        "network": recipe.network,
        "target": run.task.fingerprint,
        "lessons": dict(run.source),  # the key that earlier checkpoints have
        "config": asdict(config),
        **recipe.model_dump(include={"loss", "step_weight", "noise", "seed"}),
        # Earlier checkpoints lack these.
        **({"feature_steps": recipe.feature_steps} if recipe.feature_steps else {}),
        "optim": recipe.optim.model_dump(exclude=MAY_CHANGE),
    }


def _fresh(run: HeadRun, config: HeadConfig) -> tuple[Head, TaskData]:
    """Make a new head and the data that it is trained on."""
    head = make(run.recipe.network, config, run.task.shared_weights()).to(run.task.host.device)
    return head, run.task.data(head)


def head_config(recipe: HeadRecipe, task: HeadTask) -> HeadConfig:
    """Configuration of the network: settings from the recipe; sizes that it leaves open from the model.

    A setting that the recipe leaves out or sets to `null` takes the model's own value.

    Raises:
        CrossdraftError: an unknown network or setting, or a value that does not fit.
    """
    where, host = f"The recipe's config of {recipe.network}", task.host
    settings: dict[str, Any] = {
        "hidden_size": host.text_config.hidden_size,
        "vocab_size": host.vocab_size,
        "num_layers": host.text_config.num_hidden_layers,
        "draft_ids": tuple(sorted(task.draft_ids)),
    }
    stated = {name: value for name, value in recipe.config.items() if value is not None}
    network = NETWORKS.get(recipe.network)
    if network is None:
        return config_of(recipe.network, settings | stated, where)
    settings |= sizes_of(network.config_class, host) | stated
    return config_of(recipe.network, settings | task.measured_settings(network.config_class, settings), where)


def save(run: HeadRun, head: Head, figures: dict[str, Any], check: Check | None) -> None:
    """Measure the finished head as shipped, with weights stored in bf16, and put its folder in place."""
    head.restore({name: value.detach().bfloat16().to(value) for name, value in head.stored().items()})
    if check is not None:
        figures["kept_back"] = dict(check(int(figures["steps"])))
    with atomic_folder(run.folder) as new:
        save_head(new, head, run.recipe.network, run.task.fingerprint)
        measured_figures = run.task.measured_figures(head, new)
        if measured_figures:
            figures["engine"] = measured_figures
        data = {**run.source, "weights_sha256": sha256(new / "model.safetensors")}
        write_provenance(new / "provenance.json", run.recipe, figures, data)
        (new / "README.md").write_text(head_card(run.recipe, figures, run.task.about), encoding="utf-8")
    say(f"{run.recipe.network}: saved {run.folder}")
