"""Two controls of the alignment bench: drafts that see nothing of the clip, made of the target's answers about others.

constant   one text for all questions: the one of which earlier answers would have accepted most
template   such a text for each kind of question, which the control is told
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from crossdraft.engine.tree import common_prefix

Text = tuple[int, ...]


def best_text(answers: Iterable[Sequence[int]]) -> Text:
    """The text with the longest mean accepted prefix over these answers; `()` without any.

    That is the heaviest path through their trie, where each node weighs as many answers as pass through it. It is an
    answer as it stands, for a prefix of one is never accepted further.

    >>> best_text([(1, 2, 3), (1, 2, 3), (1, 5)])
    (1, 2, 3)
    """
    counts = Counter(tuple(answer) for answer in answers)
    passing: Counter[Text] = Counter()
    for answer, count in counts.items():
        for end in range(1, len(answer) + 1):
            passing[answer[:end]] += count
    weights = {answer: sum(passing[answer[:end]] for end in range(1, len(answer) + 1)) for answer in counts}
    return max(weights, key=lambda answer: (weights[answer], answer), default=())


def templates(answers: Iterable[tuple[str, Sequence[int]]]) -> Mapping[str, Text]:
    """`best_text` of each kind of question, from pairs of a kind and an answer."""
    by_kind: dict[str, list[Sequence[int]]] = {}
    for kind, answer in answers:
        by_kind.setdefault(kind, []).append(answer)
    return {kind: best_text(found) for kind, found in by_kind.items()}


def accepted(draft: Sequence[int], answer: Sequence[int]) -> int:
    """Tokens of a draft that a greedy target accepts before it has said anything."""
    return common_prefix(list(draft), list(answer))
