"""`crossdraft train reference`: the stages, in order, each resumable and each with its provenance."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerFast, VideoLlavaForConditionalGeneration
from transformers.utils import logging as hf_logging

from crossdraft import scenes
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder
from crossdraft.models.eventgpt import EventGPTForConditionalGeneration
from crossdraft.train.core.checkpoint import read_checkpoint, restore_weights
from crossdraft.train.core.log import say
from crossdraft.train.core.provenance import sha256, write_provenance
from crossdraft.train.core.trainer import Stage, Trainer, load_weights
from crossdraft.train.reference.answers import Answered, Asked, Respondent, keep_answers, read_answers
from crossdraft.train.reference.batches import Look, Spoken, draw_questions
from crossdraft.train.reference.clips import ClipCache, clip_seed, render_clips
from crossdraft.train.reference.evaluate import drawn_questions, measure_facts
from crossdraft.train.reference.losses import (
    TextsOf,
    answer_loss,
    answered_texts,
    drawn_texts,
    heads_for,
    sight_loss,
    together,
)
from crossdraft.train.reference.models import EventSeer, Seer, VideoSeer
from crossdraft.train.reference.prompt import PromptCodec
from crossdraft.train.reference.recipe import AnswerPhase, ReferenceRecipe, TowerPhase
from crossdraft.train.reference.shapes import build_drafter, build_target
from crossdraft.train.reference.tokenizer import EVENT, VIDEO, load_tokenizer, train_tokenizer

Twin = Literal["event", "blind"]
MODELS = ("target", "event", "blind")
WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Reference:
    """A run of the recipe in a folder."""

    recipe: ReferenceRecipe
    out: Path

    @property
    def cache(self) -> ClipCache:
        recipe = self.recipe
        return ClipCache(
            self.out / "cache", recipe.target.vision.image_size, recipe.target.frames, recipe.drafter.frames
        )

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The vocabulary that the stage `tokenizer` learned.

        Raises:
            CrossdraftError: it has not been run, or for a recipe of another size.
        """
        folder, size = self.out / "tokenizer", self.recipe.tokenizer.vocab_size
        tokenizer = load_tokenizer(folder)
        if len(tokenizer) != size:
            raise CrossdraftError(
                f"The tokenizer in {folder} has {len(tokenizer)} ids where the recipe asks for {size}; choose another "
                "--out, or remove it and what was trained with it."
            )
        return tokenizer

    @property
    def answers(self) -> Path:
        """Named after the target's weights, so that no drafter learns an earlier target's words."""
        return self.out / "answers" / f"target-{self.weights_sha256('target')[:12]}.jsonl"

    def weights_sha256(self, name: str) -> str:
        """Digest of a finished model's weights.

        Raises:
            CrossdraftError: its stage has not been run.
        """
        return sha256(self.model_folder(name) / WEIGHTS)

    def model_folder(self, name: str) -> Path:
        """Where a finished model lies.

        Raises:
            CrossdraftError: its stage has not been run.
        """
        folder = self.out / name / "model"
        if not (folder / WEIGHTS).is_file():
            raise CrossdraftError(f"No trained model in {folder}; run the stage '{name}' first.")
        return folder

    def codec(self, placeholder: str) -> PromptCodec:
        """Prompts for the target (`<video>`) or the drafters (`<event>`)."""
        return PromptCodec(self.tokenizer, placeholder)

    def trained(self, name: str) -> Respondent:
        """A finished model, ready to answer about cached clips.

        Raises:
            CrossdraftError: its stage has not been run.
        """
        folder = self.model_folder(name)
        if name == "target":
            seer: Seer = VideoSeer(VideoLlavaForConditionalGeneration.from_pretrained(folder))
            return Respondent(seer, self.codec(VIDEO), self.cache, "rgb")
        seer = EventSeer(EventGPTForConditionalGeneration.from_pretrained(folder))
        return Respondent(seer, self.codec(EVENT), self.cache, "events", blank=name == "blind")


def run_tokenizer(run: Reference) -> None:
    """Learn the vocabulary from training scenes and training wordings."""
    folder = run.out / "tokenizer"
    if (folder / "tokenizer.json").is_file():
        say(f"tokenizer: {len(run.tokenizer)} ids, from an earlier run")
        return
    texts = []
    for clip in range(run.recipe.tokenizer.scenes):
        rng = np.random.default_rng([run.recipe.seed, clip, 1])
        for qa in draw_questions("train", clip, len(scenes.KINDS), rng):
            texts += [f"USER: \n{qa.question} ASSISTANT: {qa.answer}"]
    tokenizer = train_tokenizer(texts, run.recipe.tokenizer.vocab_size)
    lengths = [len(tokenizer(text)["input_ids"]) for text in texts]
    with atomic_folder(folder) as new:
        tokenizer.save_pretrained(new)
        write_provenance(
            new / "provenance.json",
            run.recipe,
            {"texts": len(texts), "mean_tokens": round(float(np.mean(lengths)), 1), "longest": max(lengths)},
            {"scenes": run.recipe.tokenizer.scenes, "first_seed": clip_seed("train", 0)},
        )
    say(f"tokenizer: {len(texts)} texts, {np.mean(lengths):.1f} tokens each, longest {max(lengths)}")


def run_cache(run: Reference) -> None:
    """Render every clip that is still missing."""
    sizes = run.recipe.cache
    test = run.recipe.evaluate.scenes
    render_clips(
        run.cache,
        [
            ("rgb", "validation", sizes.validation_clips),
            ("rgb", "train", sizes.train_clips),
            ("rgb", "test", test),
            ("events", "validation", sizes.validation_clips),
            ("events", "test", test),
            ("events", "train", sizes.event_clips),
        ],
        sizes.workers,
    )


def run_target_sight(run: Reference) -> None:
    """Teach the target's video tower what scenes are made of."""
    seer = VideoSeer(build_target(run.recipe, run.tokenizer))
    _see(run, seer, "target", run.recipe.target.sight)


def run_target(run: Reference) -> None:
    """Train the target on ground-truth answers and save it; its image tower is a copy of the video tower."""
    seer = VideoSeer(build_target(run.recipe, run.tokenizer))
    seer.model.model.image_tower.requires_grad_(False)
    respondent = Respondent(seer, run.codec(VIDEO), run.cache, "rgb")
    figures = _fit(run, respondent, "target", run.recipe.target.train, drawn_texts, per_frame=_per_frame(seer))
    seer.model.model.image_tower.load_state_dict(seer.tower.state_dict())
    _save_model(run, "target", seer, figures)


def run_answers(run: Reference) -> None:
    """Let the target answer questions about the drafter's training clips; resumes after what is already there."""
    recipe, path = run.recipe, run.answers
    respondent = run.trained("target")
    respondent.seer.model.to(torch.bfloat16)  # as it ships, and twice as fast
    asked = []
    for clip in range(recipe.cache.event_clips):
        rng = np.random.default_rng([recipe.seed, clip, 2])
        drawn = draw_questions("train", clip, recipe.answers.questions, rng)
        asked.append([Asked(clip, qa.kind, qa.question, qa.answer, dict(qa.facts)) for qa in drawn])
    batch, limit = recipe.answers.clips, recipe.answers.max_new_tokens
    answers = keep_answers(path, respondent, "train", asked, batch, limit, "target answers")
    guesses = [question.guess for questions in asked for question in questions]
    equal = float(np.mean([a.answer == guess for a, guess in zip(answers, guesses, strict=True)]))
    write_provenance(
        path.with_suffix(".provenance.json"),
        recipe,
        {"answers": len(answers), "equal_to_ground_truth": round(equal, 4)},
        {"target": run.weights_sha256("target"), "answers": sha256(path)},
    )
    say(f"answers: {len(answers)}, {equal:.1%} as the ground truth")


def learned_answers(run: Reference) -> list[Answered]:
    """The target's answers about every clip that the drafters look at.

    Raises:
        CrossdraftError: some are missing.
    """
    answers, clips = read_answers(run.answers), run.recipe.cache.event_clips
    counts = Counter(answer.clip for answer in answers)
    done = sum(counts[clip] >= run.recipe.answers.questions for clip in range(clips))
    if done < clips:
        raise CrossdraftError(
            f"{run.answers} holds the answers about {done} of {clips} clips; run the stage 'answers' to its end."
        )
    return answers


def run_drafter_sight(run: Reference) -> None:
    """Teach the event tower what scenes are made of, as far as events show it."""
    seer = EventSeer(build_drafter(run.recipe, run.tokenizer))
    _see(run, seer, "event", run.recipe.drafter.sight)


def run_drafter(run: Reference, twin: Twin) -> None:
    """Train the event drafter, or its blind twin, on the target's own answers."""
    known: dict[int, list[Spoken]] = {}
    for answer in learned_answers(run):
        known.setdefault(answer.clip, []).append(Spoken(answer.question, answer.answer, answer.whole))
    seer = EventSeer(build_drafter(run.recipe, run.tokenizer))

    def texts_of(questions: int, seed: int) -> TextsOf:
        return answered_texts(known, questions, seed)

    respondent = Respondent(seer, run.codec(EVENT), run.cache, "events", blank=twin == "blind")
    figures = _fit(run, respondent, twin, run.recipe.drafter.train, texts_of, per_frame=1)
    _save_model(run, twin, seer, figures)


def _per_frame(seer: Seer) -> int:
    config = seer.tower.config
    return (config.image_size // config.patch_size) ** 2 + 1


def _look(run: Reference, name: str, section: TowerPhase | AnswerPhase, seed: int, first: int = 0) -> Look:
    """How a stage looks at training clips."""
    kind = "rgb" if name == "target" else "events"
    return Look(run.cache, kind, _pool(run, name), section.jitter, seed, first, blank=name == "blind")


def _pool(run: Reference, name: str) -> int:
    """How many training clips a model learns from."""
    return run.recipe.cache.train_clips if name == "target" else run.recipe.cache.event_clips


def _see(run: Reference, seer: Seer, name: str, sight: TowerPhase) -> None:
    head, _ = heads_for(seer, run.recipe.target.frames if name == "target" else run.recipe.drafter.frames, 1)
    stage = Stage(run.out / name, "sight", sight.optim)
    loss_of = sight_loss(seer, head, _look(run, name, sight, run.recipe.seed), sight.optim.clips)
    figures = Trainer(stage, together(tower=seer.tower, head=head), loss_of).run()
    write_provenance(run.out / name / "sight.json", run.recipe, figures, {"clips": _pool(run, name)})


def _load_sight(run: Reference, name: str, tower: nn.Module) -> None:
    """Put the tower of the sight stage in place."""
    path = run.out / name / "sight.ckpt"
    if not path.exists():
        raise CrossdraftError(f"No {path}; run the stage '{name}-sight' first.")
    state = read_checkpoint(path)["modules"]
    weights = {k.removeprefix("tower."): v for k, v in state.items() if k.startswith("tower.")}
    restore_weights(tower, weights, path)


def _fit(
    run: Reference,
    respondent: Respondent,
    name: str,
    phases: Sequence[AnswerPhase],
    texts_of: Callable[[int, int], TextsOf],
    *,
    per_frame: int,
) -> dict[str, float]:
    """Train a whole VLM from its tower's sight (the blind twin has none), watching validation facts.

    `texts_of(questions, seed)` gives a phase its texts; each phase goes on with the clips where the last stopped.
    """
    seer = respondent.seer
    if not respondent.blank:
        _load_sight(run, name, seer.tower)
    _, head = heads_for(seer, 1, per_frame)
    modules = together(model=seer.model, head=head)

    def check(step: int) -> None:
        recipe = run.recipe
        clips = range(min(48, recipe.cache.validation_clips))
        asked = drawn_questions("validation", clips, recipe.evaluate.questions, recipe.seed, held_out=False)
        batch, limit = recipe.evaluate.clips, recipe.answers.max_new_tokens
        say(f"{name} {step}: facts right {measure_facts(respondent, 'validation', asked, batch, limit)}")

    figures: dict[str, float] = {}
    last, first = None, 0
    for number, train in enumerate(phases):
        stage = Stage(run.out / name, f"train-{number + 1}", train.optim)
        if last is not None and not stage.checkpoint.exists():
            load_weights(last, modules)
        frozen = train.freeze_tower and not respondent.blank
        if frozen:
            _load_sight(run, name, seer.tower)
        seer.tower.requires_grad_(not frozen)
        seed = run.recipe.seed + 1000 * number
        look = _look(run, name, train, seed, first)
        loss_of = answer_loss(seer, head, look, respondent.codec, train, texts_of(train.questions, seed))
        done = Trainer(stage, modules, loss_of, check=check).run()
        figures |= {f"phase_{number + 1}_{key}": value for key, value in done.items()}
        last, first = stage, first + train.optim.steps * train.optim.clips
    return figures


def _save_model(run: Reference, name: str, seer: Seer, figures: dict[str, float]) -> None:
    """Full-precision weights, config and tokenizer under `<out>/<name>/model`, whole or absent."""
    folder = run.out / name / "model"
    seer.model.eval()
    data = {"split": "train", "first_seed": clip_seed("train", 0), "clips": _pool(run, name)}
    with atomic_folder(folder) as new:
        seer.model.save_pretrained(new)
        run.tokenizer.save_pretrained(new)
        write_provenance(new / "provenance.json", run.recipe, figures, data)
    say(f"{name}: saved {folder}")


def prepare(run: Reference) -> None:
    """Threads, quiet libraries, the output folder."""
    torch.set_num_threads(run.recipe.threads)
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        run.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CrossdraftError(f"Cannot make the folder {run.out}: {error.strerror}; choose another --out.") from error


STAGES = (
    "tokenizer", "cache", "target-sight", "target", "answers", "event-sight", "event", "blind", "text", "evaluate",
    "ship",
)  # fmt: skip


def run_stages(run: Reference, stages: Sequence[str]) -> None:
    """Run the named stages in the order given.

    Raises:
        CrossdraftError: an unknown stage, or one whose predecessors have not been run.
    """
    from crossdraft.train.reference.ship import run_evaluate, run_ship
    from crossdraft.train.reference.text_drafter import run_text

    known = {
        "tokenizer": run_tokenizer,
        "cache": run_cache,
        "target-sight": run_target_sight,
        "target": run_target,
        "answers": run_answers,
        "event-sight": run_drafter_sight,
        "event": lambda run: run_drafter(run, "event"),
        "blind": lambda run: run_drafter(run, "blind"),
        "text": run_text,
        "evaluate": run_evaluate,
        "ship": run_ship,
    }
    unknown = [stage for stage in stages if stage not in known]
    if unknown:
        raise CrossdraftError(f"Unknown stage '{unknown[0]}'; choose from {', '.join(STAGES)}.")
    prepare(run)
    for stage in stages:
        say(f"stage {stage}")
        known[stage](run)
