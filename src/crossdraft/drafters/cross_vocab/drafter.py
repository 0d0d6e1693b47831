"""A drafter whose vocabulary is not the target's (heterogeneous vocabularies; "universal assisted generation" in HF).

Its model runs behind the same adapter as a target does and needs nothing of its target, so it may draft while the
target reads. Its drafts cross to the target's vocabulary by one of three methods:

    slem  by text: any two tokenizers; see `slem`
    tli   by shared tokens; sampled drafts are accepted by their full distribution; see `tli`
    omni  as tli, and n-grams of drafter tokens that are one target token are learned while answering

Each is lossless. A model that shares the target's vocabulary, id for id, is an `IndependentDrafter` instead:
`map_vocabularies(…).identity` says so.
"""

from crossdraft.drafters.cross_vocab.assistant import CrossVocabDrafter
from crossdraft.drafters.cross_vocab.slem import StringLevelMatch
from crossdraft.drafters.cross_vocab.tli import TokenIntersection
from crossdraft.drafters.cross_vocab.vocabulary import TokenTable
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError

CROSS_VOCAB_METHODS = ("slem", "tli", "omni")


def cross_vocab_drafter(
    model: Target, own: TokenTable, target: TokenTable, how: str = "slem", *, sees: bool = False
) -> CrossVocabDrafter:
    """Make the drafter of the method `how`; the other arguments are those of `CrossVocabDrafter`.

    Raises:
        CrossdraftError: the method is unknown, or needs shared tokens and there are none.
    """
    match how:
        case "slem":
            return StringLevelMatch(model, own, target, sees=sees)
        case "tli":
            return TokenIntersection(model, own, target, sees=sees)
        case "omni":
            return TokenIntersection(model, own, target, sees=sees, learns=True)
        case _:
            raise CrossdraftError(
                f"There is no way '{how}' to draft across vocabularies; choose one of {', '.join(CROSS_VOCAB_METHODS)}."
            )
