"""Held-out figures: facts right in answers, and how far a drafter's greedy tokens agree with the target's."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from crossdraft import scenes
from crossdraft.train.reference.answers import Answered, Asked, Respondent, answer_all
from crossdraft.train.reference.batches import draw_questions
from crossdraft.train.reference.losses import autocast
from crossdraft.train.reference.packed import run_branches
from crossdraft.train.reference.packing import pack
from crossdraft.train.reference.prompt import PromptCodec


def drawn_questions(
    split: str, clips: Sequence[int], questions: int, seed: int, *, held_out: bool
) -> list[list[Asked]]:
    """`questions` about each clip, drawn from (seed, clip); `held_out` asks in wordings never trained on."""
    asked = []
    for clip in clips:
        # Not a stream of its own: numpy fills a seed up with zeros, so that [seed, clip, 0] draws as training's
        # [seed, step] does (`fit.drawn_texts`), and [seed, clip, 1] as the tokenizer's texts do. Nothing leaks by it,
        # because they draw about scenes of other splits; the shipped figures hang on it, so it stays.
        rng = np.random.default_rng([seed, clip, int(held_out)])
        drawn = draw_questions(split, clip, questions, rng, held_out=held_out)
        asked.append([Asked(clip, qa.kind, qa.question, qa.answer, dict(qa.facts)) for qa in drawn])
    return asked


def facts_right(asked: Sequence[Sequence[Asked]], answers: Sequence[Answered]) -> dict[str, float]:
    """Share of facts right: over all (`all`) and per kind of question."""
    rows = [question for questions in asked for question in questions]
    outputs: dict[str, list[bool]] = defaultdict(list)
    for row, answer in zip(rows, answers, strict=True):
        right = list(scenes.score(row.facts, answer.answer).values())
        outputs[row.kind] += right
        outputs["all"] += right
    return {kind: round(float(np.mean(right)), 4) for kind, right in sorted(outputs.items()) if right}


def measure_facts(
    respondent: Respondent, split: str, asked: Sequence[Sequence[Asked]], batch: int, max_new_tokens: int
) -> dict[str, float]:
    """Facts right of greedy answers, `batch` clips decoded together."""
    batches = answer_all(respondent, split, asked, batch, max_new_tokens, "answering")
    return facts_right(asked, [answer for some in batches for answer in some])


def fed_rows(codec: PromptCodec, answers: Sequence[Answered]) -> list[tuple[list[int], list[int]]]:
    """Ids of each question and of its answer; `</s>` follows only where the answer ended by itself."""
    return [(codec.question_ids(a.question), codec.answer_ids(a.answer, whole=a.whole)) for a in answers]


@torch.inference_mode()
def agreement(
    drafter: Respondent, split: str, answers: Sequence[Answered], questions: int, batch: int
) -> dict[str, float]:
    """How a drafter's argmax agrees with the target's answers when it is fed them, `batch` clips at a time.

    `top1` is the share of tokens; `tau_8` and `tau_16` are the tokens a round would emit with chains of 8 and 16,
    bonus included, counted over rounds laid end to end along each answer (what verification would keep).

    Answers are kept as text, so the tokens compared are those that the tokenizer makes of it: where the target spelled
    a word in other pieces, the figures are about the tokenizer's pieces, not the target's.
    """
    clips = [answers[i].clip for i in range(0, len(answers), questions)]
    rows = fed_rows(drafter.codec, answers)
    matches: list[list[bool]] = []
    for start in range(0, len(clips), batch):
        some = rows[start * questions : (start + batch) * questions]
        packed = pack(some, int(drafter.codec.tokenizer.pad_token_id))
        with autocast():
            prefix = drafter.read(split, clips[start : start + batch])
            hidden = run_branches(drafter.seer.llama, prefix, drafter.seer.llama.embed_tokens(packed.tokens))
            said = drafter.seer.head(hidden).argmax(-1)
        for row, (question, answer) in enumerate(some):
            span = said[row, len(question) - 1 : len(question) - 1 + len(answer)]
            matches.append((span == torch.tensor(answer)).tolist())
    flat = [hit for row in matches for hit in row]
    return {
        "top1": round(float(np.mean(flat)), 4),
        "tau_8": round(mean_accepted(matches, 8), 3),
        "tau_16": round(mean_accepted(matches, 16), 3),
    }


def mean_accepted(matches: Sequence[Sequence[bool]], chain: int) -> float:
    """Tokens a round over answers whose token `i` a greedy drafter would (not) have foreseen.

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
