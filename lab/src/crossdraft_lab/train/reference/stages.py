"""`crossdraft train reference`: the stages, in order, each resumable and each with its provenance."""

from collections.abc import Callable, Sequence

import numpy as np
from transformers.utils import logging as hf_logging

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder
from crossdraft_lab.folders import make_folder
from crossdraft_lab.train.core.dist import use_threads
from crossdraft_lab.train.core.log import say
from crossdraft_lab.train.core.provenance import sha256, write_provenance
from crossdraft_lab.train.reference.answers import clip_questions, record_answers
from crossdraft_lab.train.reference.batches import QAPair
from crossdraft_lab.train.reference.clips import clip_seed, render_clips
from crossdraft_lab.train.reference.foreign import run_foreign
from crossdraft_lab.train.reference.losses import ground_truth_qa, recorded_qa
from crossdraft_lab.train.reference.models import (
    TrainableEventGPT,
    TrainableVideoLlava,
    build_drafter,
    build_target,
    to_bf16,
)
from crossdraft_lab.train.reference.run import ReferenceRun, save_model, train_vision_encoder, train_vlm
from crossdraft_lab.train.reference.ship import run_evaluate, run_ship
from crossdraft_lab.train.reference.text_drafter import run_text
from crossdraft_lab.train.reference.tokenizer import token_ids, train_tokenizer


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
    """Render every missing clip."""
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
    train_vision_encoder(run, "target", TrainableVideoLlava(build_target(run.recipe, run.tokenizer)))


def run_target(run: ReferenceRun) -> None:
    """Train the target on ground-truth answers and save it; its `image_tower` is a copy of its `video_tower`."""
    vlm = TrainableVideoLlava(build_target(run.recipe, run.tokenizer))
    image_tower = vlm.model.model.image_tower
    image_tower.requires_grad_(False)
    figures = train_vlm(run, "target", vlm, ground_truth_qa)
    image_tower.load_state_dict(vlm.vision_encoder.state_dict())
    save_model(run, "target", vlm, figures)


def run_answers(run: ReferenceRun) -> None:
    """Let the target answer questions about the drafter's training clips; resume after the answers that exist."""
    recipe, path, section = run.recipe, run.answers, run.recipe.answers
    model = run.trained("target")
    to_bf16(model.vlm.model)  # the shipped precision; it is also twice as fast
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
    train_vision_encoder(run, "event", TrainableEventGPT(build_drafter(run.recipe, run.tokenizer)))


def run_drafter(run: ReferenceRun, name: str) -> None:
    """Train the event drafter, or its blind twin, on the target's own answers."""
    known: dict[int, list[QAPair]] = {}
    for answer in run.target_answers():
        known.setdefault(answer.clip, []).append(QAPair(answer.question, answer.answer, answer.whole))
    vlm = TrainableEventGPT(build_drafter(run.recipe, run.tokenizer))
    figures = train_vlm(run, name, vlm, lambda questions, seed: recorded_qa(known, questions, seed))
    save_model(run, name, vlm, figures)


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
    "foreign": run_foreign,
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
    use_threads(run.recipe.threads)
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    make_folder(run.out)
    for stage in stages:
        say(f"stage {stage}")
        _STAGES[stage](run)
