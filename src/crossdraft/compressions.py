"""Targets that read less of a clip than all of it. LOSSY: the target itself changes, and so do its answers.

Drafts are verified by the compressed target: drafting is lossless with respect to that target, never to the whole one.
Compressions come from other packages, by entry points of the group `crossdraft.executors`; crossdraft-lab has them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from crossdraft.checks import did_you_mean, text
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.scheduler import AnswerCheck, Scheduler
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.plugins import Table, more_to_install
from crossdraft.specs import parse, read_settings

READ_WHOLE = "Read whole"  # begins the note of a prompt that was not compressed after all
COMPRESSION = "compression"
CHECK = "check"  # of a request's extras: what `CheckedPrompts.check_of` returned


@dataclass(frozen=True)
class Compression:
    """A way to compress what a target sees.

    Args:
        name: name of the compression in a spec.
        summary: one line for the table.
        paper: paper that describes the compression.
        settings: frozen dataclass of the settings.
        make: makes the compressed target from the target and the settings.
        trained: whether the compression has weights of its own, made for one target.
        shares_prefixes: whether the cache of a prompt's beginning is valid whatever else the request holds.
    """

    name: str
    summary: str
    paper: str
    settings: type[Any]
    make: Callable[[Target, Any], Target]
    trained: bool = False
    shares_prefixes: bool = True


COMPRESSIONS: Table[Compression] = Table("crossdraft.executors", Compression, COMPRESSION, {})


@dataclass(frozen=True)
class BudgetStatus:
    """State of a quality budget at one moment; see `CheckedPrompts`.

    Args:
        budget: the loss that is allowed on average.
        threshold: least confidence of the gate, 0..1, at present.
        reads: number of predictable requests that were read in each way.
        unpredictable: number of unpredictable requests, which were read whole.
        compared: number of checks that ended; a check whose request was cancelled, failed or timed out has no loss.
        loss: sum of the losses of the ended checks, each 0..1.
    """

    budget: float
    threshold: float
    reads: Mapping[str, int]
    unpredictable: int
    compared: int
    loss: float

    @property
    def mean_loss(self) -> float | None:
        """Mean loss of the checks that ended; `None` before the first."""
        return self.loss / self.compared if self.compared else None

    @property
    def counts(self) -> dict[str, int]:
        """Number of requests that were read in each way."""
        return {str(way): count for way, count in self.reads.items()} | {"unpredictable": self.unpredictable}

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        mean = self.mean_loss
        return {
            "budget": self.budget,
            "threshold": round(self.threshold, 6),
            **self.counts,
            "compared": self.compared,
            "mean_loss": None if mean is None else round(mean, 4),
        }


@runtime_checkable
class CheckedPrompts(Protocol):
    """Makes the prompts of a target of which a sample of answers is checked, to keep within a quality budget."""

    @property
    def status(self) -> BudgetStatus | None:
        """The state of the budget; `None` without one."""
        ...

    def check_of(self, request: Request, scheduler: Scheduler) -> AnswerCheck | None:
        """Return the check of a request that the scheduler is to answer; `None` without a budget."""
        ...


def settings_of(spec: str) -> tuple[Compression, Any]:
    """Return the compression and its settings that a spec such as `fastv:keep=0.5` names.

    Raises:
        CrossdraftError: no compression or setting has the name, or a value is out of range.
    """
    read = parse(text("compression", spec, "fastv:keep=0.5"), COMPRESSION)
    if read.name not in COMPRESSIONS:
        raise CrossdraftError(
            f"There is no compression '{read.name}'{did_you_mean(read.name, COMPRESSIONS)}; choose one of: "
            f"{', '.join(COMPRESSIONS) or 'none'}.{more_to_install()}"
        )
    if read.parts or read.runs_in is not None:
        raise CrossdraftError(f"The compression '{spec}' takes settings alone, such as fastv:keep=0.5.")
    found = COMPRESSIONS[read.name]
    return found, read_settings(found.settings, read, COMPRESSION)


def checked_by(target: Target) -> CheckedPrompts | None:
    """The object that makes a target's prompts, if it checks answers."""
    made = target.prepare.made if isinstance(target.prepare, CompressedPrompt) else target.prepare
    return made if isinstance(made, CheckedPrompts) else None


def shares_prefixes(spec: str | None) -> bool:
    """True if a target compressed so can go on from the beginning of an earlier prompt; `None` = not compressed."""
    return spec is None or settings_of(spec)[0].shares_prefixes


def compressed(target: Target, spec: str) -> Target:
    """Make a target of the same model that reads fewer visual tokens; `target` itself stays unchanged.

    Each answer of the new target notes the compression and is not `lossless`, unless its prompt was read whole.

    Raises:
        CrossdraftError: as `settings_of`, or the compression does not support the model.
    """
    found, settings = settings_of(spec)
    made = found.make(target, settings)
    made.prepare = CompressedPrompt(made.prepare, without_paths(spec), made.traits.visual_ids)
    return made


def without_paths(spec: str) -> str:
    """Return a spec without the settings that name local files, to be shown in answers, also to a server's clients.

    >>> without_paths("predicted:dir=runs/x,frames=1"), without_paths("token_packer:dir=x")
    ('predicted:frames=1', 'token_packer')

    Raises:
        CrossdraftError: as `settings_of`.
    """
    _, settings = settings_of(spec)
    read = parse(spec, COMPRESSION)

    def is_path(key: str) -> bool:
        return isinstance(getattr(settings, key), Path) or "/" in read.settings[key]

    return str(replace(read, settings={key: value for key, value in read.settings.items() if not is_path(key)}))


@dataclass(frozen=True)
class CompressedPrompt:
    """Turns a request into a prompt that says how its clip is compressed, where it is.

    Args:
        made: makes the prompt of the compressed target.
        spec: spec of the compression as answers show it; see `without_paths`.
        visual: ids that stand for images and clips.
    """

    made: Callable[[Request], Prompt]
    spec: str
    visual: frozenset[int]

    def __call__(self, request: Request) -> Prompt:
        prompt = self.made(request)
        read_whole = any(note.startswith(READ_WHOLE) for note in prompt.notes)
        if read_whole or self.visual.isdisjoint(prompt.input_ids.tolist()):
            return prompt
        note = f"Lossy: the target reads its clip compressed ({self.spec})."
        return replace(prompt, notes=(*prompt.notes, note), lossy=self.spec)
