"""Preprocessing of a question and an event window to the tensors that EventGPT reads.

Saved beside the model: the tokenizer's own files, and `processor_config.json` for what the model's `config.json` does
not say (canvas, prompt template, normalisation).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from crossdraft.errors import CrossdraftError
from crossdraft.events.frames import eventgpt_frames
from crossdraft.events.stream import Events, Newest
from crossdraft.files import atomic_path, parse_json, read_json
from crossdraft.models.eventgpt.checkpoint import library_errors_as
from crossdraft.models.eventgpt.configuration import EventGPTConfig
from crossdraft.video.clip_frames import given_pixels
from crossdraft.video.preprocess import preprocess
from crossdraft.video.spec import CLIP_MEAN, CLIP_STD, FrameSpec

Canvas = Literal["sensor", "release", "train"] | tuple[int, int]
Window = Events | tuple[Events, ...] | NDArray[np.uint8] | Tensor

PROCESSOR_FILE = "processor_config.json"
TRAIN_CANVAS = (480, 640)
OFFICIAL_WINDOW_US = 50_000  # EventGPT was trained on windows of 50 ms, and its code refuses 100 ms
WINDOW_EVENTS = 1_000_000  # three and a half times what a busy DSEC window of 50 ms holds
EV_START, EV_END = "<ev_start>", "<ev_end>"
OFFICIAL_TEMPLATE = (
    "A chat between a curious human and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the human's questions. USER: {event}\n{question} ASSISTANT:"
)


@dataclass(frozen=True, slots=True)
class ProcessorOptions:
    """Options that the model's configuration does not hold.

    Args:
        canvas: where events are painted. "sensor": the whole sensor, the last event of a pixel shows (the default).
            "release": as the released code does, each frame just as large as its own events reach, so that their
            scale varies. "train": as the training code did, 480x640 with red over blue. Or (height, width).
        template: the prompt, with `{event}` and `{question}`.
        mean, std: normalisation per channel, in units of 0..1.
        blind: give the model blank frames only: a text-only control that was trained on them.
        window_us: length in µs of a recording that the model was trained to read at once; it reads only the end of a
            longer one. `None` = no limit.
        window_events: most events that are read, the newest, so that reading never takes long. `None` = no limit.

    Raises:
        CrossdraftError: an unknown canvas, a template that lacks a field, or a window that holds nothing.
    """

    canvas: Canvas = "sensor"
    template: str = OFFICIAL_TEMPLATE
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    blind: bool = False
    window_us: int | None = OFFICIAL_WINDOW_US
    window_events: int | None = WINDOW_EVENTS

    def __post_init__(self) -> None:
        for name, number in (("window_us", self.window_us), ("window_events", self.window_events)):
            if number is not None and (type(number) is not int or number < 1):
                raise CrossdraftError(f"{name} must be a whole number above 0, or null, not {number!r}.")
        size = isinstance(self.canvas, tuple) and len(self.canvas) == 2 and all(side > 0 for side in self.canvas)
        if not size and self.canvas not in ("sensor", "release", "train"):
            raise CrossdraftError(
                f'The canvas must be "sensor", "release", "train" or (height, width), not {self.canvas!r}.'
            )
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != 3 or not all(isinstance(value, int | float) for value in values):
                raise CrossdraftError(f"{name} must be three numbers, one a channel, not {values!r}.")
        for field in ("{event}", "{question}"):
            if self.template.count(field) != 1:
                raise CrossdraftError(f"The prompt template {self.template!r} must hold {field} exactly once.")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read `processor_config.json`.

        Raises:
            CrossdraftError: the file is missing, broken, or holds an unknown option.
        """
        try:
            raw: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
            for name in {"canvas", "mean", "std"} & raw.keys():
                raw[name] = tuple(raw[name]) if isinstance(raw[name], list) else raw[name]  # JSON has no tuples
            return cls(**raw)
        except OSError as error:
            raise CrossdraftError(
                f"Cannot read {path}: {error.strerror}; save the processor with the model."
            ) from error
        except (ValueError, TypeError, AttributeError) as error:
            raise CrossdraftError(f"{path} is not an EventGPT processor configuration ({error}).") from error


class EventGPTProcessor:
    """Renders and preprocesses event windows, and writes their placeholders into the prompt.

    Args:
        config: the model's configuration: frames, image size, placeholder, start and end tokens.
        tokenizer: the model's.
        options: see `ProcessorOptions`.

    Raises:
        CrossdraftError: the configuration wants start and end tokens that the tokenizer does not know.
    """

    def __init__(
        self, config: EventGPTConfig, tokenizer: PreTrainedTokenizerBase, options: ProcessorOptions | None = None
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.options = options or ProcessorOptions()
        size = config.vision_config.image_size
        self.frame_spec = FrameSpec(size=size, crop=(size, size), mean=self.options.mean, std=self.options.std)
        self._around = (EV_START, EV_END) if config.add_start_end else ("", "")
        unknown = [token for token in self._around if token and token not in tokenizer.get_vocab()]
        if unknown:
            raise CrossdraftError(
                f"The model was trained with {EV_START} and {EV_END}, but its tokenizer lacks {', '.join(unknown)}; "
                "use the tokenizer that was saved with the model."
            )

    def __call__(self, questions: str | Sequence[str], windows: Window | Sequence[Window]) -> dict[str, Tensor]:
        """Make the model's inputs for a batch, ready for `generate(**inputs)`.

        Args:
            questions: one or B questions.
            windows: one event window, or a list of B, as `pixels` takes them.

        Returns:
            `input_ids` and `attention_mask` [B, L], padded on the left, `pixel_values_videos` [B, T, 3, s, s].
        """
        questions = [questions] if isinstance(questions, str) else list(questions)
        if isinstance(windows, Events | tuple | np.ndarray | Tensor):
            windows = [cast("Window", windows)]
        if len(questions) != len(windows):
            raise CrossdraftError(f"{len(questions)} question(s) need as many event windows, not {len(windows)}.")
        rows = [self.prompt_ids(question) for question in questions]
        length = max(map(len, rows))
        padding = self.tokenizer.pad_token_id or 0  # masked, so any id will do
        return {
            "input_ids": torch.tensor([[padding] * (length - len(row)) + row for row in rows]),
            "attention_mask": torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in rows]),
            "pixel_values_videos": torch.stack([self.pixels(window) for window in cast("Sequence[Window]", windows)]),
        }

    def prompt_ids(self, question: str) -> list[int]:
        """Return the ids of the whole prompt, the placeholder expanded to one id per feature.

        The text on either side is tokenised on its own, as the official code does.

        Raises:
            CrossdraftError: the question itself holds the placeholder.
        """
        start, end = self._around
        before, after = self.options.template.split("{event}")
        ids: Any = self.tokenizer  # whoever reads them checks the length, and says it better than a warning
        head = ids(before.replace("{question}", question) + start, verbose=False)["input_ids"]
        tail = ids(end + after.replace("{question}", question), add_special_tokens=False, verbose=False)["input_ids"]
        event = self.config.event_token_id
        if event in head or event in tail:
            raise CrossdraftError(
                f"The question holds the event placeholder {self.tokenizer.decode([event])!r}; leave it out."
            )
        return [*head, *[event] * self.config.event_seq_length, *tail]

    def pixels(self, window: Window) -> Tensor:
        """Preprocess one event window.

        Args:
            window: events; several stretches of events, among which the model's frames are divided in turn; or frames
                that are rendered already, uint8 RGB [T, H, W, 3].

        Returns:
            float32 [T, 3, s, s]: bicubic resize of the shortest edge to s, centre crop, normalised.

        Raises:
            CrossdraftError: another number of frames than the model's, more stretches than that, or fewer events than
                frames.
        """
        if isinstance(window, Events):
            window = (window,)
        if isinstance(window, tuple):
            frames = self._render(window)
        else:
            wanted = "frames (uint8 RGB [T, H, W, 3]), or events as of Events.checked"
            frames = [given_pixels(window, 4, "The event window", wanted)]
        pixels = torch.cat([preprocess(part, self.frame_spec) for part in frames])
        if len(pixels) != self.config.num_event_frames:
            raise CrossdraftError(
                f"The window has {len(pixels)} event frames, but the model reads {self.config.num_event_frames}."
            )
        return pixels

    @property
    def window(self) -> Newest:
        """The part of a recording that the model reads: the newest events, at least one a frame."""
        options, least = self.options, self.config.num_event_frames
        most = None if options.window_events is None else max(options.window_events, least)
        return Newest(options.window_us, least, most)

    def _render(self, stretches: tuple[Events, ...]) -> list[Tensor]:
        """uint8 [n, H, W, 3] pieces, as few as their sizes allow."""
        count = self.config.num_event_frames
        if not 1 <= len(stretches) <= count:
            raise CrossdraftError(
                f"{len(stretches)} event windows cannot share the model's {count} frames; give 1 to {count}."
            )
        share = count // len(stretches)
        counts = [share] * (len(stretches) - 1) + [count - share * (len(stretches) - 1)]
        parts = zip(stretches, counts, strict=True)
        return [piece for events, frames in parts for piece in self.paint(events, frames)]

    def paint(self, events: Events, count: int) -> list[Tensor]:
        """`count` frames of one stretch, as equal-count slices: uint8 [n, H, W, 3] pieces, as few as sizes allow."""
        canvas = self.options.canvas
        if canvas == "release":
            return [torch.from_numpy(frame)[None] for frame in eventgpt_frames(events, count, "tight", "last")]
        if canvas == "train":
            return [torch.from_numpy(eventgpt_frames(events, count, TRAIN_CANVAS, "red"))]
        return [torch.from_numpy(eventgpt_frames(events, count, canvas, "last"))]

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the tokenizer and `processor_config.json` into the model's folder."""
        folder = Path(folder)
        with atomic_path(folder / PROCESSOR_FILE) as path:
            path.write_text(json.dumps(asdict(self.options), indent=2) + "\n", encoding="utf-8")
        self.tokenizer.save_pretrained(str(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Read the processor of a saved model from a local folder.

        Raises:
            CrossdraftError: the folder lacks `config.json`, the tokenizer or `processor_config.json`, or one of
                them is damaged.
        """
        folder = Path(folder)
        for name in ("config.json", "tokenizer.json", PROCESSOR_FILE):
            if not (folder / name).is_file():
                raise CrossdraftError(f"{folder} lacks {name}; give the folder of a converted or trained EventGPT.")
        read_json(folder / "config.json")  # tells a file that is not even JSON better than transformers does
        with library_errors_as(f"{folder / 'config.json'} is damaged", "copy it from the checkpoint again"):
            config = EventGPTConfig.from_pretrained(str(folder))
        with library_errors_as(f"The tokenizer in {folder} is damaged", "copy it from the checkpoint again"):
            tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))
        return cls(config, tokenizer, ProcessorOptions.load(folder / PROCESSOR_FILE))
