"""The drafter `ngram`: prompt lookup decoding (Saxena 2023).

The longest n-gram of the last `longest` … 1 tokens that occurs earlier, in the prompt or the answer, is looked up, and
the tokens after it are copied, more for a longer match. Of several matches of one length the newest is taken.
"""

from dataclasses import dataclass

from crossdraft.drafters.base import PerRequestDrafter, show
from crossdraft.drafters.ngram import NgramSettings
from crossdraft.drafters.token_index import TokenIndex
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.tree import DraftTree


@dataclass(eq=False)
class NgramState:
    """One answer: the prompt's tokens, once they are known, and the answer's."""

    text: TokenIndex


class NgramDrafter(PerRequestDrafter[NgramState]):
    """Copies from the prompt and from the answer so far.

    Args:
        longest: most tokens that are looked up.
        copied: most tokens copied for each token that matched.
    """

    needs = Needs(prompt=True)

    def __init__(self, longest: int = NgramSettings.longest, copied: int = NgramSettings.copied) -> None:
        self.longest = longest
        self.copied = copied

    def _begin(self, request: Request) -> NgramState:
        return NgramState(TokenIndex(self.longest, request.prompt_ids))

    def _propose(self, state: NgramState, budget: Budget) -> Draft:
        state.text.read_prompt()
        length, place = state.text.longest_match()
        copied = state.text.following(place, min(self.copied * length, budget.nodes))
        show(copied, budget)
        return Draft(DraftTree.chain(copied))

    def _commit(self, state: NgramState, output: VerifyOutput) -> None:
        state.text.append(output.tokens)
