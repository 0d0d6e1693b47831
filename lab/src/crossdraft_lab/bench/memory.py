"""`crossdraft bench memory`: how long a memory takes to draft when it is full, and how much it holds."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from crossdraft.drafters.memory.datastore import START, Datastore, Scope
from crossdraft.drafters.memory.retrieval import retrieve
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.statistics import Quartiles, quartiles

VOCABULARY, LENGTH, QUESTIONS = 32_000, 50, 40
TEMPLATES = 200  # openings that answers share; after them each goes its own way


@dataclass(frozen=True, slots=True)
class MemoryTiming:
    """Figures of a store that holds `tokens` tokens."""

    tokens: int
    nodes: int
    draft: Quartiles
    add: Quartiles
    drafts: int
    megabytes: float

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "tokens": self.tokens,
            "nodes": self.nodes,
            "drafts": self.drafts,
            "draft_ms": self.draft.ms(),
            "add_ms": self.add.ms(),
            "megabytes": round(self.megabytes, 1),
        }


def time_memory(
    tokens: int = 1_000_000, nodes: int = 32, drafts: int = 300, tick: Callable[[], None] | None = None
) -> MemoryTiming:
    """Fill a store, then draft in the middle of answers that it does not hold.

    Raises:
        CrossdraftError: fewer tokens than a few answers have.
    """
    if tokens < 10 * LENGTH:
        raise CrossdraftError(f"A memory of {tokens} tokens measures nothing; give {10 * LENGTH} or more.")
    store = Datastore(max(256, tokens))
    answers = made_answers(0)
    adding: list[float] = []
    while len(store) < tokens:
        scope, answer = next(answers)
        start = time.perf_counter()
        store.add(scope, answer)
        adding.append(time.perf_counter() - start)
        if tick is not None:
            tick()
    drafting: list[float] = []
    rng = np.random.default_rng(1)
    for _ in range(drafts):
        scope, answer = next(answers)
        context = [START, *answer[: int(rng.integers(0, LENGTH))]]
        start = time.perf_counter()
        retrieve(store, scope, context, nodes)
        drafting.append(time.perf_counter() - start)
    return MemoryTiming(len(store), nodes, quartiles(drafting), quartiles(adding), drafts, store.nbytes / 1e6)


def lines(timing: MemoryTiming) -> list[str]:
    """The result for people."""
    draft, add = timing.draft.ms(), timing.add.ms()
    return [
        f"{timing.tokens:,} tokens in {timing.megabytes:.0f} MB, made-up answers; medians of {timing.drafts} drafts",
        f"a draft of up to {timing.nodes} nodes: {draft['median']:.3f} ms ({draft['q1']:.3f} to {draft['q3']:.3f})",
        f"an answer added: {add['median']:.3f} ms ({add['q1']:.3f} to {add['q3']:.3f})",
    ]


def answers_in(tokens: int) -> int:
    """Number of answers that fill so many tokens: the steps of the progress bar."""
    return -(-tokens // (LENGTH + 1))


def made_answers(seed: int) -> Iterator[tuple[Scope, list[int]]]:
    """Endless answers: shared stretches of text, with words put for others, in the frequencies of a language (Zipf)."""
    rng = np.random.default_rng(seed)
    words = 1 / np.arange(1, VOCABULARY + 1)
    words /= words.sum()
    templates = rng.choice(VOCABULARY, (TEMPLATES, LENGTH), p=words)
    number = 0
    while True:
        number += 1
        rows = rng.integers(0, TEMPLATES, 2)
        cut = int(rng.integers(1, LENGTH))
        answer = np.concatenate([templates[rows[0]][:cut], templates[rows[1]][cut:]])
        other = rng.random(LENGTH) < 0.2
        answer[other] = rng.choice(VOCABULARY, int(other.sum()), p=words)
        yield Scope(clip=number // 4 + 1, question=int(rng.integers(1, QUESTIONS + 1))), answer.tolist()
