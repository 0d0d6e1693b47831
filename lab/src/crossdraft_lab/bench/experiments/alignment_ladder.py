"""The rungs of experiment 3, from a foreign drafter to an aligned one, and how much each is trained and measured."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from crossdraft_lab.bench.common import check_names
from crossdraft_lab.bench.study import ALL, OWN, Study
from crossdraft_lab.bench.variants import Variant
from crossdraft_lab.bench.workload import Workload
from crossdraft_lab.scenes import split_seeds

FOREIGN = "foreign"  # nobody aligned it
DISTILLED = "event"  # distilled from the target's answers from the beginning; shipped
CAPTURE, ACCEPTANCE, TIMES = "capture", "acceptance", "times, pairs"  # keys of units, the last with a number after it
SEED = 0  # of every training

WHOLE = ("rank=0", "optim.learning_rate=1.5e-3")
FEATURES = "loss={mse: 1.0, cosine: 0.5, cross_entropy: 0.5, kl: 0.5}"  # the adapters' losses
# rung: the recipe of `crossdraft train`, and what of it differs
LADDER: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        **{name: (name, ()) for name in ("linear", "mlp", "l1", "l2", "l3", "levels", "l4")},
        "contrastive": ("l4", ("loss={info_nce: 1, mse: 0.1}",)),
        "l4 of three layers": ("l4", ("config.source_layers=0,1,2",)),
        "sequence_distillation": ("sequence_distillation", ()),
        "l4v": ("l4v", ()),
        "l4v as frames come": ("l4v", ("config.frames_dropped=0.5",)),
        "l4v contrastive": ("l4v", ("loss={mse: 1.0, cosine: 0.5, cross_entropy: 0.5, kl: 0.5, contrastive: 0.1}",)),
        **{name: (name, ()) for name in ("token_projection", "logit_alignment", "token")},
        "l5 without tokens": ("l5", ("config.reads_tokens=false",)),
        **{name: (name, ()) for name in ("l5", "eagle_fusion", "b1", "b1r", "l5f", "event_to_video_eagle", "l5fr")},
        "l6": ("l6", ()),
        "l6 by the target's head": ("l6", ("head=target", FEATURES)),
        "l6 whole": ("l6", WHOLE),
        "l6 whole by the target's head": ("l6", (*WHOLE, "head=target", FEATURES)),
    }
)
# rungs, or controls, beside each other: what a step of the ladder is worth, then what single parts are
COMPARED = (
    ("l1", "linear"), ("l2", "l1"), ("l3", "l2"), ("l4", "l3"), ("l5", "l4"), ("l6", "l5"), ("l6 whole", "l6"),
    ("mlp", "linear"), ("levels", "mlp"), ("l4", "contrastive"), ("l4 of three layers", "l4"), ("l4v", "l4"),
    ("l4v contrastive", "l4v"), ("l4v as frames come", "l4v"), ("sequence_distillation", "l4"), ("eagle_fusion", "l5"),
    ("event_to_video_eagle", "l5f"),
    ("l5", "l5 without tokens"), ("token", "l4"), ("l5f", "b1"), ("b1r", "b1"), ("l5fr", "l5f"),
    ("l6 by the target's head", "l6"), ("l6 whole by the target's head", "l6 whole"),
    *(("l6 whole", control) for control in ("template", "memory", "blind")), ("l6 whole", DISTILLED),
)  # fmt: skip
# Recipes of adapters that are given the target's own features.
READ_TARGET = ("b1", "b1r", "l5f", "event_to_video_eagle", "l5fr")
# They can read their own outputs, and a step of that takes three times as long: they get half of the steps.
AUTOREGRESSIVE = ("l5 without tokens", "l5", "eagle_fusion", *READ_TARGET)


@dataclass(frozen=True, slots=True)
class AlignmentConfig:
    """Which rungs, trained on how much for how long, measured on how much."""

    rungs: tuple[str, ...] = tuple(LADDER)
    clips: int = 1200
    validation_clips: int = 64
    prompts: int = 4
    steps: int = 800
    test_clips: int = 48
    questions: int = 4
    learned: int = 1024
    nodes: int = 8
    pairs: int = 16
    block: int = 8
    max_new_tokens: int = 96

    def __post_init__(self) -> None:
        check_names("rung", self.rungs, tuple(LADDER))

    def steps_of(self, rung: str) -> int:
        """Number of training steps of a rung."""
        return self.steps // 2 if rung in AUTOREGRESSIVE else self.steps

    @property
    def work(self) -> Workload:
        """The test questions."""
        pairs = self.test_clips * self.questions
        return Workload(pairs, max_new_tokens=self.max_new_tokens, questions=self.questions)

    def seeds(self, key: str) -> tuple[int, ...]:
        """Seeds of a unit that is no block: of the scenes that it asks about, training first, or of the training."""
        train, validation, test = (split_seeds(split) for split in ("train", "validation", "test"))
        if key == CAPTURE:
            return (*train[: self.clips], *validation[: self.validation_clips])
        if key == ACCEPTANCE:
            learned = replace(self.work, split="train", pairs=self.learned).scenes
            return (*train[:learned], *test[: self.work.scenes])
        return (SEED,)

    def plan(self, drafters: Mapping[str, str]) -> Study:
        """The blocks of end-to-end times."""
        own = (Variant(name, spec) for name, spec in drafters.items())
        work = Workload(self.pairs, max_new_tokens=self.max_new_tokens)
        return Study((Variant(OWN), Variant(ALL), *own), work, block=self.block, prefix=TIMES)


def watched(rung: str) -> str:
    """The figure that keeps a rung's best weights: what counts, the accepted prefix of a hidden draft.

    Of what reads the target's features along an answer there is none: there, the tokens right in a row from anywhere.
    """
    return "tau" if LADDER[rung][0] in READ_TARGET else "prefix"


def training(rung: str) -> str:
    """The key of its unit."""
    return f"train {rung}"
