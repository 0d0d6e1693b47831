"""The loop of speculative decoding: schedule → collect drafts → one target pass → verify → keep → emit → commit.

Every request is a row with pending tokens: its prompt, a part of it, or the last committed token alone; behind the last
of them stands a draft tree. Rows share passes, each accepts its own number of tokens, and they join and leave between
passes. Whatever the drafter does, the tokens are those that the target alone would have written.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from crossdraft.engine.admission import Admission
from crossdraft.engine.checks import checked
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.drafter import NO_NEEDS, NOTHING, Draft
from crossdraft.engine.fast.elastic import borrowing
from crossdraft.engine.passes import Chunk, PassRow, TargetOut
from crossdraft.engine.policy import HIDDEN_NODES, ROUND_NODES, SpeculationPolicy
from crossdraft.engine.prefix_cache import PrefixCache
from crossdraft.engine.queue import ChunkSize, RequestQueue
from crossdraft.engine.request import Answer, Finish, Origin, Request
from crossdraft.engine.request_state import OnPiece, RequestState
from crossdraft.engine.rules import check_target
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.shared_times import SharedPassTimes
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)


class DecodeLoop:
    """One target, one drafter (or none), up to `max_batch` requests at a time. To be used by one thread.

    Args:
        target: the model whose output must be reproduced.
        drafter: the drafter's runner; `None` = the target alone.
        max_batch: requests that share a pass.
        rule: acceptance rule by name, with settings if it has any (`typical:eps=0.05`); `None` = the exact rule for
            the request's temperature.
        nodes: most nodes drafted per round; the cost model drafts fewer where that is faster.
        hidden_nodes: most nodes drafted for the ride-along.
        adaptive: let measured times and acceptances set the budget of each round.
        on_piece: called with the pieces of every request that has no `on_piece` of its own.
        prefixes: cache of prompts' beginnings for later prompts; `None` = nothing is kept.
        prefill_chunk: tokens of a prompt that share a pass with others; 0 = all, `None` = as many as take
            0.1 s, or a round and a half.
        kv_bytes: limit of all running requests' keys and values: a request that would exceed it waits.
    """

    def __init__(
        self,
        target: Target,
        drafter: DraftRunner[Any] | None = None,
        *,
        max_batch: int = 1,
        rule: str | None = None,
        nodes: int = ROUND_NODES,
        hidden_nodes: int = HIDDEN_NODES,
        adaptive: bool = True,
        cost: CostModel | None = None,
        on_piece: OnPiece | None = None,
        prefixes: PrefixCache | None = None,
        prefill_chunk: int | None = 0,
        kv_bytes: int | None = None,
    ) -> None:
        check_target(rule, target)
        self.target = target
        self.drafter = drafter or DraftRunner[Any](None)
        announced = self.drafter.announced
        self.policy = SpeculationPolicy(
            cost or CostModel(), nodes, hidden_nodes, adaptive=adaptive, unasked=announced.unasked
        )
        self.cache = target.new_cache(max_batch)
        self.queue = RequestQueue(on_piece)
        self.chunks, self.prefixes = ChunkSize(prefill_chunk), prefixes or PrefixCache(0)
        self._admission = Admission(
            target, self.drafter, self.policy, self.cache, self.queue, self.prefixes, rule, kv_bytes
        )
        self.submit, self.cancel = self.queue.submit, self.queue.cancel
        self.answer, self.finished = self.queue.answer, self.queue.finished

    @property
    def busy(self) -> bool:
        """True while a request waits or runs."""
        return self.queue.busy

    def generate(self, requests: Iterable[Request]) -> list[Answer]:
        """Answer all requests, in their order.

        Raises:
            Exception: the first error that a request ended with, after the others are answered.
        """
        request_ids = [self.submit(request) for request in requests]
        while self.busy:
            self.step()
        return [self.answer(request_id) for request_id in request_ids]

    @torch.inference_mode()
    def step(self) -> None:
        """Let waiting requests join, run one shared pass, let finished requests leave.

        An error ends the requests that it belongs to, whose `answer` raises it; the others go on.
        """
        self.tidy()
        with borrowing(self._admission.spare_cores):
            self._admission.retire()
            self._admission.take_up(self.chunks.held_s)
            self._admission.retire()
            if rows := self.queue.schedule():
                self._run(rows)
                self._admission.retire()

    def tidy(self) -> None:
        """Release memory that finished requests held, if due; best called when answers have been handed over."""
        self._admission.heap.trim_if_due()

    @torch.inference_mode()
    def drop(self) -> None:
        """Cancel every request at once; the drafter stays."""
        self._admission.drop()

    def close(self) -> None:
        """Cancel every request, for good; `join` waits for work that another thread has begun."""
        self.drop()
        self._admission.close(wait=False)

    def join(self) -> None:
        """After `close`: wait until no other thread uses the target any more."""
        self._admission.close(wait=True)

    def _run(self, rows: list[RequestState]) -> None:
        """Run the next pass of these rows; if it fails, run the rows one by one to find the faulty request."""
        before = [*self.cache.lengths]
        try:
            self._pass(rows)
        except Exception as error:
            again = len(rows) > 1 and self.cache.lengths == before  # a token that was committed is not read twice
            if not again:
                log.exception("A pass failed; its requests end.")
            for row in rows:
                if again:
                    self._run([row])
                else:
                    row.fail(error)
        except BaseException:  # Ctrl-C, where the loop is driven by the main thread
            for row in rows:
                row.finish = row.finish or Finish.CANCELLED
            raise

    def _pass(self, rows: list[RequestState]) -> None:
        """Propose → verify → commit → emit, in one target pass."""
        parts = [self._next_chunk(row, len(rows)) for row in rows]
        times = SharedPassTimes(rows, parts)
        drafts = self._drafts([row for row, (chunk, _) in zip(rows, parts, strict=True) if not chunk.skip_logits])
        times.drafted()
        passed = [
            self._pass_row(row, chunk, drafts.get(row.request_id, NOTHING))
            for row, (chunk, _) in zip(rows, parts, strict=True)
        ]
        out = self.target.extend(self.cache, passed)
        times.verified(out.done.wait(), out.seconds, passed)
        for row, one, hidden, (_, rest) in zip(rows, passed, out.hidden, parts, strict=True):
            row.was_read(one, hidden, rest)
        self._commit(rows, [drafts.get(row.request_id, NOTHING) for row in rows], out)
        times.end()
        self._measure(rows, passed, out, times)

    def _next_chunk(self, row: RequestState, rows: int) -> tuple[Chunk, Chunk | None]:
        """The tokens that a row reads in the next pass, and the rest of that piece of its prompt."""
        if not row.pending:
            return Chunk(torch.tensor([row.root])), None
        return self.target.split(row.pending[0], self.chunks.tokens(rows, len(row.pending[0].tokens)))

    def _pass_row(self, row: RequestState, chunk: Chunk, draft: Draft) -> PassRow:
        needs = self.drafter.needs if row.drafting else NO_NEEDS
        captured = row.captured(chunk, needs)
        return PassRow(row.cache_row, chunk, draft.tree, captured)

    def _drafts(self, rows: Sequence[RequestState]) -> dict[int, Draft]:
        """Drafts, as far as they pay, of the requests whose root is read now; by the request's id."""
        first, later = [row for row in rows if not row.tokens], [row for row in rows if row.tokens and row.drafting]
        free = {row.request_id: self.policy.free_drafts(row, len(rows)) for row in rows}
        plans = [(row, self.policy.plan_round(row, len(rows), free[row.request_id])) for row in later]
        for row, plan in plans:
            self.policy.began_round(row, plan, len(rows))
        asked = [(row, plan.budget) for row, plan in plans if plan.budget.nodes > 0]
        wait = self.drafter.ask([row for row, _ in asked], [budget for _, budget in asked]) if asked else list
        found: dict[int, Draft] = {}
        for row in first:
            if row.drafting:
                draft = self.drafter.collect(row)
                self.policy.saw_hidden_draft(draft, self.drafter.waited_s)
                found[row.request_id] = self._checked(draft, self.policy.hidden_nodes, row, hidden=True)
        for (row, budget), draft in zip(asked, wait(), strict=True):
            found[row.request_id] = kept = self._checked(draft, budget.nodes, row, len(rows))
            self.policy.saw_draft(draft, kept, budget.nodes, self.drafter.waited_s, len(rows))
        for row in rows:
            key, most = row.request_id, self.policy.most_nodes(row)
            found[key] = row.with_free(found.get(key, NOTHING), free[key], most)
        return found

    def _checked(self, draft: Draft, nodes: int, row: RequestState, rows: int = 1, *, hidden: bool = False) -> Draft:
        """Validate a draft, and cut it to the nodes that this pass will verify."""
        target = self.target
        try:
            draft = row.permitted(checked(draft, target.vocab_size, target.traits.visual_ids))
            return self.policy.trim(draft, row, nodes, rows, hidden=hidden)
        except Exception as error:
            if not isinstance(error, CrossdraftError):
                log.exception("A draft could not be used.")
            row.drop_draft(str(error) or type(error).__name__)
            return NOTHING

    def _commit(self, rows: Sequence[RequestState], drafts: Sequence[Draft], out: TargetOut) -> None:
        """Verify each row's tree, keep its accepted path in the cache, emit, and commit to the drafter."""
        outputs: list[tuple[RequestState, Any]] = []
        for index, (row, draft, logits) in enumerate(zip(rows, drafts, out.logits, strict=True)):
            if row.pending and self.cache.keeps_states:
                row.keep_prompt(self.cache)  # the states of where a pass ends are known only now
            if row.pending or row.over:
                continue  # more of its prompt is to come
            tree, first = draft.tree, not row.tokens
            try:  # a user's own rule, processor or decoding may fail: the error is the request's
                if first:
                    row.keep_prompt(self.cache)
                accepted = row.verify(tree, logits[: 1 + len(tree)])
                path = accepted.path
                self.cache.keep(row.cache_row, path)
                self.policy.saw_acceptance(row, *row.proposed(draft, path), hidden=first)
                emitted = row.emit(tree, accepted, logits, Origin.HIDDEN if first else Origin.DRAFTED, self.target)
                row.stats.count_round(tree.depth, len(tree), len(path), len(emitted), hidden=first)
                if row.drafting:  # for a finished answer, too: a drafter may learn from it
                    needs = self.drafter.needs
                    hidden, reserved = out.hidden[index], self.target.reserved
                    made = row.output(needs, draft, path, emitted, hidden, logits, reserved)
                    kept = self.cache.row_views(row.cache_row, needs.kv_layers)
                    outputs.append((row, replace(made, kv=kept) if kept else made))
            except Exception as error:
                if not isinstance(error, CrossdraftError):
                    log.exception("What a pass returned could not become part of an answer.")
                row.fail(error)
        self.drafter.commit([row for row, _ in outputs], [output for _, output in outputs])

    def _measure(
        self, rows: Sequence[RequestState], passed: Sequence[PassRow], out: TargetOut, times: SharedPassTimes
    ) -> None:
        """Tell the policy the times of the pass."""
        row, one = rows[0], passed[0]
        if times.prompts and len(rows) == 1 and row.drafting and not one.chunk.skip_logits:
            self.policy.saw_prefill(len(one), out.seconds, self.drafter.hidden_step_s(row))
        elif not times.prompts:
            self.policy.saw_verify(len(rows), out.width, out.seconds)
        self.chunks.saw(out.seconds, len(rows) - times.prompts, times.prompt_tokens)
