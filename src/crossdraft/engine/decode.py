"""The loop: begin and prefill (overlapped when the drafter allows it) → propose → verify → commit → emit.

Several requests share one target pass per round; each accepts its own number of tokens; requests join and leave
between rounds. Whatever the drafter does, the tokens are those that the target alone would have written.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from crossdraft.engine.admission import Admission
from crossdraft.engine.checks import checked
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.drafter import NO_NEEDS, NOTHING, Draft, VerifyOutput
from crossdraft.engine.fast.elastic import borrowing
from crossdraft.engine.fast.heap import RequestTrimmer
from crossdraft.engine.guarded import GuardedDrafter
from crossdraft.engine.ledger import round_of
from crossdraft.engine.passes import Chunk, RideAlong, TargetOut, prompt_features
from crossdraft.engine.pending import PendingDrafts
from crossdraft.engine.policy import HIDDEN_NODES, ROUND_NODES, SpeculationPolicy
from crossdraft.engine.prefix_cache import PrefixCache
from crossdraft.engine.reading import Reading
from crossdraft.engine.remote_fronts import RemoteFronts
from crossdraft.engine.request import Answer, Finish, Origin, Request
from crossdraft.engine.request_state import OnPiece, RequestState
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.runner.supervisor import Supervisor
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)


class Decoder(Admission):
    """One target, one drafter (or none), up to `max_batch` requests at a time. To be used by one thread.

    Args:
        target: the model whose output must be reproduced.
        drafter: its runner, supervised if it is to be restarted when it is lost; `None` = the target alone.
        max_batch: requests that share a pass.
        rule: acceptance rule by name, with settings where it has any (`typical:eps=0.05`); `None` = the exact one for
            the request's temperature.
        nodes: most nodes drafted per round; the cost model drafts fewer where that is faster.
        hidden_nodes: most nodes drafted for the ride-along.
        adaptive: let measured times and acceptances set the budget of each round.
        on_piece: called with the pieces of every request that has no `on_piece` of its own.
        prefixes: what is kept of prompts for later ones; `None` = nothing.
        fronts: reads prompts in another process; `None` = the target reads them here.
        prefill_chunk: tokens of a prompt that are read between two rounds of others; 0 = all of them, `None` = as many
            as take about as long as a round or two.
        kv_bytes: of the keys and values of all requests that share a pass: another one waits where it would take more.
    """

    def __init__(
        self,
        target: Target,
        drafter: DraftRunner[Any] | Supervisor | None = None,
        *,
        max_batch: int = 1,
        rule: str | None = None,
        nodes: int = ROUND_NODES,
        hidden_nodes: int = HIDDEN_NODES,
        adaptive: bool = True,
        cost: CostModel | None = None,
        on_piece: OnPiece | None = None,
        prefixes: PrefixCache | None = None,
        fronts: RemoteFronts | None = None,
        prefill_chunk: int | None = 0,
        kv_bytes: int | None = None,
    ) -> None:
        guarded = GuardedDrafter(drafter if isinstance(drafter, Supervisor) else Supervisor(drafter))
        found = guarded.supervisor
        super().__init__(
            target,
            guarded,
            SpeculationPolicy(
                cost or CostModel(),
                nodes,
                hidden_nodes,
                found.probes,
                adaptive=adaptive,
                unasked=found.unasked,
                prepares=found.prepares,
            ),
            target.new_cache(max_batch),
            rule=rule,
            on_piece=on_piece,
            prefixes=prefixes or PrefixCache(0),
            fronts=fronts,
            prefill_chunk=prefill_chunk,
            kv_bytes=kv_bytes,
        )
        self._drafts, self._second_half = PendingDrafts(self.drafter, self.policy), False
        self._heap = RequestTrimmer()
        self._emitted = 0  # tokens of this step

    @torch.inference_mode()
    def drop(self) -> None:
        """Cancel every request at once; the drafter stays."""
        for request_id in [*self._waiting]:
            self.cancel(request_id)
        for state in self._states():
            state.finish = Finish.CANCELLED
        self._leave()

    def close(self) -> None:
        """Cancel every request, for good; what another thread has begun for one, `join` waits for."""
        self.drop()
        self._side.shutdown(wait=False)

    def join(self) -> None:
        """After `close`: wait until no other thread uses the target any more."""
        self._side.shutdown()

    @torch.inference_mode()
    def step(self) -> None:
        """Let waiting requests join, run one shared round, let finished requests leave.

        An error ends the requests that it belongs to, whose `answer` raises it; the others go on.
        """
        self.tidy()
        start, self._emitted = time.perf_counter(), 0
        with borrowing(self._spare_cores):
            with self._own_lane():
                self._leave()
            self._take_up()
            with self._own_lane():
                self._leave()
                if self._live:
                    self._one_round()
                    self._leave()
        self.policy.saw_step(time.perf_counter() - start, self._emitted, idle=not self.busy)

    def _one_round(self) -> None:
        """A round of the rows whose turn it is; an error in it ends their requests."""
        states = self._live[(rows := self._next_rows())]
        try:
            self._round(rows)
        except Exception as error:
            log.exception("A round failed; its requests end.")
            for state in states:
                state.fail(error)

    def tidy(self) -> None:
        """Release memory that finished requests held, if due; best called when answers have been handed over."""
        self._heap.trim_if_due()

    def generate(self, requests: Iterable[Request]) -> list[Answer]:
        """See `RequestQueue.generate`; then it is found out whether such a clip may be encoded in parts."""
        answers = super().generate(requests)
        self.target.try_parts()
        return answers

    def _rejoin(self, reading: Reading) -> None:
        """A request that had to leave has a row again, as if it had never left."""
        row = self.cache.add_row(self._room(reading))
        self.cache.rope_deltas[row] = reading.rope_delta
        try:
            self.cache.append(row, reading.front.prefix)
        except BaseException:
            self.cache.drop_row(row)
            raise
        self._live.append(reading.state)

    def _join(self, reading: Reading) -> None:
        """A request whose front has been read joins; the hidden draft rides along with the prompt's last piece."""
        target, drafter, policy = self.target, self.drafter, self.policy
        state, prompt, known, encoded = reading.state, reading.prompt, reading.front, reading.encoded
        # Of a drafter that was lost meanwhile, or of a part of it that was, nothing is needed any more.
        drafted = drafter.drafts_for(state)
        ledger, needs, draft = state.ledger, drafter.needs if drafted else NO_NEEDS, NOTHING
        ledger.resumes()

        def has_read() -> None:
            ledger.at_last_piece(len(prompt))
            here = reading.paired or not len(known.prefix)
            if here and not reading.chunked and not state.stats.cached_tokens:
                seconds = (time.perf_counter() - self._since) / (1 + reading.paired)
                policy.saw_reading(seconds, overlapped=state.read_overlapped)

        def ride_along() -> RideAlong:
            nonlocal draft
            has_read()
            draft = drafter.collect(state)
            policy.saw_hidden_draft(draft, drafter.waited_s)
            draft = self._checked(draft, policy.hidden_nodes, state, hidden=True)
            ledger.rides_along()
            return draft.input_tree, draft.probe_embeds

        room, rides = self._room(reading), ride_along if drafted else None
        layers = needs.hidden_layers, needs.visual_layers
        read = target.prefill(self.cache, prompt, encoded, room, rides, *layers, known.prefix, reading.answered)
        self._live.append(state)
        known.store(self.cache, read, needs.visual_layers)
        if drafted:
            tokens = read.last + len(draft.input_tree)
            ledger.prefilled(tokens, read.out.seconds)
            work = None if reading.chunked or reading.paired else drafter.hidden_work(state)
            policy.saw_prefill(tokens, read.out.seconds, work)
        else:
            has_read()
            ledger.prefilled()
        if not needs.nothing:
            state.prompt = prompt_features(read, needs.visual_layers)
        self._commit([state], [draft], read.out, [read.last], Origin.HIDDEN)

    def _round(self, rows: slice) -> None:
        """Propose → verify → commit → emit, in one target pass for all live requests, or for every other half."""
        count = len(self._live)
        states, meanwhile = self._live[rows], [*self._live[: rows.start], *self._live[rows.stop :]]
        tokens = sum(len(state.tokens) for state in states)
        with round_of(states) as times:
            drafts = self._propose(states, meanwhile)
            trees, embeds = [draft.input_tree for draft in drafts], [draft.probe_embeds for draft in drafts]
            times.drafted()
            roots = [Chunk(torch.tensor([state.root])) for state in states]
            layers = self.drafter.needs.hidden_layers
            spare = not self._readings and bool(self._spare_cores())
            narrow = self.policy.goes_narrow(drafted=any(len(tree) for tree in trees), spare=spare)
            with self._without_spare_cores() if narrow else nullcontext():
                both = None if any(one is not None for one in embeds) else self._shared(rows, roots, trees, layers)
                out = both[0] if both else self.target.extend(self.cache, rows, roots, trees, layers, embeds)
            times.verified(out, trees)
            self._commit(states, drafts, out, [1] * len(states), Origin.DRAFTED)
        if both is None:
            self.policy.saw_verify(len(states), out.width, out.seconds, narrow=narrow)
            self.chunks.round_s.add(times.seconds)
            self.policy.saw_round(count, times.seconds, sum(len(state.tokens) for state in states) - tokens)
        self._read_chunk(None if both is None else both[1], self.policy.pass_s(len(states), out.width))

    def _next_rows(self) -> slice:
        """Rows of the next round: all, or one half and then the other, each drafted for while the other is verified."""
        count = len(self._live)
        if not self.policy.alternates(count, elsewhere=self.drafter.elsewhere):
            return slice(0, count)
        self._second_half, middle = not self._second_half, (count + 1) // 2
        return slice(middle, count) if self._second_half else slice(0, middle)

    def _shared(
        self, rows: slice, roots: Sequence[Chunk], trees: Sequence[DraftTree], layers: Sequence[int]
    ) -> tuple[TargetOut, TargetOut] | None:
        """A round's pass with the next chunk of a prompt in it; `None` if there is none, or they cannot be one pass."""
        piece = self._readings[0].piece if self._readings and self._chunked else None
        if piece is None:
            return None
        try:
            return self.target.extend_shared(self.cache, rows, roots, trees, layers, piece)
        except Exception:
            log.exception("A prompt could not be read in a pass of others; it is read by itself.")
            return None

    def _read_chunk(self, shared: TargetOut | None, others_s: float) -> None:
        """After a round: the next chunk of the prompt that is being read, if it was not in the round's pass."""
        reading = self._readings[0] if self._readings else None
        if reading is None or not self._chunked or reading.state.over:
            return
        try:
            reading.read(shared, others_s)
        except Exception as error:  # noqa: BLE001 - it is the request's
            self._close_reading(reading)
            self._give_up(reading.state.job, reading.state, error)

    def _propose(self, states: Sequence[RequestState], meanwhile: Sequence[RequestState]) -> list[Draft]:
        """A draft for every request, as far as it pays; others are drafted for while these are verified."""
        self._drafts.ask(states)
        taken = [self._drafts.take(state) for state in states]
        self._drafts.ask(meanwhile)
        return [
            NOTHING if one is None else self._checked(*one, state, len(states))
            for one, state in zip(taken, states, strict=True)
        ]

    def _checked(self, draft: Draft, nodes: int, state: RequestState, rows: int = 1, *, hidden: bool = False) -> Draft:
        """Validate, trim and clip a draft to what this pass will verify."""
        target, width = self.target, self.target.text_config.hidden_size
        try:
            draft = checked(draft, target.vocab_size, self.policy.probes, target.traits.visual_ids, width)
            if len(draft.tree):
                state.gives_probs = bool(draft.path_probs)
            draft = self.policy.trim(draft, state, nodes, rows, hidden=hidden)
            # Probes beyond the model's context are not fed.
            fits = draft.probes is None or len(state.context) + draft.input_tree.depth <= target.context
        except Exception as error:
            if not isinstance(error, CrossdraftError):
                log.exception("A draft could not be used.")
            state.drop_draft(str(error) or type(error).__name__)
            return NOTHING
        return draft if fits else replace(draft, probes=None)

    def _commit(
        self,
        states: Sequence[RequestState],
        drafts: Sequence[Draft],
        out: TargetOut,
        roots: Sequence[int],
        origin: Origin,
    ) -> None:
        """Verify each row's tree, keep its accepted path in the cache, emit, and commit to the drafter.

        `roots[i]` counts the tokens in front of row i's tree, so that node j's feature stands at `roots[i] + j`.
        """
        outputs: list[tuple[RequestState, VerifyOutput]] = []
        hidden = origin is Origin.HIDDEN
        for state, draft, logits, layers, root in zip(states, drafts, out.logits, out.hidden, roots, strict=True):
            tree = draft.tree
            try:  # by rules, processors and a decoding of a user's own: an error in them is the request's
                accepted = state.verify(tree, logits[: 1 + len(tree)])
                path = accepted.path
                self.cache.keep(self._live.index(state), path)
                self.policy.saw_acceptance(state, draft, path, hidden=hidden)
                emitted = state.emit(tree, accepted, logits, origin, self.target)
                self._emitted += len(emitted)
                state.stats.count_round(tree.depth, len(tree), len(path), len(emitted), hidden=hidden)
                if self.drafter.drafts_for(state):  # of a finished answer too: a drafter may remember it
                    prompt, state.prompt = state.prompt, None
                    output = VerifyOutput(path[: len(emitted)], emitted, prompt=prompt)
                    outputs.append((state, output.of_pass(self.drafter.needs, draft, logits, layers, root)))
            except Exception as error:
                if not isinstance(error, CrossdraftError):
                    log.exception("What a pass returned could not become part of an answer.")
                state.fail(error)
        self.drafter.commit([state for state, _ in outputs], [output for _, output in outputs])

    def _leave(self) -> None:
        """Finished requests give their row back; the last row moves into the gap."""
        for state in [state for state in self._live if state.over]:
            self._drop_row(state)
            self._end(state, state.error)
        for state in (*self._paused, *(reading.state for reading in self._readings if reading.again)):
            state.check_time()
        for state in [state for state in self._paused if state.over]:
            self._paused.remove(state)
            self._end(state, state.error)
        for reading in [reading for reading in self._readings if reading.state.over]:
            self._close_reading(reading)
            self._end(reading.state, reading.state.error)

    def _drop_row(self, state: RequestState) -> None:
        """A request has no row any more; what it holds may be kept for later ones."""
        row = self._live.index(state)
        state.keep_answer(self.cache, row)
        self.cache.drop_row(row)
        last = self._live.pop()
        if last is not state:
            self._live[row] = last

    def _end(self, state: RequestState, error: Exception | None) -> None:
        """A request is over: its answer can be fetched."""
        if state.drafter is not None:
            state.stats.undrafted = self.policy.why_undrafted(state)
        state.end()
        self._drafts.drop(state)
        read_wait_s = self.drafter.end(state)
        if state.tokens:
            self.policy.saw_answer(len(state.tokens), read_wait_s)
        state.ledger.close()
        self._heap.ended()
        self._finish(state.job, error or state)
