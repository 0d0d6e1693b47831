"""`crossdraft bench align`: how far drafters that were, or were not, aligned with the target speak its language.

What counts is the accepted prefix of the hidden draft, which was made before the target had said anything, and τ of the
rounds after it. Beside them, for adapters, stand the figures that feature alignment is usually judged by: they are
taken along the target's own answer, position by position. Every row is measured on the same clips, which no training
has seen, with questions in wordings that no training has seen, and in those of the training.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from crossdraft.align.drafter import AlignedDrafter, AlignedOptions, AlignedState
from crossdraft.align.fused_drafter import FusedState
from crossdraft.align.networks.pointwise import NoAdapter
from crossdraft.bench.align_controls import accepted, best_text, templates
from crossdraft.bench.align_features import FeatureFigures, figures_of
from crossdraft.bench.assembly import Models
from crossdraft.bench.baselines import blank_window
from crossdraft.bench.identity import ReferenceAnswer, reference_answers
from crossdraft.bench.specs import is_blind, spec_of
from crossdraft.bench.statistics import Interval, ratio
from crossdraft.bench.workload import Item, Workload, describe, items
from crossdraft.engine.decode import Decoder
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.passes import Chunk
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import SharedWeights

HELD_OUT, TRAINED = "held-out wordings", "training wordings"
NODES = 8
CONTROLS = ("constant", "template", "memory", "blind")
UNTRAINED, IDENTITY = "no adapter", "the target's own feature"
Tick = Callable[[str], None]


class AlignQuestions(Protocol):
    """What is asked, and what the controls learn from."""

    @property
    def tests(self) -> Mapping[str, Iterable[Item]]:
        """The questions by `HELD_OUT` and `TRAINED`; one of them may be left out."""
        ...

    @property
    def ticks(self) -> int:
        """Answers that are generated besides those of the rows."""
        ...

    @property
    def count(self) -> int:
        """Questions in all."""
        ...

    def learn(self, models: Models, target: Target, nodes: int, tick: Tick) -> "KnownAnswers":
        """Answers about clips that the drafters were trained on."""
        ...

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        ...


@dataclass(frozen=True, slots=True)
class KnownAnswers:
    """What controls are made of.

    Args:
        answers: kinds of question, and the target's answers.
        memory: makes a `memory` that knows them.
    """

    answers: Sequence[tuple[str, Sequence[int]]]
    memory: Callable[[], Drafter[Any]]


@dataclass(frozen=True, slots=True)
class SceneQuestions:
    """Questions about the road world, whose training answers are generated anew.

    Args:
        work: the test questions; those in training wordings are about the same clips.
        learned: how many questions about training clips.
    """

    work: Workload
    learned: int

    @property
    def tests(self) -> Mapping[str, Iterable[Item]]:
        return {HELD_OUT: items(self.work), TRAINED: items(replace(self.work, trained_wordings=True))}

    @property
    def ticks(self) -> int:
        return 3 * self.learned

    @property
    def count(self) -> int:
        return 2 * self.work.pairs

    def learn(self, models: Models, target: Target, nodes: int, tick: Tick) -> KnownAnswers:
        training = replace(self.work, split="train", pairs=self.learned)
        learned = list(reference_answers(target, items(training), tick))

        def memory() -> Drafter[Any]:
            made = models.build(spec_of("memory"), target)
            _generate(target, made, [pair.item.request for pair in learned], nodes, tick, "memory")
            return made

        return KnownAnswers([(pair.item.kind, pair.tokens) for pair in learned], memory)

    def to_json(self) -> dict[str, object]:
        return {"workload": describe(self.work), "learned": self.learned}


@dataclass(frozen=True, slots=True)
class AlignBench:
    """What is measured.

    Args:
        models: the pair.
        questions: what is asked.
        drafters: specs, in the order of the table.
        nodes: of the chains after the hidden draft.
        one_by_one: each drafter is made when its turn comes: large ones need not fit beside each other.
    """

    models: Models
    questions: AlignQuestions
    drafters: tuple[str, ...]
    nodes: int = NODES
    one_by_one: bool = False

    @property
    def ticks(self) -> int:
        """What a progress bar counts to."""
        rows = 2 + len(self.drafters) + any(spec_of(spec).name == "aligned" for spec in self.drafters)
        return self.questions.ticks + (1 + rows) * self.questions.count

    def check(self) -> None:
        """Refuse what cannot be measured, before a model is loaded.

        Raises:
            CrossdraftError: no drafter, one that stands there twice, no answers for the controls, or an unknown spec.
        """
        if not self.drafters or len(set(self.drafters)) != len(self.drafters):
            raise CrossdraftError(
                "Name one drafter or more, each once, such as --drafter aligned:dir=FOLDER,model=FOLDER."
            )
        if self.nodes < 1 or (isinstance(self.questions, SceneQuestions) and self.questions.learned < 1):
            raise CrossdraftError("Controls need answers, and rounds a node: --learned and --nodes are 1 or more.")
        for spec in self.drafters:
            spec_of(spec)


@dataclass(frozen=True, slots=True)
class DraftResult:
    """One drafter or control on one set of questions.

    Args:
        prefix: accepted tokens of each hidden draft.
        tau: tokens a verify pass after that, bonus included; `None` of what only says one text.
        equal: answers that were the target's own.
        features: of an adapter.
    """

    prefix: tuple[int, ...]
    tau: Interval | None = None
    equal: int | None = None
    features: FeatureFigures | None = None

    @property
    def mean(self) -> Interval | None:
        """Mean accepted prefix; `None` of what drafts nothing."""
        return ratio(self.prefix, [1] * len(self.prefix)) if self.prefix else None

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "accepted_prefix": None if self.mean is None else self.mean.to_json(),
            "tau": None if self.tau is None else self.tau.to_json(),
            "equal": self.equal,
            "features": None if self.features is None else self.features.to_json(),
            "prefixes": list(self.prefix),
        }


Results = Mapping[str, Mapping[str, DraftResult]]
"""By the name of the drafter or control, then by wordings."""


def run_align(plan: AlignBench, tick: Tick = lambda name: None) -> Results:
    """Measure every drafter and the controls.

    Raises:
        CrossdraftError: as `AlignBench.check`, or a model cannot be loaded.
    """
    plan.check()
    models, target = plan.models, plan.models.load_target()
    first = {} if plan.one_by_one else {name: models.build(spec_of(name), target) for name in plan.drafters}
    known = plan.questions.learn(models, target, plan.nodes, tick)
    tests = {name: list(reference_answers(target, asked, tick)) for name, asked in plan.questions.tests.items()}
    features = {name: [target_features(target, pair) for pair in pairs] for name, pairs in tests.items()}
    results: dict[str, dict[str, DraftResult]] = {}
    for name in plan.drafters:
        drafter = first.get(name) or models.build(spec_of(name), target)
        results[name] = {
            wordings: _drafted(plan, target, drafter, pairs, features[wordings], tick, name)
            for wordings, pairs in tests.items()
        }
        del drafter
    results |= _controls(plan, target, first, known, tests, features, tick)
    return results


def _controls(
    plan: AlignBench,
    target: Target,
    built: Mapping[str, Drafter[Any]],
    known: KnownAnswers,
    tests: Mapping[str, Sequence[ReferenceAnswer]],
    features: Mapping[str, Sequence[Tensor]],
    tick: Tick,
) -> dict[str, dict[str, DraftResult]]:
    """What the drafters have to beat."""
    constant, by_kind = best_text(answer for _, answer in known.answers), templates(known.answers)
    blind = plan.models.build(spec_of("blind"), target)
    found: dict[str, dict[str, DraftResult]] = {}
    for wordings, pairs in tests.items():
        memory = known.memory()  # anew: it learns from test answers, too
        own = {
            "constant": DraftResult(tuple(accepted(constant, pair.tokens) for pair in pairs)),
            "template": DraftResult(tuple(accepted(by_kind.get(p.item.kind, constant), p.tokens) for p in pairs)),
            "memory": _drafted(plan, target, memory, pairs, (), tick, "memory"),
            "blind": _drafted(plan, target, blind, pairs, (), tick, "blind"),
            IDENTITY: DraftResult((), features=identity_figures(target, pairs, features[wordings])),
        }
        first = next((drafter for drafter in built.values() if isinstance(drafter, AlignedDrafter)), None)
        if first is not None:
            own[UNTRAINED] = _drafted(
                plan, target, untrained(first, target), pairs, features[wordings], tick, UNTRAINED
            )
        for name, result in own.items():
            found.setdefault(name, {})[wordings] = result
    return found


def untrained(drafter: AlignedDrafter, target: Target) -> AlignedDrafter:
    """The same event model with nothing between its feature and the target's head."""
    adapter = NoAdapter(drafter.adapter.config, SharedWeights.of(target.model))
    like = drafter.adapter.embeddings
    return AlignedDrafter(drafter.model, adapter.to(like.device, like.dtype), AlignedOptions(sorted(target.reserved)))


def _drafted(
    plan: AlignBench,
    target: Target,
    drafter: Drafter[Any],
    pairs: Sequence[ReferenceAnswer],
    features: Sequence[Tensor],
    tick: Tick,
    name: str,
) -> DraftResult:
    """A drafter under the real engine and, of an adapter, its features along the answers."""
    requests = [pair.item.request for pair in pairs]
    if name == "blind" or (name in plan.drafters and is_blind(spec_of(name))):
        blank = blank_window(plan.models.blind)
        requests = [replace(request, events=blank) for request in requests]
    answers = _generate(target, drafter, requests, plan.nodes, tick, name)
    stats = [answer.stats for answer in answers]
    later = [(one.new_tokens - 1 - one.hidden_accepted, one.rounds - 1) for one in stats if one.rounds > 1]
    return DraftResult(
        tuple(one.hidden_accepted for one in stats),
        ratio(*zip(*later, strict=True)) if later else None,
        sum(tuple(answer.tokens) == tuple(pair.tokens) for answer, pair in zip(answers, pairs, strict=True)),
        feature_figures(drafter, target, pairs, features) if isinstance(drafter, AlignedDrafter) else None,
    )


def _generate(
    target: Target, drafter: Drafter[Any], requests: Sequence[Request], nodes: int, tick: Tick, name: str
) -> list[Any]:
    """Greedy answers: a hidden draft without a limit of its own, then chains of `nodes` a round."""
    decoder = Decoder(target, DraftRunner(drafter, "before"), adaptive=False, nodes=nodes)
    answers = []
    for request in requests:
        answers += decoder.generate([replace(request, sampling=Sampling())])
        tick(name)
    return answers


@torch.inference_mode()
def target_features(target: Target, pair: ReferenceAnswer) -> Tensor:
    """[A, H] the target's last features that its answer of A tokens comes from."""
    prompt, last = target.prepare(pair.item.request), (target.text_config.num_hidden_layers,)
    length = len(prompt) + len(pair.tokens)
    cache = target.new_cache(capacity=length)
    read = target.prefill(cache, prompt, target.encode(prompt), length, capture=last)
    rows = [read.out.hidden[0][0][-1:]]
    if len(pair.tokens) > 1:
        chunk = Chunk(torch.tensor(pair.tokens[:-1]))
        rows.append(target.extend(cache, slice(0, 1), [chunk], [DraftTree.empty()], last).hidden[0][0])
    return torch.cat(rows).float()


@torch.inference_mode()
def aligned_features(drafter: AlignedDrafter, pair: ReferenceAnswer, own: Tensor) -> Tensor:
    """[A, H] what the adapter has for these, the drafter having read the same tokens.

    One that reads the target's features has `own` [A, H], each one position late.
    """
    state = cast("AlignedState", drafter.begin([pair.item.request])[0])
    if isinstance(state, FusedState):
        state.target = own.to(state.aligned)
    rows, tokens = [state.outputs[-1:]], list(pair.tokens[:-1])
    if tokens:
        drafter.feed(state, tokens[:1], tokens[1:])
        rows.append(state.outputs)
    return torch.cat(rows).float()


def feature_figures(
    drafter: AlignedDrafter, target: Target, pairs: Sequence[ReferenceAnswer], features: Sequence[Tensor]
) -> FeatureFigures:
    """An adapter's predictions along the answers."""
    found = [(aligned_features(drafter, pair, own), own) for pair, own in zip(pairs, features, strict=True)]
    return figures_of(found, lm_head_of(target), [pair.tokens for pair in pairs])


def identity_figures(target: Target, pairs: Sequence[ReferenceAnswer], features: Sequence[Tensor]) -> FeatureFigures:
    """The same of the target's own features, offered as predictions of themselves.

    It is perfect at its own position, and drafts nothing: what a score at the same position says of an adapter that was
    given the target's feature.
    """
    return figures_of([(own, own) for own in features], lm_head_of(target), [pair.tokens for pair in pairs])


def lm_head_of(target: Target) -> Tensor:
    """[V, H] in float32."""
    return SharedWeights.of(target.model).lm_head.float()
