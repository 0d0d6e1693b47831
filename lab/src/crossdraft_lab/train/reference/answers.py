"""Answers of a trained model to questions about cached clips, and their quality.

The target's answers are the drafters' training data; test answers give the held-out figures: facts right, and
agreement of a drafter's greedy tokens with the target's.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path
from crossdraft_lab import scenes
from crossdraft_lab.outputs import progress_bar
from crossdraft_lab.train.core.log import complete_lines, say
from crossdraft_lab.train.reference.batches import Branches, blank_pixels, draw_questions, pack
from crossdraft_lab.train.reference.clips import ClipCache, Kind, to_pixels
from crossdraft_lab.train.reference.losses import autocast
from crossdraft_lab.train.reference.models import TrainableVLM
from crossdraft_lab.train.reference.packed import Prefix, greedy_decode, read_prefix, run_branches
from crossdraft_lab.train.reference.tokenizer import PromptCodec


@dataclass(frozen=True, slots=True)
class ClipQuestion:
    """A question about a clip, and the expected answer, which also serves as the draft for faster decoding."""

    clip: int
    kind: str
    question: str
    expected: str
    facts: dict[str, str]


@dataclass(frozen=True, slots=True)
class ClipAnswer:
    """A model's answer; `whole` if it ended by itself. A line of the answers' file."""

    clip: int
    kind: str
    question: str
    answer: str
    whole: bool


def clip_questions(
    split: str, clip: int, count: int, rng: np.random.Generator, *, held_out: bool = False
) -> list[ClipQuestion]:
    """Draw `count` questions about a clip, as `draw_questions` does."""
    drawn = draw_questions(split, clip, count, rng, held_out=held_out)
    return [ClipQuestion(clip, qa.kind, qa.question, qa.answer, dict(qa.facts)) for qa in drawn]


def evaluation_questions(
    split: str, clips: Sequence[int], questions: int, seed: int, *, held_out: bool
) -> list[list[ClipQuestion]]:
    """Draw `questions` about each clip from (seed, clip); `held_out` asks in wordings never trained on."""
    # Not an independent stream: numpy pads a seed with zeros, so that [seed, clip, 0] draws as training's [seed,
    # step] does (`losses.ground_truth_qa`), and [seed, clip, 1] as the tokenizer's texts do. This leaks nothing,
    # because they draw about scenes of other splits; it stays, because the shipped figures depend on it.
    return [
        clip_questions(split, clip, questions, np.random.default_rng([seed, clip, int(held_out)]), held_out=held_out)
        for clip in clips
    ]


@dataclass(frozen=True, slots=True)
class AnsweringModel:
    """A trained model with its codec and its cache of clips, ready to answer."""

    vlm: TrainableVLM
    codec: PromptCodec
    cache: ClipCache
    kind: Kind
    blank: bool = False

    @torch.inference_mode()
    def read(self, split: str, clips: Sequence[int]) -> Prefix:
        """Read the prefixes of these clips."""
        if self.blank:
            pixels = blank_pixels(self.cache).expand(len(clips), -1, -1, -1, -1)
        else:
            pixels = to_pixels(self.cache.read(self.kind, split, clips))
        return self.read_pixels(pixels)

    def read_pixels(self, pixels: Tensor) -> Prefix:
        """Read the prefixes of clips with these pixels [clips, F, 3, h, w]."""
        visual = self.vlm.visual_tokens(self.vlm.patches(pixels.to(self.vlm.model.dtype)))
        return read_prefix(self.vlm.llama, self.vlm.prefix_embeds(self.codec.prefix_ids(), visual))

    def states(self, prefix: Prefix, rows: Branches) -> Tensor:
        """Last hidden states [rows, length, d] of rows after the prefixes of their clips."""
        return run_branches(self.vlm.llama, prefix, self.vlm.llama.embed_tokens(rows.tokens))

    def decode(
        self, prefix: Prefix, questions: Sequence[Sequence[int]], drafts: Sequence[Sequence[int]], max_new_tokens: int
    ) -> list[list[int]]:
        """Decode greedy continuations of the rows; see `greedy_decode`."""
        llama, head, eos = self.vlm.llama, self.vlm.head, self.codec.eos_id
        return greedy_decode(llama, head, prefix, questions, drafts, eos_id=eos, max_new_tokens=max_new_tokens)[0]

    def answer(self, split: str, by_clip: Sequence[Sequence[ClipQuestion]], max_new_tokens: int) -> list[ClipAnswer]:
        """Answer the same number of questions about each of some clips, greedily."""
        rows = [question for questions in by_clip for question in questions]
        questions = [self.codec.question_ids(row.question) for row in rows]
        drafts = [self.codec.answer_ids(row.expected) for row in rows]
        with torch.inference_mode(), autocast():
            prefix = self.read(split, [questions[0].clip for questions in by_clip])
            answers = self.decode(prefix, questions, drafts, max_new_tokens)
        return [
            ClipAnswer(row.clip, row.kind, row.question, self.codec.text(ids), ids[-1] == self.codec.eos_id)
            for row, ids in zip(rows, answers, strict=True)
        ]

    def answer_batches(
        self, split: str, by_clip: Sequence[Sequence[ClipQuestion]], clips: int, max_new_tokens: int, note: str
    ) -> Iterator[list[ClipAnswer]]:
        """Yield answers in batches of `clips` clips, with a progress bar."""
        remaining = iter(by_clip)
        with progress_bar() as bar:
            task = bar.add_task(note, total=len(by_clip))
            while some := list(islice(remaining, clips)):
                yield self.answer(split, some, max_new_tokens)
                bar.advance(task, len(some))


def record_answers(
    path: Path,
    model: AnsweringModel,
    split: str,
    by_clip: Sequence[Sequence[ClipQuestion]],
    clips: int,
    max_new_tokens: int,
    note: str,
) -> list[ClipAnswer]:
    """Answer all questions and keep the answers in `path`; an interrupted run resumes after its last whole batch.

    Raises:
        CrossdraftError: the file holds answers to other questions.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    done = _finished_clips(path, by_clip, clips)
    for count, some in enumerate(model.answer_batches(split, by_clip[done:], clips, max_new_tokens, note)):
        append_answers(path, some)
        if count % 50 == 49:
            say(f"{note}: {done + (count + 1) * clips} of {len(by_clip)} clips")
    return read_answers(path)


def _finished_clips(path: Path, by_clip: Sequence[Sequence[ClipQuestion]], batch: int) -> int:
    """Count the clips whose answers are complete; those of a batch that was cut off are removed from the file.

    Only whole batches count, not whole clips: in bf16 the other clips of a batch may change a near-tie.
    """
    answers = read_answers(path)
    questions = len(by_clip[0])
    expected = [(row.clip, row.question) for rows in by_clip for row in rows]
    if [(a.clip, a.question) for a in answers] != expected[: len(answers)]:
        raise CrossdraftError(
            f"{path} answers other questions than the recipe's; choose another --out, or remove it to start anew."
        )
    clips = len(answers) // questions
    if clips < len(by_clip):
        clips -= clips % batch
        with atomic_path(path) as temporary:
            append_answers(temporary, answers[: clips * questions])
    return clips


def append_answers(path: Path, answers: Sequence[ClipAnswer]) -> None:
    """Append answers, one JSON object a line."""
    with path.open("a", encoding="utf-8") as lines:
        lines.write("".join(json.dumps(asdict(a)) + "\n" for a in answers))


def read_answers(path: Path) -> list[ClipAnswer]:
    """Load the answers written so far; empty if there is no file yet. A line cut off by an interruption is left out.

    Raises:
        CrossdraftError: a line is no answer.
    """
    try:
        return [ClipAnswer(**json.loads(line)) for line in complete_lines(path)]
    except (ValueError, TypeError) as error:
        raise CrossdraftError(f"The answers {path} are damaged; remove the file to generate them anew.") from error


def answer_rows(codec: PromptCodec, answers: Sequence[ClipAnswer]) -> list[tuple[list[int], list[int]]]:
    """Ids of each question and of its answer, with `</s>` only where the answer ended by itself."""
    return [(codec.question_ids(a.question), codec.answer_ids(a.answer, whole=a.whole)) for a in answers]


def facts_right(by_clip: Sequence[Sequence[ClipQuestion]], answers: Sequence[ClipAnswer]) -> dict[str, float]:
    """Share of facts right: over all (`all`) and per kind of question."""
    rows = [question for questions in by_clip for question in questions]
    by_kind: dict[str, list[bool]] = defaultdict(list)
    for row, answer in zip(rows, answers, strict=True):
        right = list(scenes.score(row.facts, answer.answer).values())
        by_kind[row.kind] += right
        by_kind["all"] += right
    return {kind: round(float(np.mean(right)), 4) for kind, right in sorted(by_kind.items()) if right}


@torch.inference_mode()
def agreement(
    drafter: AnsweringModel, split: str, answers: Sequence[ClipAnswer], questions: int, batch: int
) -> dict[str, float]:
    """Measure how a drafter's argmax agrees with the target's answers when it reads them, `batch` clips at a time.

    `top1` is the share of tokens; `tau_8` and `tau_16` are the tokens a round would emit with chains of 8 and 16,
    bonus included, counted over successive rounds along each answer (as verification would accept them).

    Answers are kept as text, so tokens are those that the tokenizer makes of it: where the target generated a word in
    other pieces, the figures are about the tokenizer's pieces, not the target's.
    """
    clips = [answers[i].clip for i in range(0, len(answers), questions)]
    rows = answer_rows(drafter.codec, answers)
    matches: list[list[bool]] = []
    for start in range(0, len(clips), batch):
        some = rows[start * questions : (start + batch) * questions]
        packed = pack(some, drafter.codec.pad_id)
        with autocast():
            prefix = drafter.read(split, clips[start : start + batch])
            predicted = drafter.vlm.head(drafter.states(prefix, packed)).argmax(-1)
        for row, (question, answer) in enumerate(some):
            span = predicted[row, len(question) - 1 : len(question) - 1 + len(answer)]
            matches.append((span == torch.tensor(answer)).tolist())
    return agreement_figures(matches, (8, 16))


def agreement_figures(matches: Sequence[Sequence[bool]], chains: Sequence[int]) -> dict[str, float]:
    """`top1`, and `tau_N` for chains of N; `matches` says for each answer which tokens a greedy drafter predicts."""
    flat = [hit for row in matches for hit in row]
    taus = {f"tau_{chain}": round(mean_acceptance_length(matches, chain), 3) for chain in chains}
    return {"top1": round(float(np.mean(flat)), 4), **taus}


def mean_acceptance_length(matches: Sequence[Sequence[bool]], chain: int) -> float:
    """τ: tokens a round; `matches` says for each answer which tokens a greedy drafter predicts.

    Example: [True, True, False, True] with chains of 8 takes two rounds (2 accepted + bonus; 1 accepted) = 2.0.
    """
    rounds = tokens = 0
    for row in matches:
        position = 0
        while position < len(row):
            accepted = 0
            while accepted < chain and position + accepted < len(row) and row[position + accepted]:
                accepted += 1
            position += accepted + 1
            rounds += 1
        tokens += len(row)
    return tokens / rounds if rounds else 0.0
