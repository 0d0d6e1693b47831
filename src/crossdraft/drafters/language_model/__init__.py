"""The drafters `text` and `model`: a language model or a video VLM, of the target's vocabulary or another one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from crossdraft.checkpoints.files import check_files, read_config, target_class
from crossdraft.checkpoints.locate import shipped_or_found
from crossdraft.errors import CrossdraftError
from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Count, Limit, Spec
from crossdraft.video.classes import TEXT_CLASS
from crossdraft.video.limits import DEFAULT_LIMITS

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter

FRAMES = Limit(f"1 to {DEFAULT_LIMITS.frames} frames", lambda value: 1 <= value <= DEFAULT_LIMITS.frames)


@dataclass(frozen=True)
class TextSettings:
    """The bridge between two vocabularies; default none where they are the same, else `slem`."""

    how: Literal["slem", "tli", "omni"] | None = None


@dataclass(frozen=True)
class ModelSettings:
    """The model's folder, how its vocabulary is bridged, and what it sees: frames of a clip, most pixels of each."""

    dir: str | None = None
    how: Literal["slem", "tli", "omni"] | None = None
    frames: Annotated[int, FRAMES] | None = None
    pixels: Count | None = None


def check(spec: Spec, settings: ModelSettings, target: str | None) -> None:
    """Check a model's folder."""
    if not settings.dir:
        raise CrossdraftError("The drafter 'model' needs a folder; write model:dir=FOLDER.")
    folder = shipped_or_found(settings.dir, ("text",))
    check_files(folder)
    if (settings.frames or settings.pixels) and target_class(folder) == TEXT_CLASS:
        raise CrossdraftError(f"{folder} holds a text model, which sees nothing; leave out frames and pixels.")
    config = read_config(folder)
    room = (config.get("text_config") or config).get("max_position_embeddings")
    if settings.frames and isinstance(room, int) and settings.frames >= room:  # each is a token at least
        raise CrossdraftError(
            f"model:frames={settings.frames} are more than the {room} positions that {folder} has; give fewer."
        )


def build_text(spec: Spec, settings: TextSettings, context: DrafterContext) -> "Drafter[Any]":
    """Build the drafter of the reference pair's text model."""
    return _loaded("text", ModelSettings(how=settings.how), context)


def build_model(spec: Spec, settings: ModelSettings, context: DrafterContext) -> "Drafter[Any]":
    """Build the drafter of a language model or video VLM from a folder."""
    check(spec, settings, context.target)
    return _loaded(str(settings.dir), settings, context)


def _loaded(source: str, settings: ModelSettings, context: DrafterContext) -> "Drafter[Any]":
    from crossdraft.drafters.cross_vocab.vocabulary import target_table
    from crossdraft.drafters.language_model.load import load_model_drafter

    return load_model_drafter(
        source,
        target_table(context),
        settings.how,
        context.device,
        context.dtype,
        packed=context.packed,
        quantize=context.quantize,
        compiled=context.compile,
        frames=settings.frames,
        pixels=settings.pixels,
    )


RECORDS = (
    Method(
        "text", "a tiny text model of the reference pair, with a vocabulary of its own",
        "SLEM, TLI: Timor 2025; OmniDraft 2025", build_text,
        settings=TextSettings, trained=True, model="text", examples=("text", "text:how=tli", "text:how=omni"),
    ),
    Method(
        "model", "a language model, or a smaller VLM for a larger one, from a folder (model:dir=FOLDER,how=slem)",
        "SpS: Leviathan, Chen 2023", build_model, check=check,
        settings=ModelSettings, trained=True, senses=("video",), weights={"dir": ""},
        examples=(),  # it needs a folder; it drafts as `text` does
    ),
)  # fmt: skip
