"""`crossdraft train METHOD`: a head from its recipe and its course, saved as one folder at the end.

OUT/train.ckpt, train.log.jsonl    while it learns; an interrupted run is resumed from there
OUT/head/                          config.json, model.safetensors, provenance.json, README.md, and what drafting needs
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from crossdraft.folders import atomic_folder
from crossdraft.models.heads.base import Head, HeadConfig
from crossdraft.models.heads.files import config_of, make, save_head
from crossdraft.models.heads.glance import GlanceConfig
from crossdraft.models.heads.registry import NETWORKS
from crossdraft.train.core.console import say
from crossdraft.train.core.dist import ALONE, Ranks
from crossdraft.train.core.loop import load_weights, optimise
from crossdraft.train.core.provenance import sha256, write_provenance
from crossdraft.train.core.stage import Stage
from crossdraft.train.heads.card import card
from crossdraft.train.heads.course import Check, Course, Lectures
from crossdraft.train.heads.recipe import HeadRecipe
from crossdraft.train.heads.sizes import sizes_of

HOW_NOT_WHAT = {"checkpoint_every", "watch", "patience", "accumulate", "parallel"}  # of `Optim`


@dataclass(frozen=True)
class HeadRun:
    """A training of a head.

    Args:
        recipe: what to do.
        course: whose head it is, and how it is taught.
        source: what the lessons are, for the provenance.
        out: where everything is written.
    """

    recipe: HeadRecipe
    course: Course
    source: Mapping[str, object]
    out: Path

    @property
    def folder(self) -> Path:
        """Where the finished head lies."""
        return self.out / "head"


def train_head(run: HeadRun, ranks: Ranks = ALONE) -> dict[str, Any]:
    """Train a head and leave it in `run.folder`; returns its figures.

    Raises:
        CrossdraftError: the recipe asks for what the network or the capture does not have, or the training stopped.
    """
    recipe, course = run.recipe, run.course
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    config = head_config(recipe, course, str(run.source.get("target", "")))
    stage = Stage(run.out, "train", recipe.optim, identity(run, config))
    head, lectures = _beginning(run, config)
    figures: dict[str, Any] = optimise(
        stage, head, lectures.loss_of, check=_in_earnest(head, lectures.check), describe=lectures.describe, ranks=ranks
    )
    if ranks.count > 1 and recipe.optim.parallel == "fsdp":
        head, lectures = _beginning(run, config)  # a whole one: each rank kept its part of that which learned
        load_weights(stage, head)
    figures["parameters"] = sum(value.numel() for value in head.stored().values())
    if ranks.first:
        save(run, head.eval(), figures, lectures.check)
    ranks.wait()
    return figures


def identity(run: HeadRun, config: HeadConfig) -> dict[str, Any]:
    """What decides the weights: a checkpoint of anything else is another training's.

    How often one looks, who shares the work and in how many passes are not in it: they may change between two sittings.
    """
    recipe = run.recipe
    return {
        "network": recipe.network,
        "target": run.course.fingerprint,
        "lessons": dict(run.source),
        "config": asdict(config),
        **recipe.model_dump(include={"loss", "step_weight", "noise", "seed"}),
        "optim": recipe.optim.model_dump(exclude=HOW_NOT_WHAT),
    }


def _beginning(run: HeadRun, config: HeadConfig) -> tuple[Head, Lectures]:
    """A fresh head, and what it is taught with."""
    head = make(run.recipe.network, config, run.course.tables()).to(run.course.host.device)
    return head, run.course.lectures(head)


def head_config(recipe: HeadRecipe, course: Course, target: str) -> HeadConfig:
    """The network's configuration: settings from the recipe; sizes that it leaves open from the model.

    A setting that is `null` in the recipe, or not in it, is the model's own. `target` is the fingerprint of the target
    that is learned from.

    Raises:
        CrossdraftError: an unknown network or setting, or a value that fits neither.
    """
    where, host = f"The recipe's config of {recipe.network}", course.host
    settings: dict[str, Any] = {
        "hidden_size": host.text_config.hidden_size,
        "vocab_size": host.vocab_size,
        "num_layers": host.text_config.num_hidden_layers,
        "draft_ids": tuple(sorted(course.draft_ids)),
    }
    given = {name: value for name, value in recipe.config.items() if value is not None}
    network = NETWORKS.get(recipe.network)
    if network is None:
        return config_of(recipe.network, settings | given, where)
    if issubclass(network.config, GlanceConfig):
        settings["tower"] = target
    settings |= sizes_of(network.config, host) | given
    return config_of(recipe.network, settings | course.measured_sizes(network.config, settings), where)


def save(run: HeadRun, head: Head, figures: dict[str, Any], check: Check | None) -> None:
    """Measure the finished head as it ships, its stored weights in bf16, and put its folder in place."""
    head.restore({name: value.detach().bfloat16().to(value) for name, value in head.stored().items()})
    if check is not None:
        figures["kept_back"] = dict(check(int(figures["steps"])))
    with atomic_folder(run.folder) as new:
        save_head(new, head, run.recipe.network, run.course.fingerprint)
        measured = run.course.measured(head, new)
        if measured:
            figures["engine"] = measured
        data = {**run.source, "weights_sha256": sha256(new / "model.safetensors")}
        write_provenance(new / "provenance.json", run.recipe, figures, data)
        (new / "README.md").write_text(card(run.recipe, figures, run.course.about), encoding="utf-8")
    say(f"{run.recipe.network}: saved {run.folder}")


def _in_earnest(head: Head, check: Check | None) -> Check | None:
    """The same look while the head learns: as if it drafted."""
    if check is None:
        return None

    def checked(step: int) -> Mapping[str, float]:
        was = head.training
        head.eval()
        figures = check(step)
        head.train(was)
        return figures

    return checked
