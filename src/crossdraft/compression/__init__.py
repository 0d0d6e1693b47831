"""Targets that read fewer visual tokens. LOSSY: the target itself changes, and so do its answers.

What is drafted for such a target is verified by it: drafting is lossless with respect to the compressed target, never
to the one that it was made of. These are baselines (compression without drafting, and with it), not ways to draft.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from crossdraft.align.prefill import READ_WHOLE, PrefillSettings, SpeculativePrefill
from crossdraft.checks import did_you_mean, text
from crossdraft.compression.fastv import FastVSettings, FastVTarget
from crossdraft.compression.frames import FewerFramesTarget, FramesSettings
from crossdraft.compression.packer import TokenPackerSettings, TokenPackerTarget
from crossdraft.compression.pool import PooledTarget, PoolSettings
from crossdraft.compression.visionzip import VisionZipSettings, VisionZipTarget
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.specs import parse, read_settings

COMPRESSION = "compression"


@dataclass(frozen=True)
class Compression:
    """A way to compress what a target sees.

    Args:
        name: what a spec calls it.
        summary: one line for the table.
        paper: where it comes from.
        settings: a frozen dataclass of what may be set.
        make: the compressed target, of the target and the settings.
        trained: whether it has weights of its own, which are of one target.
    """

    name: str
    summary: str
    paper: str
    settings: type[Any]
    make: Callable[[Target, Any], Target]
    trained: bool = False


COMPRESSIONS: Mapping[str, Compression] = MappingProxyType(
    {
        one.name: one
        for one in (
            Compression(
                "fastv",
                "after some layers, the visual tokens that the prompt's last token attends to least are dropped",
                "FastV, Chen et al. 2024", FastVSettings, FastVTarget,
            ),
            Compression(
                "visionzip",
                "of each frame those patches are left that its class token attends to most, and a few into which the "
                "others are merged",
                "VisionZip, Yang et al. 2024", VisionZipSettings, VisionZipTarget,
            ),
            Compression(
                "pool",
                "a frame's patches are downsampled before the language model (TokenPacker's queries, without its "
                "trained attention to the patches)",
                "after TokenPacker, Li et al. 2024", PoolSettings, PooledTarget,
            ),
            Compression(
                "token_packer",
                "the same, and each token then attends to the patches that it stands for "
                "(trained for one target: token_packer:dir=FOLDER, of `crossdraft train token_packer`)",
                "TokenPacker, Li et al. 2024", TokenPackerSettings, TokenPackerTarget, trained=True,
            ),
            Compression(
                "frames", "fewer frames of the clip are read", "crossdraft", FramesSettings, FewerFramesTarget,
            ),
            Compression(
                "predicted",
                "visual tokens predicted from events stand for the clip, or for all but a few key frames, where a gate "
                "that sees the events alone is confident (trained for one pair: predicted:dir=FOLDER)",
                "crossdraft", PrefillSettings, SpeculativePrefill, trained=True,
            ),
        )
    }
)  # fmt: skip


def settings_of(spec: str) -> tuple[Compression, Any]:
    """A compression and its settings, of a spec such as `fastv:keep=0.5`.

    Raises:
        CrossdraftError: no compression or setting has the name, or a value is out of range.
    """
    read = parse(text("compression", spec, "fastv:keep=0.5"), COMPRESSION)
    if read.name not in COMPRESSIONS:
        raise CrossdraftError(
            f"There is no compression '{read.name}'{did_you_mean(read.name, COMPRESSIONS)}; choose one of: "
            f"{', '.join(COMPRESSIONS)}."
        )
    if read.parts or read.runs_in is not None:
        raise CrossdraftError(f"The compression '{spec}' takes settings alone, such as fastv:keep=0.5.")
    found = COMPRESSIONS[read.name]
    return found, read_settings(found.settings, read, COMPRESSION)


def compressed(target: Target, spec: str) -> Target:
    """A target of the same model that reads fewer visual tokens; the target itself stays what it is.

    Each of its answers says so in its notes, and is not `lossless`, but for those whose prompt was read whole.

    Raises:
        CrossdraftError: as `settings_of`, or the model is none that can be compressed so.
    """
    found, settings = settings_of(spec)
    made = found.make(target, settings)
    made.prepare = CompressedPrompt(made.prepare, without_paths(spec), made.traits.visual_ids)
    return made


def without_paths(spec: str) -> str:
    """A spec without those settings that name files of this machine: answers say it, also to a server's clients.

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
        spec: of the compression, as answers say it; see `without_paths`.
        visual: ids that stand for what is visual.
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
