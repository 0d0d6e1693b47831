"""Answers of a trained model to questions about cached clips: for distillation and for evaluation."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path
from crossdraft.train.core.log import complete_lines, progress_bar, say
from crossdraft.train.reference.batches import blank_pixels
from crossdraft.train.reference.clips import ClipCache, Kind
from crossdraft.train.reference.decode import greedy
from crossdraft.train.reference.losses import autocast
from crossdraft.train.reference.models import Seer, prefix_embeds
from crossdraft.train.reference.packed import Prefix, read_prefix
from crossdraft.train.reference.pixels import to_pixels
from crossdraft.train.reference.prompt import PromptCodec


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about a clip, and a guess at its answer that only speeds decoding up."""

    clip: int
    kind: str
    question: str
    guess: str
    facts: dict[str, str]


@dataclass(frozen=True, slots=True)
class Answered:
    """What a model said; `whole` when it ended by itself."""

    clip: int
    kind: str
    question: str
    answer: str
    whole: bool


@dataclass(frozen=True, slots=True)
class Respondent:
    """A trained model with what it needs to answer about cached clips."""

    seer: Seer
    codec: PromptCodec
    cache: ClipCache
    kind: Kind
    blank: bool = False

    @torch.inference_mode()
    def read(self, split: str, clips: Sequence[int]) -> Prefix:
        """The clips' prefixes."""
        if self.blank:
            pixels = blank_pixels(self.cache).expand(len(clips), -1, -1, -1, -1).to(self.seer.model.dtype)
        else:
            pixels = to_pixels(self.cache.read(self.kind, split, clips)).to(self.seer.model.dtype)
        ids = torch.tensor([self.codec.prefix_ids()])
        visual = self.seer.visual_tokens(self.seer.patches(pixels))
        return read_prefix(self.seer.llama, prefix_embeds(self.seer, ids, visual))

    def answer(self, split: str, asked: Sequence[Sequence[Asked]], max_new_tokens: int) -> list[Answered]:
        """Greedy answers to the same number of questions about each of some clips."""
        rows = [question for questions in asked for question in questions]
        with torch.inference_mode(), autocast():
            said, _ = greedy(
                self.seer,
                self.read(split, [questions[0].clip for questions in asked]),
                [self.codec.question_ids(row.question) for row in rows],
                [self.codec.answer_ids(row.guess) for row in rows],
                eos_id=int(self.codec.tokenizer.eos_token_id),
                max_new_tokens=max_new_tokens,
            )
        end = int(self.codec.tokenizer.eos_token_id)
        return [
            Answered(row.clip, row.kind, row.question, self.codec.text(ids), ids[-1] == end)
            for row, ids in zip(rows, said, strict=True)
        ]


def keep_answers(
    path: Path,
    respondent: Respondent,
    split: str,
    asked: Sequence[Sequence[Asked]],
    clips: int,
    max_new_tokens: int,
    note: str,
) -> list[Answered]:
    """Answers to all that is `asked`, kept in `path`: a run that was interrupted goes on behind its last whole batch.

    Raises:
        CrossdraftError: the file holds answers to other questions.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    done = _finished_clips(path, asked, clips)
    for count, some in enumerate(answer_all(respondent, split, asked[done:], clips, max_new_tokens, note)):
        append_answers(path, some)
        if count % 50 == 49:
            say(f"{note}: {done + (count + 1) * clips} of {len(asked)} clips")
    return read_answers(path)


def _finished_clips(path: Path, asked: Sequence[Sequence[Asked]], batch: int) -> int:
    """How many clips' answers are there; what was written of a batch that was cut off is taken out of the file.

    Whole batches, not whole clips: in bf16 the company that a clip is decoded in may tip a near-tie.
    """
    answers = read_answers(path)
    questions = len(asked[0])
    expected = [(row.clip, row.question) for rows in asked for row in rows]
    if [(a.clip, a.question) for a in answers] != expected[: len(answers)]:
        raise CrossdraftError(
            f"{path} answers other questions than the recipe asks; choose another --out, or remove it to ask anew."
        )
    clips = len(answers) // questions
    if clips < len(asked):
        clips -= clips % batch
        with atomic_path(path) as temporary:
            append_answers(temporary, answers[: clips * questions])
    return clips


def answer_all(
    respondent: Respondent, split: str, asked: Sequence[Sequence[Asked]], clips: int, max_new_tokens: int, note: str
) -> Iterator[list[Answered]]:
    """Answers in batches of `clips` clips, with a progress bar."""
    remaining = iter(asked)
    with progress_bar() as bar:
        task = bar.add_task(note, total=len(asked))
        while some := list(islice(remaining, clips)):
            yield respondent.answer(split, some, max_new_tokens)
            bar.advance(task, len(some))


def append_answers(path: Path, answers: Sequence[Answered]) -> None:
    """Add one JSON object a line."""
    with path.open("a", encoding="utf-8") as lines:
        lines.write("".join(json.dumps(asdict(a)) + "\n" for a in answers))


def read_answers(path: Path) -> list[Answered]:
    """What has been written so far; nothing if there is no file yet. A line cut off by an interruption is left out.

    Raises:
        CrossdraftError: a line is no answer.
    """
    try:
        return [Answered(**json.loads(line)) for line in complete_lines(path)]
    except (ValueError, TypeError) as error:
        raise CrossdraftError(f"The answers {path} are damaged; remove the file to have them asked anew.") from error
