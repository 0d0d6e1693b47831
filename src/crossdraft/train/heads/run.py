"""`crossdraft train METHOD`: a head from its recipe, its lessons and its target, whole in one folder at the end.

OUT/train.ckpt, train.log.jsonl    while it learns; an interrupted run goes on from there
OUT/head/                          config.json, model.safetensors, acceptance.json, provenance.json, README.md
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from crossdraft.drafters.heads.registry import HEADS, TREES, HeadMethod
from crossdraft.drafters.heads.static import ACCEPTANCE, LARGEST
from crossdraft.drafters.trees import fill, greedy_shape
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.folders import atomic_folder
from crossdraft.models.heads.base import Head, HeadConfig, TargetTables
from crossdraft.models.heads.files import config_of, make, save_head
from crossdraft.train.capture.store import Store
from crossdraft.train.console import say
from crossdraft.train.heads.learn import Teaching
from crossdraft.train.heads.lessons import Lessons
from crossdraft.train.heads.measure import Accepted, count_ranks, measure, with_grow
from crossdraft.train.heads.recipe import HeadRecipe
from crossdraft.train.loop import optimise
from crossdraft.train.provenance import sha256, write_provenance
from crossdraft.train.ranks import ALONE, Ranks
from crossdraft.train.stage import Stage

CHECKED = 8  # batches of a look at what was kept back


@dataclass(frozen=True)
class HeadRun:
    """A training of a head.

    Args:
        recipe: what to do.
        target: whose head it is.
        fingerprint: of its weights.
        source: what the lessons are, for the provenance.
        lessons: what the head learns from.
        kept_back: what it is checked on while it learns; `None` = no checks.
        requests: what it drafts for at the end, under the real engine.
        out: where everything is written.
    """

    recipe: HeadRecipe
    target: Target
    fingerprint: str
    source: Mapping[str, object]
    lessons: Callable[[Head], Lessons]
    kept_back: Callable[[Head], Lessons] | None
    requests: Sequence[Request]
    out: Path

    @property
    def folder(self) -> Path:
        """Where the finished head lies."""
        return self.out / "head"


def train_head(run: HeadRun, draft_ids: Sequence[int], ranks: Ranks = ALONE) -> dict[str, Any]:
    """Train a head and leave it in `run.folder`; returns its figures.

    Raises:
        CrossdraftError: the recipe asks for what the network or the capture does not have, or the training stopped.
    """
    torch.set_num_threads(run.recipe.threads)
    torch.manual_seed(run.recipe.seed)
    config = head_config(run.recipe, run.target, draft_ids)
    tables = TargetTables.of(run.target.model)
    head = make(run.recipe.network, config, tables).to(run.target.device)
    rows = tables.head.to(run.target.device)[head.draft_ids].float()
    teaching = Teaching(head, rows, run.recipe)
    stage = Stage(run.out, "train", run.recipe.optim)
    lessons = run.lessons(head)
    check = None if run.kept_back is None else _check(teaching, run.kept_back(head), head)
    figures: dict[str, Any] = optimise(
        stage,
        head,
        teaching.loss_of(lessons),
        check=check,
        describe=lambda step: lessons.describe(step, run.recipe.optim.clips),
        ranks=ranks,
    )
    figures["parameters"] = sum(value.numel() for value in head.stored().values())
    if ranks.first:
        save(run, head.eval(), figures, check)
    ranks.wait()
    return figures


def head_config(recipe: HeadRecipe, target: Target, draft_ids: Sequence[int]) -> HeadConfig:
    """The network's configuration: its own settings from the recipe, sizes and words from the target."""
    text = target.text_config
    known = {
        "hidden_size": text.hidden_size,
        "vocab_size": target.vocab_size,
        "num_layers": text.num_hidden_layers,
        "draft_ids": tuple(sorted(draft_ids)),
    }
    return config_of(recipe.network, {**known, **recipe.config}, f"The recipe's config of {recipe.network}")


def draft_ids_of(store: Store, most: int, banned: Sequence[int]) -> list[int]:
    """The ids that the captured answers are made of, the most frequent first if there are to be fewer.

    Raises:
        CrossdraftError: there are none.
    """
    counts = Counter(token for tokens in store.tokens() for token in tokens.tolist())
    barred = set(banned)
    ids = [token for token, _ in counts.most_common() if token not in barred]
    if not ids:
        raise CrossdraftError(f"The capture {store.folder} holds no answers to learn from.")
    return ids[:most] if most else ids


def save(
    run: HeadRun, head: Head, figures: dict[str, Any], check: Callable[[int], Mapping[str, float]] | None
) -> None:
    """Measure the finished head as it ships, in bf16, and put its folder in place."""
    from crossdraft.train.heads.card import card

    head.load_state_dict({name: value.bfloat16().to(value) for name, value in head.state_dict().items()})
    if check is not None:
        figures["kept_back"] = dict(check(int(figures["steps"])))
    with atomic_folder(run.folder) as new:
        save_head(new, head, run.recipe.network, run.fingerprint)
        if run.requests:
            figures["engine"] = _measured(run, head, new)
        data = {**run.source, "weights_sha256": sha256(new / "model.safetensors")}
        write_provenance(new / "provenance.json", run.recipe, figures, data)
        (new / "README.md").write_text(card(run.recipe, figures), encoding="utf-8")
    say(f"{run.recipe.network}: saved {run.folder}")


def _measured(run: HeadRun, head: Head, folder: Path) -> dict[str, object]:
    """τ under the engine of every way of drafting with this network; acceptance by rank is left beside the weights."""
    settings, found = run.recipe.measure, {}
    methods = {name: method for name, method in HEADS.items() if method.network == run.recipe.network}
    if not methods:
        raise CrossdraftError(f"No drafter serves the network '{run.recipe.network}'; register one.")
    first = next(iter(methods.values()))
    ends = sorted(run.target.eos)
    drafter = first.drafter(head, TREES["chain"], ends)
    counts = count_ranks(run.target, drafter, run.requests, settings)
    counts.save(folder / ACCEPTANCE)
    static = partial(fill, greedy_shape(counts.by_depth(), LARGEST))

    def tau(method: HeadMethod, tree: str, nodes: int, temperature: float) -> Accepted:
        grow = TREES.get(tree, static)
        return measure(run.target, with_grow(drafter, grow), run.requests, nodes, temperature)

    found["chain"] = tau(first, "chain", settings.chain, 0.0)
    for name, method in methods.items():
        for temperature in (0.0, 1.0):
            found[f"{name}, T={temperature:g}"] = tau(method, method.tree, settings.nodes, temperature)
    return {name: accepted.to_json() for name, accepted in found.items()}


def _check(teaching: Teaching, kept_back: Lessons, head: Head) -> Callable[[int], Mapping[str, float]]:
    def check(step: int) -> Mapping[str, float]:
        was = head.training
        head.eval()
        figures = teaching.figures(kept_back, CHECKED)
        head.train(was)
        told = " ".join(f"{name} {value:.3f}" for name, value in sorted(figures.items()))
        say(f"{teaching.recipe.network} {step}: {told}")
        return figures

    return check
