"""Steps that `ask`, `chat` and `demo` share: choose a drafter, load a pair, warm it up, stream an answer."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console

from crossdraft.api import ENCODES_CLIPS, USUAL, Engine, Options, default_drafter
from crossdraft.checks import spans
from crossdraft.cli.cores import choose_cores
from crossdraft.cli.options import PairOptions, check_recorded
from crossdraft.cli.reporting import hush, waiting
from crossdraft.cli.view import live_view
from crossdraft.drafters.event.load import check_event_drafter
from crossdraft.engine.request import Answer, Request
from crossdraft.engine.runner.runner import refusals_unlogged
from crossdraft.errors import CrossdraftError
from crossdraft.methods import METHODS, check_spec, read_spec, reads_events

WARM_UP_TOKENS = 4


def why_not_usual(pair: PairOptions, *, events: bool) -> str | None:
    """Reason why the chosen drafter is not the usual one; `None` if it is, or if the user named it.

    Args:
        pair: options as the user gave them.
        events: true if there is an event recording.
    """
    if pair.drafter is not None:
        return None
    if pair.target != "reference":
        own = "the checkpoint brings its layers for multi-token prediction"
        others = "the target is your own and it needs neither events nor training; it gains little on a first question"
        return own if default_drafter(pair.target, pair.options) == "mtp" else others
    if not events:
        return f"there is no event recording (--events), which {default_drafter(pair.target)} reads"
    if default_drafter(pair.target) != USUAL:
        return f"{USUAL} needs transformers {ENCODES_CLIPS} or later"
    return None


def with_drafter(pair: PairOptions, *, events: bool, quiet: bool = False) -> PairOptions:
    """Complete a pair with its drafter: the named one, or the one that fits target and files.

    Args:
        events: true if there is an event recording.
        quiet: do not explain an unusual choice on stderr.

    Raises:
        CrossdraftError: the named drafter is unknown, or reads events and there is no recording.
    """
    if pair.drafter is None:
        chosen = default_drafter(pair.target, pair.options, events=events)
        if pair.target != "reference" and not quiet:
            print(
                f"Drafter: {chosen}, because {why_not_usual(pair, events=events)}. `crossdraft drafters` lists the "
                "others.",
                file=sys.stderr,
            )
        return replace(pair, drafter=chosen)
    if pair.drafter == "none":
        return pair
    hush()
    spec = read_spec(pair.drafter)
    check_spec(spec)
    if not events and reads_events(spec):
        ours = [METHODS[name] for name in spec.names if name in METHODS]  # a folder may hold a blind one
        if "model=" not in pair.drafter and any(method.task == "events" for method in ours):
            check_event_drafter("event", pair.target)  # a head on another vocabulary: a recording would not help either
        check_recorded(spec, events=False)
    return pair


def described(pair: PairOptions, engine: Engine) -> str:
    """Describe for people which drafter runs, its kind, and its place."""
    if pair.drafter is None or pair.drafter == "none" or engine.drafter is None:
        return f"No drafter: the target {pair.target} answers alone."
    method = METHODS.get(read_spec(pair.drafter).name)
    what = "a folder" if method is None else method.summary
    options = engine.options
    where = "in the target's process" if options.placement == "inline" else "in a process of its own"
    cores = "" if options.draft_cores is None else f" on CPU core {spans(options.draft_cores)}"
    target = "" if options.target_cores is None else f" on CPU core {spans(options.target_cores)}"
    return f"{pair.drafter} ({what}), {where}{cores}; the target {pair.target}{target}."


def engine_options(pair: PairOptions) -> Options:
    """The engine's options, with cores for both sides where some are named, or a process."""
    options = pair.options
    if not (options.target_cores or options.draft_cores or options.placement == "process"):
        return options
    cores = choose_cores(options.target_cores, options.draft_cores, all_target=True)
    draft = options.draft_cores if options.placement == "inline" else cores.draft
    return replace(options, target_cores=cores.target, draft_cores=draft)


@contextmanager
def opened(pair: PairOptions, warm_up: Request) -> Iterator[Engine]:
    """Load an engine and warm it up: `warm_up` is begun once, so that first-time costs are paid.

    Loading shows on stderr. The drafter's process ends with the context.
    """
    hush()
    options = engine_options(pair)
    with waiting("loading the models and compiling passes" if options.compile else "loading the models"):
        engine = Engine.load(pair.target, None if pair.drafter == "none" else pair.drafter, options)
    with engine:
        with waiting("warming up"):
            tokens = min(WARM_UP_TOKENS, warm_up.token_limit)
            again = replace(warm_up, max_new_tokens=tokens, namespace=None)  # so that no drafter learns from it
            with refusals_unlogged():
                error = engine.generate(again).drafter_error
        if error is not None and engine.drafter is not None:  # the drafter refuses this request only
            raise CrossdraftError(f"The drafter cannot use what was given: {error}. Mend that, or say --drafter none.")
        if error is not None:
            raise CrossdraftError(
                f"While warming up, the drafter failed: {error}. Try --placement inline, or --drafter none."
            )
        yield engine


def stream(engine: Engine, request: Request, console: Console | None) -> Answer:
    """Answer a request and show its pieces on a console as they come, in colours if it has any; None = show nothing."""
    pieces = engine.stream(request)
    with live_view(console) as show:
        for piece in pieces:
            show(piece)
    if pieces.answer is None:
        raise CrossdraftError("The answer was cancelled before it began.")
    return pieces.answer
