"""Training of a judge (judge decoding: Bachmann et al. 2025), on labels computed from scenes, without human labels.

The target answers questions about training scenes. Along each answer the event drafter draws tokens; where one differs
from the target's, the target continues after it, greedily, to the end. The token is harmless if that answer gets at
least as many of the facts right as the target's own (AutoJudge: Garipov et al. 2025 labels by correctness in the same
way). A logistic regression on the target's last feature, at the token itself, learns these labels.

Three disjoint sets of scenes are used: most training scenes for the fit, the last fifth of them for choosing the
penalty, and scenes of the test split, asked about in held-out wordings, for the figures.

The rule sees logits. The target's LM head W [V, H] is injective, so a linear function of the feature h is one of the
logits W h:  w · h = u · (W h)  with  u = W (WᵀW)⁻¹ w,  and u [V] is what is saved.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from crossdraft.checks import whole
from crossdraft.drafters.event.load import load_drafter
from crossdraft.errors import CrossdraftError
from crossdraft.events import eventgpt_frames
from crossdraft.files import atomic_path
from crossdraft.load import event_fingerprint, load_target, target_fingerprint, tokenizer_of
from crossdraft_lab import scenes
from crossdraft_lab.folders import make_folder
from crossdraft_lab.outputs import progress_bar
from crossdraft_lab.rules.classifier import BIAS, FILE, ROW, TARGET
from crossdraft_lab.scenes import QA
from crossdraft_lab.train.core.log import say
from crossdraft_lab.train.core.provenance import origin, write_json
from crossdraft_lab.train.reference.answers import AnsweringModel
from crossdraft_lab.train.reference.batches import draw_questions, pack
from crossdraft_lab.train.reference.clips import ClipCache, clip_seed, render_rgb, to_pixels
from crossdraft_lab.train.reference.models import TrainableEventGPT, TrainableVideoLlava
from crossdraft_lab.train.reference.packed import Prefix
from crossdraft_lab.train.reference.tokenizer import EVENT, VIDEO, PromptCodec

LONGEST = 112
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # strengths of the L2 penalty


@dataclass(frozen=True)
class ClassifierRecipe:
    """Training settings of a judge.

    Args:
        clips: number of scenes of the training split; the last fifth chooses the penalty, and as many of the test
            split give the figures.
        questions: number of questions about each scene.
        tokens: largest number of tokens of an answer that are tried.
        batch: number of clips at a time.
        seed: seed of questions and drawn tokens.
    """

    clips: int = 120
    questions: int = 4
    tokens: int = 4
    batch: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        held = len(scenes.split_seeds("train"))
        if not 5 <= self.clips <= held:
            raise CrossdraftError(
                f"A judge learns from 5 to {held} scenes, a fifth of which decides on the penalty, not from "
                f"{self.clips}."
            )
        whole("The number of questions", self.questions)
        whole("The seed (--seed)", self.seed, 0)

    @property
    def decides(self) -> int:
        """Index of the first training scene that is used to choose the penalty."""
        return self.clips - self.clips // 5

    @property
    def training(self) -> "SceneRange":
        """Training scenes: those for the fit, then those that choose the penalty."""
        return SceneRange("train", self.clips)

    @property
    def reported(self) -> "SceneRange":
        """Test scenes that give the figures."""
        return SceneRange("test", self.clips // 5, held_out=True)


@dataclass(frozen=True)
class SceneRange:
    """The first `count` scenes of a split, asked about in held-out wordings or in those of training."""

    split: str
    count: int
    held_out: bool = False


@dataclass(frozen=True)
class Labelled:
    """Features [n, H] of tokens, a label for each (harmless or not), and the clip of each."""

    features: Tensor
    harmless: Tensor
    clips: Tensor

    def where(self, chosen: Tensor) -> "Labelled":
        """Select tokens by a mask [n]."""
        return Labelled(self.features[chosen], self.harmless[chosen], self.clips[chosen])


@dataclass(frozen=True)
class FittedClassifier:
    """A fitted judge: σ(weight · feature + bias) is the probability that a token is harmless.

    Args:
        weight, bias: coefficients of the features, and the constant.
        figures: the size of the data, and the penalty.
    """

    weight: Tensor
    bias: float
    figures: dict[str, float]

    def scores(self, features: Tensor) -> Tensor:
        """Logits [n] of the probability that tokens are harmless, from their features [n, H]."""
        return features.double() @ self.weight + self.bias


def train_classifier(recipe: ClassifierRecipe, out: Path) -> dict[str, float]:
    """Label, fit, and write `judge.safetensors` and its provenance into a folder; return figures on held-out clips.

    Raises:
        CrossdraftError: the folder holds a judge, or is no folder; or the drafter always agrees with the target.
    """
    make_folder(out)
    if (out / FILE).exists():
        raise CrossdraftError(f"{out} holds a judge already; name another folder.")
    found = label_tokens(recipe, recipe.training)
    fitted = fit(found, recipe.decides)
    figures = {**fitted.figures, **measure(fitted, label_tokens(recipe, recipe.reported))}
    head = load_target("reference", "cpu", "float32", packed=False).model.lm_head.weight.detach()
    target = target_fingerprint("reference")
    with atomic_path(out / FILE) as path:
        row = as_logit_row(head, fitted.weight).float()
        save_file({ROW: row, BIAS: torch.tensor(fitted.bias)}, path, {TARGET: target})
    data = {
        "fitted": f"scenes 0 to {recipe.decides - 1} of the training split",
        "penalty": f"scenes {recipe.decides} to {recipe.clips - 1} of the training split",
        "figures": f"scenes 0 to {recipe.reported.count - 1} of the test split, held-out wordings",
        "target": target,
        "event": event_fingerprint("event"),
    }
    record = {**origin(), "recipe": asdict(recipe), "data": data, "figures": figures}
    write_json(out / "provenance.json", record)
    say(f"judge: {figures}")
    return figures


def as_logit_row(head: Tensor, weight: Tensor) -> Tensor:
    """Return u [V] with u · (W h) = w · h for every h; see the module's docstring.

    Args:
        head: W [V, H].
        weight: w [H].
    """
    wide = head.double()
    return wide @ torch.linalg.solve(wide.T @ wide, weight.double())


def fit(found: Labelled, first_left_out: int) -> FittedClassifier:
    """Fit a logistic regression, its penalty chosen by the AUC on the clips from `first_left_out` on.

    This AUC overestimates that on other clips, as the penalty was chosen by it; see `measure`.
    """
    chosen_on, fitted_on = found.where(found.clips >= first_left_out), found.where(found.clips < first_left_out)
    mean, spread = fitted_on.features.mean(0), fitted_on.features.std(0).clamp_min(1e-6)
    rows = ((fitted_on.features - mean) / spread).double()
    fitted: list[FittedClassifier] = []
    for strength in STRENGTHS:
        weight = _regress(rows, fitted_on.harmless.double(), strength)
        plain = weight[:-1] / spread.double()
        figures = {
            "tokens": float(len(found.harmless)),
            "harmless": round(float(found.harmless.double().mean()), 4),
            "penalty": strength,
        }
        fitted.append(FittedClassifier(plain, float(weight[-1] - plain @ mean.double()), figures))
    return max(fitted, key=lambda one: auc(one.scores(chosen_on.features), chosen_on.harmless))


def measure(fitted: FittedClassifier, left_out: Labelled) -> dict[str, float]:
    """Measure how well a judge recognises harmless tokens of clips that were not used in its training.

    Returns:
        Number of tokens and the share that is harmless, the area under the ROC curve, and at a threshold of 0.5 the
        shares of right decisions, of harmful tokens that are kept, and of harmless tokens that are kept.
    """
    scores, harmless = fitted.scores(left_out.features), left_out.harmless
    kept = scores > 0
    shares = {
        "held_out_harmless": harmless,
        "right": kept == harmless,
        "harmful_kept": kept[~harmless],
        "harmless_kept": kept[harmless],
    }
    return {
        "held_out_tokens": float(len(harmless)),
        "auc": round(auc(scores, harmless), 4),
        **{name: round(float(one.double().mean()), 4) if len(one) else 0.0 for name, one in shares.items()},
    }


def _regress(rows: Tensor, labels: Tensor, strength: float) -> Tensor:
    """Return [H + 1] weights and bias that minimise the mean loss plus the penalty of the weights."""
    weight = torch.zeros(rows.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight], max_iter=200, line_search_fn="strong_wolfe")

    def loss_of() -> Tensor:
        optimiser.zero_grad()
        loss = F.binary_cross_entropy_with_logits(rows @ weight[:-1] + weight[-1], labels)
        loss = loss + strength * weight[:-1].square().sum()
        loss.backward()
        return loss

    optimiser.step(loss_of)  # pyright: ignore[reportArgumentType]
    return weight.detach()


def auc(scores: Tensor, labels: Tensor) -> float:
    """Probability that a harmless token scores higher than a harmful one; a tie counts half.

    >>> auc(torch.tensor([0.1, 0.9, 0.5]), torch.tensor([False, True, True]))
    1.0
    """
    good, bad = scores[labels], scores[~labels]
    if not len(good) or not len(bad):
        return 0.5
    higher = (good[:, None] > bad).double() + 0.5 * (good[:, None] == bad).double()
    return float(higher.mean())


@torch.inference_mode()
def label_tokens(recipe: ClassifierRecipe, asked: SceneRange) -> Labelled:
    """Label the event drafter's tokens that differ from the target's as harmless or harmful."""
    pair = _Pair()
    parts: list[Labelled] = []
    with progress_bar() as bar:
        task = bar.add_task(f"labelling tokens of {asked.split} scenes", total=asked.count)
        for start in range(0, asked.count, recipe.batch):
            clips = range(start, min(start + recipe.batch, asked.count))
            parts += pair.label(recipe, asked, clips)
            bar.advance(task, len(clips))
    if not parts:
        raise CrossdraftError(
            "The drafter drew none but the target's own tokens, of which a judge learns nothing; give more scenes or "
            "questions."
        )
    return Labelled(*(torch.cat([getattr(part, name) for part in parts]) for name in ("features", "harmless", "clips")))


@dataclass(frozen=True)
class _TriedToken:
    """A question with the beginning of an answer, a token of the drafter after it, and the rest of the answer."""

    qa: QA
    question: list[int]
    written: list[int]
    rest: list[int]
    right: int  # facts of the whole answer


class _Pair:
    """The reference pair, loaded for training."""

    def __init__(self) -> None:
        tokenizer: Any = tokenizer_of("reference")
        target: Any = load_target("reference", "cpu", "float32", packed=False).model
        event: Any = load_drafter("event", "cpu", "float32", packed=False).model.model
        self.cache = ClipCache(Path())
        self.target = AnsweringModel(TrainableVideoLlava(target), PromptCodec(tokenizer, VIDEO), self.cache, "rgb")
        self.event = AnsweringModel(TrainableEventGPT(event), PromptCodec(tokenizer, EVENT), self.cache, "events")
        self.codec = self.target.codec

    def label(self, recipe: ClassifierRecipe, asked: SceneRange, clips: Sequence[int]) -> list[Labelled]:
        """Label the drafter's tokens in the answers about some clips."""
        rng, split = np.random.default_rng([recipe.seed, clips[0]]), asked.split
        questions = [draw_questions(split, clip, recipe.questions, rng, held_out=asked.held_out) for clip in clips]
        seeds = [clip_seed(split, clip) for clip in clips]
        prefix, rows = self._read(seeds), [qa for some in questions for qa in some]
        ids = [self.codec.question_ids(qa.question) for qa in rows]
        expected = [self.codec.answer_ids(qa.answer) for qa in rows]
        answers = self.target.decode(prefix, ids, expected, LONGEST)
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + clips[0])
        drawn = self._drawn(seeds, ids, answers, generator)
        by_clip: list[list[_TriedToken]] = [[] for _ in clips]
        for number, (qa, question, answer, tokens) in enumerate(zip(rows, ids, answers, drawn, strict=True)):
            differing = [at for at, token in enumerate(tokens) if token != answer[at]]
            right = self._right(qa, answer)
            for at in sorted(rng.permutation(differing)[: recipe.tokens].tolist()):
                written = [*answer[:at], tokens[at]]
                by_clip[number // recipe.questions].append(_TriedToken(qa, question, written, answer[at + 1 :], right))
        return [
            part for index, some in enumerate(by_clip) if some for part in [self._labelled(prefix, index, some, clips)]
        ]

    def _labelled(self, prefix: Prefix, index: int, rows: Sequence[_TriedToken], clips: Sequence[int]) -> Labelled:
        """Label drafted tokens by the quality of a clip's answers that continue after them."""
        own = prefix.of_clips(torch.tensor([index]))
        starts = [[*row.question, *row.written] for row in rows]
        rests = self.target.decode(own, starts, [row.rest for row in rows], LONGEST)
        ended = [row.written[-1] == self.codec.eos_id for row in rows]
        whole = [
            row.written if over else [*row.written, *rest] for row, rest, over in zip(rows, rests, ended, strict=True)
        ]
        packed = pack([(start, []) for start in starts], self.codec.pad_id)
        features = self.target.states(own, packed)[torch.arange(len(rows)), packed.answer_start]
        harmless = [self._right(row.qa, tokens) >= row.right for row, tokens in zip(rows, whole, strict=True)]
        return Labelled(features.float(), torch.tensor(harmless), torch.full((len(rows),), clips[index]))

    def _read(self, seeds: Sequence[int]) -> Prefix:
        frames = torch.stack([torch.from_numpy(render_rgb(seed, self.cache)) for seed in seeds])
        return self.target.read_pixels(to_pixels(frames))

    def _drawn(
        self,
        seeds: Sequence[int],
        questions: Sequence[list[int]],
        answers: Sequence[list[int]],
        generator: torch.Generator,
    ) -> list[list[int]]:
        """Draw tokens from the event drafter along the answers, temperature 1, each after the answer's own tokens."""
        seen = [eventgpt_frames(scenes.simulate_events(scenes.make_scene(seed))) for seed in seeds]
        prefix = self.event.read_pixels(to_pixels(torch.from_numpy(np.stack(seen))))
        packed = pack(list(zip(questions, answers, strict=True)), self.codec.pad_id)
        logits = self.event.vlm.head(self.event.states(prefix, packed))
        found = []
        for row, (start, answer) in enumerate(zip(packed.answer_start.tolist(), answers, strict=True)):
            probs = logits[row, start : start + len(answer)].softmax(-1)
            found.append(torch.multinomial(probs, 1, generator=generator).flatten().tolist())
        return found

    def _right(self, qa: QA, tokens: list[int]) -> int:
        return sum(scenes.score(qa.facts, self.codec.text(tokens)).values())
