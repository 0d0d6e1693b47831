"""`crossdraft bench align`: how far drafters that were, or were not, aligned with the target speak its language.

Measured are the accepted prefix of the hidden draft, which was made before the target had said anything, and τ of the
rounds after it. For adapters, the figures by which feature alignment is usually judged stand beside them: they are
taken along the target's own answer, position by position. Every row is measured on the same clips, which no training
has seen, with questions in wordings that no training has seen, and in those of the training.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from crossdraft.checkpoints.locate import EVENT_MODELS
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Answer, Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.stats import Stats
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import read_config
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.load import event_fingerprint, target_fingerprint
from crossdraft.methods import method_in
from crossdraft.specs import Spec
from crossdraft_lab.align.drafter import AlignedDrafter, AlignedOptions
from crossdraft_lab.align.networks.base import AdapterConfig
from crossdraft_lab.align.networks.own_answer import OwnAnswerAdapter
from crossdraft_lab.align.networks.pointwise import NoAdapter
from crossdraft_lab.align.networks.token import TokenAdapter
from crossdraft_lab.bench.align_features import Json, clips_of, feature_figures, identity_figures, target_features
from crossdraft_lab.bench.align_rows import (
    CONTROLS,
    HELD_OUT,
    IDENTITY,
    TRAINED,
    UNTRAINED,
    KeptRows,
    Results,
    accepted,
    best_text,
    ladder,
    row_of,
    templates,
)
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.baselines import blank_window
from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.experiments.record import Tick
from crossdraft_lab.bench.identity import ReferenceAnswer, reference_answers
from crossdraft_lab.bench.specs import is_blind, spec_of
from crossdraft_lab.bench.statistics import Interval, ratio_by
from crossdraft_lab.bench.workload import Item, Workload, describe, items
from crossdraft_lab.datasets.sample import wording
from crossdraft_lab.networks import ALIGNED

NODES = 8


KnownAnswers = tuple[Sequence[tuple[str, Sequence[int]]], Callable[[], Drafter[Any]]]
"""Data that controls are made of: kinds of question with the target's answers, and what makes a `memory` of them."""


@dataclass(frozen=True, slots=True)
class AlignQuestions:
    """The questions asked, and the data that the controls learn from.

    Args:
        tests: test questions under the keys `HELD_OUT` and `TRAINED`, or one of them; iterated once.
        count: number of test questions in all.
        learned: number of the target's answers about training clips that the controls learn from.
        learn: function that generates these answers, given the pair, the target, the nodes of a draft and a tick.
        about: description of the questions, for the results' JSON.
        ticks: number of answers that are generated besides the rows' own.
    """

    tests: Mapping[str, Iterable[Item]]
    count: int
    learned: int
    learn: Callable[[Models, Target, int, Tick], KnownAnswers]
    about: Mapping[str, object] = field(default_factory=dict[str, object])
    ticks: int = 0


def scene_questions(work: Workload, learned: int) -> AlignQuestions:
    """Questions about the road world, whose training answers are generated anew.

    Args:
        work: the test questions; the questions in training wordings are about the same clips.
        learned: number of questions about training clips.
    """

    def learn(models: Models, target: Target, nodes: int, tick: Tick) -> KnownAnswers:
        known = list(reference_answers(target, items(replace(work, split="train", pairs=learned)), tick))

        def memory() -> Drafter[Any]:
            made = models.build(spec_of("memory"), target)
            _generate(target, made, [pair.item.request for pair in known], nodes, tick, "memory")
            return made

        return [(pair.item.kind, pair.tokens) for pair in known], memory

    tests = {HELD_OUT: items(work), TRAINED: items(replace(work, trained_wordings=True))}
    return AlignQuestions(tests, 2 * work.pairs, learned, learn, {"workload": describe(work)}, 3 * learned)


@dataclass(frozen=True, slots=True)
class AlignBench:
    """Settings of a measurement of aligned drafters.

    Args:
        models: the pair.
        questions: the questions asked, and the controls' data.
        drafters: specs of drafters, in the order of the table.
        nodes: number of nodes of the chains after the hidden draft.
        one_by_one: load each drafter only when its turn comes: large ones need not fit in memory together.
    """

    models: Models
    questions: AlignQuestions
    drafters: tuple[str, ...]
    nodes: int = NODES
    one_by_one: bool = False

    @property
    def ticks(self) -> int:
        """Number of steps of the progress bar."""
        rows = 2 + len(self.drafters) + (self.feature_drafter is not None)
        return self.questions.ticks + (1 + rows) * self.questions.count

    @property
    def feature_drafter(self) -> str | None:
        """Drafter whose feature the target's head reads unchanged, as a control: first adapter, else first EventGPT.

        Adapters count if they translate features; adapters that translate tokens do not.
        """
        adapters = [spec for spec in self.drafters if _translates_features(spec_of(spec))]
        models = [spec for spec in self.drafters if method_in(spec_of(spec)).name in EVENT_MODELS]
        return next(iter((*adapters, *models)), None)

    def check(self) -> None:
        """Refuse what cannot be measured, before a model is loaded.

        Raises:
            CrossdraftError: as `check_drafters`, or no answers for the controls.
        """
        check_drafters(self.drafters)
        if self.nodes < 1 or self.questions.learned < 1:
            raise CrossdraftError("Controls need answers, and rounds a node: --learned and --nodes are 1 or more.")


def check_drafters(drafters: Sequence[str]) -> None:
    """Refuse drafters that cannot be compared, before a model is loaded.

    Raises:
        CrossdraftError: no drafter, one that is named twice or like a control, an unknown spec, or a memory that is
            kept in a folder.
    """
    if not drafters or len(set(drafters)) != len(drafters):
        raise CrossdraftError("Name one drafter or more, each once, such as --drafter aligned:dir=FOLDER,model=FOLDER.")
    taken = [name for name in drafters if name in {*CONTROLS, IDENTITY, UNTRAINED}]
    if taken:
        raise CrossdraftError(f"'{taken[0]}' is the name of a control, which is always measured; leave it out.")
    for spec in map(spec_of, drafters):
        if any(leaf.name == "memory" and "folder" in leaf.settings for leaf in spec.leaves):
            raise CrossdraftError(
                f"The memory of {spec} is kept in a folder, and would know the answers to test questions when they "
                "are asked in other words; leave its folder out, or name what it shall know as seed=CAPTURE."
            )


def _translates_features(spec: Spec) -> bool:
    """True if a spec is an adapter between features; features exist without the adapter, too."""
    if spec.name != "aligned" or "dir" not in spec.settings:
        return False
    network = read_config(Path(spec.settings["dir"])).network
    return network in ALIGNED and not issubclass(ALIGNED[network].network_class, TokenAdapter | OwnAnswerAdapter)


def run_align(plan: AlignBench, tick: Tick = lambda name: None, kept: KeptRows | None = None) -> Results:
    """Measure every drafter and the controls.

    Args:
        plan: settings of the measurement.
        tick: called after every answer, with the name of the drafter or control that gave it.
        kept: rows that are measured already; each further row is added to them.

    Raises:
        CrossdraftError: as `AlignBench.check`, or a model cannot be loaded.
    """
    plan.check()
    kept = kept or KeptRows()
    models, target = plan.models, plan.models.load_target()
    built = {} if plan.one_by_one else {name: models.build(spec_of(name), target) for name in plan.drafters}
    known = plan.questions.learn(models, target, plan.nodes, tick)
    tests = {name: _answered(target, name, asked, tick, kept) for name, asked in plan.questions.tests.items()}
    run = _AlignRun(plan, target, tests, tick, kept)
    results = {
        name: run.row(name, partial(models.build, spec_of(name), target), built.get(name)) for name in plan.drafters
    }
    return results | _controls(run, built, known)


def _answered(
    target: Target, wordings: str, asked: Iterable[Item], tick: Tick, kept: KeptRows
) -> list[ReferenceAnswer]:
    """Generate the answers of the target alone, unless they are kept already."""
    known = kept.answers(wordings)
    if known is None:
        found = list(reference_answers(target, asked, tick))
        kept.add_answers(wordings, [pair.tokens for pair in found])
        return found
    found = [ReferenceAnswer(item, tokens) for item, tokens in zip(asked, known, strict=True)]
    for _ in found:
        tick("target")
    return found


@dataclass(frozen=True, eq=False)
class _AlignRun:
    """Run of one measurement.

    Args:
        tests: questions by their wordings, with the target's own answers. Other fields as in `run_align`.
    """

    plan: AlignBench
    target: Target
    tests: Mapping[str, Sequence[ReferenceAnswer]]
    tick: Tick
    kept: KeptRows
    _features: dict[str, list[Tensor]] = field(default_factory=dict)

    def features(self, wordings: str) -> list[Tensor]:
        """The target's own features [A, H] of each answer; computed once, and only if a row asks for them."""
        if wordings not in self._features:
            self._features[wordings] = [target_features(self.target, pair) for pair in self.tests[wordings]]
        return self._features[wordings]

    def row(self, name: str, make: Callable[[], Drafter[Any]], drafter: Drafter[Any] | None = None) -> dict[str, Json]:
        """Measure a drafter on every set of questions.

        Args:
            name: name of the row.
            make: makes the drafter: anew for each set, if it learns from answers. The sets are about the same clips,
                and what a drafter learned from one set must not help it with the other.
            drafter: a fresh drafter, if the caller has one already.
        """
        found: dict[str, Json] = {}
        for wordings, pairs in self.tests.items():
            known = self.kept.row(name, wordings)
            if known is None:
                drafter = make() if drafter is None else drafter
                known = self.kept.add(name, wordings, self._drafted(name, drafter, wordings))
                drafter = None if drafter.needs.learns else drafter
            else:
                for _ in pairs:
                    self.tick(name)
            found[wordings] = known
        return found

    def identity(self, wordings: str) -> Json:
        """Row of the target's own feature offered as a prediction of itself; nothing is drafted."""
        if (known := self.kept.row(IDENTITY, wordings)) is not None:
            return known
        figures = identity_figures(self.target, self.tests[wordings], self.features(wordings))
        return self.kept.add(IDENTITY, wordings, row_of((), (), features=figures))

    def _drafted(self, name: str, drafter: Drafter[Any], wordings: str) -> Json:
        """Row of a drafter under the real engine and, for an adapter, figures of its features along the answers."""
        plan, target, pairs = self.plan, self.target, self.tests[wordings]
        requests = [pair.item.request for pair in pairs]
        if name == "blind" or (name in plan.drafters and is_blind(spec_of(name))):
            blank = blank_window(plan.models.blind)
            requests = [replace(request, events=blank) for request in requests]
        answers = _generate(target, drafter, requests, plan.nodes, self.tick, name)
        stats, clips = [answer.stats for answer in answers], clips_of(pairs)
        is_adapter = isinstance(drafter, AlignedDrafter)
        return row_of(
            [one.hidden_accepted for one in stats],
            clips,
            _tau_after(stats, clips),
            sum(tuple(answer.tokens) == tuple(pair.tokens) for answer, pair in zip(answers, pairs, strict=True)),
            feature_figures(drafter, target, pairs, self.features(wordings)) if is_adapter else None,
        )


def _tau_after(stats: Sequence[Stats], clips: Sequence[int]) -> Interval | None:
    """Tokens of each pass after the hidden draft's; `None` if there was no further pass."""
    later = [
        (clip, one.new_tokens - 1 - one.hidden_accepted, one.rounds - 1)
        for one, clip in zip(stats, clips, strict=True)
        if one.rounds > 1
    ]
    return ratio_by(*zip(*later, strict=True)) if later else None


def _controls(run: _AlignRun, built: Mapping[str, Drafter[Any]], known: KnownAnswers) -> dict[str, dict[str, Json]]:
    """Measure the controls that the drafters have to beat."""
    plan, target, (answers, memory) = run.plan, run.target, known
    constant, by_kind = best_text(answer for _, answer in answers), templates(answers)

    def said(text_of: Callable[[Item], Sequence[int]]) -> dict[str, Json]:
        return {
            wordings: row_of([accepted(text_of(one.item), one.tokens) for one in pairs], clips_of(pairs))
            for wordings, pairs in run.tests.items()
        }

    found = {
        "constant": said(lambda item: constant),
        "template": said(lambda item: by_kind.get(item.kind, constant)),
        "memory": run.row("memory", memory),
        "blind": run.row("blind", partial(plan.models.build, spec_of("blind"), target)),
        IDENTITY: {wordings: run.identity(wordings) for wordings in run.tests},
    }
    name = plan.feature_drafter
    if name is not None:
        drafter = built[name] if name in built else plan.models.build(spec_of(name), target)
        if isinstance(drafter, IndependentDrafter) and drafter.model.vocab_size == target.vocab_size:
            found[UNTRAINED] = run.row(UNTRAINED, partial(untrained, drafter, target))
        else:
            for _ in range(plan.questions.count):
                run.tick(UNTRAINED)
    return found


def untrained(drafter: IndependentDrafter, target: Target) -> AlignedDrafter:
    """Join a drafter's event model to the target's head without any trained part between them."""
    own, text = drafter.model.text_config, target.text_config
    config = AdapterConfig(
        hidden_size=text.hidden_size,
        vocab_size=target.vocab_size,
        num_layers=text.num_hidden_layers,
        draft_ids=tuple(token for token in range(target.vocab_size) if token not in target.reserved),
        drafter="",
        source_size=own.hidden_size,
        source_layers=(own.num_hidden_layers,),
    )
    adapter = NoAdapter(config, SharedWeights.of(target.model))
    like = next(drafter.model.model.parameters())
    return AlignedDrafter(drafter.model, adapter.to(like.device, like.dtype), AlignedOptions(sorted(target.reserved)))


def _generate(
    target: Target, drafter: Drafter[Any], requests: Sequence[Request], nodes: int, tick: Tick, name: str
) -> list[Answer]:
    """Generate greedily: a hidden draft of at most `policy.HIDDEN_NODES` tokens, then chains of `nodes` a round."""
    decoder = DecodeLoop(target, DraftRunner(drafter, "before"), adaptive=False, nodes=nodes)
    answers = []
    for request in requests:
        answers += decoder.generate([replace(request, sampling=Sampling())])
        tick(name)
    return answers


def to_json(plan: AlignBench, results: Results) -> dict[str, object]:
    """Plain values."""
    return {
        "environment": environment(),
        **plan.questions.about,
        "learned": plan.questions.learned,
        "nodes": plan.nodes,
        "results": results,
        "ladder": {
            wordings: [
                {"drafter": name, "than": than, **more.to_json("more")}
                for name, than, more in ladder(plan.drafters, results, wordings)
            ]
            for wordings in results[plan.drafters[0]]
        },
    }


def taught_questions(
    tests: Mapping[str, Sequence[Item]],
    answers: Sequence[tuple[str, Sequence[int]]],
    seed: Path,
    about: Mapping[str, object],
) -> AlignQuestions:
    """Questions beside answers that are known already.

    Args:
        tests, about: as in `AlignQuestions`.
        answers: (kind of question, the target's answer) about training clips, for the constant and the template.
        seed: the capture that `memory` begins with.
    """

    def learn(models: Models, target: Target, nodes: int, tick: Tick) -> KnownAnswers:
        return answers, lambda: models.build(spec_of(f"memory:seed={seed}"), target)

    return AlignQuestions(tests, sum(map(len, tests.values())), len(answers), learn, about)


def scene_tests(clips: int, each: int, max_new_tokens: int) -> tuple[dict[str, Sequence[Item]], Mapping[str, object]]:
    """Test scenes in both wordings, and their description as plain values."""
    questions = scene_questions(Workload(clips * each, max_new_tokens=max_new_tokens, questions=each), 1)
    return {name: list(items) for name, items in questions.tests.items()}, questions.about


def list_tests(requests: Iterable[Request], known: Iterable[str]) -> dict[str, Sequence[Item]]:
    """Questions of a test list: those that no captured clip was asked, and the others; empty sets are left out.

    Two questions that differ only in capitals, full stops or blanks count as the same, here and for the control that
    answers captured questions.

    Args:
        requests: the questions; questions with the same files are about one clip.
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
        tests: the test questions.
        drafters: event models that draft in the measurement; see `drafters.event.load`.
        capture: path of the answers that controls and memories know.
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
