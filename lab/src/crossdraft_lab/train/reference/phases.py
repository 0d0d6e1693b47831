"""Training a VLM of the reference pair: its vision encoder on attributes, then the whole of it, phase by phase."""

from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from crossdraft.files import atomic_folder
from crossdraft_lab.train.core.checkpoint import read_checkpoint, restore_weights
from crossdraft_lab.train.core.log import say
from crossdraft_lab.train.core.provenance import write_provenance
from crossdraft_lab.train.core.trainer import Stage, Trainer, load_weights
from crossdraft_lab.train.reference.answers import AnsweringModel, evaluation_questions, facts_right
from crossdraft_lab.train.reference.batches import BatchSpec
from crossdraft_lab.train.reference.losses import QASource, answer_loss, attribute_heads, vision_loss
from crossdraft_lab.train.reference.models import TrainableVLM
from crossdraft_lab.train.reference.recipe import AnswerPhase, VisionPhase
from crossdraft_lab.train.reference.run import ReferenceRun

CHECKED_CLIPS = 48
SAFETENSORS, TOWER = ".safetensors", "model.vision_tower."


def _batch_spec(run: ReferenceRun, name: str, phase: VisionPhase | AnswerPhase, seed: int, first: int = 0) -> BatchSpec:
    """Build the spec of a phase's batches of training clips."""
    kind = "rgb" if name == "target" else "events"
    return BatchSpec(run.cache, kind, run.training_clips(name), phase.jitter, seed, first, blank=name == "blind")


def train_vision_encoder(run: ReferenceRun, name: str, vlm: TrainableVLM) -> None:
    """Pre-train a vision encoder on the attributes of scenes."""
    phase = run.shape(name).sight
    head, _ = attribute_heads(vlm, run.shape(name).frames, 1)
    loss_fn = vision_loss(vlm, head, _batch_spec(run, name, phase, run.recipe.seed), phase.optim.clips)
    stage = Stage(run.out / name, "sight", phase.optim)
    figures = Trainer(stage, nn.ModuleDict({"tower": vlm.vision_encoder, "head": head}), loss_fn).run()
    write_provenance(run.out / name / "sight.json", run.recipe, figures, {"clips": run.training_clips(name)})


def load_vision_encoder(encoder: nn.Module, path: Path) -> None:
    """Put a vision encoder in place: a sight stage's, or that of a shipped model, which was frozen after its own.

    Raises:
        CrossdraftError: the file is damaged, or of another shape than the recipe's.
    """
    shipped = path.suffix == SAFETENSORS
    state, prefix = (load_file(path), TOWER) if shipped else (read_checkpoint(path)["modules"], "tower.")
    restore_weights(encoder, {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}, path)


def train_vlm(
    run: ReferenceRun, name: str, vlm: TrainableVLM, qa_of: Callable[[int, int], QASource]
) -> dict[str, float]:
    """Train a whole VLM from its pre-trained vision encoder (the blind twin has none), checking validation facts.

    `qa_of(questions, seed)` gives a phase its questions and answers; each phase continues with the clips where the last
    one stopped.
    """
    model = run.answering(name, vlm)
    if not model.blank:
        load_vision_encoder(vlm.vision_encoder, run.sight(name))
    _, head = attribute_heads(vlm, 1, run.recipe.target.vision.tokens if name == "target" else 1)
    modules = nn.ModuleDict({"model": vlm.model, "head": head})
    figures: dict[str, float] = {}
    last, first = None, 0
    for number, phase in enumerate(run.phases(name)):
        stage = Stage(run.out / name, f"train-{number + 1}", phase.optim)
        if last is not None and not stage.checkpoint.exists():
            load_weights(last, modules)
        frozen = phase.freeze_vision_encoder and not model.blank
        if frozen:
            load_vision_encoder(vlm.vision_encoder, run.sight(name))
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


def save_model(run: ReferenceRun, name: str, vlm: TrainableVLM, figures: dict[str, float]) -> None:
    """Full-precision weights, config and tokenizer under `<out>/<name>/model`, whole or absent."""
    folder = run.out / name / "model"
    vlm.model.eval()
    with atomic_folder(folder) as new:
        vlm.model.save_pretrained(new)
        run.tokenizer.save_pretrained(new)
        data = run.training_data(clips=run.training_clips(name))
        write_provenance(new / "provenance.json", run.recipe, figures, data)
    say(f"{name}: saved {folder}")
