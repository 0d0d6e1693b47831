"""The loop: begin and prefill (overlapped when the drafter allows it) → propose → verify → commit → emit.

Several requests share one target pass per round; each accepts its own number of tokens; requests join and leave
between rounds. Whatever the drafter does, the tokens are those that the target alone would have written.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from crossdraft.engine.accept import Verdict
from crossdraft.engine.budgets import Budgets
from crossdraft.engine.cost import CostModel
from crossdraft.engine.drafter import Committed, Draft, Needs, PromptFeatures
from crossdraft.engine.elastic import borrowing, poll
from crossdraft.engine.live import Live, readable
from crossdraft.engine.placement import NOTHING, DrafterLost, OnToken, Placement
from crossdraft.engine.probes import Probes
from crossdraft.engine.request import Answer, Finish, Origin, Piece, Request
from crossdraft.engine.rules import rule_for
from crossdraft.engine.sampling import warp_tree
from crossdraft.engine.target import Chunk, Target, TargetOut
from crossdraft.engine.timeline import Span
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

HIDDEN_NODES = 64  # longest hidden draft
ROUND_NODES = 32  # longest draft of a later round
STILL_READING = "The drafter was still reading when the answer was complete; nothing was drafted."
NO_NEEDS = Needs()
OnPiece = Callable[[Piece], None]
Result = TypeVar("Result")


class Decoder:
    """One target, one drafter (or none), up to `max_batch` requests at a time.

    Args:
        target: the model whose output must be reproduced.
        drafter: where the drafter runs; `None` = the target alone.
        max_batch: requests that share a pass.
        rule: acceptance rule by name, with settings where it has any (`typical:eps=0.05`); `None` = the exact one for
            the request's temperature.
        nodes: most nodes drafted per round; the cost model drafts fewer where that is faster.
        hidden_nodes: most nodes drafted for the ride-along.
        adaptive: let measured times and acceptances set the budget of each round.
        on_piece: told every piece as it appears, provisional ones from another thread.
    """

    def __init__(
        self,
        target: Target,
        drafter: Placement | None = None,
        *,
        max_batch: int = 1,
        rule: str | None = None,
        nodes: int = ROUND_NODES,
        hidden_nodes: int = HIDDEN_NODES,
        adaptive: bool = True,
        cost: CostModel | None = None,
        on_piece: OnPiece | None = None,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.rule = rule
        self.cost = cost or CostModel()
        self.probes = 0 if drafter is None else drafter.needs.probes
        self.budgets = Budgets(self.cost, nodes, hidden_nodes, self.probes, adaptive=adaptive)
        self.on_piece = on_piece
        self.cache = target.new_cache(max_batch)
        self._waiting: list[tuple[int, Request]] = []
        self._live: list[Live] = []  # in the order of their cache rows
        self._done: dict[int, Live] = {}
        self._tickets = 0
        self._waited = 0.0  # for drafting: reading a request is no cost of a longer draft

    # -- requests ------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> int:
        """Queue a request; returns its ticket."""
        self._tickets += 1
        self._waiting.append((self._tickets - 1, request))
        return self._tickets - 1

    def cancel(self, ticket: int) -> None:
        """End a request before its next round; its answer holds what was emitted until then."""
        for live in self._live:
            if live.ticket == ticket:
                live.finish = Finish.CANCELLED
        self._waiting = [entry for entry in self._waiting if entry[0] != ticket]

    @property
    def busy(self) -> bool:
        """True while a request waits or runs."""
        return bool(self._waiting or self._live)

    def generate(self, requests: Iterable[Request]) -> list[Answer]:
        """Answer all requests, in their order."""
        tickets = [self.submit(request) for request in requests]
        while self.busy:
            self.step()
        return [self.answer(ticket) for ticket in tickets]

    def answer(self, ticket: int) -> Answer:
        """The finished answer of a ticket; it is handed out once."""
        if ticket not in self._done:
            raise CrossdraftError(
                f"Request {ticket} is not finished, was cancelled before it began, or was fetched."
            )
        return self._done.pop(ticket).answer()

    def drop(self) -> None:
        """Cancel every request at once; the drafter stays."""
        self._waiting.clear()
        for live in self._live:
            live.finish = Finish.CANCELLED
        self._leave()

    # -- the loop ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> None:
        """Let waiting requests join, run one shared round, let finished requests leave."""
        with borrowing(lambda: () if self.drafter is None else self.drafter.spare_cores()):
            self._leave()
            while self._waiting and self.cache.rows < self.cache.max_rows:
                self._join(*self._waiting.pop(0))
            self._leave()
            if self._live:
                self._round(self._live)
                self._leave()

    def _join(self, ticket: int, request: Request) -> None:
        """Take up one request: the drafter writes while the target reads."""
        rule = rule_for(self.rule, request.sampling)
        fresh = self.drafter is not None and self.drafter.needs.remembers
        speculating = self.drafter is not None and (fresh or self.budgets.reads(request))
        live = Live(ticket, request, rule, speculating=speculating, fresh=fresh)
        waited = self._waited
        try:
            nodes = self.budgets.hidden(request)
            self._guard(
                [live],
                lambda drafter: drafter.start(ticket, request, nodes, self._watch(live)),
                answering=False,
            )
            self._read(live, waited)
        except BaseException:
            live.finish = Finish.CANCELLED
            if live not in self._live:
                self._guard([live], lambda drafter: drafter.end([ticket]))
            raise

    def _read(self, live: Live, waited: float) -> None:
        """Prefill a new row; the hidden draft rides along with the last piece, the text behind the visual part."""
        try:
            with live.timeline.span("target", "prepare"):
                prompt = self.target.prepare(live.request)
            live.notes.extend(prompt.notes)
            live.begin(prompt, self.target)
            with live.timeline.span("target", "encode"):
                encoded = self.target.encode(prompt)
                self.target.clock.mark().wait()
            pieces, offset = self.target.chunks(prompt, encoded)
            largest = max(self.budgets.nodes, self.budgets.hidden_nodes) + self.probes
            row = self.cache.add_row(len(prompt) + live.request.max_new_tokens + largest + 1)
            self._live.append(live)
            self.cache.offsets[row] = offset
            own = slice(row, row + 1)
            with live.timeline.span("target", "prefill", len(prompt)):
                outs = [
                    self.target.extend(
                        self.cache, own, [piece], [DraftTree.empty()], self.needs.visual_layers
                    )
                    for piece in pieces[:-1]
                ]
                for out in outs:  # launched is not done: until then the drafter goes on
                    out.done.wait()
        finally:  # whatever happens, the drafter must not be left writing
            draft = self._guard([live], lambda drafter: drafter.collect(live.ticket), answering=False)
        draft = draft or NOTHING
        self.cost.wait_hidden.add(len(draft.tree), self._waited - waited)
        draft = self._fit(live, draft.cut(self.budgets.trim(draft, live, hidden=True)))
        until = time.perf_counter()
        with live.timeline.span("target", "ride-along", len(pieces[-1].tokens) + len(draft.fed)):
            out = self.target.extend(
                self.cache, own, pieces[-1:], [draft.fed], self.needs.hidden_layers, [draft.tail]
            )
            out.done.wait()
        self.cost.ride.add(len(pieces[-1].tokens) + len(draft.fed), out.seconds)
        live.count_reading(until)
        live.stats.add_time("ride-along", out.seconds)
        self.budgets.saw_reading(live, until)
        if not self.needs.nothing:
            live.prompt = _features(pieces, outs, self.needs.visual_layers)
        self._commit([live], [draft], out, [len(pieces[-1].tokens)], Origin.HIDDEN)

    def _round(self, lives: list[Live]) -> None:
        """Propose → verify → commit → emit, for all live requests in one target pass."""
        start = time.perf_counter()
        for live in lives:
            live.first_round = min(live.first_round, start)
        drafts = self._propose(lives)
        fed = [draft.fed for draft in drafts]
        drafted = time.perf_counter()
        chunks = [Chunk(torch.tensor([live.root])) for live in lives]
        tails = [draft.tail for draft in drafts]
        rows = slice(0, len(lives))
        out = self.target.extend(self.cache, rows, chunks, fed, self.needs.hidden_layers, tails)
        verified = out.done.wait()
        self._commit(lives, drafts, out, [1] * len(lives), Origin.DRAFTED)
        end = time.perf_counter()
        self.cost.passes(len(lives)).add(1 + max(len(tree) for tree in fed), out.seconds / len(lives))
        for live, tree in zip(lives, fed, strict=True):
            live.timeline.spans.append(Span("target", "verify", drafted, verified, 1 + len(tree)))
            live.stats.add_time("verify", out.seconds)
            live.stats.add_time("rounds", end - start)

    def _propose(self, lives: Sequence[Live]) -> list[Draft]:
        budgets = {live.ticket: self.budgets.round(live, len(lives)) for live in lives if live.speculating}
        asked = [live for live in lives if live.ticket in budgets and budgets[live.ticket].nodes > 0]
        if not asked:
            return [NOTHING] * len(lives)
        tickets = [live.ticket for live in asked]
        waited = self._waited
        drafts = self._guard(
            asked, lambda drafter: drafter.propose(tickets, [budgets[ticket] for ticket in tickets])
        )
        waited = (self._waited - waited) / len(asked)
        fitted: dict[int, Draft] = {}
        for live, draft in zip(asked, drafts or (), strict=False):
            nodes = budgets[live.ticket].nodes
            self.budgets.saw_draft(draft, nodes, waited)
            tree = self.budgets.trim(draft, live, len(lives))
            tree = tree if len(tree) <= nodes else tree.first(nodes)
            fitted[live.ticket] = self._fit(live, draft.cut(tree))
            if draft.refusal is not None:
                self._guard([live], lambda drafter, ticket=live.ticket: drafter.end([ticket]))
                live.speculating = False
                live.notes.append(
                    f"The drafter gave up ({draft.refusal.rstrip('.')}); the target went on alone."
                )
        return [fitted.get(live.ticket, NOTHING) for live in lives]

    @property
    def needs(self) -> Needs:
        """What the drafter consumes; nothing once it is lost."""
        return self.drafter.needs if self.drafter is not None else NO_NEEDS

    def _commit(
        self,
        lives: Sequence[Live],
        drafts: Sequence[Draft],
        out: TargetOut,
        roots: Sequence[int],
        origin: Origin,
    ) -> None:
        """Judge each row's tree, move its accepted path into place, emit, and tell the drafter.

        `roots[i]` counts the tokens in front of row i's tree, so that node j's feature stands at `roots[i] + j`.
        """
        verdicts: dict[int, Committed] = {}
        for live, draft, scores, layers, root in zip(
            lives, drafts, out.logits, out.hidden, roots, strict=True
        ):
            tree = draft.tree
            rows, behind = scores[: 1 + len(tree)], scores[1 + len(tree) :]
            verdict = self._judge(live, tree, rows)
            path = verdict.path
            self.cache.keep(self._live.index(live), path)
            self.budgets.saw_verdict(live, tree, path, hidden=origin is Origin.HIDDEN)
            tokens = (*(tree.tokens[node] for node in path), verdict.bonus)
            before = len(live.tokens)
            live.emit(tokens, rows, (-1, *path), origin, self.target, self._tell)
            emitted = tuple(live.tokens[before:])
            live.stats.count_round(
                tree.depth, len(tree), len(path), len(emitted), hidden=origin is Origin.HIDDEN
            )
            if live.speculating:  # of a finished answer too: a drafter may remember it
                told = self._told(path[: len(emitted)], emitted, rows, layers, root, live)
                verdicts[live.ticket] = told if draft.probes is None else answered(told, draft.probes, behind)
        if verdicts:
            informed = [live for live in lives if live.ticket in verdicts]
            self._guard(informed, lambda drafter: drafter.commit(list(verdicts), list(verdicts.values())))

    def _told(
        self,
        path: tuple[int, ...],
        emitted: tuple[int, ...],
        rows: Tensor,
        layers: Sequence[Tensor],
        root: int,
        live: Live,
    ) -> Committed:
        """What a drafter hears of a verdict: `rows` [1 + n, V] and `layers` [root + n, h] are of the whole tree."""
        needs = self.needs
        if needs.nothing:
            return Committed(path, emitted)
        nodes = torch.tensor(path, dtype=torch.long, device=rows.device)
        hidden = {
            layer: torch.cat((states[:root], states[root + nodes]))
            for layer, states in zip(needs.hidden_layers, layers, strict=True)
        }
        logits = torch.cat((rows[:1], rows[1 + nodes])) if needs.logits else None
        prompt, live.prompt = live.prompt, None
        return Committed(path, emitted, hidden, prompt, logits)

    def _judge(self, live: Live, tree: DraftTree, logits: Tensor) -> Verdict:
        warped = warp_tree(logits, tree, live.context, live.request.sampling)
        return live.rule(tree, warped, live.generator)

    def _leave(self) -> None:
        """Finished requests give their row back; the last row moves into the gap."""
        for live in [live for live in self._live if live.finish is not None]:
            row = self._live.index(live)
            self.cache.drop_row(row)
            last = self._live.pop()
            if last is not live:
                self._live[row] = last
            self._note_silence(live)
            self.budgets.saw_answer(live)
            live.close()
            self._guard([live], lambda drafter, ticket=live.ticket: drafter.end([ticket]))
            self._done[live.ticket] = live

    def _note_silence(self, live: Live) -> None:
        """Say so if the drafter was too slow a reader to take part at all."""
        began = any(span.lane == "drafter" for span in live.timeline.spans)
        if live.speculating and live.stats.rounds > 1 and not began:
            live.notes.append(STILL_READING)

    def _fit(self, live: Live, draft: Draft) -> Draft:
        """The draft, without its probes where they would stand beyond the model's context.

        Raises:
            CrossdraftError: there are more of them than the drafter said.
        """
        if draft.probes is None:
            return draft
        if len(draft.probes) > self.probes:
            raise CrossdraftError(
                f"The drafter sent {len(draft.probes)} probes and announced {self.probes} at most; "
                "raise its Needs.probes."
            )
        fits = len(live.context) + draft.fed.depth <= self.target.context
        return draft if fits else replace(draft, probes=None)

    # -- a drafter may be lost, the answer may not; but a bug in one is loud ---------------------------------------

    def _guard(
        self, lives: Sequence[Live], call: Callable[[Placement], Result], *, answering: bool = True
    ) -> Result | None:
        """Call the drafter; when it is lost, everybody goes on with the target alone, and says so.

        What it refuses before the answer has begun is the user's to mend; once we are `answering`, it is lost.
        """
        if self.drafter is None or not any(live.speculating for live in lives):
            return None
        start = time.perf_counter()
        try:
            result = call(self.drafter)
        except (DrafterLost, CrossdraftError) as lost:
            if isinstance(lost, CrossdraftError) and not answering:
                raise
            for live in {*self._live, *lives}:
                live.speculating = False
                live.notes.append(
                    f"The drafter was lost ({str(lost).rstrip('.')}); the target went on alone."
                )
            self.drafter.close()
            self.drafter = None
            return None
        end = time.perf_counter()
        poll()
        spans = self.drafter.drain()
        for live in lives:
            live.waits.append((start, end))
            # A late span of the request before (its last commit) may come along.
            live.timeline.spans.extend(span for span in spans if span.start >= live.started)
        reading = sum(span.seconds for span in spans if span.name == "read")
        for live in lives:
            live.read_wait += min(reading, end - start) / len(lives)
        self._waited += max(0.0, time.perf_counter() - start - reading)
        return result

    # -- who watches ---------------------------------------------------------------------------------------------

    def _watch(self, live: Live) -> OnToken | None:
        """Show the drafter's tokens as provisional text, if anybody looks."""
        if self.on_piece is None:
            return None
        written: list[int] = []
        shown = ""

        def on_token(token: int) -> None:
            nonlocal shown
            written.append(token)
            before, shown = shown, readable(self.target.decode(written))
            self._tell(Piece((token,), shown[len(before) :], Origin.PROVISIONAL, live.ticket))

        return on_token

    def _tell(self, piece: Piece) -> None:
        if self.on_piece is not None:
            self.on_piece(piece)


def _features(pieces: Sequence[Chunk], outs: Sequence[TargetOut], layers: Sequence[int]) -> PromptFeatures:
    """The prompt for drafters that look into it: its last piece, and what the target made of those in front."""
    in_front = [token for piece in pieces[:-1] for token in piece.tokens.tolist()]
    states = zip(*(out.hidden[0] for out in outs), strict=True) if layers else ()
    visual = {layer: torch.cat(parts) for layer, parts in zip(layers, states, strict=False)}
    return PromptFeatures(tuple(pieces[-1].tokens.tolist()), tuple(in_front), visual)


def answered(verdict: Committed, probes: Probes, logits: Tensor) -> Committed:
    """The verdict with what the target says behind the probes, whose `logits` are [m, V]: ids alone if that will do."""
    if not probes.top:
        return replace(verdict, probe_logits=logits)
    top = logits.topk(min(probes.top, logits.shape[-1])).indices
    return replace(verdict, probe_top=tuple(map(tuple, top.tolist())))
