"""`crossdraft train reference`: the stages, in order, each resumable and each with its provenance."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn
from transformers.utils import logging as hf_logging

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder
from crossdraft.train.core.checkpoint import read_checkpoint, restore_weights
from crossdraft.train.core.log import say
from crossdraft.train.core.provenance import sha256, write_provenance
from crossdraft.train.core.trainer import Stage, Trainer, load_weights
from crossdraft.train.reference.answers import (
    AnsweringModel,
    clip_questions,
    evaluation_questions,
    facts_right,
    record_answers,
)
from crossdraft.train.reference.batches import BatchSpec, QAPair
from crossdraft.train.reference.clips import clip_seed, render_clips
from crossdraft.train.reference.losses import (
    QASource,
    answer_loss,
    attribute_heads,
    ground_truth_qa,
    recorded_qa,
    vision_loss,
)
from crossdraft.train.reference.models import (
    TrainableEventGPT,
    TrainableVideoLlava,
    TrainableVLM,
    build_drafter,
    build_target,
    to_bf16,
)
from crossdraft.train.reference.recipe import AnswerPhase, VisionPhase
from crossdraft.train.reference.run import ReferenceRun
from crossdraft.train.reference.ship import run_evaluate, run_ship
from crossdraft.train.reference.text_drafter import run_text
from crossdraft.train.reference.tokenizer import token_ids, train_tokenizer

CHECKED_CLIPS = 48


def run_tokenizer(run: ReferenceRun) -> None:
    """Learn the vocabulary from training scenes and training wordings."""
    folder, section = run.out / "tokenizer", run.recipe.tokenizer
    if (folder / "tokenizer.json").is_file():
        say(f"tokenizer: {len(run.tokenizer)} ids, from an earlier run")
        return
    texts = run.texts(section.scenes, "USER: \n{question} ASSISTANT: {answer}")
    tokenizer = train_tokenizer(texts, section.vocab_size)
    lengths = [len(token_ids(tokenizer, text, bos=True)) for text in texts]
    with atomic_folder(folder) as new:
        tokenizer.save_pretrained(new)
        write_provenance(
            new / "provenance.json",
            run.recipe,
            {"texts": len(texts), "mean_tokens": round(float(np.mean(lengths)), 1), "longest": max(lengths)},
            {"scenes": section.scenes, "first_seed": clip_seed("train", 0)},
        )
    say(f"tokenizer: {len(texts)} texts, {np.mean(lengths):.1f} tokens each, longest {max(lengths)}")


def run_cache(run: ReferenceRun) -> None:
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


def run_target_sight(run: ReferenceRun) -> None:
    """Pre-train the target's vision encoder on the scenes' attributes."""
    _train_vision_encoder(run, "target", TrainableVideoLlava(build_target(run.recipe, run.tokenizer)))


def run_target(run: ReferenceRun) -> None:
    """Train the target on ground-truth answers and save it; its `image_tower` is a copy of its `video_tower`."""
    vlm = TrainableVideoLlava(build_target(run.recipe, run.tokenizer))
    image_tower = vlm.model.model.image_tower
    image_tower.requires_grad_(False)
    figures = _train_vlm(run, "target", vlm, ground_truth_qa)
    image_tower.load_state_dict(vlm.vision_encoder.state_dict())
    _save_model(run, "target", vlm, figures)


def run_answers(run: ReferenceRun) -> None:
    """Let the target answer questions about the drafter's training clips; resumes after what is already there."""
    recipe, path, section = run.recipe, run.answers, run.recipe.answers
    model = run.trained("target")
    to_bf16(model.vlm.model)  # as it ships, and twice as fast
    by_clip = [
        clip_questions("train", clip, section.questions, np.random.default_rng([recipe.seed, clip, 2]))
        for clip in range(recipe.cache.event_clips)
    ]
    answers = record_answers(path, model, "train", by_clip, section.clips, section.max_new_tokens, "target answers")
    expected = [question.expected for questions in by_clip for question in questions]
    equal = float(np.mean([a.answer == text for a, text in zip(answers, expected, strict=True)]))
    write_provenance(
        path.with_suffix(".provenance.json"),
        recipe,
        {"answers": len(answers), "equal_to_ground_truth": round(equal, 4)},
        {"target": run.weights_sha256("target"), "answers": sha256(path)},
    )
    say(f"answers: {len(answers)}, {equal:.1%} as the ground truth")


def run_drafter_sight(run: ReferenceRun) -> None:
    """Pre-train the drafter's vision encoder on the scenes' attributes, as far as events show them."""
    _train_vision_encoder(run, "event", TrainableEventGPT(build_drafter(run.recipe, run.tokenizer)))


def run_drafter(run: ReferenceRun, name: str) -> None:
    """Train the event drafter, or its blind twin, on the target's own answers."""
    known: dict[int, list[QAPair]] = {}
    for answer in run.target_answers():
        known.setdefault(answer.clip, []).append(QAPair(answer.question, answer.answer, answer.whole))
    vlm = TrainableEventGPT(build_drafter(run.recipe, run.tokenizer))
    figures = _train_vlm(run, name, vlm, lambda questions, seed: recorded_qa(known, questions, seed))
    _save_model(run, name, vlm, figures)


def _batch_spec(run: ReferenceRun, name: str, phase: VisionPhase | AnswerPhase, seed: int, first: int = 0) -> BatchSpec:
    """What a phase sees of the training clips."""
    kind = "rgb" if name == "target" else "events"
    return BatchSpec(run.cache, kind, run.training_clips(name), phase.jitter, seed, first, blank=name == "blind")


def _train_vision_encoder(run: ReferenceRun, name: str, vlm: TrainableVLM) -> None:
    phase = run.shape(name).sight
    head, _ = attribute_heads(vlm, run.shape(name).frames, 1)
    loss_fn = vision_loss(vlm, head, _batch_spec(run, name, phase, run.recipe.seed), phase.optim.clips)
    stage = Stage(run.out / name, "sight", phase.optim)
    figures = Trainer(stage, nn.ModuleDict({"tower": vlm.vision_encoder, "head": head}), loss_fn).run()
    write_provenance(run.out / name / "sight.json", run.recipe, figures, {"clips": run.training_clips(name)})


def _load_vision_encoder(run: ReferenceRun, name: str, encoder: nn.Module) -> None:
    """Put the vision encoder of the sight stage in place."""
    path = run.out / name / "sight.ckpt"
    if not path.exists():
        raise CrossdraftError(f"No {path}; run the stage '{name}-sight' first.")
    state = read_checkpoint(path)["modules"]
    weights = {k.removeprefix("tower."): v for k, v in state.items() if k.startswith("tower.")}
    restore_weights(encoder, weights, path)


def _train_vlm(
    run: ReferenceRun, name: str, vlm: TrainableVLM, qa_of: Callable[[int, int], QASource]
) -> dict[str, float]:
    """Train a whole VLM from its pre-trained vision encoder (the blind twin has none), checking validation facts.

    `qa_of(questions, seed)` gives a phase its questions and answers; each phase continues with the clips where the last
    one stopped.
    """
    model = run.answering(name, vlm)
    if not model.blank:
        _load_vision_encoder(run, name, vlm.vision_encoder)
    _, head = attribute_heads(vlm, 1, run.recipe.target.vision.tokens if name == "target" else 1)
    modules = nn.ModuleDict({"model": vlm.model, "head": head})
    figures: dict[str, float] = {}
    last, first = None, 0
    for number, phase in enumerate(run.shape(name).train):
        stage = Stage(run.out / name, f"train-{number + 1}", phase.optim)
        if last is not None and not stage.checkpoint.exists():
            load_weights(last, modules)
        frozen = phase.freeze_vision_encoder and not model.blank
        if frozen:
            _load_vision_encoder(run, name, vlm.vision_encoder)
        vlm.vision_encoder.requires_grad_(not frozen)
        seed = run.recipe.seed + 1000 * number
        spec = _batch_spec(run, name, phase, seed, first)
        loss_fn = answer_loss(vlm, head, spec, model.codec, phase, qa_of(phase.questions, seed))
        done = Trainer(stage, modules, loss_fn, check=lambda step: _check_facts(run, name, model, step)).run()
        figures |= {f"phase_{number + 1}_{key}": value for key, value in done.items()}
        last, first = stage, first + phase.optim.steps * phase.optim.clips
    return figures


def _check_facts(run: ReferenceRun, name: str, model: AnsweringModel, step: int) -> None:
    """Print the facts right on validation clips."""
    recipe = run.recipe
    clips = range(min(CHECKED_CLIPS, recipe.cache.validation_clips))
    by_clip = evaluation_questions("validation", clips, recipe.evaluate.questions, recipe.seed, held_out=False)
    limit = recipe.answers.max_new_tokens
    batches = model.answer_batches("validation", by_clip, recipe.evaluate.clips, limit, "answering")
    say(f"{name} {step}: facts right {facts_right(by_clip, [answer for some in batches for answer in some])}")


def _save_model(run: ReferenceRun, name: str, vlm: TrainableVLM, figures: dict[str, float]) -> None:
    """Full-precision weights, config and tokenizer under `<out>/<name>/model`, whole or absent."""
    folder = run.out / name / "model"
    vlm.model.eval()
    with atomic_folder(folder) as new:
        vlm.model.save_pretrained(new)
        run.tokenizer.save_pretrained(new)
        data = run.training_data(clips=run.training_clips(name))
        write_provenance(new / "provenance.json", run.recipe, figures, data)
    say(f"{name}: saved {folder}")


_STAGES: dict[str, Callable[[ReferenceRun], None]] = {
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
STAGES = tuple(_STAGES)


def run_stages(run: ReferenceRun, stages: Sequence[str]) -> None:
    """Run the named stages in the order given.

    Raises:
        CrossdraftError: an unknown stage, or one whose predecessors have not been run.
    """
    unknown = [stage for stage in stages if stage not in _STAGES]
    if unknown:
        raise CrossdraftError(f"Unknown stage '{unknown[0]}'; choose from {', '.join(STAGES)}.")
    torch.set_num_threads(run.recipe.threads)
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        run.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CrossdraftError(f"Cannot make the folder {run.out}: {error.strerror}; choose another --out.") from error
    for stage in stages:
        say(f"stage {stage}")
        _STAGES[stage](run)
