"""Scores of answers: BLEU-4, ROUGE-L, CIDEr, VQA accuracy as the data sets define it, and the facts of our scenes.

Every score is a figure with its interval over scenes. Its note names the tokenizer and the normalisation: the same
answers score differently with others.
"""

import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.statistics import Figure, bootstrap
from crossdraft_lab.datasets.index import PairIndex
from crossdraft_lab.datasets.rows import field, json_rows

ORDERS = 4  # orders of n-grams in BLEU and CIDEr
CIDER_SIGMA = 6.0
CIDER_NOTE = "formula of pycocoevalcap 1.2, our own tokenizer: lower case, words alone"
ARTICLES = {"a", "an", "the"}
# Number words, as the VQA evaluation reads them.
NUMBERS = "zero one two three four five six seven eight nine ten"
DIGITS = {"none": "0", **{word: str(number) for number, word in enumerate(NUMBERS.split())}}
Counts = Counter[tuple[str, ...]]


MOST_ANSWERS = 2_000_000


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """An answer with the references that count as right.

    Args:
        scene: scene of the question; intervals are drawn over scenes.
        text: text of the answer.
        references: right answers, at least one.
        kind: kind of question.
    """

    scene: Hashable
    text: str
    references: tuple[str, ...]
    kind: str = ""


def text_scores(answers: Sequence[ScoredAnswer]) -> list[Figure]:
    """BLEU-4, ROUGE-L and CIDEr of free answers.

    Raises:
        CrossdraftError: no answers, or one without a reference.
    """
    return [bleu(answers), rouge_l(answers), cider(answers)]


def accuracies(answers: Sequence[ScoredAnswer]) -> list[Figure]:
    """Exact match and containment of short answers, over all and by kind; VQA's where there are ten references."""
    scenes = [answer.scene for answer in _checked(answers)]
    found = [
        Figure.mean("exact match", [literal(a.text, a.references) for a in answers], scenes, note="of the strings"),
        Figure.mean(
            "normalised match", [matches(a.text, a.references) for a in answers], scenes,
            note="lower case, no stops, no articles, numbers as digits",
        ),
        Figure.mean("contains", [contains(a.text, a.references) for a in answers], scenes, note="normalised"),
    ]  # fmt: skip
    if all(len(answer.references) == 10 for answer in answers):
        values = [vqa_accuracy(a.text, a.references) for a in answers]
        found.append(Figure.mean("VQA accuracy", values, scenes, note="ten answers, each left out in turn"))
    for kind in dict.fromkeys(answer.kind for answer in answers if answer.kind):
        some = [answer for answer in answers if answer.kind == kind]
        values = [matches(a.text, a.references) for a in some]
        found.append(Figure.mean(f"normalised match, {kind}", values, [a.scene for a in some]))
    return found


def facts(right: Sequence[Sequence[bool]], scenes: Sequence[Hashable]) -> Figure:
    """Share of the facts asked for that the answers state (`scenes.score`), drawn over scenes.

    Args:
        right: for each answer, whether each of its facts is right.
        scenes: scene of each answer.
    """
    counts, totals = [sum(one) for one in right], [len(one) for one in right]
    return Figure.ratio("facts", counts, totals, scenes, note="judged by fixed phrases")


def bleu(answers: Sequence[ScoredAnswer]) -> Figure:
    """Corpus BLEU-4, 0 to 100 (Papineni et al. 2002; sacrebleu, Post 2018), unsmoothed."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(smooth_method="none", effective_order=False)
    rows: dict[Hashable, NDArray[np.float64]] = {}
    for answer in _checked(answers):
        score = metric.corpus_score([answer.text], [[reference] for reference in answer.references])
        row = np.array([*score.counts, *score.totals, score.sys_len, score.ref_len], dtype=np.float64)
        rows[answer.scene] = rows.get(answer.scene, 0.0) + row
    sums = np.stack(list(rows.values()))
    found = bootstrap(lambda chosen: bleu_of(sums[chosen].sum(-2)), len(sums))
    return Figure("BLEU-4", found, note=str(metric.get_signature()))


def bleu_of(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """BLEU-4 [...] of matches, n-grams (four of each), own and reference length [..., 10]."""
    counts, totals, own, reference = sums[..., :4], sums[..., 4:8], sums[..., 8], sums[..., 9]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where((counts > 0).all(-1), np.log(counts / totals).mean(-1), -np.inf)
        brevity = np.minimum(0.0, 1 - reference / own)
    return 100 * np.exp(np.where(own > 0, logs + brevity, -np.inf))


def rouge_l(answers: Sequence[ScoredAnswer]) -> Figure:
    """ROUGE-L F, 0 to 100 (Lin 2004; rouge-score with Porter's stemmer); of several references, the best."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    values = [
        100 * scorer.score_multi(list(answer.references), answer.text)["rougeL"].fmeasure
        for answer in _checked(answers)
    ]
    return Figure.mean("ROUGE-L", values, [a.scene for a in answers], note="rouge-score, F, Porter's stemmer")


def cider(answers: Sequence[ScoredAnswer]) -> Figure:
    """CIDEr-D, mean over answers, 0 to 10 (Vedantam et al. 2015), by n-gram weights of all references.

    An n-gram weighs by its frequency in the text and by how few answers have it in a reference. The interval's draws
    keep these weights.
    """
    values = cider_scores([answer.text for answer in _checked(answers)], [answer.references for answer in answers])
    return Figure.mean("CIDEr", values, [answer.scene for answer in answers], note=CIDER_NOTE)


def cider_scores(texts: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """CIDEr-D of each answer."""
    cooked = [[_ngrams(words(text)) for text in some] for some in references]
    documents = Counter[tuple[str, ...]]()
    for some in cooked:
        documents.update({gram for counts in some for gram in counts})
    size = math.log(len(texts))

    def weights(counts: Counts) -> tuple[list[dict[tuple[str, ...], float]], list[float], int]:
        """TF-IDF vectors by order, their norms, and the length in bigrams as the reference implementation counts it."""
        vectors = [dict[tuple[str, ...], float]() for _ in range(ORDERS)]
        for gram, count in counts.items():
            vectors[len(gram) - 1][gram] = count * (size - math.log(max(1, documents[gram])))
        norms = [math.sqrt(sum(value**2 for value in vector.values())) for vector in vectors]
        return vectors, norms, sum(count for gram, count in counts.items() if len(gram) == 2)

    def similarity(own: Counts, other: Counts) -> float:
        vectors, norms, length = weights(own)
        others, their_norms, their_length = weights(other)
        total = 0.0
        for order in range(ORDERS):
            theirs, scale = others[order], norms[order] * their_norms[order]
            shared = sum(
                min(value, theirs.get(gram, 0.0)) * theirs.get(gram, 0.0) for gram, value in vectors[order].items()
            )
            total += shared / scale if scale else shared
        return total / ORDERS * math.exp(-((length - their_length) ** 2) / (2 * CIDER_SIGMA**2))

    return [
        10 * sum(similarity(_ngrams(words(text)), other) for other in some) / len(some)
        for text, some in zip(texts, cooked, strict=True)
    ]


def words(text: str) -> list[str]:
    """Split a text into words and numbers in lower case, with apostrophes inside; full stops are dropped.

    >>> words("There's a red car, 2 m ahead.")
    ["there's", 'a', 'red', 'car', '2', 'm', 'ahead']
    """
    return re.findall(r"[^\W_]+(?:['’][^\W_]+)*", text.casefold())


def normalised(text: str) -> str:
    """A short answer as the VQA evaluation compares it: no capitals, full stops or articles, numbers as digits.

    >>> normalised("The two  Dogs.")
    '2 dogs'
    """
    return " ".join(DIGITS.get(word, word) for word in words(text) if word not in ARTICLES)


def literal(text: str, references: Sequence[str]) -> float:
    """1 if the answer is exactly one of the references, as ActivityNet-QA's own evaluation compares; else 0."""
    return float(text in references)


def matches(text: str, references: Sequence[str]) -> float:
    """1 if the normalised answer is one of the references (accuracy of MSRVTT-QA, MSVD-QA), else 0; 0 if empty."""
    own = normalised(text)
    return float(bool(own) and own in map(normalised, references))


def contains(text: str, references: Sequence[str]) -> float:
    """1 if a reference occurs in the answer as whole words, else 0: for models that answer in sentences.

    An answer that lists everything is right by this measure: report it beside `matches`.
    """
    own = f" {normalised(text)} "
    return float(any(found and f" {found} " in own for found in map(normalised, references)))


def vqa_accuracy(text: str, references: Sequence[str]) -> float:
    """VQA accuracy (Antol et al. 2015): min(n / 3, 1) for n equal answers among nine, averaged over the one left out.

    >>> round(vqa_accuracy("red", ["red"] * 2 + ["blue"] * 8), 3)
    0.6

    Raises:
        CrossdraftError: the number of references is not ten.
    """
    if len(references) != 10:
        raise CrossdraftError(f"VQA's accuracy is defined for 10 answers, not {len(references)}; use exact match.")
    equal = [normalised(reference) == normalised(text) for reference in references]
    return sum(min((sum(equal) - one) / 3, 1.0) for one in equal) / 10


def _ngrams(tokens: Sequence[str]) -> Counts:
    return Counter(
        tuple(tokens[i : i + order]) for order in range(1, ORDERS + 1) for i in range(len(tokens) - order + 1)
    )


def _checked(answers: Sequence[ScoredAnswer]) -> Sequence[ScoredAnswer]:
    if not answers or not all(answer.references for answer in answers):
        raise CrossdraftError("There are no answers to score, or one has no reference; leave out what has none.")
    return answers


@dataclass(frozen=True, slots=True)
class AnsweredIndex:
    """Answers to be scored.

    Args:
        answers: one for each question asked; empty text where there is none.
        unanswered: number of questions without an answer.
    """

    answers: list[ScoredAnswer]
    unanswered: int


def read_answers(folder: Path, path: Path, split: str | None = None) -> AnsweredIndex:
    """Read answers `{"id", "text"}` to an index's questions; without a split, only the answered questions count.

    Raises:
        CrossdraftError: an answer to no question of the index, two answers to one, a question that has no right answer,
            or nothing to score.
    """
    given: dict[str, str] = {}
    for row in json_rows(path):
        key = field(row, "id", path)
        if key in given:
            raise CrossdraftError(f"{path} answers the question {key} twice; leave one of the answers out.")
        given[key] = field(row, "text", path)
        if len(given) > MOST_ANSWERS:
            raise CrossdraftError(f"{path} has more than {MOST_ANSWERS:,} answers, the limit; score them in pieces.")
    found, unanswered = list[ScoredAnswer](), 0
    with PairIndex(folder) as index:
        asked = index.samples(split) if split is not None else (index.sample(key) or {"id": key} for key in given)
        for sample in asked:
            if not sample.get("answers"):
                known = "no right answer" if "question" in sample else "no such question"
                raise CrossdraftError(f"{sample['id']}: the index has {known}, so its answer cannot be scored.")
            text = given.pop(sample["id"], None) if split is not None else given[sample["id"]]
            unanswered += text is None
            found.append(ScoredAnswer(sample["kept_together"], text or "", tuple(sample["answers"]), sample["kind"]))
    if split is not None and given:
        raise CrossdraftError(f"{path} answers {next(iter(given))}, which is no question of the split {split}.")
    if not found:
        raise CrossdraftError(f"There is nothing to score: {path}, or the split, is empty.")
    return AnsweredIndex(found, unanswered)
