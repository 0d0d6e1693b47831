"""Methods by name, and where a drafter's spec has to run."""

from collections.abc import Sequence

from crossdraft.errors import CrossdraftError
from crossdraft.methods import METHODS as DRAFTERS
from crossdraft.methods import check_spec, methods_in, read_spec, reads_events, repays_a_core
from crossdraft.specs import Spec
from crossdraft_lab.bench.common import check_each_once, check_names

ALONE = ("target", "target-all")  # the target without a drafter: on its own share of the pair's cores, and on all
FORCED = "forced"  # the target with what a structure forces, and no drafter
LLAMA, LLAMA_DRAFTED, VLLM = "llama.cpp", "llama.cpp-draft", "vllm"
PEERS = (LLAMA, LLAMA_DRAFTED, VLLM)  # other programs, which an option names
UNDRAFTED = (*ALONE, "hf", "hf-all", LLAMA, VLLM)  # every way to run the target alone
ON_ALL_CORES = frozenset(("target-all", "hf-all"))
ON_TARGETS_CORES = frozenset(("target", "hf"))  # unlike the methods above, which use all of the pair's
HUGGING_FACE = frozenset(("hf", "hf-all", "hf-lookup", "hf-assisted"))
PROMPT_METHODS = (*ALONE, "hf", "hf-all", "hf-lookup", "ngram")  # for prompts
ALWAYS = ("target", "target-all", "hf", "hf-all", "hf-lookup", "blind")  # methods that every comparison should include
METHODS = (
    "target", "target-all", "hf", "hf-all", "hf-lookup", "hf-assisted", "blind", "event-inline", "event", "glance",
)  # fmt: skip
EVENT_METHODS = ("event-inline", "hf-assisted")  # no specs; they use the event model
# In addition every drafter of ours with an example, except trained heads, which `bench heads` compares.
_OURS = (name for name, method in DRAFTERS.items() if method.examples and not method.network)
ALL_METHODS = tuple(dict.fromkeys((*METHODS, FORCED, *_OURS)))
LISTED_BY = "crossdraft bench --help"


def spec_of(name: str) -> Spec:
    """Find the drafter of a name: a method's example, a folder, or a spec.

    >>> str(spec_of("union")), str(spec_of("union:ngram,memory"))
    ('union:event,memory', 'union:ngram,memory')

    Raises:
        CrossdraftError: the name cannot be read, or names a drafter or a setting that does not exist.
    """
    method = DRAFTERS.get(name)
    spec = read_spec(method.examples[0] if method is not None and method.examples else name)
    check_spec(spec)
    return spec


def needs_no_process(spec: Spec) -> bool:
    """True if no part of a spec runs a network of its own apart from the target's states, as `repays_a_core` says.

    >>> [needs_no_process(spec_of(text)) for text in ("union:ngram,memory", "eagle2", "event", "event@inline")]
    [True, True, False, True]
    """
    return spec.runs_in == "inline" or not repays_a_core(spec)


def runs_in_process(name: str) -> bool:
    """True if the method of this name has a drafter in a process of its own.

    >>> names = "target", "hf", "event-inline", "event", "memory", "union:event,ngram"
    >>> [name for name in names if runs_in_process(name)]
    ['event', 'union:event,ngram']
    """
    undrafted = {*HUGGING_FACE, *ALONE, *PEERS, FORCED, "event-inline"}
    return name not in undrafted and not needs_no_process(spec_of(name))


def usual_methods(
    *, shipped: bool, more_cores: bool, in_words: bool = False, structured: bool = False
) -> tuple[str, ...]:
    """List the names of `METHODS` that can run here and differ from one another.

    Args:
        shipped: true if target and event drafter are the package's own, for which heads were trained.
        more_cores: true if the pair has more cores than its target.
        in_words: true if prompts are asked.
        structured: true if answers have structures.

    >>> usual_methods(shipped=False, more_cores=False)
    ('target', 'hf', 'hf-lookup', 'hf-assisted', 'blind', 'event-inline', 'event')
    """
    pairs_own = {name for name in METHODS if name in DRAFTERS and DRAFTERS[name].network}
    words = (*PROMPT_METHODS, *([FORCED] if structured else []))
    names = words if in_words else [name for name in METHODS if shipped or name not in pairs_own]
    return tuple(name for name in names if more_cores or name not in ON_ALL_CORES)


def needs_events(name: str) -> bool:
    """True if a method cannot run without an event recording; see `methods.reads_events`.

    >>> [needs_events(name) for name in ("union:ngram,memory", "hf", "event-inline", "union:event,memory")]
    [False, False, True, True]
    """
    if name in (*UNDRAFTED, FORCED, "hf-lookup"):
        return False
    return name in EVENT_METHODS or reads_events(spec_of(name))


def is_blind(spec: Spec) -> bool:
    """True if the blind twin drafts and no other drafter sees events: the twin is then given blank events."""
    return "blind" in spec.names and not any("events" in method.senses for method in methods_in(spec))


def check_methods(names: Sequence[str], specs: Sequence[str] = ()) -> None:
    """Refuse names, and specs of further drafters, that cannot be compared; loads nothing.

    Raises:
        CrossdraftError: no name, an unknown one, a spec that cannot be read, or a name that is given twice.
    """
    if not names:
        raise CrossdraftError(f"No method is named; `{LISTED_BY}` lists them.")
    for index, name in enumerate(names):
        if ":" in name:  # a spec holds commas of its own, as in union:event,memory
            raise CrossdraftError(
                f"'{name}' is a drafter's spec, and --methods takes names; write --drafter {','.join(names[index:])}."
            )
    check_names("method", names, ALL_METHODS, LISTED_BY)
    for spec in specs:
        spec_of(spec)
    check_each_once("method", (*names, *specs))
