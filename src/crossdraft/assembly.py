"""Assembly of a drafter's runner from its spec; here alone it is decided in which process each part runs."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from crossdraft.engine.devices import memory_bytes, usable_device
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.fast.cores import available_cores
from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.engine.runner.restarts import RESTARTS, Restarts
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.methods import METHODS, build_spec, needs_target, repays_a_core
from crossdraft.options import Options
from crossdraft.records import DrafterContext
from crossdraft.specs import Spec

CACHE_SHARE = 10  # the prefix cache gets a tenth of a device's memory


def assemble(
    drafter: Spec | Drafter[Any], context: DrafterContext, target: Target, options: Options
) -> DraftRunner[Any]:
    """Make a drafter's runner; each part of the drafter runs where its spec says, else where the options say.

    Args:
        drafter: spec of the drafter, or a finished drafter, which runs in this process.
        context: the target and the device that the drafter is made for.
        target: the target to draft for.
        options: as `decided` leaves them: `placement` is not `auto`.

    Raises:
        CrossdraftError: as `methods.build`, or a part cannot run where it is said to.
    """
    device = usable_device(options.draft_device or target.device, "draft_device")
    if not isinstance(drafter, Spec):
        return DraftRunner(drafter, options.hidden, device, restarts=Restarts(RESTARTS))
    context = replace(
        context,
        device=options.draft_device or options.device or context.device,
        dtype=options.draft_dtype or options.dtype or context.dtype,
        quantize=draft_quantization(options),
        compile=options.compile and torch.device(device).type == target.device.type,
        vocab_size=target.vocab_size,
        eos=tuple(sorted(target.eos)),
        banned=tuple(sorted(target.reserved)),
        num_frames=options.num_frames or context.num_frames,
        fps=options.fps or context.fps,
        cache_bytes=cache_bytes(options, device),
        methods={**METHODS.added, **context.methods},
    )
    spec = located(drafter, options.placement)
    cores = draft_cores(options)
    workers: list[ProcessDrafter] = []

    def remote(part: Spec) -> Drafter[Any]:
        worker = ProcessDrafter(
            partial(build_spec, part, context),
            cores,
            lent_cores=options.target_cores if _on_cpu(options.draft_device or options.device) else None,
        )
        workers.append(worker)
        return worker

    try:
        made = build_spec(spec, replace(context, host=target, remote=remote))
    except BaseException:
        for worker in workers:
            worker.close()
        raise
    return DraftRunner(made, options.hidden, device, workers, Restarts(RESTARTS))


def cache_bytes(options: Options, device: torch.device) -> int:
    """Budget in bytes of a prefix cache on a device: the options' own, else a tenth of the device's memory."""
    return memory_bytes(device) // CACHE_SHARE if options.cache_bytes is None else options.cache_bytes


def located(spec: Spec, placement: str) -> Spec:
    """Return the spec with `@process` at the parts that run in a process of their own.

    Under `process` that is the whole drafter, unless a part of it looks into the target: then it is every other part
    that runs a network.

    >>> from crossdraft.specs import parse
    >>> texts = "union:event,memory", "union:glance,eagle2,memory", "eagle2", "phased:event@process,memory"
    >>> for text in texts:
    ...     print(located(parse(text), "process"), "|", located(parse(text), "inline"))
    (union:event,memory)@process | union:event,memory
    union:glance@process,eagle2,memory | union:glance,eagle2,memory
    eagle2 | eagle2
    phased:event@process,memory | phased:event@process,memory

    Raises:
        CrossdraftError: a part that is said to run in a process of its own looks into the target, or holds another one.
    """
    if spec.runs_in == "process":
        if needs_target(spec):
            raise CrossdraftError(
                f"'{spec}' looks into the target and runs in its process; leave out '@process', or say it of a part "
                "that does not."
            )
        if any(_names_process(part) for part in spec.parts):
            raise CrossdraftError(f"In '{spec}' one process would hold another; say '@process' once.")
        return spec
    if spec.runs_in == "inline":
        return spec
    if placement == "process" and not needs_target(spec) and not any(_names_any(part) for part in spec.parts):
        return replace(spec, runs_in="process")
    return replace(spec, parts=tuple(_located_part(part, placement) for part in spec.parts))


def _located_part(part: Spec, placement: str) -> Spec:
    alone = placement == "process" and part.runs_in is None and not part.parts and not repays_a_core(part)
    return part if alone else located(part, placement)


def _names_any(spec: Spec) -> bool:
    return spec.runs_in is not None or any(map(_names_any, spec.parts))


def _names_process(spec: Spec) -> bool:
    return spec.runs_in == "process" or any(map(_names_process, spec.parts))


def decided(options: Options, spec: Spec | None) -> Options:
    """Return the options with the placement `auto` decided, and the cores that follow from the placement.

    Raises:
        CrossdraftError: a drafter in the target's process has cores of its own, or one in a process of its own is to
            draft before the prefill.
    """
    in_process = spec is not None and _names_process(spec)
    if spec is not None and spec.runs_in == "process" and options.hidden == "before":
        raise CrossdraftError(f"hidden is 'before', which is for an inline drafter, and {spec} is not; leave out one.")
    if spec is not None and options.placement == "inline" and not in_process and options.draft_cores:
        raise CrossdraftError(
            "draft_cores and placement exclude each other where the placement is inline, as draft_cores is for a "
            "drafter in a process of its own; leave out one of them."
        )
    if options.placement == "inline" or (options.placement == "process" and spec is not None):
        return options
    allowed = available_cores()
    on_cpu = _on_cpu(options.draft_device or options.device)
    fits = spec is not None and repays_a_core(spec) and options.hidden == "auto" and len(allowed) > 1 and on_cpu
    if options.placement == "process" or not (in_process or fits):
        return replace(options, placement="inline", draft_cores=None)
    if options.target_cores is None and _on_cpu(options.device) and on_cpu and len(allowed) > 1:
        draft = options.draft_cores or allowed[-1:]
        own = tuple(core for core in allowed if core not in draft) or allowed
        options = replace(options, target_cores=own, draft_cores=draft)
    return replace(options, placement="process" if fits else "inline")


def draft_quantization(options: Options) -> str | None:
    """Return the drafter's quantisation: its own option, else the target's.

    >>> both, one = Options(quantize="int8"), Options(quantize="int8", draft_quantize="none")
    >>> draft_quantization(both), draft_quantization(one)
    ('int8', None)
    """
    chosen = options.draft_quantize or options.quantize
    return None if chosen == "none" else chosen


def draft_cores(options: Options) -> tuple[int, ...] | None:
    """The CPU cores of a drafter in its own process: those named, else those that the target leaves; `None` = all."""
    if options.draft_cores or options.target_cores is None:
        return options.draft_cores
    allowed = available_cores()
    return tuple(core for core in allowed if core not in options.target_cores) or allowed


def _on_cpu(device: str | None) -> bool:
    return device == "cpu" or (device is None and not torch.cuda.is_available())
