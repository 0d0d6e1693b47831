"""Checks of a pair and its steps before anything is captured or trained; no model is loaded for them."""

from collections import Counter
from pathlib import Path

from crossdraft.checkpoints.files import quantization_method, read_config
from crossdraft.drafters.event.load import check_event_drafter
from crossdraft.errors import CrossdraftError
from crossdraft.load import event_folder
from crossdraft_lab.train.capture.sources import ClipSource
from crossdraft_lab.train.core.recipe import Optim
from crossdraft_lab.train.heads.clip_answers import clips_of_step

DRAFTER = "drafter"  # in a training's folder: what comes out of it


def check_shares(optim: Optim, source: ClipSource, processes: int) -> None:
    """Refuse steps that cannot be cut into as many parts as they are to be: what is cut is a step's clips.

    Args:
        optim: whose `clips` counts answers.
        source: the clips to learn from.
        processes: that share the steps.

    Raises:
        CrossdraftError: a step has fewer clips than it shall have parts.
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
        CrossdraftError: it is no EventGPT, writes another vocabulary, is quantised already, or lies where the tuned one
            goes.
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
