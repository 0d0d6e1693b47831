"""`crossdraft bench edge`: an edge that drafts, over slow networks, against one that sends nothing.

The server runs in a process of its own, the edge in this one, on a core of its own where there are two; the network
between them is `DelayingProxy`. Each
question is asked in every mode, in shuffled order: without drafts, which is the target alone over the same link, with
the hidden draft alone, and with whatever the policy wants after it.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossdraft.bench.common import table
from crossdraft.bench.edge.proxy import DelayingProxy, Network
from crossdraft.bench.environment import environment
from crossdraft.bench.serving.process import serving
from crossdraft.bench.statistics import Interval, ratio
from crossdraft.bench.workload import Item, Workload, items
from crossdraft.builders import DrafterContext
from crossdraft.checks import whole
from crossdraft.edge.client import EdgeAnswer, EdgeClient
from crossdraft.edge.frames import MODES, OFF, ROUNDS, fingerprint_of
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.fast.cores import available_cores
from crossdraft.engine.fast.pinning import pinned
from crossdraft.load import tokenizer_of
from crossdraft.methods import build

if TYPE_CHECKING:
    from rich.table import Table

WARM_UPS = 2
Tick = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class EdgePlan:
    """What to measure.

    Args:
        folder: where clips are written, and the server's log.
        rtts_s: round trips.
        mbits: megabits a second, each way; each with every round trip.
        jitter: of each way, as a share of the round trip.
        pairs: questions, each about a clip of its own.
        drafter: of the edge.
        max_new_tokens: the longest answer.
        cuts: connections that are cut in the midst of an answer, at every network.
        seed: of the order, the jitter and the cuts.
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

    def __post_init__(self) -> None:
        whole("pairs", self.pairs)
        whole("cuts", self.cuts, least=0)

    @property
    def networks(self) -> tuple[Network, ...]:
        """All of them."""
        return tuple(Network(rtt, self.jitter * rtt, 1e6 * rate) for rate in self.mbits for rtt in self.rtts_s)

    @property
    def runs(self) -> int:
        """Answers in all, warm-ups excluded."""
        return len(self.networks) * (self.pairs * len(MODES) + self.cuts)


@dataclass(frozen=True, slots=True)
class NetworkFigures:
    """What came out over one network: answers by mode, one a question, and those whose connection was cut."""

    network: Network
    answers: Mapping[str, Sequence[EdgeAnswer]]
    cut: Sequence[tuple[EdgeAnswer, EdgeAnswer]]  # with the answer that it should be

    @property
    def identical(self) -> int:
        """Answers that are the target's own."""
        alone = self.answers[OFF]
        modes = sum(a.tokens == b.tokens for mode in MODES for a, b in zip(self.answers[mode], alone, strict=True))
        return modes + sum(a.tokens == b.tokens for a, b in self.cut)

    @property
    def count(self) -> int:
        """Answers in all."""
        return sum(map(len, self.answers.values())) + len(self.cut)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        alone = [answer.total_s for answer in self.answers[OFF]]
        modes = {mode: _mode(self.answers[mode], alone) for mode in MODES}
        network = {"rtt_ms": 1e3 * self.network.rtt_s, "jitter_ms": 1e3 * self.network.jitter_s}
        network |= {"mbit_s": (self.network.bits_per_s or 0.0) / 1e6}
        cuts = sum(answer.cuts for answer, _ in self.cut)
        return {**network, "identical": self.identical, "answers": self.count, "cuts": cuts, "modes": modes}


def _mode(answers: Sequence[EdgeAnswer], alone: Sequence[float]) -> dict[str, Any]:
    drafts = [answer.frames["draft"] for answer in answers]
    rounds = [answer.report["metrics"]["speculative_decoding"] or {} for answer in answers]
    total = [answer.total_s for answer in answers]
    return {
        "e2e_ms": _mean_ms(total).value,
        "first_ms": _mean_ms([answer.first_s or 0.0 for answer in answers]).value,
        "speedup": ratio(alone, total).to_json("ratio"),
        "draft_bytes": sum(answer.sent["draft"] for answer in answers) / len(answers),
        "draft_frames": sum(drafts) / len(answers),
        "commit_bytes": sum(answer.received["commit"] for answer in answers) / len(answers),
        "steps": sum(one.get("num_spec_steps", 0) for one in rounds) / len(answers),
        "hidden_accepted": sum(a.report["metrics"]["hidden_accepted_tokens"] for a in answers) / len(answers),
        "tokens": sum(len(answer.tokens) for answer in answers) / len(answers),
    }


def _mean_ms(seconds: Sequence[float]) -> Interval:
    return ratio([1e3 * one for one in seconds], [1] * len(seconds))


def run_edge(plan: EdgePlan, tick: Tick = lambda _: None) -> list[NetworkFigures]:
    """Measure over every network.

    Raises:
        CrossdraftError: the server does not start, or the drafter cannot be loaded.
    """
    work = Workload(plan.pairs + WARM_UPS, max_new_tokens=plan.max_new_tokens, files=plan.folder / "clips")
    asked = list(items(work))
    cores = available_cores()
    own = cores[-1:] if len(cores) > 1 else cores  # the edge's, as if it were another machine
    others = [core for core in cores if core not in own] or list(cores)
    options = json.dumps({"cache_bytes": 0, "target_cores": others})
    flags = ["--drafter", "edge", "--media-root", str(plan.folder / "clips"), "--options", options]
    with (
        serving(flags, plan.folder) as server,
        pinned(own),
        DelayingProxy(("127.0.0.1", server.port), seed=plan.seed) as proxy,
    ):
        fingerprint = fingerprint_of(tokenizer_of("reference").get_vocab())
        with EdgeClient(proxy.address, None, plan.drafter, fingerprint) as client:
            welcome = client.open()
            context = DrafterContext(vocab_size=welcome.vocabulary, eos=welcome.eos, banned=welcome.reserved)
            asking = _Asking(client, build(plan.drafter, context))
            for item in asked[:WARM_UPS]:
                for mode in MODES:
                    asking.ask(item, mode)
            return [_over(network, proxy, asking, asked[WARM_UPS:], plan, tick) for network in plan.networks]


def _over(
    network: Network, proxy: DelayingProxy, asking: "_Asking", asked: Sequence[Item], plan: EdgePlan, tick: Tick
) -> NetworkFigures:
    """All questions over one network."""
    proxy.network, chance = network, random.Random(plan.seed)  # noqa: S311 - an order is no secret
    answers: dict[str, list[EdgeAnswer]] = {mode: [] for mode in MODES}
    for item in asked:
        for mode in chance.sample(MODES, len(MODES)):
            answers[mode].append(asking.ask(item, mode))
            tick(f"{1e3 * network.rtt_s:g} ms {mode}")
    cut: list[tuple[EdgeAnswer, EdgeAnswer]] = []
    for number in range(plan.cuts):
        at = number % len(asked)
        proxy.cut_after = chance.randint(1, 600)
        cut.append((asking.ask(asked[at], ROUNDS), answers[OFF][at]))
        proxy.cut_after = None
        tick(f"{1e3 * network.rtt_s:g} ms cut")
    return NetworkFigures(network, answers, cut)


@dataclass(frozen=True)
class _Asking:
    client: EdgeClient
    drafter: Drafter[Any]

    def ask(self, item: Item, mode: str) -> EdgeAnswer:
        request = item.request
        name = Path(str(request.clip)).name
        content = [
            {"type": "video_url", "video_url": {"url": f"file:{name}"}},
            {"type": "text", "text": request.question},
        ]
        messages = [{"role": "user", "content": content}]
        chat = {"model": "reference", "messages": messages, "max_tokens": request.token_limit, "temperature": 0}
        return self.client.ask(chat, request, self.drafter, mode=mode)


def to_json(plan: EdgePlan, found: Sequence[NetworkFigures]) -> dict[str, object]:
    """The report."""
    networks = [one.to_json() for one in found]
    return {"environment": environment(), "pairs": plan.pairs, "drafter": plan.drafter, "networks": networks}


def results_table(found: Sequence[NetworkFigures]) -> "Table":
    """A row for each network and way."""
    heads = ("Mbit/s", "mode", "E2E ms", "first ms", "off over it", "draft bytes", "frames", "identical")
    caption = "means over the questions; n counts them"
    shown = table("An edge's drafts over a network", "RTT ms", heads, caption)
    for one in found:
        plain = one.to_json()
        for mode, figures in plain["modes"].items():
            speedup = ratio(*([answer.total_s for answer in one.answers[name]] for name in (OFF, mode)))
            shown.add_row(
                f"{plain['rtt_ms']:g}",
                f"{plain['mbit_s']:g}",
                mode,
                _mean_ms([answer.total_s for answer in one.answers[mode]]).shown(digits=0),
                _mean_ms([answer.first_s or 0.0 for answer in one.answers[mode]]).shown(digits=0),
                str(speedup),
                f"{figures['draft_bytes']:.0f}",
                f"{figures['draft_frames']:.1f}",
                f"{plain['identical']}/{plain['answers']}",
            )
    return shown
