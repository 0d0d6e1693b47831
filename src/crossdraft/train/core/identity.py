"""Which training a checkpoint is of: what decides the weights, kept inside it and compared before it is taken up."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from crossdraft.errors import CrossdraftError

SHOWN = 24  # characters of a value that a complaint quotes


def plain(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The same as a checkpoint gives it back: tuples have become lists."""
    return json.loads(json.dumps(identity))


def require_same(kept: Mapping[str, Any] | None, identity: Mapping[str, Any] | None, path: Path) -> None:
    """Refuse to resume another training's checkpoint, or to take its weights for this one's.

    Args:
        kept: the checkpoint's; `None` = it was written without, and is believed.
        identity: this training's; `None` = it has none, and asks nothing.
        path: the checkpoint.

    Raises:
        CrossdraftError: they differ; the first setting that does is named.
    """
    if kept is None or identity is None:
        return
    theirs, ours = dict(_flat(kept)), dict(_flat(plain(identity)))
    for name in {**ours, **theirs}:
        if name not in theirs or name not in ours or theirs[name] != ours[name]:
            raise CrossdraftError(
                f"The checkpoint {path} is of another training: its {name} is {_shown(theirs, name)}, not "
                f"{_shown(ours, name)}; choose another --out, or delete it."
            )


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    """(dotted name, value) of nested mappings, in their order."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def _shown(values: Mapping[str, object], name: str) -> str:
    """A value as a sentence can bear it: the whole of a number, the beginning of a hash."""
    if name not in values:
        return "left out"
    text = str(values[name])
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]}…"
