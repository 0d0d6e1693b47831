"""Recycled tokens: what the target thought likely earlier in this answer, at nodes that it accepted or rejected.

After the same token, or the same two, much the same comes next (token recycling: Luo et al. 2024). What was likely in
the last place but did not come there often comes one place later (LogitSpec: Liu et al. 2025). And there is what the
answer says most often anyway.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from crossdraft.engine.drafter import VerifyOutput

# How often the token of each rank came: after the same two tokens, after the same one; then, where these say nothing,
# of the tokens passed over and of the frequent ones. Counted in 24 answers of a language model of 1.5 B, of nine kinds.
AFTER_TWO = (0.5, 0.11, 0.035, 0.03)
AFTER_ONE = (0.29, 0.07, 0.05, 0.03)
PASSED_OVER = (0.066, 0.047, 0.038, 0.033, 0.022, 0.018, 0.018)
FREQUENT = (0.026, 0.026, 0.024, 0.02, 0.015, 0.015)
RANKS = 1 + len(PASSED_OVER)
KEPT = 1 << 14  # texts of one or two tokens that are kept of an answer, some 4 MB; the oldest make room


@dataclass
class RecycledTokens:
    """The likeliest tokens at earlier places of one answer.

    Args:
        after: likeliest tokens after the last one, or two, tokens of a text; the newest place counts.
        passed_over: likely tokens of the last place that did not come there.
        counts: how often each token came.
        end: the last two tokens of the answer.
    """

    after: dict[tuple[int, ...], Sequence[int]] = field(default_factory=dict)
    passed_over: Sequence[int] = ()
    counts: Counter[int] = field(default_factory=Counter)
    end: tuple[int, ...] = ()

    def copy(self) -> "RecycledTokens":
        """A copy that learns independently."""
        return RecycledTokens(self.after.copy(), self.passed_over, self.counts.copy(), self.end)

    def learn(self, output: VerifyOutput) -> None:
        """Learn what was likely in the places of a verified tree, and what came."""
        for path, likeliest in output.successors.items():
            text = (*self.end, *path)
            for key in (text[-1:], text[-2:]):
                self.after.pop(key, None)  # the newest are kept longest
                self.after[key] = likeliest
        for text in [*islice(self.after, max(0, len(self.after) - KEPT))]:
            del self.after[text]
        if output.tokens:
            *path, came = output.tokens
            self.passed_over = [token for token in output.successors.get(tuple(path), ()) if token != came]
            self.counts.update(output.tokens)
            self.end = (*self.end, *output.tokens)[-2:]

    def next_tokens(self, path: Sequence[int]) -> dict[int, float]:
        """Tokens that may come after a path from the answer's end, and how often they do."""
        text, ranks = (*self.end, *path)[-2:], AFTER_TWO
        if (likeliest := self.after.get(text)) is None:
            likeliest, ranks = self.after.get(text[-1:], ()), AFTER_ONE
        found = dict(zip(likeliest, ranks, strict=False))
        if not path and self.after:
            rest = 1 - sum(found.values())
            for token, share in zip(self.passed_over, PASSED_OVER, strict=False):
                found[token] = found.get(token, 0.0) + rest * share
            known = {*found, *self.end[-1:]}
            others = [token for token, _ in self.counts.most_common(len(known) + len(FREQUENT)) if token not in known]
            found |= {token: rest * share for token, share in zip(others, FREQUENT, strict=False)}
        return found
