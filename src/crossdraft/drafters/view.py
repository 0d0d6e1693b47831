"""The drafter `view`: the target itself, seeing fewer frames of the clip. Hidden drafting without an event camera.

A video model spends most of its time reading frames. The same weights read a prompt of one or two frames and write a
draft while the target still reads all of them; and no other model predicts the target's words better than its own
weights. Hidden behind the prefill this pays; in later rounds the drafter is as slow as the target, so a cheap drafter
should take over: `phased:view,ngram`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossdraft.errors import CrossdraftError
from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Count, Spec

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from crossdraft.drafters.independent import IndependentDrafter
    from crossdraft.engine.drafter import Drafter
    from crossdraft.engine.prompt import Prompt
    from crossdraft.engine.request import Request
    from crossdraft.engine.target import Target
    from crossdraft.video.clip import FrameSampling
    from crossdraft.video_prompt import VideoPrompt


@dataclass(frozen=True)
class ViewSettings:
    """Frames that the target sees when it drafts for itself."""

    frames: Count = 2


@dataclass(frozen=True)
class FewerFrames:
    """Turns a request into the inputs of a video VLM, with `frames` frames of each clip.

    Every family counts its placeholders from the frames it is given (`video.inputs`), so a prompt of fewer frames is
    simply shorter.

    Args:
        whole: makes the target's own prompt, from whose frames these are taken, so that the choice is the same for a
            file and for a clip that was read before.
        frames: number of frames of each clip.
    """

    whole: "VideoPrompt"
    frames: int = ViewSettings.frames

    def __call__(self, request: "Request") -> "Prompt":
        from crossdraft.engine.prompt import Prompt
        from crossdraft.video.image import image_frames
        from crossdraft.video.inputs import chat_inputs, clip_inputs, image_inputs, merged

        if request.inputs is not None:
            raise CrossdraftError(
                "The drafter 'view' cannot take frames out of ready-made inputs; give the request a clip."
            )
        whole, config = self.whole, self.whole.model.config
        shown = [
            image_inputs(config, whole.image_spec, image_frames(part.value).frames)
            if part.kind == "image"
            else clip_inputs(config, whole.spec, *sampled(part.value, self.frames, whole.sampling))
            for part in request.visuals
        ]
        inputs, order = chat_inputs(config, whole.tokenizer, request.conversation, [text for text, _ in shown])
        pixels = merged(config, [shown[number][1] for number in order])
        return Prompt(inputs.pop("input_ids")[0], {**pixels, **inputs})


def sampled(video: object, count: int, sampling: "FrameSampling") -> "tuple[Tensor, np.ndarray]":
    """Evenly spread frames [count, H, W, 3] of those that a target reads of a clip, and their times in seconds."""
    from crossdraft.engine.arrivals import evenly
    from crossdraft.video.clip import read_clip

    sample = read_clip(video, sampling)  # faults of the clip are reported by the target
    chosen = evenly(len(sample.frames), count)
    return sample.frames[chosen], sample.times_s[chosen]


def view_of(
    target: "Target", prepare: "Callable[[Request], Prompt]", banned: Sequence[int] = ()
) -> "IndependentDrafter":
    """A second adapter over a target's network, which it shares, with a prompt of its own.

    Args:
        target: the target whose weights draft.
        prepare: makes the cheaper prompt, such as `FewerFrames`.
        banned: ids that must never be drafted.
    """
    from crossdraft.drafters.independent import IndependentDrafter

    return IndependentDrafter(target.reading(prepare), banned, sees=True)


def build(spec: Spec, settings: ViewSettings, context: DrafterContext) -> "Drafter[Any]":
    """Build the drafter of the target itself with fewer frames."""
    from crossdraft.video_prompt import VideoPrompt

    target = context.load_host()
    if not isinstance(target.prepare, VideoPrompt):
        raise CrossdraftError(
            f"The target {context.target} reads no video frames, of which '{spec}' could leave out some."
        )
    own_frames = target.prepare.sampling.num_frames
    if own_frames is not None and settings.frames > own_frames:
        raise CrossdraftError(f"'{spec}' asks for more than the {own_frames} frames that the target itself sees.")
    return view_of(target, FewerFrames(target.prepare, settings.frames), context.banned)


RECORDS = (
    Method(
        "view", "the target itself, seeing fewer frames (view:frames=2)", "crossdraft", build,
        settings=ViewSettings, senses=("video",), model="target",
    ),
)  # fmt: skip
