"""Which seeds belong to which split."""

from crossdraft.errors import CrossdraftError

_MILLION = 1_000_000
_STARTS = {"train": 0, "validation": _MILLION, "test": 2 * _MILLION}


def split_seeds(split: str) -> range:
    """Seeds of "train", "validation" or "test": a million each, never shared."""
    if split not in _STARTS:
        raise CrossdraftError(f"There is no split {split!r}; choose one of {', '.join(_STARTS)}.")
    return range(_STARTS[split], _STARTS[split] + _MILLION)
