"""What a capture holds beside its features: which words were said, what was asked, and about which clip."""

from collections import Counter
from collections.abc import Sequence

from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.train.capture.sources import Source, source_of
from crossdraft.train.capture.store import Store

LONGEST = 96  # tokens of an answer that is measured


def draft_ids_of(store: Store, most: int, banned: Sequence[int]) -> list[int]:
    """The ids that the captured answers are made of, the most frequent first if there are to be fewer.

    Raises:
        CrossdraftError: there are none.
    """
    counts = Counter(token for tokens in store.tokens() for token in tokens.tolist())
    barred = set(banned)
    ids = [token for token, _ in counts.most_common() if token not in barred]
    if not ids:
        raise CrossdraftError(f"The capture {store.folder} holds no answers to learn from.")
    return ids[:most] if most else ids


def source_behind(store: Store) -> Source:
    """The clips that a capture is about."""
    return source_of(store.index.asked, store.index.done)


def kept_back_requests(store: Store | None, pairs: int) -> list[Request]:
    """Questions about validation clips, as few of each clip as will do."""
    return [request for _, request in kept_back_questions(store, pairs)]


def kept_back_questions(store: Store | None, pairs: int) -> list[tuple[int, Request]]:
    """As `kept_back_requests`, each with the number of its clip."""
    if store is None or not pairs:
        return []
    source = source_behind(store)
    asked = [source.read(clip).requests(LONGEST) for clip in range(min(len(source), pairs))]
    turns = [
        (clip, questions[turn])
        for turn in range(max(map(len, asked)))
        for clip, questions in enumerate(asked)
        if turn < len(questions)
    ]
    return turns[:pairs]
