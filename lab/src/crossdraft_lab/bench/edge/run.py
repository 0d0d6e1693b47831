"""`crossdraft bench edge`: an edge that drafts, over slow networks, against one that sends nothing.

The server runs in a process of its own, the edge in this one, on a core of its own where there are two; the network
between them is `DelayingProxy`. Each question is asked in three ways, in shuffled order: without drafts (the target
alone over the same network), with the hidden draft alone, and as the policy decides from its measurements. With
`cloud`, two more ways ask another server on the same cores: with its own drafter but no drafts from the edge, and with
both. With `recording` there is one more: the edge sends its recording up the same link, and the cloud drafts from it
by the edge's own drafter, on the core that the edge has otherwise. Every answer is compared with the engine's own,
which is generated beforehand, in this process and without server or network.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossdraft.api import Engine
from crossdraft.checks import whole
from crossdraft.edge.client import EdgeAnswer, EdgeClient
from crossdraft.edge.frames import HIDDEN, OFF, fingerprint_of
from crossdraft.edge.upload import uploaded
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.fast.cores import available_cores
from crossdraft.engine.fast.pinning import pinned
from crossdraft.errors import CrossdraftError
from crossdraft.load import tokenizer_of
from crossdraft.methods import build, check_spec, placements, read_spec
from crossdraft.options import Options
from crossdraft.records import DrafterContext
from crossdraft_lab.bench.edge.proxy import DelayingProxy, Network
from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.experiments.record import FigureTable, Tick
from crossdraft_lab.bench.serving.process import ServerProcess, serving
from crossdraft_lab.bench.statistics import Interval, ratio
from crossdraft_lab.bench.study import FigureColumn, figure_table
from crossdraft_lab.bench.workload import Item, Workload, items

WARM_UPS = 2
POLICY = "policy"
EDGE, CLOUD, RECORDING = "edge", "cloud", "recording"  # servers; the last one is also the way to ask it


@dataclass(frozen=True, slots=True)
class EdgeWay:
    """A way to ask a question: the edge's mode (`None`: the policy decides), and the server that is asked.

    With server `EDGE` only the edge drafts, with `CLOUD` the cloud too; `RECORDING` is sent the events first.
    """

    mode: str | None
    server: str = EDGE


WAYS: Mapping[str, EdgeWay] = {OFF: EdgeWay(OFF), HIDDEN: EdgeWay(HIDDEN), POLICY: EdgeWay(None)}
CLOUD_ALONE, CLOUD_TOO = "cloud alone", "cloud too"
CLOUD_WAYS: Mapping[str, EdgeWay] = {CLOUD_ALONE: EdgeWay(OFF, CLOUD), CLOUD_TOO: EdgeWay(None, CLOUD)}
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EdgePlan:
    """Settings of a measurement of edge drafting.

    Args:
        folder: folder for clips and the server's log.
        rtts_s: round trips in seconds.
        mbits: rates in megabits a second, each way; each is measured with every round trip.
        jitter: jitter of each way, as a share of the round trip.
        pairs: number of questions, each about a clip of its own.
        drafter: drafter of the edge.
        max_new_tokens: largest number of tokens of an answer.
        cuts: number of connections that are cut in the midst of an answer, for each network.
        seed: seed of the order, the jitter and the cuts.
        cloud: drafter of the server that has `edge` as a part, such as `union:edge,eagle2`.
        recording: also send the recording, for the cloud to draft from.
        target: the server's target, and its dtype; the edge's drafter has the same dtype.
        prompts: file of prompts in words, asked in place of questions about clips.

    Raises:
        CrossdraftError: a setting is out of range, or an edge cannot have the drafter.
    """

    folder: Path
    rtts_s: tuple[float, ...]
    mbits: tuple[float, ...]
    jitter: float = 0.1
    pairs: int = 12
    drafter: str = "event"
    max_new_tokens: int = 96
    cuts: int = 2
    seed: int = 0
    cloud: str | None = None
    recording: bool = False
    target: str = "reference"
    dtype: str | None = None
    prompts: Path | None = None

    def __post_init__(self) -> None:
        whole("pairs", self.pairs)
        whole("cuts", self.cuts, least=0)
        whole("max_new_tokens", self.max_new_tokens)
        if self.recording and self.prompts is not None:
            raise CrossdraftError("Prompts come without a recording; leave --recording out.")
        if not 0 <= self.jitter <= 1:  # NaN is in no order with anything
            raise CrossdraftError(f"jitter is {self.jitter:g}; give a share of the round trip, 0 to 1.")
        spec = read_spec(self.drafter)
        check_spec(spec)
        if "edge" not in placements(spec):
            raise CrossdraftError(
                f"The drafter {self.drafter} reads the target, its passes or the clip, which are not at the edge; try "
                "event."
            )
        if self.cloud is not None:
            spec = read_spec(self.cloud)
            check_spec(spec)
            if "edge" not in {leaf.name for leaf in spec.leaves} or spec.name == "edge":
                raise CrossdraftError(
                    f"The cloud's drafter {self.cloud} does not join 'edge' with one of its own; write such as "
                    "union:edge,eagle2."
                )

    @property
    def work(self) -> Workload:
        """The questions, those that warm up first."""
        clips = None if self.prompts is not None else self.folder / "clips"
        return Workload(self.pairs + WARM_UPS, max_new_tokens=self.max_new_tokens, files=clips, prompts=self.prompts)

    @property
    def model(self) -> str:
        """Name of the target on the server."""
        return Path(self.target).name

    @property
    def ways(self) -> Mapping[str, EdgeWay]:
        """Ways of asking, by name."""
        recording = {RECORDING: EdgeWay(OFF, RECORDING)} if self.recording else {}
        return {**WAYS, **({} if self.cloud is None else CLOUD_WAYS), **recording}

    @property
    def servers(self) -> Mapping[str, str]:
        """Drafter of each server, by the server's name."""
        cloud = {} if self.cloud is None else {CLOUD: self.cloud}
        return {EDGE: "edge", **cloud, **({RECORDING: f"union:edge,({self.drafter})"} if self.recording else {})}

    @property
    def cut_ways(self) -> Sequence[str]:
        """Names of the ways whose connections are cut."""
        return [name for name, way in self.ways.items() if way.mode is None]

    @property
    def networks(self) -> tuple[Network, ...]:
        """All networks of the measurement."""
        return tuple(Network(rtt, self.jitter * rtt, 1e6 * rate) for rate in self.mbits for rtt in self.rtts_s)

    @property
    def runs(self) -> int:
        """Answers in all, warm-ups excluded."""
        return len(self.networks) * (self.pairs * len(self.ways) + self.cuts * len(self.cut_ways))


def network_json(
    network: Network,
    alone: Sequence[tuple[int, ...]],
    answers: Mapping[str, Sequence[EdgeAnswer]],
    cut: Sequence[tuple[EdgeAnswer, int]],
) -> Json:
    """Results over one network, as plain values.

    Args:
        network: the network between edge and server.
        alone: the engine's own tokens, by question.
        answers: answers by way, one for each question.
        cut: answers whose connection was cut, with the number of their question.
    """
    own = [(answer, tokens) for given in answers.values() for answer, tokens in zip(given, alone, strict=True)]
    own += [(answer, alone[number]) for answer, number in cut]
    seconds = [answer.total_s for answer in answers[OFF]]
    return {
        "rtt_ms": 1e3 * network.rtt_s,
        "jitter_ms": 1e3 * network.jitter_s,
        "mbit_s": (network.bits_per_s or 0.0) / 1e6,
        "identical": sum(answer.tokens == tokens for answer, tokens in own),
        "answers": len(own),
        "cuts": sum(answer.cuts for answer, _ in cut),
        "ways": {way: _way(given, seconds) for way, given in answers.items()},
    }


def _way(answers: Sequence[EdgeAnswer], alone: Sequence[float]) -> Json:
    rounds = [answer.report["metrics"]["speculative_decoding"] or {} for answer in answers]
    total, first = [answer.total_s for answer in answers], [one.first_s for one in answers if one.first_s is not None]

    def mean(figure: Callable[[EdgeAnswer], float]) -> float:
        return sum(map(figure, answers)) / len(answers)

    return {
        "e2e": _mean_ms(total).to_json("ms"),
        "first": _mean_ms(first).to_json("ms") if first else None,  # of the answers that have a token
        "speedup": ratio(alone, total).to_json("ratio"),
        "draft_bytes": mean(lambda one: one.sent["draft"]),
        "recording_bytes": mean(lambda one: one.sent[RECORDING]),
        "draft_frames": mean(lambda one: one.frames["draft"]),
        "commit_bytes": mean(lambda one: one.received["commit"]),
        "steps": sum(one.get("num_spec_steps", 0) for one in rounds) / len(answers),
        "hidden_accepted": mean(lambda one: one.report["metrics"]["hidden_accepted_tokens"]),
        "tokens": mean(lambda one: len(one.tokens)),
        "policies": dict(Counter(answer.report["edge"]["policy"] for answer in answers)),
        "link": answers[-1].report["edge"],  # last known state
    }


def _mean_ms(seconds: Sequence[float]) -> Interval:
    return ratio([1e3 * one for one in seconds], [1] * len(seconds))


def run_edge(plan: EdgePlan, tick: Tick = lambda _: None) -> list[Json]:
    """Measure over every network.

    Raises:
        CrossdraftError: the server does not start, or the drafter cannot be loaded.
    """
    asked = list(items(plan.work))
    with Engine.load(plan.target, None, Options(dtype=plan.dtype)) as engine:
        alone = [engine.alone(item.request).tokens for item in asked[WARM_UPS:]]
    cores = available_cores()
    own = cores[-1:] if len(cores) > 1 else cores  # the edge's, as if it were another machine
    others = [core for core in cores if core not in own] or list(cores)
    with ExitStack() as stack:
        servers: dict[str, ServerProcess] = {}
        for name, drafter in plan.servers.items():
            folder = plan.folder / f"server-{name}"
            folder.mkdir()
            flags = ["--target", plan.target, "--drafter", drafter, "--cache-bytes", "0"]
            flags += ["--media-root", str(plan.folder / "clips")] if plan.prompts is None else []
            flags += ["--dtype", plan.dtype] if plan.dtype is not None else []
            flags += ["--target-cores", ",".join(map(str, others))]
            if name == RECORDING:
                flags += ["--placement", "process", "--draft-cores", ",".join(map(str, own))]
            servers[name] = stack.enter_context(serving(flags, folder))
        stack.enter_context(pinned(own))
        links = {name: _EdgeLink(stack, server.port, plan) for name, server in servers.items()}
        for item in asked[:WARM_UPS]:
            for way in plan.ways.values():
                links[way.server].ask(item, way)
        questions = list(zip(asked[WARM_UPS:], alone, strict=True))
        return [_over(network, links, questions, plan, tick) for network in plan.networks]


def _over(
    network: Network,
    links: Mapping[str, "_EdgeLink"],
    asked: Sequence[tuple[Item, tuple[int, ...]]],
    plan: EdgePlan,
    tick: Tick,
) -> Json:
    """Ask all questions over one network, and compare the answers with the engine's own."""
    chance = random.Random(plan.seed)  # noqa: S311 - an order is no secret
    for link in links.values():
        link.renew(network)  # measurements of a connection hold for one network only
    answers: dict[str, list[EdgeAnswer]] = {name: [] for name in plan.ways}
    for item, _ in asked:
        for name in chance.sample(list(plan.ways), len(plan.ways)):
            way = plan.ways[name]
            answers[name].append(links[way.server].ask(item, way))
            tick(f"{1e3 * network.rtt_s:g} ms {name}")
    cut: list[tuple[EdgeAnswer, int]] = []
    for name in plan.cut_ways:
        link = links[plan.ways[name].server]
        for count in range(plan.cuts):
            number = count % len(asked)
            link.proxy.cut_after = chance.randint(1, 600)
            cut.append((link.ask(asked[number][0], plan.ways[name]), number))
            link.proxy.cut_after = None
            tick(f"{1e3 * network.rtt_s:g} ms cut")
    return network_json(network, [tokens for _, tokens in asked], answers, cut)


class _EdgeLink:
    """Edge that is connected through a slow network to the server on a port."""

    def __init__(self, stack: ExitStack, port: int, plan: EdgePlan) -> None:
        self.model = plan.model
        self.proxy = stack.enter_context(DelayingProxy(("127.0.0.1", port), seed=plan.seed))
        fingerprint = fingerprint_of(tokenizer_of(plan.target).get_vocab())
        self.client = stack.enter_context(EdgeClient(self.proxy.address, None, plan.drafter, fingerprint))
        welcome = self.client.open()
        ids = {"vocab_size": welcome.vocabulary, "eos": welcome.eos, "banned": welcome.reserved}
        context = DrafterContext(plan.target, dtype=plan.dtype, **ids)
        self.drafter: Drafter[Any] = build(plan.drafter, context)

    def renew(self, network: Network) -> None:
        """Connect anew, over this network."""
        self.proxy.network = network
        self.client.close()
        self.client.open()

    def ask(self, item: Item, way: EdgeWay) -> EdgeAnswer:
        """Ask a question; the answer's seconds count from before the request is sent."""
        if way.server != RECORDING:
            return self._asked(item, way.mode)
        path, start = Path(str(item.request.events)), time.perf_counter()
        with uploaded(self.proxy.address, None, path) as kept:
            sent_s = time.perf_counter() - start
            answer = self._asked(item, way.mode, {"type": "event_url", "event_url": {"url": kept}})
        answer.sent[RECORDING] = path.stat().st_size
        first_s = None if answer.first_s is None else sent_s + answer.first_s
        return replace(answer, first_s=first_s, total_s=sent_s + answer.total_s)

    def _asked(self, item: Item, mode: str | None, *more: dict[str, Any]) -> EdgeAnswer:
        request = item.request
        clip = [] if request.clip is None else [f"file:{Path(str(request.clip)).name}"]
        content = [
            *({"type": "video_url", "video_url": {"url": url}} for url in clip),
            *more,
            {"type": "text", "text": request.question},
        ]
        messages = [{"role": "user", "content": content}]
        chat = {"model": self.model, "messages": messages, "max_tokens": request.token_limit, "temperature": 0}
        return self.client.ask(chat, request, self.drafter, mode=mode)


def to_json(plan: EdgePlan, networks: Sequence[Json]) -> dict[str, object]:
    """The report as plain values."""
    given = {"pairs": plan.pairs, "drafter": plan.drafter, "jitter": plan.jitter, "cuts": plan.cuts, "seed": plan.seed}
    given |= {"target": plan.model, "dtype": plan.dtype}
    given |= {"prompts": None if plan.prompts is None else plan.prompts.name}
    given |= {"max_new_tokens": plan.max_new_tokens, "cloud": plan.cloud, "recording": plan.recording}
    return {"environment": environment(), **given, "networks": networks}


def _ms(found: Json | None) -> str:
    return "none" if found is None else Interval.from_json(found, "ms").shown(digits=0)


COLUMNS = (
    FigureColumn("", "RTT ms", lambda net, way, own: f"{net['rtt_ms']:g}"),
    FigureColumn("", "Mbit/s", lambda net, way, own: f"{net['mbit_s']:g}"),
    FigureColumn("", "way", lambda net, way, own: way),
    FigureColumn("", "E2E ms", lambda net, way, own: own["e2e"], _ms),
    FigureColumn("", "first ms", lambda net, way, own: own["first"], _ms),
    FigureColumn("", "off over it", lambda net, way, own: Interval.from_json(own["speedup"], "ratio")),
    FigureColumn("", "bytes up", lambda net, way, own: f"{own['draft_bytes'] + own['recording_bytes']:,.0f}"),
    FigureColumn("", "frames", lambda net, way, own: f"{own['draft_frames']:.1f}"),
    FigureColumn("", "policy", lambda net, way, own: ", ".join(f"{name} {n}" for name, n in own["policies"].items())),
    FigureColumn("", "identical", lambda net, way, own: (net["identical"], net["answers"])),
)


def results_table(networks: Sequence[Json]) -> FigureTable:
    """Table with a row for each network and way."""
    note = "means over the questions; n counts them; bytes up are those of drafts, or of the recording"
    rows = [(network, way, own) for network in networks for way, own in network["ways"].items()]
    return figure_table("An edge's drafts over a network", COLUMNS, rows, note)
