"""Fewer frames: the clip is sampled more coarsely. LOSSY.

The plainest way to read less, and the one that others have to beat. Each frame is whole, and positions count on.
"""

from dataclasses import dataclass
from typing import Annotated

from crossdraft.drafters.view import FewerFrames
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.specs import Limit, check_settings
from crossdraft.video_prompt import VideoPrompt


@dataclass(frozen=True, slots=True)
class FramesSettings:
    """How much is kept.

    Args:
        count: of the frames, first and last included; a single one is from the middle.

    Raises:
        CrossdraftError: a number below 1.
    """

    count: Annotated[int, Limit("a whole number of 1 or more", lambda value: value >= 1)] = 2

    def __post_init__(self) -> None:
        check_settings(self, "frames", "compression")


class FewerFramesTarget(Target):
    """A target that sees so many frames of each clip.

    Raises:
        CrossdraftError: it reads no clips, or no more frames than that.
    """

    def __init__(self, target: Target, settings: FramesSettings) -> None:
        whole = target.prepare
        if not isinstance(whole, VideoPrompt):
            raise CrossdraftError("The compression 'frames' is for targets that read clips; choose another.")
        own = whole.sampling.num_frames
        if own is not None and settings.count >= own:
            raise CrossdraftError(f"The target sees {own} frames of a clip; leave it fewer.")
        fewer = FewerFrames(target.model, whole.tokenizer, whole.spec, settings.count)
        super().__init__(target.model, fewer, target.text, tuple(target.eos), tuple(target.reserved), target.defaults)
