"""A probe of an imported head: a few answers of its target, drafted by it."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.load import load_head_drafter
from crossdraft.heads.registry import HEADS
from crossdraft.processor_prompt import sample_prompts

QUESTIONS = (
    "What is shown here?", "Describe it in one sentence.", "Name three colours.", "What is a dog?",
    "Count from one to ten.", "Why is the sky blue?", "What will happen next?", "Tell a short story.",
)  # fmt: skip
TOKENS, NODES, LIMIT_S = 24, 4, 60.0
FITS = 1.1  # τ below which a head's drafts are accepted by chance only


def method_of(network: str) -> str:
    """The drafter that drafts with a network; of several, that with dynamic trees."""
    return [name for name, record in HEADS.items() if record.network == network][-1]


def probe(target: Target, source: str, folder: Path, network: str, tell: Callable[[str], None]) -> tuple[int, float]:
    """Draft the target's own greedy answers to `QUESTIONS`, in chains; where it sees, a small picture is shown.

    Args:
        target: the target, loaded from `source`.
        folder, network: the imported head.
        tell: called before each answer with its question.

    Returns:
        Number of answers, fewer than eight if they took `LIMIT_S` seconds, and τ over all of them.

    Raises:
        CrossdraftError: the head drafts nothing for this target.
    """
    drafter = load_head_drafter(method_of(network), target, source, folder, "chain", sorted(target.reserved))
    loop = DecodeLoop(target, DraftRunner(drafter, "off"), adaptive=False, nodes=NODES)
    shows = "image" in sample_prompts(target.prepare)[0]
    image = np.indices((56, 84)).sum(0)[..., None].repeat(3, 2).astype(np.uint8) if shows else None  # a gradient
    found, until = list[tuple[int, int]](), time.monotonic() + LIMIT_S
    for question in QUESTIONS:
        tell(question)
        (answer,) = loop.generate([Request(question, image=image, max_new_tokens=TOKENS)])
        if answer.drafter_error:
            raise CrossdraftError(answer.drafter_error)
        found.append((answer.stats.new_tokens, answer.stats.rounds))
        if time.monotonic() > until:
            break
    tokens, rounds = map(sum, zip(*found, strict=True))
    return len(found), tokens / max(rounds, 1)
