"""What goes in and what comes out: requests, pieces of an answer, answers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from crossdraft.checks import text, whole
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from crossdraft.engine.stats import Stats
    from crossdraft.engine.timeline import Timeline


REPR_LETTERS = 60  # of an answer's text in its `repr`


@dataclass(frozen=True)
class Request:
    """A question about a clip. Arrays in it must stay as they are until it is answered: they are read meanwhile.

    Args:
        prompt: the question, plain text.
        video: path of the clip, or uint8 frames [F, H, W, 3]; whatever the target's `prepare` reads.
        events: an event recording's path, of which the drafter reads as much of the end as it was made for; an
            `events.Excerpt` of one, to choose another part; or an event stream.
        max_new_tokens: the longest answer, in tokens.
        sampling: temperature and its companions; the default is greedy.
        stop: strings that end the answer; they are not part of it.
        logprobs: report the target's log-probability of every emitted token (raw, before warping).
        namespace: whose request it is; what a drafter learns from answers, it keeps apart for each. `None`: it neither
            knows nor learns anything.
    """

    prompt: str
    video: object = None
    events: object = None
    max_new_tokens: int = 128
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    namespace: str | None = ""
    inputs: Mapping[str, object] | None = None  # ready-made model inputs; then `video` is not read

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_new_tokens", whole("max_new_tokens", self.max_new_tokens))
        if not text("prompt", self.prompt, "What is ahead?").strip() and self.inputs is None:
            raise CrossdraftError("The prompt is empty; ask a question about the clip.")


def listed(requests: object) -> list[Request]:
    """One request or several as a list.

    Raises:
        CrossdraftError: something among them is no request.
    """
    found: list[Any] = [requests]
    if isinstance(requests, Iterable) and not isinstance(requests, str | Mapping):
        found = list(requests)
    for request in found:
        if not isinstance(request, Request):
            raise CrossdraftError(
                f"A request is a {type(request).__name__}; give a crossdraft.Request(prompt=…, video=…)."
            )
    return found


class Origin(StrEnum):
    """Who put a token there, as the reader of a stream sees it."""

    PROVISIONAL = "provisional"  # the drafter's, while the target was still reading; may be taken back
    HIDDEN = "hidden"  # final: drafted during the prefill, accepted
    DRAFTED = "drafted"  # final: drafted in a later round, accepted
    TARGET = "target"  # final: the target's own token


class Finish(StrEnum):
    """Why an answer ended."""

    EOS = "eos"
    LENGTH = "length"
    STOP = "stop"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Piece:
    """A stretch of an answer with one origin. `request` is the request's index in its batch."""

    tokens: tuple[int, ...]
    text: str
    origin: Origin
    request: int = 0


@dataclass(frozen=True, repr=False)
class Answer:
    """The whole answer: exactly the tokens that the target alone would have written (unless a rule is lossy).

    A notebook shows it as its text by origin and its timeline; `repr` is one short line.
    """

    text: str
    tokens: tuple[int, ...]
    pieces: tuple[Piece, ...]
    finish: Finish
    stats: "Stats"
    timeline: "Timeline"
    logprobs: tuple[float, ...] | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        text = self.text.strip()
        shown = text if len(text) <= REPR_LETTERS else text[: REPR_LETTERS - 1] + "…"
        stats = self.stats
        figures = (
            f"{len(self.tokens)} tokens, {self.finish}, {stats.total_s * 1e3:.0f} ms, tau {stats.tau:.2f}"
        )
        noted = f", {len(self.notes)} notes" if self.notes else ""
        return f"<Answer {shown!r}: {figures}{noted}>"

    def _repr_html_(self) -> str:
        """The picture of the answer, for notebooks."""
        from crossdraft.drawing.timeline import timeline_img

        return timeline_img(self)
