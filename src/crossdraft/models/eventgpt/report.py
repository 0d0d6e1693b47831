"""What the converter found and decided, as data and in words."""

from collections.abc import Mapping
from dataclasses import dataclass

from crossdraft.models.eventgpt.processing import EV_END, EV_START
from crossdraft.models.eventgpt.vocabulary import EVENT

VIDEO_LLAVA_IMAGE_ID = 32000


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What the converter found and decided.

    Args:
        source, destination: the folders.
        tensors, parameters: how many were written.
        dtype: of the embedding, which the converted configuration names.
        dropped: stored constants that were left out.
        vision: the tower's shape in words.
        add_start_end, add_patch: `mm_use_im_start_end` and `mm_use_im_patch_token` of the configuration.
        rows_read, rows_written: rows of the embedding before and after.
        tokens: id of each of EventGPT's own tokens; `<event>` is the placeholder.
        fresh_tokens: those of them that the checkpoint had no row for.
        num_event_frames: frames of one window.
    """

    source: str
    destination: str
    tensors: int
    parameters: int
    dtype: str
    dropped: tuple[str, ...]
    vision: str
    add_start_end: bool
    add_patch: bool
    rows_read: int
    rows_written: int
    tokens: Mapping[str, int]
    fresh_tokens: tuple[str, ...]
    num_event_frames: int

    def decisions(self) -> list[str]:
        """Every decision as a sentence."""
        wrap = "is set: prompts wrap" if self.add_start_end else "is not set: prompts do not wrap"
        lines = [
            f"mm_use_im_start_end {wrap} the event in {EV_START} and {EV_END}, as in training.",
            f"The placeholder {EVENT} is id {self.tokens[EVENT]}; the official code uses -200, which is no row.",
            f"The embedding and the head had {self.rows_read} rows and have {self.rows_written}.",
        ]
        if self.fresh_tokens:
            lines.append(f"Without a row of their own, given the mean row: {', '.join(self.fresh_tokens)}.")
        clash = [token for token, row in self.tokens.items() if row == VIDEO_LLAVA_IMAGE_ID]
        if clash:
            lines.append(
                f"Id {VIDEO_LLAVA_IMAGE_ID} is {clash[0]} here but <image> in Video-LLaVA: drafts for it must mask the "
                f"ids from {VIDEO_LLAVA_IMAGE_ID} on."
            )
        lines.append(f"The vision tower has {self.vision}.")
        lines.append(f"A window has {self.num_event_frames} frames; the official configuration does not say.")
        if self.dropped:
            lines.append(f"Left out {len(self.dropped)} stored constant(s), which the model computes.")
        lines.append("No event Q-Former: neither asked for nor among the weights.")
        return lines
