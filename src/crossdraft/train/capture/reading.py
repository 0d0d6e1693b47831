"""The prompts of a clip as the target reads them: what they share goes in front, and is read once."""

from dataclasses import dataclass, replace

import torch

from crossdraft.engine.target import Chunk, Prompt, Target
from crossdraft.errors import CrossdraftError
from crossdraft.train.capture.sources import Clip

SPANNING = "mm_token_type_ids"  # as long as the whole prompt, and only serves positions, which are compared themselves


@dataclass(frozen=True)
class Question:
    """One prompt: its last piece, behind the shared one, and the offset of later positions."""

    text: str
    last: Chunk
    offset: int


@dataclass(frozen=True)
class Reading:
    """Prompts with the same first piece; `first` is None where nothing is visual, and then each stands alone."""

    clip: Clip
    first: Chunk | None
    prompt: Prompt
    questions: tuple[Question, ...]

    @property
    def shared(self) -> int:
        """Tokens of the first piece."""
        return 0 if self.first is None else len(self.first.tokens)

    @property
    def longest(self) -> int:
        """Tokens of the longest last piece."""
        return max(len(question.last.tokens) for question in self.questions)


def read_prompts(target: Target, clip: Clip, max_new_tokens: int) -> list[Reading]:
    """A clip's prompts in order, neighbours with the same first piece together: as a rule all, which is encoded once.

    Raises:
        CrossdraftError: the clip cannot be read, or a prompt and its answer exceed the model's context.
    """
    readings: list[Reading] = []
    for request in clip.requests(max_new_tokens):
        prompt = target.prepare(request)
        if len(prompt) + max_new_tokens > target.context:
            raise CrossdraftError(
                f"A prompt about {clip.name} has {len(prompt)} tokens, and behind it the model's context has room for "
                f"{max(0, target.context - len(prompt))}, not for {max_new_tokens}; lower --max-new-tokens."
            )
        pieces, offset = target.chunks(prompt, None)
        question = Question(request.prompt, pieces[-1], offset)
        first = pieces[0] if len(pieces) > 1 else None
        if readings and first is not None and _same(readings[-1], first, prompt):
            readings[-1] = replace(readings[-1], questions=(*readings[-1].questions, question))
        else:
            whole = None if first is None else replace(first, encoded=target.encode(prompt))
            readings.append(Reading(clip, whole, prompt, (question,)))
    return readings


def _same(reading: Reading, first: Chunk, prompt: Prompt) -> bool:
    """True if a prompt begins as the reading does, to the last pixel."""
    known = reading.first
    if known is None or not torch.equal(first.tokens, known.tokens):
        return False
    if first.positions is not None and not (
        known.positions is not None and torch.equal(first.positions, known.positions)
    ):
        return False
    names = (prompt.features.keys() | reading.prompt.features.keys()) - {SPANNING}
    return all(_equal(prompt, reading.prompt, name) for name in sorted(names))


def _equal(one: Prompt, other: Prompt, name: str) -> bool:
    if name not in one.features or name not in other.features:
        return False
    return torch.equal(one.features[name], other.features[name])
