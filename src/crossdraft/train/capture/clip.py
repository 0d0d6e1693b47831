"""Clips with their questions, and the interface of what they come from."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from crossdraft.engine.request import Request


@dataclass(frozen=True)
class ClipRequest(Request):
    """A question about a clip of a source.

    Args:
        clip: the clip's name, the key of drafters with a memory.
        number: of the request, among those that are answered together.
    """

    clip: str = ""
    number: int = 0


@dataclass(frozen=True)
class PromptedClip:
    """A clip and the questions about it.

    Args:
        name: for people, and the key of drafters with a memory.
        video: a path, or frames uint8 [F, H, W, 3], as `Request.video`.
    """

    name: str
    video: object
    prompts: tuple[str, ...]
    events: str | None = None

    def requests(self, max_new_tokens: int) -> list[ClipRequest]:
        """One request for each question."""
        return [
            ClipRequest(prompt, self.video, self.events, max_new_tokens=max_new_tokens, clip=self.name)
            for prompt in self.prompts
        ]


class ClipSource(Protocol):
    """Clips with their questions; the same for the same arguments, on every machine."""

    @property
    def settings(self) -> Mapping[str, object]:
        """Plain values that tell one source from another; the number of clips is not among them."""
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
        """Questions about all clips."""
        ...

    def locate(self, answer: int) -> tuple[int, int]:
        """(clip, question) of the answer of that number."""
        ...

    def read(self, index: int) -> PromptedClip:
        """A clip by its number."""
        ...


def cycled(source: ClipSource, step: int, count: int) -> list[tuple[int, int]]:
    """(clip, question) of a step's `count` answers: step 0 has the first, and behind the last comes the first again."""
    numbers = range(step * count, (step + 1) * count)
    return [source.locate(number % source.answers) for number in numbers]


def describe_cycled(step: int, count: int) -> str:
    """The same, for people."""
    return f"answers {step * count} to {step * count + count - 1} of the cycle through its clips"


def grouped(clips: Iterable[PromptedClip], prompts: int) -> Iterator[list[PromptedClip]]:
    """Neighbouring clips in groups of at least `prompts` questions; the last group may have fewer."""
    group: list[PromptedClip] = []
    for clip in clips:
        group.append(clip)
        if sum(len(one.prompts) for one in group) >= prompts:
            yield group
            group = []
    if group:
        yield group
