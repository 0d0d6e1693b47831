"""Where a drafter works: inline, in a process of its own, at an edge. What is drafted there, round by round.

The rounds are fixed: nothing adapts, nothing is prepared ahead in a process, and the target waits until whoever drafts
has done all that it was asked, as a slow one does of itself.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from crossdraft import Engine, Options, Request
from crossdraft.drafters.combine.union import UnionDrafter
from crossdraft.edge.client import EdgeClient
from crossdraft.edge.drafting import EdgeDrafting
from crossdraft.edge.estimate import LinkEstimate
from crossdraft.edge.frames import ROUNDS, fingerprint_of
from crossdraft.edge.remote import EdgeDrafter, RemoteState
from crossdraft.engine.request_state import RequestState
from crossdraft.load import text_reader, tokenizer_of
from crossdraft.messages import Message, Part
from crossdraft.methods import build
from crossdraft.records import DrafterContext
from crossdraft.serve.service import load_engine
from crossdraft.serve.settings import read_settings
from tests.engine.late_target import wait_for
from tests.serve.conftest import Runner

NODES = 6
WAIT_S = 60.0
FIXED = {"adaptive": False, "nodes": NODES, "hidden_nodes": NODES, "cache_bytes": 0}
Tree = tuple[tuple[int, ...], tuple[int, ...]]  # tokens, parents


@dataclass(frozen=True)
class Drafted:
    """An answer, the tree that the target verified in each of its rounds, and why nothing more was drafted."""

    tokens: tuple[int, ...]
    trees: tuple[Tree, ...]
    why: tuple[str, ...] = ()


@contextmanager
def verified() -> Iterator[list[Tree]]:
    """The trees that targets verify, those of the prompt's last piece included, in their order."""
    found: list[Tree] = []
    verify = RequestState.verify

    def note(state, tree, logits):
        found.append((tree.tokens, tree.parents))
        return verify(state, tree, logits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RequestState, "verify", note)
        yield found


@contextmanager
def engine_of(target: str, spec: str, placement: str, **more: Any) -> Iterator[Engine]:
    """An engine that drafts inline, or in a process that its target waits for.

    A draft of the target's prefill is made where its drafter does not read the prompt, which comes meanwhile.
    """
    options = Options(placement=placement, hidden="off", device="cpu", **(FIXED | more))
    with ExitStack() as stack:
        engine = stack.enter_context(Engine.load(target, spec, options))
        runner = engine.drafter
        assert runner is not None
        assert runner.remote is (placement == "process")
        if not runner.needs.prompt and runner.needs.may_hide:
            runner.hidden = "beside" if runner.remote else "before"
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for worker in runner.workers:
            wait_for(patch, worker)
        yield engine


def drafted(engine: Engine, request: Request) -> Drafted:
    """The answer of an engine, and what was drafted for it."""
    with verified() as trees:
        answer = engine.generate(request)
    return Drafted(answer.tokens, tuple(trees), answer.other_notes)


# -- at an edge -------------------------------------------------------------------------------------------------------


@dataclass
class EdgeProgress:
    """How far an edge is with each answer, by its session: what the cloud waits for.

    Args:
        sent: frames.
        done: the committed tokens after which its draft is whole, and the frames that were sent until then.
    """

    sent: Counter[bytes] = field(default_factory=Counter[bytes])
    done: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    drafting: dict[bytes, EdgeDrafting] = field(default_factory=dict)

    def wait(self, state: RemoteState) -> None:
        """Until all is here that the edge drafts after what is committed."""
        link, until = state.link, time.monotonic() + WAIT_S
        if link is None or state.copied:
            return
        while self.drafting[link.session].error is None:
            length, frames = self.done.get(link.session, (-1, 0))
            if length == len(state.committed) and link.frames >= frames:
                return
            assert time.monotonic() < until, "the edge does not come to an end"
            time.sleep(0.001)


CONNECTED, SEND_NEW, COMMITTED = EdgeDrafting.connected, EdgeDrafting._send_new, EdgeDrafting.committed
AHEAD, TAKE = EdgeDrafting._ahead, EdgeDrafter._take


def looks_ahead(drafting: EdgeDrafting) -> bool:
    """As ever, unless what is drafted depends on what was learned: a copy learns nothing."""
    return not isinstance(drafting._drafter, UnionDrafter) and AHEAD.__get__(drafting)


def begin_if_committed(drafting: EdgeDrafting, *news: Any) -> None:
    """As ever; one that reads the prompt begins now, as those do that are not at an edge."""
    COMMITTED(drafting, *news)
    if drafting._thread.ident is None:
        drafting._thread.start()


@contextmanager
def slow_cloud() -> Iterator[None]:
    """A cloud that waits for its edges, and finds that their drafts pay."""
    progress = EdgeProgress()

    def count(drafting, send):
        def counted(frame):
            progress.sent[drafting._session] += 1
            send(frame)

        CONNECTED(drafting, counted)

    def note(drafting, branches):
        SEND_NEW(drafting, branches)
        if drafting._send is not None and not branches.main.grows(drafting._most):
            progress.done[drafting._session] = len(branches.main.text), progress.sent[drafting._session]

    def late(drafter, state, *arguments):
        progress.wait(state)
        return TAKE(drafter, state, *arguments)

    def start(drafting):
        progress.drafting[drafting._session] = drafting
        if not drafting._drafter.needs.prompt:
            drafting._thread.start()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EdgeDrafting, "_ahead", property(looks_ahead))
        for name, changed in (("start", start), ("connected", count), ("_send_new", note)):
            patch.setattr(EdgeDrafting, name, changed)
        patch.setattr(EdgeDrafting, "committed", begin_if_committed)
        patch.setattr(EdgeDrafter, "_take", late)
        patch.setattr(LinkEstimate, "rounds_pay", lambda *arguments: True)
        yield


@dataclass
class Cloud:
    """A server whose drafters are at its edges."""

    engine: Engine
    address: str
    target: str
    dtype: str | None

    @contextmanager
    def edge(self, spec: str) -> Iterator["Edge"]:
        """An edge that drafts by a spec."""
        tokenizer = tokenizer_of(self.target)
        with EdgeClient(self.address, None, spec, fingerprint_of(tokenizer.get_vocab())) as client:
            welcome = client.open()
            context = DrafterContext(
                self.target, "cpu", self.dtype, welcome.vocabulary, tuple(welcome.eos), tuple(welcome.reserved)
            )
            made = build(spec, context)
            self.engine.drafter.hidden = "off" if made.needs.prompt else "beside"
            yield Edge(client, made, text_reader(self.target, welcome.reserved))


@contextmanager
def cloud(target: str, media: Path, **more: Any) -> Iterator[Cloud]:
    """A server, and its engine, that waits for its edges."""
    fixed = {name: value for name, value in FIXED.items() if name != "hidden_nodes"}  # which is no server's setting
    settings = read_settings(
        None, {"target": target, "drafter": "edge", "media_root": media, "device": "cpu", **fixed, **more}
    )
    with slow_cloud(), load_engine(settings) as engine:
        engine.options = replace(engine.options, hidden_nodes=NODES)
        engine._scheduler._loop.policy.hidden_nodes = NODES  # it is warm, so the loop is there
        running, *thread = Runner(engine, media).start(settings)
        yield Cloud(engine, "ws://{}:{}".format(*running.address), target, more.get("dtype"))
        Runner.stop(running, *thread)


@dataclass
class Edge:
    """What asks a cloud and drafts for it."""

    client: EdgeClient
    drafter: Any
    reads: Any

    def drafted(self, request: Request) -> Drafted:
        """The cloud's answer, and what was drafted for it."""
        names = [Message(one.role, tuple(map(elsewhere, one.parts))) for one in request.conversation]
        own = replace(request, prompt="", system=None, image=None, video=None, messages=names)
        own = replace(own, prompt_ids=self.reads(own))
        with verified() as trees:
            answer = self.client.ask(chat_of(request, self.client._welcome.model), own, self.drafter, mode=ROUNDS)
        why = () if answer.drafter_error is None else (answer.drafter_error,)
        notes = [note for note in answer.report["notes"] if "rounds" not in note]  # but why little was drafted
        return Drafted(answer.tokens, tuple(trees), (*why, *notes))


def elsewhere(part: Part) -> Part:
    """What is shown, by a name that nothing here has."""
    return part if part.kind == "text" else Part(part.kind, f"file:{Path(str(part.value)).name}")


def chat_of(request: Request, model: str) -> dict[str, object]:
    """The body of `/v1/chat/completions` that asks the same of a server: media are files that it has, by name."""

    def content(message: Message) -> list[dict[str, object]]:
        return [
            {"type": "text", "text": part.value}
            if part.kind == "text"
            else {"type": f"{part.kind}_url", f"{part.kind}_url": {"url": part.value}}
            for part in map(elsewhere, message.parts)
        ]

    sampling = request.sampling
    given = {"max_tokens": request.max_new_tokens, "seed": sampling.seed, "top_k": sampling.top_k}
    return {
        "model": model,
        "messages": [{"role": one.role, "content": content(one)} for one in request.conversation],
        "temperature": sampling.temperature or 0.0,
        **{name: value for name, value in given.items() if value is not None},
    }
