"""Names that a user picks out of a few: taken apart, and refused in one sentence that helps."""

from collections.abc import Sequence
from difflib import get_close_matches

from crossdraft.errors import CrossdraftError


def listed(text: str | None) -> tuple[str, ...]:
    """The parts of a comma-separated list; none of `None`.

    >>> listed("hf, event")
    ('hf', 'event')
    """
    return tuple(part.strip() for part in text.split(",")) if text else ()


def numbers(option: str, text: str) -> tuple[float, ...]:
    """The numbers of a comma-separated list.

    >>> numbers("--temperatures", "0, 0.7")
    (0.0, 0.7)

    Raises:
        CrossdraftError: one of them is no number.
    """
    try:
        return tuple(float(part) for part in listed(text))
    except ValueError as error:
        raise CrossdraftError(f"{option} is '{text}', no list of numbers; write it as 0,1.") from error


def check_names(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Refuse a name that is not known, and suggest the nearest that is.

    Raises:
        CrossdraftError: the first name that is not known.
    """
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f" (did you mean '{near[0]}'?)" if near else ""
            raise CrossdraftError(f"Unknown {what} '{name}'{hint}; choose among {', '.join(known)}.")
