"""What was asked of whom, and where: in plain values, and in sentences for people."""

from collections.abc import Sequence
from dataclasses import asdict

from crossdraft import scenes
from crossdraft.bench.assembly import cores_of
from crossdraft.bench.cores import Cores
from crossdraft.bench.workload import Item, Workload


def describe(work: Workload) -> dict[str, object]:
    """A workload in plain values, with what the clock does and does not cover."""
    return {
        **asdict(work),
        "kinds": list(work.kinds) or "all",
        "files": work.files is not None,
        "held_out_wordings": work.held_out,
        "timed": _timed(work),
    }


def _timed(work: Workload) -> str:
    if work.files is not None:
        return "from the request to the whole answer; the clip's files are read inside the clock"
    return "from the request to the whole answer; the clip's files are read and decoded beforehand, outside the clock"


def words_of(work: Workload, pairs: Sequence[Item], mean_tokens: float) -> list[str]:
    """Sentences: what was asked, how long the answers were, what the clock covers.

    Args:
        work: the workload.
        pairs: its pairs.
        mean_tokens: of the answers.
    """
    held = "scenes and wordings that no training has seen" if work.held_out else "wordings as in training"
    kinds = len({pair.kind for pair in pairs})
    asked = f"{kinds} of {len(scenes.KINDS)} kinds of question in turn"
    if work.answers == "long":
        asked = "of each scene one of the two questions with the longest answers, which favours drafting"
    decoding = "greedy" if work.temperature == 0 else f"sampled at temperature {work.temperature:g}"
    return [
        f"Workload: {len(pairs)} questions, {held}; {asked}; {decoding}.",
        f"Answers: {mean_tokens:.1f} tokens on average.",
        f"Time: {_timed(work)}.",
    ]


def cores_in_words(names: Sequence[str], cores: Cores | None) -> list[str]:
    """A sentence: who may use which cores."""
    if cores is None:
        return ["Cores: not restricted; everybody may use any."]
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(str(cores_of(name, cores)), []).append(name)
    told = "; ".join(f"{own}: {', '.join(members)}" for own, members in groups.items())
    lines = [f"Cores (of the target, + of a drafter's own process): {told}."]
    if any(own is not None and own.draft for own in (cores_of(name, cores) for name in names)):
        lines.append("A drafter's cores serve its target as well while the drafter has nothing to do.")
    return lines
