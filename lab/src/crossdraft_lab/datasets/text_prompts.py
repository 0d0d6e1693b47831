"""Instructions in words alone, drawn from templates: what a text target is asked where its answers train a drafter.

Templates and the fillings of their slots stand in `text_prompts.yaml`. Each list is divided by the order of its
entries: of five, three are for training, one for validation, one for tests. So a held-out prompt has a template and
fillings that no training prompt has.
"""

import re
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from crossdraft.errors import CrossdraftError
from crossdraft_lab.datasets.sample import wording

PARTS: Mapping[str, Collection[int]] = {"train": (0, 1, 2), "validation": (3,), "test": (4,)}  # of every five entries
SLOT = re.compile(r"\{([a-z_]+)(:\d)?\}")
TRIES = 200  # draws in a row that give no new prompt, after which there is none


def instructions(
    part: str, count: int, seed: int = 0, sampled: float = 0.0, temperature: float = 0.7, avoid: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Draw prompts, the kinds in turn, no two of the same wording: lines for `crossdraft capture --list`.

    Args:
        part: `train`, `validation` or `test`.
        count: number of prompts.
        seed: the same one gives the same prompts.
        sampled: share of the prompts that are to be answered at `temperature`; the others greedily.
        temperature: see `sampled`.
        avoid: prompts that must not be drawn, whatever their capitals, punctuation and spaces.

    Raises:
        CrossdraftError: a number out of range, or the templates do not give so many prompts.
    """
    if part not in PARTS or min(count - 1, seed) < 0 or not 0 <= sampled <= 1 or not temperature > 0:
        raise CrossdraftError(
            f"Instructions are for {', '.join(PARTS)}: at least 1, from a seed of 0 or more, a share of 0 to 1 of "
            "them sampled at a temperature above 0."
        )
    kinds, slots = _held(part)
    rng, turns = np.random.default_rng([*PARTS[part], seed]), deque(kinds)
    known, found = set(map(wording, avoid)), list[dict[str, Any]]()
    while turns and len(found) < count:
        kind = turns.popleft()
        drawn = (_filled(_one(kinds[kind], rng), slots, rng) for _ in range(TRIES))
        prompt = next((one for one in drawn if wording(one) not in known), None)
        if prompt is not None:  # else the kind has no more
            turns.append(kind)
            known.add(wording(prompt))
            how = {"temperature": temperature} if rng.random() < sampled else {}
            found.append({"prompt": prompt, "kind": kind, **how})
    if len(found) < count:
        raise CrossdraftError(f"The templates give no more than {len(found)} {part} prompts; ask for fewer.")
    return found


def _held(part: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Templates by kind, and fillings by slot, of one part."""
    read: Any = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    kinds, slots = (
        {name: [entry for at, entry in enumerate(entries) if at % 5 in PARTS[part]] for name, entries in lists.items()}
        for lists in (read["kinds"], read["slots"])
    )
    return kinds, slots


def _one(entries: Sequence[str], rng: np.random.Generator) -> str:
    return entries[int(rng.integers(len(entries)))]


def _filled(template: str, slots: Mapping[str, Sequence[str]], rng: np.random.Generator) -> str:
    """Fill a template: one slot alike wherever it stands, two of the same fillings differently where these suffice."""
    chosen: dict[str, str] = {}

    def fill(slot: re.Match[str]) -> str:
        if slot[0] not in chosen:
            others = [one for one in slots[slot[1]] if one not in chosen.values()]
            chosen[slot[0]] = _one(others or slots[slot[1]], rng)
        return _filled(chosen[slot[0]], slots, rng) if SLOT.search(chosen[slot[0]]) else chosen[slot[0]]

    return SLOT.sub(fill, template)
