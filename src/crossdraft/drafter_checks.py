"""Checks of drafters' settings before any model is loaded: folders, files, and settings that exclude each other.

PyTorch is not imported, but to look for a GPU, so that what cannot work is refused at once. What builds a drafter
checks its files again.
"""

import re
from importlib.metadata import version
from typing import Any

from crossdraft.checkpoints.files import check_files
from crossdraft.checkpoints.locate import TARGETS, shipped_at, shipped_or_found
from crossdraft.checkpoints.models import check_event_model
from crossdraft.drafters import settings
from crossdraft.errors import CrossdraftError
from crossdraft.files import fingerprint
from crossdraft.heads.folders import check_event_head, check_head, check_trained_for, head_json
from crossdraft.heads.registry import HEADS, weights_of
from crossdraft.specs import Spec

CPU, CUDA = re.compile(r"cpu(:\d+)?"), re.compile(r"cuda(:\d+)?")


def event(spec: Spec, options: settings.EventSettings, target: str | None) -> None:
    """An EventGPT by its name or folder, and how it drafts."""
    branches = options.tree is not None or (options.words or 1) > 1
    if options.words is not None and options.tree is not None:
        raise CrossdraftError(f"'{spec}' asks for trees in two ways; give words or tree, not both.")
    if options.counts and options.tree != "sequoia":
        raise CrossdraftError(f"In '{spec}' counts are for tree=sequoia; leave them out.")
    if options.how is not None and branches:
        raise CrossdraftError(
            f"'{spec}' asks for a tree, but what crosses vocabularies is a chain; leave out how, or words and tree."
        )
    if options.patches is not None and options.slices is None:
        raise CrossdraftError(f"In '{spec}' patches are of slices; give slices too, or leave them out.")
    if options.dir is not None and spec.name != "event":
        raise CrossdraftError(f"'{spec}' names two models; write event:dir={options.dir}.")
    if options.counts is not None and not options.counts.is_file():
        raise CrossdraftError(f"'{spec}' names counts that are not there, {options.counts}; check the path.")
    check_event_model(options.dir or spec.name)


def model(spec: Spec, options: settings.ModelSettings, target: str | None) -> None:
    """A language model or video VLM from a folder."""
    if not options.dir:
        raise CrossdraftError("The drafter 'model' needs a folder; write model:dir=FOLDER.")
    check_files(shipped_or_found(options.dir, ("text",)))


def head(spec: Spec, options: Any, target: str | None) -> None:
    """A head on the target's features, or PaSS's look-ahead embeddings."""
    folder = options.dir or shipped_at(f"heads/{weights_of(spec.name)}")
    found = head_json(folder)
    check_head(folder, found["network"], HEADS[spec.name].network if spec.name in HEADS else spec.name)
    if target is not None:
        check_trained_for(folder, str(found.get("target", "")), fingerprint(shipped_or_found(target, TARGETS)))


def event_head(spec: Spec, options: Any, target: str | None) -> None:
    """A head on an event model."""
    own = check_event_model(options.model)
    folders = [(spec.name, options.dir)]
    if getattr(options, "heads", None) is not None:
        folders.append(("event_medusa", options.heads))
    for network, given in folders:
        folder = given or shipped_at(f"heads/{network}")
        found = head_json(folder)
        check_head(folder, found["network"], network)
        check_event_head(folder, str(found.get("target", "")), fingerprint(own), options.model)


def memory(spec: Spec, options: settings.MemorySettings, target: str | None) -> None:
    """The folder where answers are kept, and the seed."""
    if options.folder is not None and options.folder.exists() and not options.folder.is_dir():
        raise CrossdraftError(f"'{spec}' keeps answers in {options.folder}, which is no folder; name another.")
    if options.seed is not None and not options.seed.exists():
        raise CrossdraftError(
            f"The seed {options.seed} of the memory is not there; name a folder of crossdraft capture, or a file of "
            "crossdraft bench --record."
        )


def check_device(option: str, device: str) -> None:
    """Refuse a device that is not here; a GPU where PyTorch is built for CPUs, or no driver is installed, at once.

    Raises:
        CrossdraftError: as `engine.devices.usable_device`.
    """
    if CPU.fullmatch(device):
        return
    if CUDA.fullmatch(device) and version("torch").endswith("+cpu"):
        raise CrossdraftError(f"{option} is '{device}', which cannot be used here; choose cpu.")
    from crossdraft.engine.devices import usable_device

    usable_device(device, option)
