"""The drafter `memory`: retrieval from earlier answers (REST: He et al. 2023; SAM decoding: Hu et al. 2024)."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossdraft.errors import CrossdraftError
from crossdraft.records import DrafterContext, Method
from crossdraft.specs import Count, Spec

if TYPE_CHECKING:
    from crossdraft.engine.drafter import Drafter


@dataclass(frozen=True)
class MemorySettings:
    """The folder where answers are kept (`None`: in memory only), and the number of tokens kept for each namespace.

    `seed` holds answers known from the beginning: a folder of `crossdraft capture`, or a file of recorded answers.
    """

    folder: Path | None = None
    capacity: Count = 1 << 18
    seed: Path | None = None


def check(spec: Spec, settings: MemorySettings, target: str | None) -> None:
    """Check the folder where answers are kept, and the seed."""
    if settings.folder is not None and settings.folder.exists() and not settings.folder.is_dir():
        raise CrossdraftError(f"'{spec}' keeps answers in {settings.folder}, which is no folder; name another.")
    if settings.seed is not None and not settings.seed.exists():
        raise CrossdraftError(
            f"The seed {settings.seed} of the memory is not there; name a folder of crossdraft capture, or a file of "
            "crossdraft bench --record."
        )


def build(spec: Spec, settings: MemorySettings, context: DrafterContext) -> "Drafter[Any]":
    """Build the drafter that retrieves from earlier answers, which are kept apart for each tokenizer."""
    from crossdraft.drafters.memory.drafter import Datastores, MemoryDrafter, question_number
    from crossdraft.drafters.memory.seed import SeedTarget, read_seed, vocabulary_fingerprint
    from crossdraft.load import target_fingerprint

    tokenizer = context.read_tokenizer() if context.has_vocabulary else None
    vocabulary = vocabulary_fingerprint({} if tokenizer is None else tokenizer.get_vocab())
    seed = []
    if settings.seed is not None:
        weights = "" if context.target is None else target_fingerprint(context.target)
        known = SeedTarget()
        if tokenizer is not None:
            decode = lambda ids: str(tokenizer.decode(list(ids)))  # noqa: E731
            known = SeedTarget(vocabulary, weights, decode, context.vocab_size)
        seed = read_seed(settings.seed, known, question_number)
    return MemoryDrafter(Datastores(settings.folder, settings.capacity, vocabulary, seed=seed))


RECORDS = (
    Method(
        "memory", "what earlier and running answers, this one and its prompt say after similar text, and tokens that "
        "the target thought likely before", "crossdraft; SAM, REST, Token Recycling 2024; LogitSpec 2025; SRT 2026",
        build, check=check,
        settings=MemorySettings, drafts_trees=True, has_network=False,
    ),
)  # fmt: skip
