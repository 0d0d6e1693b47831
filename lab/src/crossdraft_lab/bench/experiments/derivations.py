"""Arithmetic that claims about speculative decoding are held against: the formulas of `engine.estimates`, by name."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from crossdraft.engine.estimates import expected_accepted, hidden_time, hiding_bound, steady_speedup
from crossdraft.errors import CrossdraftError

MOST = 64  # drafted tokens of a round that are tried
HALVINGS = 60


def ratio(top: float, bottom: float) -> float:
    """A quotient of two times or sizes."""
    return top / bottom


def total(parts: Sequence[float]) -> float:
    """A sum of times, sizes or shares."""
    return math.fsum(parts)


def product(factors: Sequence[float]) -> float:
    """So many of a size each."""
    return math.prod(factors)


def amdahl(share: float, factor: float) -> float:
    """Speed-up where a share of the time becomes so many times as fast (Amdahl 1967).

    >>> amdahl(0.5, 2.0)
    1.3333333333333333
    """
    return 1 / (1 - share + share / factor)


def accepted(alpha: float, drafted: int) -> float:
    """E[a]: the expected accepted prefix of a chain."""
    return expected_accepted([alpha] * drafted)


def emitted(alpha: float, gamma: int) -> float:
    """Tokens of a round of γ drafted ones, the bonus included."""
    return 1 + accepted(alpha, gamma)


def steady(alpha: float, c: float, verify: float, gamma: int | None = None) -> float:
    """S of rounds of γ drafted tokens, or of the best γ; `verify` is V(γ+1)/t whatever γ is."""
    lengths = range(1, MOST + 1) if gamma is None else (gamma,)
    return max(steady_speedup(alpha, length, c, verify) for length in lengths)


def least_alpha(c: float, verify: float, gamma: int | None = None) -> float:
    """The acceptance at which rounds break even, by halving.

    >>> round(least_alpha(0.93, 1.0), 3), round(least_alpha(0.93, 1.0, gamma=5), 3)
    (0.93, 0.976)
    """
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if steady(middle, c, verify, gamma) > 1 else (middle, high)
    return high


def hidden(prefill: float, drafting: float, verify: float, accepted: float, tokens: int, step: float) -> float:
    """T of an answer with one hidden draft."""
    return hidden_time(prefill, drafting, verify, accepted, tokens, step)


def hiding_speedup(prefill: float, step: float, verify: float, alpha: float, drafted: int, tokens: int) -> float:
    """S of one hidden draft that costs nothing: P_T + (N − 1)·t over T; the first token is the prefill's own.

    >>> round(hiding_speedup(568, 35, 35, 0.8, 28, 50), 2)
    1.07
    """
    alone = prefill + (tokens - 1) * step
    return alone / hidden_time(prefill, 0.0, verify, accepted(alpha, drafted), tokens, step)


def bound(prefill: float, total: float) -> float:
    """1/ρ."""
    return hiding_bound(prefill, total)


DERIVATIONS: Mapping[str, Callable[..., float]] = MappingProxyType(
    {
        "ratio": ratio,
        "sum": total,
        "product": product,
        "amdahl": amdahl,
        "accepted": accepted,
        "emitted": emitted,
        "steady": steady,
        "least alpha": least_alpha,
        "hidden": hidden,
        "hiding speedup": hiding_speedup,
        "bound": bound,
    }
)


def derived(settings: Mapping[str, object]) -> float:
    """The value of a derivation: `kind` names it, the rest is what it takes.

    >>> derived({"kind": "accepted", "alpha": 0.5, "drafted": 2})
    0.75

    Raises:
        CrossdraftError: there is no such kind, or it takes something else.
    """
    kind = settings.get("kind")
    if kind not in DERIVATIONS:
        raise CrossdraftError(f"There is no derivation '{kind}'; choose among {', '.join(DERIVATIONS)}.")
    try:
        return DERIVATIONS[str(kind)](**{name: value for name, value in settings.items() if name != "kind"})
    except TypeError as error:
        raise CrossdraftError(f"The derivation '{kind}' takes other settings: {error}.") from error
