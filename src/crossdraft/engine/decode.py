"""The loop: begin and prefill (overlapped when the drafter allows it) → propose → verify → commit → emit.

Several requests share one target pass per round; each accepts its own number of tokens; requests join and leave
between rounds. Whatever the drafter does, the tokens are those that the target alone would have written.
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from crossdraft.engine.accept import Acceptance
from crossdraft.engine.budgets import Budgets
from crossdraft.engine.checks import checked
from crossdraft.engine.cost import CostModel
from crossdraft.engine.detokenize import AnswerText
from crossdraft.engine.drafter import Draft, Needs, PromptFeatures, VerifyOutput
from crossdraft.engine.fast.elastic import borrowing, poll
from crossdraft.engine.probes import Probes
from crossdraft.engine.processors import for_drafter, judge
from crossdraft.engine.request import Answer, Finish, Origin, Piece, Request
from crossdraft.engine.request_state import Job, OnPiece, RequestState
from crossdraft.engine.rules import rule_for
from crossdraft.engine.runner.runner import NOTHING, DrafterLost, OnToken, Placement
from crossdraft.engine.runner.supervisor import Supervisor
from crossdraft.engine.target import Chunk, Target, TargetOut
from crossdraft.engine.timeline import Span
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError, RequestError

log = logging.getLogger(__name__)

HIDDEN_NODES = 64  # longest hidden draft
ROUND_NODES = 32  # longest draft of a later round
STILL_READING = "The drafter was still reading when the answer was complete; nothing was drafted."
NO_NEEDS = Needs()
REQUEST_IDS = itertools.count()  # of all requests of this process
Result = TypeVar("Result")


class Decoder:
    """One target, one drafter (or none), up to `max_batch` requests at a time. To be used by one thread.

    Args:
        target: the model whose output must be reproduced.
        drafter: where the drafter runs, supervised if it is to be restarted when it is lost; `None` = the target alone.
        max_batch: requests that share a pass.
        rule: acceptance rule by name, with settings where it has any (`typical:eps=0.05`); `None` = the exact one for
            the request's temperature.
        nodes: most nodes drafted per round; the cost model drafts fewer where that is faster.
        hidden_nodes: most nodes drafted for the ride-along.
        adaptive: let measured times and acceptances set the budget of each round.
        on_piece: told the pieces of every request that has no `on_piece` of its own.
    """

    def __init__(
        self,
        target: Target,
        drafter: Placement | Supervisor | None = None,
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
        self.supervisor = drafter if isinstance(drafter, Supervisor) else Supervisor(drafter)
        self.rule = rule
        self.cost = cost or CostModel()
        self.probes = self.needs.probes
        self.budgets = Budgets(self.cost, nodes, hidden_nodes, self.probes, adaptive=adaptive)
        self.on_piece = on_piece
        self._warned = False  # that the drafter gave up on a request; each answer's notes tell of its own
        self.cache = target.new_cache(max_batch)
        self._waiting: dict[int, Job] = {}
        self._live: list[RequestState] = []  # in the order of their cache rows
        self._done: dict[int, RequestState | Exception] = {}
        self._waited = 0.0  # for drafting: reading a request is no cost of a longer draft

    # -- requests ------------------------------------------------------------------------------------------------

    @property
    def drafter(self) -> Placement | None:
        """The drafter, while there is one."""
        return self.supervisor.placement

    @property
    def needs(self) -> Needs:
        """What the drafter consumes; nothing while there is none."""
        return self.drafter.needs if self.drafter is not None else NO_NEEDS

    def submit(self, request: Request, on_piece: OnPiece | None = None, *, provisional: bool = True) -> int:
        """Queue a request; returns its ticket, a number that no other request of this process has.

        Args:
            request: what to answer.
            on_piece: told every piece as it appears, provisional ones from another thread; must return at once.
            provisional: whether it is told provisional pieces.
        """
        request_id = next(REQUEST_IDS)
        self._waiting[request_id] = Job(request_id, request, on_piece or self.on_piece, provisional)
        return request_id

    def cancel(self, request_id: int) -> bool:
        """End a request before its next round; its answer holds what was emitted until then.

        False if it is unknown, or over. One that still waited has no answer but a `CancelledError`.
        """
        for live in self._live:
            if live.request_id == request_id and live.finish is None:
                live.finish = Finish.CANCELLED
                return True
        if self._waiting.pop(request_id, None) is None:
            return False
        self._done[request_id] = CancelledError(f"Request {request_id} was cancelled before it began.")
        return True

    @property
    def busy(self) -> bool:
        """True while a request waits or runs."""
        return bool(self._waiting or self._live)

    def generate(self, requests: Iterable[Request]) -> list[Answer]:
        """Answer all requests, in their order.

        Raises:
            Exception: the first one that a request ended with, when the others are answered.
        """
        request_ids = [self.submit(request) for request in requests]
        while self.busy:
            self.step()
        return [self.answer(request_id) for request_id in request_ids]

    def answer(self, request_id: int) -> Answer:
        """The finished answer of a ticket; it is handed out once.

        Raises:
            concurrent.futures.CancelledError: it was cancelled before it began.
            RequestError: an error of the engine ended it.
            CrossdraftError: what is wrong with the request, or there is no answer of that ticket.
        """
        if request_id not in self._done:
            raise CrossdraftError(f"Request {request_id} is not finished, or its answer was fetched.")
        done = self._done.pop(request_id)
        if isinstance(done, Exception):
            raise done
        return done.answer()

    def finished(self) -> list[int]:
        """Tickets whose answers can be fetched."""
        return list(self._done)

    @torch.inference_mode()
    def drop(self) -> None:
        """Cancel every request at once; the drafter stays."""
        self._waiting.clear()
        for live in self._live:
            live.finish = Finish.CANCELLED
        self._leave()

    # -- the loop ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> None:
        """Let waiting requests join, run one shared round, let finished requests leave.

        An error ends the requests that it belongs to, whose `answer` raises it; the others go on.
        """
        with borrowing(lambda: () if self.drafter is None else self.drafter.spare_cores()):
            self._leave()
            while self._waiting and self.cache.rows < self.cache.max_rows:
                self._join(self._waiting.pop(next(iter(self._waiting))))
            self._leave()
            if self._live:
                try:
                    self._round(self._live)
                except Exception as error:
                    log.exception("A round failed; its requests end.")
                    for live in self._live:
                        live.fail(failed(error, live.job))
                self._leave()

    def _join(self, job: Job) -> None:
        """Take up one request: the drafter writes while the target reads."""
        self.supervisor.take_up()
        live, waited = None, self._waited
        try:
            job.request.check_length(self.target.context)  # before anybody reads it
            job = replace(job, request=self.target.defaults.resolve(job.request))
            drafted = for_drafter(job.request, self.target.defaults.most(self.target.context))
            fresh = self.needs.remembers
            drafter = self.drafter if fresh or self.budgets.reads(drafted) else None
            live = RequestState(job, rule_for(self.rule, job.request.sampling), drafter, fresh=fresh)
            if self.supervisor.absence is not None:
                live.notes.append(f"Written without the drafter: {self.supervisor.absence}.")
            nodes = self.budgets.hidden(drafted)
            start = (job.request_id, drafted, nodes, self._watch(live))
            self._guard([live], lambda drafter: drafter.start(*start))
            self._read(live, waited)
        except Exception as error:
            if not isinstance(error, CrossdraftError):
                log.exception("A request could not be begun.")
            if live is not None and live in self._live:
                live.fail(error)
                return
            self._done[job.request_id] = error if isinstance(error, CrossdraftError) else failed(error, job)
            if live is not None:
                self._guard([live], lambda drafter: drafter.end([job.request_id]))
        except BaseException:  # Ctrl-C, where the loop is driven by the main thread
            if live is not None:
                live.finish = Finish.CANCELLED
                if live not in self._live:
                    self._guard([live], lambda drafter: drafter.end([job.request_id]))
            raise

    def _read(self, live: RequestState, waited: float) -> None:
        """Prefill a new row; the hidden draft rides along with the last piece, the text behind the visual part."""
        try:
            with live.timeline.span("target", "prepare"):
                prompt = self.target.prepare(live.request)
            live.notes.extend(prompt.notes)
            live.begin(prompt, self.target)
            with live.timeline.span("target", "encode"):
                encoded = self.target.encode(prompt)
                self.target.clock.mark().wait()
            if self.needs.visual:
                seen = self.target.visual_features(encoded)
                self._guard([live], lambda drafter: drafter.see(live.request_id, seen))
            pieces, offset = self.target.chunks(prompt, encoded)
            largest = max(self.budgets.nodes, self.budgets.hidden_nodes) + self.probes
            row = self.cache.add_row(len(prompt) + live.request.token_limit + largest + 1)
            self._live.append(live)
            self.cache.rope_deltas[row] = offset
            own = slice(row, row + 1)
            with live.timeline.span("target", "prefill", len(prompt)):
                outs = [
                    self.target.extend(self.cache, own, [piece], [DraftTree.empty()], self.needs.visual_layers)
                    for piece in pieces[:-1]
                ]
                for out in outs:  # launched is not done: until then the drafter goes on
                    out.done.wait()
        finally:  # whatever happens, the drafter must not be left writing
            draft = self._guard([live], lambda drafter: drafter.collect(live.request_id)) or NOTHING
        self.cost.wait_hidden.add(len(draft.tree), self._waited - waited)
        draft = self._accept(draft, live, self.budgets.hidden_nodes, hidden=True)
        until = time.perf_counter()
        with live.timeline.span("target", "ride-along", len(pieces[-1].tokens) + len(draft.fed)):
            out = self.target.extend(self.cache, own, pieces[-1:], [draft.fed], self.needs.hidden_layers, [draft.tail])
            out.done.wait()
        self.cost.ride.add(len(pieces[-1].tokens) + len(draft.fed), out.seconds)
        live.count_reading(until)
        live.stats.add_time("ride-along", out.seconds)
        self.budgets.saw_reading(live, until)
        if not self.needs.nothing:
            live.prompt = _features(pieces, outs, self.needs.visual_layers)
        self._commit([live], [draft], out, [len(pieces[-1].tokens)], Origin.HIDDEN)

    def _round(self, lives: list[RequestState]) -> None:
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

    def _propose(self, lives: Sequence[RequestState]) -> list[Draft]:
        speculating = [live for live in lives if self._speculates(live)]
        budgets = {live.request_id: self.budgets.round(live, len(lives)) for live in speculating}
        asked = [live for live in speculating if budgets[live.request_id].nodes > 0]
        if not asked:
            return [NOTHING] * len(lives)
        request_ids = [live.request_id for live in asked]
        waited = self._waited
        drafts = self._guard(
            asked, lambda drafter: drafter.propose(request_ids, [budgets[request_id] for request_id in request_ids])
        )
        waited = (self._waited - waited) / len(asked)
        accepted: dict[int, Draft] = {}
        for live, draft in zip(asked, drafts or (), strict=False):
            nodes = budgets[live.request_id].nodes
            self.budgets.saw_draft(draft, nodes, waited)
            accepted[live.request_id] = self._accept(draft, live, nodes, len(lives))
        return [accepted.get(live.request_id, NOTHING) for live in lives]

    def _accept(self, draft: Draft, live: RequestState, nodes: int, rows: int = 1, *, hidden: bool = False) -> Draft:
        """What of a draft the target verifies: what it can read, what is worth its place, at most so many nodes."""
        if draft.refusal is not None:
            if not self._warned:
                self._warned = True
                log.warning("The drafter gave up on a request; the target answers such alone: %s", draft.refusal)
            self._guard([live], lambda drafter: drafter.end([live.request_id]))
            live.end_drafting(draft.refusal)
            return NOTHING
        target = self.target
        width: int = target.text_config.hidden_size
        try:
            draft = checked(draft, target.vocab_size, self.probes, target.traits.visual_ids, width)
            tree = self.budgets.trim(draft, live, rows, hidden=hidden)
            draft = draft.cut(tree if len(tree) <= nodes else tree.first(nodes))
            # Probes beyond the model's context are not fed.
            fits = draft.probes is None or len(live.context) + draft.fed.depth <= target.context
        except Exception as error:
            if not isinstance(error, CrossdraftError):
                log.exception("A draft could not be used.")
            live.drop_draft(str(error) or type(error).__name__)
            return NOTHING
        return draft if fits else replace(draft, probes=None)

    def _commit(
        self,
        lives: Sequence[RequestState],
        drafts: Sequence[Draft],
        out: TargetOut,
        roots: Sequence[int],
        origin: Origin,
    ) -> None:
        """Judge each row's tree, move its accepted path into place, emit, and tell the drafter.

        `roots[i]` counts the tokens in front of row i's tree, so that node j's feature stands at `roots[i] + j`.
        """
        outputs: dict[int, VerifyOutput] = {}
        for live, draft, scores, layers, root in zip(lives, drafts, out.logits, out.hidden, roots, strict=True):
            tree = draft.tree
            rows, behind = scores[: 1 + len(tree)], scores[1 + len(tree) :]
            try:
                output = self._judge(live, tree, rows)
            except Exception as error:
                if not isinstance(error, CrossdraftError):
                    log.exception("A rule could not judge a draft.")
                live.fail(error)
                continue
            path = output.path
            self.cache.keep(self._live.index(live), path)
            self.budgets.saw_verdict(live, tree, path, hidden=origin is Origin.HIDDEN)
            tokens = (*(tree.tokens[node] for node in path), output.bonus)
            before = len(live.tokens)
            live.emit(tokens, rows, (-1, *path), origin, self.target, live.tell)
            emitted = tuple(live.tokens[before:])
            live.stats.count_round(tree.depth, len(tree), len(path), len(emitted), hidden=origin is Origin.HIDDEN)
            if self._speculates(live):  # of a finished answer too: a drafter may remember it
                told = self._told(path[: len(emitted)], emitted, rows, layers, root, live)
                outputs[live.request_id] = told if draft.probes is None else answered(told, draft.probes, behind)
        if outputs:
            informed = [live for live in lives if live.request_id in outputs]
            self._guard(informed, lambda drafter: drafter.commit(list(outputs), list(outputs.values())))

    def _told(
        self,
        path: tuple[int, ...],
        emitted: tuple[int, ...],
        rows: Tensor,
        layers: Sequence[Tensor],
        root: int,
        live: RequestState,
    ) -> VerifyOutput:
        """What a drafter hears of a verdict: `rows` [1 + n, V] and `layers` [root + n, h] are of the whole tree."""
        needs = self.needs
        if needs.nothing:
            return VerifyOutput(path, emitted)
        nodes = torch.tensor(path, dtype=torch.long, device=rows.device)
        hidden = {
            layer: torch.cat((states[:root], states[root + nodes]))
            for layer, states in zip(needs.hidden_layers, layers, strict=True)
        }
        logits = torch.cat((rows[:1], rows[1 + nodes])) if needs.logits else None
        prompt, live.prompt = live.prompt, None
        return VerifyOutput(path, emitted, hidden, prompt, logits)

    def _judge(self, live: RequestState, tree: DraftTree, logits: Tensor) -> Acceptance:
        warped = live.warp(logits, tree)
        if live.processors is None:
            return live.rule(tree, warped, live.generator)
        return judge(live.rule, tree, warped, live.generator)

    def _leave(self) -> None:
        """Finished requests give their row back; the last row moves into the gap."""
        for live in [live for live in self._live if live.over]:
            row = self._live.index(live)
            self.cache.drop_row(row)
            last = self._live.pop()
            if last is not live:
                self._live[row] = last
            self._note_silence(live)
            live.end(live.tell)
            self.budgets.saw_answer(live)
            live.close()
            self._guard([live], lambda drafter, request_id=live.request_id: drafter.end([request_id]))
            if live.error is None or isinstance(live.error, CrossdraftError):
                self._done[live.request_id] = live.error or live
            else:
                self._done[live.request_id] = failed(live.error, live.job)

    def _note_silence(self, live: RequestState) -> None:
        """Say so if the drafter was too slow a reader to take part at all."""
        began = any(span.lane == "drafter" for span in live.timeline.spans)
        if self._speculates(live) and live.stats.rounds > 1 and not began:
            live.notes.append(STILL_READING)

    # -- a drafter may be lost, the answer may not -----------------------------------------------------------------

    def _speculates(self, live: RequestState) -> bool:
        """Whether the drafter that began the request still drafts for it."""
        if live.drafter is not None and live.drafter is not self.drafter:  # another loop saw it lost
            live.end_drafting(self.supervisor.absence or "it was restarted meanwhile")
        return live.drafter is not None

    def _guard(self, lives: Sequence[RequestState], call: Callable[[Placement], Result]) -> Result | None:
        """Call the drafter; whatever it does, nobody fails: it is lost, and everybody goes on with the target alone."""
        drafter = self.drafter
        if drafter is None or not any(self._speculates(live) for live in lives):
            return None
        start = time.perf_counter()
        try:
            result = call(drafter)
            spans = drafter.drain()
        except Exception as error:
            why = str(error).rstrip(".")
            if not isinstance(error, DrafterLost | CrossdraftError):
                log.exception("The drafter failed.")
                why = f"{type(error).__name__}: {why}"
            self.supervisor.lose(why)
            for live in {*self._live, *lives}:
                live.end_drafting(why, lost=True)
            return None
        end = time.perf_counter()
        poll()
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

    def _watch(self, live: RequestState) -> OnToken | None:
        """Show the drafter's tokens as provisional text, if anybody looks."""
        if live.job.on_piece is None or not live.job.provisional:
            return None
        text = AnswerText(self.target.text)

        def on_token(token: int) -> None:
            if 0 <= token < self.target.vocab_size:
                piece = Piece((token,), text.push((token,)), Origin.PROVISIONAL, live.request_id)
                live.tell(piece)

        return on_token


def failed(error: Exception, job: Job) -> RequestError:
    """What the user of a request is told of an error that is not his to mend."""
    asked = job.request.prompt[:60]
    told = RequestError(f"Request {job.request_id} ({asked!r}) failed: {type(error).__name__}: {error}")
    told.__cause__ = error
    return told


def _features(pieces: Sequence[Chunk], outs: Sequence[TargetOut], layers: Sequence[int]) -> PromptFeatures:
    """The prompt for drafters that look into it: its last piece, and what the target made of those in front."""
    in_front = [token for piece in pieces[:-1] for token in piece.tokens.tolist()]
    states = zip(*(out.hidden[0] for out in outs), strict=True) if layers else ()
    visual = {layer: torch.cat(parts) for layer, parts in zip(layers, states, strict=False)}
    return PromptFeatures(tuple(pieces[-1].tokens.tolist()), tuple(in_front), visual)


def answered(output: VerifyOutput, probes: Probes, logits: Tensor) -> VerifyOutput:
    """The verdict with what the target says behind the probes, whose `logits` are [m, V]: ids alone if that will do."""
    if not probes.top:
        return replace(output, probe_logits=logits)
    top = logits.topk(min(probes.top, logits.shape[-1])).indices
    return replace(output, probe_top=tuple(map(tuple, top.tolist())))
