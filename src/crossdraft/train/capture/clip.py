"""Where clips and prompts come from: something that knows how many there are, and gives each by its number."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from crossdraft.engine.request import Request


@dataclass(frozen=True)
class Clip:
    """A clip, and what is asked about it.

    Args:
        name: for people, and for drafters that keep clips apart.
        video: a path, or frames uint8 [F, h, w, 3]; as `Request.video`.
    """

    name: str
    video: object
    prompts: tuple[str, ...]
    events: str | None = None

    def requests(self, max_new_tokens: int) -> list[Request]:
        """What the target is asked."""
        return [Request(prompt, self.video, self.events, max_new_tokens=max_new_tokens) for prompt in self.prompts]


class Source(Protocol):
    """Clips with their prompts; the same for the same arguments, on every machine."""

    @property
    def asked(self) -> Mapping[str, object]:
        """Plain values that tell one source from another; how many clips are taken of it is none of them."""
        ...

    @property
    def heavy(self) -> bool:
        """True if `read` takes so long that it is worth a process of its own."""
        ...

    def __len__(self) -> int:
        """Clips."""
        ...

    @property
    def answers(self) -> int:
        """Prompts about all clips."""
        ...

    def locate(self, answer: int) -> tuple[int, int]:
        """(clip, prompt) of the answer of that number."""
        ...

    def read(self, index: int) -> Clip:
        """A clip by its number."""
        ...


def walk(source: Source, step: int, count: int) -> list[tuple[int, int]]:
    """(clip, prompt) of a step's `count` answers on an endless walk round a source, which step 0 begins."""
    numbers = range(step * count, (step + 1) * count)
    return [source.locate(number % source.answers) for number in numbers]


def walked(step: int, count: int) -> str:
    """Where a step is on such a walk, for people."""
    return f"answers {step * count} to {step * count + count - 1} of the walk round its clips"


def waves(clips: Iterable[Clip], batch: int) -> Iterator[list[tuple[int, Clip]]]:
    """Clips that are asked about together, at most `batch` prompts at a time, each with its number among them.

    A clip with more prompts than that is asked about several times.
    """
    wave: list[tuple[int, Clip]] = []
    room = batch
    for number, clip in enumerate(clips):
        for first in range(0, len(clip.prompts), batch):
            part = replace(clip, prompts=clip.prompts[first : first + batch])
            if len(part.prompts) > room:
                yield wave
                wave, room = [], batch
            wave.append((number, part))
            room -= len(part.prompts)
    if wave:
        yield wave
