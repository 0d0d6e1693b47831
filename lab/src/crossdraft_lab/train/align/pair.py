"""Preparation for aligning a pair: three splits of clips, and the target's answers about the clips of two of them.

    train        the drafter learns from these answers
    validation   chooses the weights that are kept
    test         is used for neither; figures are reported on it

Clips are scenes of the road world, whose splits are disjoint, or come from lists: then no clip may be in two splits,
nor overlap in time with a clip of another split (`train.capture.overlap`).
"""

import gc
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from crossdraft.checkpoints.files import quantization_method, read_config
from crossdraft.drafters.event.load import check_event_drafter
from crossdraft.engine.fast.heap import trim
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.files import check_folder
from crossdraft.load import event_folder, load_target, target_fingerprint
from crossdraft_lab.train.capture.overlap import refuse_overlap
from crossdraft_lab.train.capture.plan import (
    INDEX_FILE,
    CapturedTarget,
    CaptureIndex,
    CapturePlan,
    capture_spec,
    estimate_disk,
    read_index,
)
from crossdraft_lab.train.capture.recorder import FeatureRecorder
from crossdraft_lab.train.capture.run import capture
from crossdraft_lab.train.capture.sources import ClipSource, ListSource, SceneSource
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.recipe import Optim
from crossdraft_lab.train.heads.clip_answers import clips_of_step
from crossdraft_lab.train.heads.task import captured_source

DRAFTER = "drafter"  # folder of the trained drafter, in a training's folder


def check_shares(optim: Optim, source: ClipSource, processes: int) -> None:
    """Refuse steps with fewer clips than parts: a step is divided into parts by clips.

    Args:
        optim: whose `clips` counts answers.
        source: the clips to learn from.
        processes: number of processes that share the steps.

    Raises:
        CrossdraftError: a step has fewer clips than parts.
    """
    each = min(Counter(source.locate(answer)[0] for answer in range(source.answers)).values())
    clips, parts = clips_of_step(optim.clips, each, len(source)), optim.accumulate * processes
    if parts > clips:
        more = f", or raise optim.clips to {each * parts}" if parts <= len(source) else ""
        raise CrossdraftError(
            f"A step of optim.clips={optim.clips} answers is about {clips} clips with {each} each, which cannot be "
            f"shared out among {optim.accumulate} passes of {processes} processes; lower optim.accumulate to "
            f"{max(1, clips // processes)}{more}."
        )


def check_pair(target: str, event: str, out: Path) -> None:
    """Refuse a drafter that cannot be tuned on a target's answers; only settings and tokenizers are read.

    Raises:
        CrossdraftError: the drafter is no EventGPT, has another vocabulary, is quantised already, or lies in the folder
            of the tuned drafter.
    """
    check_event_drafter(event, target)
    folder = event_folder(event)
    if folder.resolve() == (out / DRAFTER).resolve():
        raise CrossdraftError(f"{event} is where the tuned drafter goes, which would replace it; name another folder.")
    method = quantization_method(read_config(folder))
    if method is not None:
        raise CrossdraftError(
            f"{folder} is quantised already ({method}), and additions cannot be made part of its weights; name the "
            "plain checkpoint, and base=int4 to hold it in 4 bits meanwhile."
        )


Progress = Callable[[str, int], Callable[[], None]]
"""Called with (split, clips) of a capture; returns a function that is called for each captured clip."""


@dataclass(frozen=True)
class Splits:
    """Clips with their questions; `test` is `None` for scenes: their test split is not captured."""

    train: ClipSource
    validation: ClipSource
    test: ListSource | None = None

    @property
    def captured(self) -> Mapping[str, ClipSource]:
        """Splits whose answers are captured, by the name of their folder."""
        return {"train": self.train, "validation": self.validation}


def scene_splits(clips: int, validation_clips: int, prompts: int, seed: int, prompt_noise: float) -> Splits:
    """Splits of scenes of the road world."""
    train = SceneSource("train", clips, 0, prompts, seed, prompt_noise)
    return Splits(train, SceneSource("validation", validation_clips, 0, prompts, seed))


def list_splits(train: Path, validation: Path | None, test: Path | None) -> Splits:
    """Splits from lists, checked: every clip has a recording, and no two lists share one.

    Raises:
        CrossdraftError: a list is lacking or cannot be read, a clip has no recording, or two lists share one.
    """
    if validation is None or test is None:
        lacking = "--validation" if validation is None else "--test"
        raise CrossdraftError(
            f"{lacking} is lacking: the list {train} is for learning alone; give a list of other recordings to choose "
            "the weights by (--validation), and a third to measure on (--test)."
        )
    sources = {path: ListSource(path) for path in (train, validation, test)}
    if len(sources) < 3:
        raise CrossdraftError("One list is named for two splits; give three lists, of three sets of recordings.")
    for source in sources.values():
        _require_recordings(source)
    refuse_overlap({str(path): source for path, source in sources.items()})
    return Splits(*sources.values())


def _require_recordings(source: ListSource) -> None:
    """Refuse a list if one of its clips has no recording."""
    for number in range(len(source)):
        clip = source.read(number)
        if clip.events is None:
            raise CrossdraftError(
                f"{clip.name.capitalize()} of {source.path} names no event recording, which the drafter reads; add "
                '"events": FILE.'
            )


@dataclass(frozen=True)
class AnswerSettings:
    """Settings of the target's answers.

    Args:
        target: name or folder of the target.
        device, dtype, quantize: see `load.load_target`.
        max_new_tokens: largest number of tokens of an answer.
        batch: number of answers decoded in one batch.
        workers: number of processes that render scenes.
    """

    target: str
    device: str | None = None
    dtype: str | None = None
    quantize: str | None = None
    max_new_tokens: int = 96
    batch: int = 8
    workers: int = 1


def open_splits(folder: Path, splits: Splits, settings: AnswerSettings) -> dict[str, CaptureStore]:
    """Open the complete captures of the splits."""
    digest = target_fingerprint(settings.target)
    return {name: CaptureStore.open(folder / name, digest) for name in splits.captured}


def capture_splits(folder: Path, splits: Splits, settings: AnswerSettings, progress: Progress) -> None:
    """Complete the captures of the splits in a folder; the target is loaded only if one is not complete.

    Of the target's features only its last layer is kept.

    Raises:
        CrossdraftError: a folder holds other files, another capture or more clips, or the disk is too small; raised
            before any answer is generated.
    """
    digest = target_fingerprint(settings.target)
    lacking = {
        name: one for name, one in splits.captured.items() if not _complete(folder / name, one, settings, digest)
    }
    if lacking:
        _capture(folder, lacking, settings, progress)
        gc.collect()  # the drafter is loaded next, into the memory that the target had
        trim()


def _complete(folder: Path, source: ClipSource, settings: AnswerSettings, digest: str) -> bool:
    """True if a folder holds the whole capture, so that the target is not needed.

    Raises:
        CrossdraftError: the folder holds more clips than wanted, all of which would be learned from.
    """
    if not (folder / INDEX_FILE).is_file():
        return False
    index = read_index(folder)
    same = (index.owner.sha256, index.owner.quantize) == (digest, settings.quantize or "")
    same &= settings.dtype in (None, index.owner.dtype)
    same &= index.wanted == capture_spec(index.owner.depth, (-1,), (), settings.max_new_tokens)
    same &= dict(index.asked) == dict(source.settings)
    if same and index.done > len(source):
        raise CrossdraftError(
            f"The capture {folder} is of {index.done} clips, and would be learned from as a whole, where {len(source)} "
            f"are wanted; ask for {index.done} clips, or name another folder for captures."
        )
    whole = all((folder / shard.file).is_file() for shard in index.shards)
    return same and whole and index.done == len(source)


def _capture(folder: Path, sources: Mapping[str, ClipSource], settings: AnswerSettings, progress: Progress) -> None:
    target: Target = load_target(settings.target, settings.device, settings.dtype, quantize=settings.quantize)
    info = CapturedTarget.of(settings.target, target, settings.quantize)
    spec = capture_spec(info.depth, (-1,), (), settings.max_new_tokens)
    plans = {
        name: CapturePlan(target, info, source, spec, settings.batch, settings.workers)
        for name, source in sources.items()
    }
    begun: dict[str, CaptureIndex] = {name: plan.resume(folder / name) for name, plan in plans.items()}
    for name, plan in plans.items():  # all are checked before one begins
        estimate_disk(folder / name, plan, begun[name]).check()
    for name, plan in plans.items():
        recorder = FeatureRecorder(plan.target, plan.spec, plan.batch)
        on_clip = progress(name, len(plan.source) - begun[name].done)
        capture(folder / name, plan, begun[name], recorder, on_clip)


def check_begun(out: Path, report: str, *, force: bool, measure: bool) -> bool:
    """Refuse a folder whose training is finished; nothing is changed.

    Args:
        out: folder of the training.
        report: name of the file that is written at the end.
        force: accept a finished folder, too.
        measure: true if the drafter is to be measured: a folder without figures is not finished then.

    Returns:
        True if earlier training results in the folder are to be kept.

    Raises:
        CrossdraftError: the training is finished, and `force` is false; or `out` is no folder.
    """
    check_folder(out)
    path = out / report
    if force or not path.exists():
        return False
    if measure and not _is_measured(path):
        return True
    raise CrossdraftError(
        f"{out} holds a finished alignment; add --force to tune and measure it anew (captures are kept), or name "
        "another folder."
    )


def _is_measured(report: Path) -> bool:
    """True if a report has the drafter's figures or is damaged: a damaged one is left for its author to see."""
    try:
        return "results" in json.loads(report.read_text(encoding="utf-8"))
    except ValueError:
        return True


def begin_anew(out: Path, report: str) -> None:
    """Remove weights and figures from a finished folder; leave an unfinished one to be continued.

    Args:
        out, report: as in `check_begun`.
    """
    if not (out / report).exists():
        return
    for path in (*out.glob("train*.ckpt"), out / "train.log.jsonl", out / report):
        path.unlink(missing_ok=True)
    shutil.rmtree(out / DRAFTER, ignore_errors=True)


def questions_of(source: ClipSource) -> frozenset[str]:
    """All questions of a source."""
    return frozenset(question for clip in range(len(source)) for question in source.questions(clip))


def learned_answers(store: CaptureStore) -> list[tuple[str, tuple[int, ...]]]:
    """(kind of question, answer) for each answer of a capture; a list's kinds are the questions' wordings."""
    source = captured_source(store)
    return [
        (source.kinds(clip)[question], tuple(tokens.tolist()))
        for number, tokens in enumerate(store.answer_tokens())
        for clip, question in [source.locate(number)]
    ]
