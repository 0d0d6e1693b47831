"""Who races under which name, and what a spec says of the way it has to run."""

from collections.abc import Sequence
from pathlib import Path

from crossdraft.bench.common import check_names
from crossdraft.errors import CrossdraftError
from crossdraft.methods import METHODS as DRAFTERS
from crossdraft.specs import Spec, parse

ALONE = ("target", "target-all")  # the target without a drafter: on its own share of the pair's cores, and on all
ON_ALL_CORES = frozenset(("target-all", "hf-all"))
HUGGING_FACE = frozenset(("hf", "hf-all", "hf-lookup", "hf-assisted"))
ALWAYS = ("target", "target-all", "hf", "hf-all", "hf-lookup", "blind")  # what every comparison should hold
METHODS = (
    "target", "target-all", "hf", "hf-all", "hf-lookup", "hf-assisted", "blind", "event-inline", "event", "glance",
)  # fmt: skip
# Our drafters by the name they race under, and what they are; see `crossdraft.methods`.
SPECS = {
    "blind": "blind",
    "event": "event",
    "glance": "glance",
    "ngram": "ngram",
    "memory": "memory",
    "text": "text",
    "union": "union:event,memory",
    "phased": "phased:event,(union:event,memory)",
    "choose": "choose:event,memory",
    "lookahead": "lookahead",
    "view": "view",
    "cascade": "cascade:event,memory",
    "pyramid": "pyramid:event,memory",
    "guided": "guided",
}
# The event drafter with another policy while the target verifies; see `crossdraft.engine.runner.parallel`.
POLICIES = {"event-sync": "off", "event-pipespec": "pipespec", "event-pearl": "pearl", "event-ssd": "ssd"}
ALL_METHODS = (*METHODS, *POLICIES, *(name for name in SPECS if name not in METHODS))
WITHOUT_MODEL = ("ngram", "memory", "lookahead")  # so cheap that a process of their own would cost more


def spec_of(name: str) -> Spec:
    """What drafts under that name: one of `SPECS`, a folder, or a spec itself.

    >>> str(spec_of("union")), str(spec_of("union:ngram,memory"))
    ('union:event,memory', 'union:ngram,memory')

    Raises:
        CrossdraftError: it cannot be read, or names a drafter that does not exist.
    """
    if name not in SPECS and Path(name).is_dir():
        return Spec(name)
    name = "event" if name in POLICIES else name
    spec = parse(SPECS.get(name, name))
    check_names("drafter", sorted(part for part in spec.names if not Path(part).is_dir()), tuple(DRAFTERS))
    return spec


def needs_no_process(spec: Spec) -> bool:
    """True if no model drafts anywhere in it.

    >>> needs_no_process(parse("union:ngram,memory")), needs_no_process(parse("union:event,memory"))
    (True, False)
    """
    return all(map(needs_no_process, spec.parts)) if spec.parts else spec.name in WITHOUT_MODEL


def runs_apart(name: str) -> bool:
    """True if what races under this name has a drafter in a process of its own.

    >>> [name for name in ("target", "hf", "event-inline", "event", "memory", "union:event,ngram") if runs_apart(name)]
    ['event', 'union:event,ngram']
    """
    return name not in {*HUGGING_FACE, *ALONE, "event-inline"} and not needs_no_process(spec_of(name))


def usual_methods(*, shipped: bool, more_cores: bool) -> tuple[str, ...]:
    """Those of `METHODS` that can race and say something of their own.

    Args:
        shipped: target and event drafter are those of the package, for which `glance` was trained.
        more_cores: the pair has more cores than its target.

    >>> usual_methods(shipped=False, more_cores=False)
    ('target', 'hf', 'hf-lookup', 'hf-assisted', 'blind', 'event-inline', 'event')
    """
    return tuple(name for name in METHODS if (shipped or name != "glance") and (more_cores or name not in ON_ALL_CORES))


def is_blind(spec: Spec) -> bool:
    """True if the blind twin drafts and nobody beside it sees events: a twin that could see is then shown none."""
    return "blind" in spec.names and "event" not in spec.names


def check_methods(names: Sequence[str], specs: Sequence[str] = ()) -> None:
    """Refuse names, and specs of further drafters, that make no race; loads nothing.

    Raises:
        CrossdraftError: no name, an unknown one, a spec that cannot be read, or one that stands there twice.
    """
    if not names:
        raise CrossdraftError(f"No method is named; choose among {', '.join(ALL_METHODS)}.")
    check_names("method", names, ALL_METHODS)
    for spec in specs:
        spec_of(spec)
    everybody = (*names, *specs)
    if len(set(everybody)) != len(everybody):
        raise CrossdraftError(f"A method is named twice in {', '.join(everybody)}; name each once.")
