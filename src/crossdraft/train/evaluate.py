"""Held-out figures: facts right in answers, and how far a drafter's greedy tokens agree with the target's."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from crossdraft import scenes
from crossdraft.train.answers import Answered, Asked, Respondent, answer_all
from crossdraft.train.batches import draw_questions
from crossdraft.train.fit import autocast
from crossdraft.train.packed import run_branches
from crossdraft.train.packing import pack


def held_out_questions(
    split: str, clips: Sequence[int], questions: int, seed: int, *, held_out: bool
) -> list[list[Asked]]:
    """`questions` about each clip, drawn from (seed, clip); `held_out` asks in wordings never trained on."""
    asked = []
    for clip in clips:
        rng = np.random.default_rng([seed, clip, int(held_out)])
        drawn = draw_questions(split, clip, questions, rng, held_out=held_out)
        asked.append([Asked(clip, qa.kind, qa.question, qa.answer, dict(qa.facts)) for qa in drawn])
    return asked


def facts_right(asked: Sequence[Sequence[Asked]], answers: Sequence[Answered]) -> dict[str, float]:
    """Share of facts right: over all (`all`) and per kind of question."""
    rows = [question for questions in asked for question in questions]
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for row, answer in zip(rows, answers, strict=True):
        right = list(scenes.score(row.facts, answer.answer).values())
        verdicts[row.kind] += right
        verdicts["all"] += right
    return {kind: round(float(np.mean(right)), 4) for kind, right in sorted(verdicts.items()) if right}


def measure_facts(
    respondent: Respondent, split: str, clips: Sequence[int], questions: int, seed: int, *, held_out: bool
) -> tuple[dict[str, float], list[Answered]]:
    """Facts right of greedy answers about `clips`, and the answers themselves."""
    asked = held_out_questions(split, clips, questions, seed, held_out=held_out)
    answers = [a for some in answer_all(respondent, split, asked, 8, 112, "answering") for a in some]
    return facts_right(asked, answers), answers


@torch.inference_mode()
def agreement(
    drafter: Respondent, split: str, answers: Sequence[Answered], questions: int
) -> dict[str, float]:
    """How a drafter's argmax agrees with the target's answers when it is fed them.

    `top1` is the share of tokens; `tau_8` and `tau_16` are the tokens a round would emit with chains of 8 and 16,
    bonus included, counted over rounds laid end to end along each answer (what verification would keep).
    """
    clips = [answers[i].clip for i in range(0, len(answers), questions)]
    rows = [(drafter.codec.question_ids(a.question), drafter.codec.answer_ids(a.answer)) for a in answers]
    matches: list[list[bool]] = []
    for start in range(0, len(clips), 8):
        some = rows[start * questions : (start + 8) * questions]
        packed = pack(some, int(drafter.codec.tokenizer.pad_token_id))
        with autocast():
            prefix = drafter.read(split, clips[start : start + 8])
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
