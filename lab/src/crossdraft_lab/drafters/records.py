"""The laboratory's drafters: one record each, with its check and its builder. Nothing heavy is imported."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from crossdraft.builders import DrafterContext, build_head
from crossdraft.checkpoints.models import check_event_model, check_target
from crossdraft.drafters.settings import HeadSettings
from crossdraft.errors import CrossdraftError
from crossdraft.heads.folders import head_json
from crossdraft.heads.registry import HEADS
from crossdraft.methods import Method
from crossdraft.specs import Spec, read_settings
from crossdraft_lab import networks
from crossdraft_lab.drafters import settings

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter


def check_guided(spec: Spec, options: settings.GuidedSettings, target: str | None) -> None:
    """A video VLM from a folder, or the target itself."""
    if options.dir is not None:
        check_target(options.dir)


def check_aligned(spec: Spec, options: settings.AlignedSettings, target: str | None) -> None:
    """An adapter between an event model and the target."""
    if options.dir is None:
        raise CrossdraftError(f"The drafter '{spec.name}' needs the folder of an adapter; write aligned:dir=FOLDER.")
    found = head_json(options.dir)["network"]
    if found not in networks.ALIGNED:
        raise CrossdraftError(
            f"{options.dir} holds a head of the network '{found}', not an adapter ({', '.join(networks.ALIGNED)})."
        )
    check_event_model(options.model)


def check_predicted(spec: Spec, options: settings.PredictedSettings, target: str | None) -> None:
    """An adapter on the vision side."""
    if options.dir is not None:
        found = head_json(options.dir)["network"]
        if found not in networks.VISION_ADAPTERS:
            raise CrossdraftError(
                f"{options.dir} holds a head of the network '{found}', not an adapter on the vision side "
                f"({', '.join(networks.VISION_ADAPTERS)})."
            )
    check_event_model(options.model)


def check_online(spec: Spec, options: settings.OnlineSettings, target: str | None) -> None:
    """A head that learns, and where it is saved."""
    if spec.parts[0].name not in HEADS:
        raise CrossdraftError(f"'{spec}' must name one head that is to learn, such as online:eagle2.")
    if options.save is not None and options.save.exists() and not options.save.is_dir():
        raise CrossdraftError(f"'{spec}' saves its weights in {options.save}, which is no folder; name another.")


def join_iid(parts: "Sequence[Drafter[Any]]", options: settings.IidSettings, context: DrafterContext) -> "Drafter[Any]":
    """A model's trees of independent siblings."""
    from crossdraft.drafters.independent import IndependentDrafter
    from crossdraft_lab.drafters.iid import IndependentChildrenDrafter

    (drafter,) = parts
    if not isinstance(drafter, IndependentDrafter):
        raise CrossdraftError(
            "The drafter that iid draws trees with must be a model of the target's own vocabulary that drafts token by "
            "token, and runs where iid does, such as event; write iid:event or (iid:event)@process."
        )
    return IndependentChildrenDrafter(drafter.model, options.width, context.banned)


def build_guided(spec: Spec, options: settings.GuidedSettings, context: DrafterContext) -> "Drafter[Any]":
    """A VLM that reads the visual tokens to which the target attends; without a folder the target itself."""
    from crossdraft.load import load_target
    from crossdraft_lab.drafters.guided import GuidedDrafter

    target = model = context.load_host()
    if options.dir is not None:
        device, dtype = context.device, context.dtype
        model = load_target(options.dir, device, dtype, packed=context.packed, quantize=context.quantize)
    return GuidedDrafter(model, target, context.banned, layers=options.layers, keep=options.keep, mass=options.mass)


def build_partial(spec: Spec, options: settings.PartialSettings, context: DrafterContext) -> "Drafter[Any]":
    """The target itself over a part of its keys and values."""
    from crossdraft_lab.drafters.partial import PartialDrafter

    return PartialDrafter(context.load_host(), context.banned, options)


def build_aligned(spec: Spec, options: settings.AlignedSettings, context: DrafterContext) -> "Drafter[Any]":
    """An event model whose features an adapter translates into the target's."""
    from crossdraft_lab.align.drafter import AlignedOptions
    from crossdraft_lab.align.load import load_aligned_drafter

    check_aligned(spec, options, context.target)
    return load_aligned_drafter(
        cast("Path", options.dir),
        context.source,
        options.model,
        context.device,
        context.dtype,
        AlignedOptions(context.banned, options.words or 1, options.alone, context.host),
        context.read_tokenizer().get_vocab(),
        packed=context.packed,
        quantize=context.quantize,
    )


def build_predicted(spec: Spec, options: settings.PredictedSettings, context: DrafterContext) -> "Drafter[Any]":
    """The target's own language model after predicted visual tokens."""
    from crossdraft_lab.align.predicted import load_predicted_drafter, shipped_vision

    return load_predicted_drafter(
        options.dir or shipped_vision(context.source),
        context.load_host(),
        context.source,
        options.model,
        context.read_tokenizer(),
        context.banned,
        words=options.words or 1,
        packed=context.packed,
    )


def build_online(spec: Spec, options: settings.OnlineSettings, context: DrafterContext) -> "Drafter[Any]":
    """A head that is trained while it serves."""
    from crossdraft.heads.drafting.head_drafter import HeadDrafter
    from crossdraft_lab.drafters.online import load_learning_drafter

    (head,) = spec.parts
    check_online(spec, options, context.target)
    host = context.load_host()
    # Packed layers could not be written to.
    own = replace(context, host=host, packed=False)
    drafter = build_head(head, read_settings(HeadSettings, head), own)
    if not isinstance(drafter, HeadDrafter):
        raise CrossdraftError(
            f"The drafter '{head.name}' cannot learn while it serves; online takes heads such as eagle2."
        )
    network, source = HEADS[head.name].network, context.source
    return load_learning_drafter(
        drafter, network, host, source, options.seconds, options.keep, options.rate, options.save
    )


IID = Method(
    "iid", "a model that draws siblings independently, for the rule kseq (iid:event)", "SpecTr: Sun 2023",
    join=join_iid,
    settings=settings.IidSettings, joins=(1, 1), drafts_trees=True, has_network=False, examples=("iid:event",),
)  # fmt: skip
GUIDED = Method(
    "guided", "a small VLM that reads the visual tokens the target attends to (guided:dir=FOLDER)",
    "SpecVLM: Ji 2025", build_guided,
    check=check_guided,
    settings=settings.GuidedSettings, senses=("video",), needs_target=True, weights={"dir": ""},
)  # fmt: skip
PARTIAL = Method(
    "partial", "the target itself over a part of its keys and values (cascade:partial,event)",
    "SpecPV: Tan et al. 2025, lossless here", build_partial,
    settings=settings.PartialSettings, needs_target=True,
)  # fmt: skip
ALIGNED = Method(
    "aligned",
    "an event drafter whose features an adapter translates into the target's (aligned:dir=FOLDER,model=FOLDER)",
    "crossdraft; EAGLE: Li 2024", build_aligned,
    check=check_aligned,
    settings=settings.AlignedSettings, trained=True, senses=("events",), weights={"dir": ""}, model="event",
    examples=(),  # it needs an adapter; it drafts as `event` does
)  # fmt: skip
PREDICTED = Method(
    "predicted",
    "the target's own language model after visual tokens predicted from events; weighs as much as that",
    "crossdraft", build_predicted,
    check=check_predicted,
    settings=settings.PredictedSettings, trained=True, senses=("events",), weights={"dir": "vision_queries"},
    model="target", examples=(),  # it drafts as `view` does
)  # fmt: skip
ONLINE = Method(
    "online", "a head that is trained online while it serves (online:eagle2)",
    "Online speculative decoding: Liu 2024", build_online,
    check=check_online,
    settings=settings.OnlineSettings, joins=(1, 1), trained=True, drafts_trees=True, needs_target=True,
    examples=(),  # it drafts as its head does
)  # fmt: skip
