"""The drafters `event`, `blind` and `foreign`: an EventGPT that writes the target's vocabulary, or another one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from crossdraft.checkpoints.models import check_event_model
from crossdraft.drafters import Words
from crossdraft.errors import CrossdraftError
from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Count, Spec

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter


@dataclass(frozen=True)
class EventSettings:
    """Settings of an EventGPT: top-k `words` of a position in one pass.

    `how` bridges two vocabularies, as in `TextSettings`; `dir` is the model's folder. With `slices` the model reads a
    whole recording as that many windows: see `drafters.recordings`.
    """

    words: Words | None = None  # 1
    how: Literal["slem", "tli", "omni"] | None = None
    dir: str | None = None
    slices: Count | None = None

    @property
    def branches(self) -> bool:
        """True if the drafts may be trees."""
        return (self.words or 1) > 1


def check(spec: Spec, settings: EventSettings, target: str | None) -> None:
    """Check a model's name or folder, and how it drafts."""
    if settings.how is not None and settings.branches:
        raise CrossdraftError(
            f"'{spec}' asks for a tree, but what crosses vocabularies is a chain; leave out how, or words."
        )
    if settings.dir is not None and spec.name != "event":
        raise CrossdraftError(f"'{spec}' names two models; write event:dir={settings.dir}.")
    check_event_model(settings.dir or spec.name)


def build(spec: Spec, settings: EventSettings, context: DrafterContext) -> "Drafter[Any]":
    """Build the drafter of an EventGPT: one of the reference pair by its name, or a folder."""
    from crossdraft.drafters.cross_vocab.assistant import CrossVocabDrafter
    from crossdraft.drafters.cross_vocab.vocabulary import target_table
    from crossdraft.drafters.event.load import load_event_drafter

    check(spec, settings, context.target)
    tokenizer = context.read_tokenizer()
    drafter = load_event_drafter(
        settings.dir or spec.name,
        lambda: target_table(context),
        tokenizer.get_vocab(),
        context.banned,
        settings.how,
        context.device,
        context.dtype,
        packed=context.packed,
        quantize=context.quantize,
        slices=settings.slices,
    )
    if isinstance(drafter, CrossVocabDrafter):
        if settings.branches:
            raise CrossdraftError(
                f"'{spec}' has another vocabulary than the target, and what crosses vocabularies is a chain; leave out "
                "words."
            )
        return drafter
    drafter.words = settings.words or 1
    return drafter


RECORDS = (
    Method(
        "event", "EventGPT of the reference pair: reads an event camera", "crossdraft", build, check=check,
        settings=EventSettings, trained=True, senses=("events",), model="event",
    ),
    Method(
        "blind", "the same without events: the ablation", "crossdraft", build, check=check,
        settings=EventSettings, trained=True, model="blind",
    ),
    Method(
        "foreign",
        "an event model trained on captions of its own wordings: what an EventGPT drafts that nobody aligned",
        "crossdraft", build, check=check,
        settings=EventSettings, trained=True, senses=("events",), model="foreign",
    ),
)  # fmt: skip
