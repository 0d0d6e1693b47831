"""Fewer frames: the clip is sampled more coarsely. LOSSY.

This is the simplest way to read less, and the baseline for the others. Each frame is whole, and its tokens keep the
positions that they have among those of the whole clip: without the gaps, more quality is lost.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch

from crossdraft.engine.arrivals import evenly
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.specs import Limit, check_settings
from crossdraft.video.clip import read_clip
from crossdraft.video.inputs import chat_inputs, clip_inputs, merged
from crossdraft.video_prompt import VideoPrompt
from crossdraft_lab.align.predicted import check_readable, stretched_positions


@dataclass(frozen=True, slots=True)
class FramesSettings:
    """Number of frames that are kept.

    Args:
        count: number of frames, first and last included; a single one is from the middle.

    Raises:
        CrossdraftError: a number below 1.
    """

    count: Annotated[int, Limit("a whole number of 1 or more", lambda value: value >= 1)] = 2

    def __post_init__(self) -> None:
        check_settings(self, "frames", "compression")


class FewerFramesPrompt:
    """Converts a request into a prompt with a given number of frames of its clip.

    Raises:
        CrossdraftError: the target does not read a fixed number of frames, as rows in a line of text, or no more than
            `count`.
    """

    def __init__(self, target: Target, settings: FramesSettings) -> None:
        whole = target.prepare
        own = whole.sampling.num_frames if isinstance(whole, VideoPrompt) else None
        if not isinstance(whole, VideoPrompt) or own is None:
            raise CrossdraftError(
                "The compression 'frames' is for targets that read a fixed number of a clip's frames; choose another."
            )
        check_readable(target)
        if settings.count >= own:
            raise CrossdraftError(f"The target sees {own} frames of a clip; leave it fewer.")
        self._whole, self._visual = whole, target.traits.visual_ids
        # Chosen among the frames that the target itself would read: each keeps its place among them.
        self.chosen, self.frames = torch.tensor(evenly(own, settings.count)), own

    def __call__(self, request: Request) -> Prompt:
        if not request.visuals and request.inputs is None:
            return self._whole(request)
        if [part.kind for part in request.visuals] != ["video"]:
            raise CrossdraftError("A target of fewer frames reads one clip a request; ask about one.")
        prompt = self._read(request)
        each = sum(token in self._visual for token in prompt.input_ids.tolist()) // len(self.chosen)
        places = (self.chosen[:, None] * each + torch.arange(each)).flatten()
        found = stretched_positions(prompt.input_ids, self._visual, places, self.frames * each)
        return replace(prompt, positions=lambda _: found)

    def _read(self, request: Request) -> Prompt:
        """Make the prompt of the chosen frames; it is simply shorter, as every family counts its placeholders."""
        whole, config = self._whole, self._whole.model.config
        sample = read_clip(request.visuals[0].value, whole.sampling)
        chosen = evenly(len(sample.frames), len(self.chosen))  # a clip may have fewer frames than the target reads
        text, pixels = clip_inputs(config, whole.spec, sample.frames[chosen], sample.times_s[chosen])
        inputs, _ = chat_inputs(config, whole.tokenizer, request.conversation, [text], request.template)
        return Prompt(inputs.pop("input_ids")[0], {**merged(config, [pixels]), **inputs})


def fewer_frames_target(target: Target, settings: FramesSettings) -> Target:
    """Make a target that sees `settings.count` frames of each clip; errors as `FewerFramesPrompt`."""
    return target.reading(FewerFramesPrompt(target, settings))
