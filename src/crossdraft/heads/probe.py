"""A probe of an imported head: a few answers of its target, drafted by it."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.stats import Stats
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
        Number of answers, the last cut short at `LIMIT_S` seconds, and τ over the rounds with a draft: without one, a
        round emits one token.

    Raises:
        CrossdraftError: the head drafts nothing for this target, or its answers end before a draft.
    """
    drafter = load_head_drafter(method_of(network), target, source, folder, "chain", sorted(target.reserved))
    loop = DecodeLoop(target, DraftRunner(drafter, "off"), adaptive=False, nodes=NODES)
    shows = "image" in sample_prompts(target.prepare)[0]
    image = np.indices((56, 84)).sum(0)[..., None].repeat(3, 2).astype(np.uint8) if shows else None  # a gradient
    found, until = list[Stats](), time.monotonic() + LIMIT_S
    while len(found) < len(QUESTIONS) and time.monotonic() < until:
        tell(question := QUESTIONS[len(found)])
        request_id = loop.submit(Request(question, image=image, max_new_tokens=TOKENS))
        while loop.busy:
            loop.step()
            if time.monotonic() > until:
                loop.cancel(request_id)
        answer = loop.answer(request_id)
        if answer.drafter_error:
            raise CrossdraftError(answer.drafter_error)
        found.append(answer.stats)
    drafts = sum(stats.drafted_at[0] for stats in found if stats.drafted_at)
    if not drafts:
        raise CrossdraftError("the answers are too short, nothing was drafted.")
    return len(found), 1 + sum(stats.new_tokens - stats.rounds for stats in found) / drafts
