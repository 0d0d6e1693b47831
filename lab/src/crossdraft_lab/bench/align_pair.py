"""Test data of an aligned pair: a split that it has never seen, with controls made of what it learned from."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.load import event_fingerprint, target_fingerprint
from crossdraft_lab.bench.align import AlignBench, AlignQuestions, KnownAnswers, scene_questions
from crossdraft_lab.bench.align_rows import HELD_OUT, TRAINED
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.experiments.record import Tick
from crossdraft_lab.bench.specs import spec_of
from crossdraft_lab.bench.workload import Item, Workload
from crossdraft_lab.datasets.sample import wording


def taught_questions(
    tests: Mapping[str, Sequence[Item]],
    answers: Sequence[tuple[str, Sequence[int]]],
    seed: Path,
    about: Mapping[str, object],
) -> AlignQuestions:
    """Questions beside answers that are known already.

    Args:
        tests, about: as in `AlignQuestions`.
        answers: (kind of question, the target's answer) about training clips: of them constant and template are made.
        seed: the capture that `memory` begins with.
    """

    def learn(models: Models, target: Target, nodes: int, tick: Tick) -> KnownAnswers:
        return answers, lambda: models.build(spec_of(f"memory:seed={seed}"), target)

    return AlignQuestions(tests, sum(map(len, tests.values())), len(answers), learn, about)


def scene_tests(clips: int, each: int, max_new_tokens: int) -> tuple[dict[str, Sequence[Item]], Mapping[str, object]]:
    """Test scenes in both wordings, and what they are."""
    questions = scene_questions(Workload(clips * each, max_new_tokens=max_new_tokens, questions=each), 1)
    return {name: list(items) for name, items in questions.tests.items()}, questions.about


def list_tests(requests: Iterable[Request], known: Iterable[str]) -> dict[str, Sequence[Item]]:
    """Questions of a test list: those that no captured clip was asked, and the others; what is empty is left out.

    Two questions that differ in capitals, stops or blanks are one, here and for the control that knows an answer to
    each.

    Args:
        requests: the questions; those with the same files are about one clip.
        known: questions about training and validation clips.
    """
    words = {wording(question) for question in known}
    numbers: dict[tuple[object, object], int] = {}
    found: dict[str, list[Item]] = {HELD_OUT: [], TRAINED: []}
    for request in requests:
        number, kind = numbers.setdefault((request.video, request.events), len(numbers)), wording(request.question)
        found[TRAINED if kind in words else HELD_OUT].append(Item(number, kind, request))
    return {name: items for name, items in found.items() if items}


def _paths(request: Request) -> list[str]:
    """The files of a clip of a list."""
    return [path for path in (request.video, request.events) if isinstance(path, str)]


def rows_config(
    plan: AlignBench, tests: Mapping[str, Sequence[Item]], drafters: Sequence[str], capture: str
) -> Mapping[str, object]:
    """Collect the settings that decide the figures of a measurement, for `align_rows.KeptRows`.

    Args:
        plan: the measurement.
        tests: what is asked.
        drafters: event models that draft in it; see `drafters.event.load`.
        capture: which answers controls and memories know.
    """
    models = plan.models
    asked = [
        (name, item.seed, item.kind, item.request.question, item.request.token_limit, *_paths(item.request))
        for name, items in tests.items()
        for item in items
    ]
    return {
        "target": target_fingerprint(models.target),
        "drafters": [event_fingerprint(drafter) for drafter in (*drafters, models.blind)],
        "rows": plan.drafters,
        "nodes": plan.nodes,
        **{name: getattr(models, name) for name in ("device", "dtype", "quantize")},
        "capture": [capture, plan.questions.learned],
        "about": dict(plan.questions.about),
        "asked": hashlib.blake2b(json.dumps(asked).encode(), digest_size=16).hexdigest(),
    }
