"""Opening: a request on its way to a row: its prompt is prepared, looked up in the prefix cache, and encoded.

Preparing and encoding a clip cannot be cut into chunks. So another thread does both while other requests are answered.
"""

from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from crossdraft.engine.cache import KVPrefix
from crossdraft.engine.checks import check_prompt
from crossdraft.engine.drafter import NO_NEEDS, Needs
from crossdraft.engine.passes import Chunk
from crossdraft.engine.predictions import drafts_from_texts
from crossdraft.engine.prefix_cache import CachedPrompt, Encoding, PrefixCache
from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.prompt_features import PromptReading
from crossdraft.engine.request_state import RequestState
from crossdraft.engine.target import Target
from crossdraft.engine.traits import embedded_ids

Work = Callable[[], Any]


class Opening:
    """The steps that bring one request to a row. To be used by one thread.

    Args:
        state: the request. If it has part of an answer already, it had a row before and lost it to another request.
        target, prefixes: see `DecodeLoop`.
        needs: needs of the drafter.
        show: called with the visual features, once they are there.
    """

    def __init__(
        self, state: RequestState, target: Target, prefixes: PrefixCache, needs: Needs, show: Callable[[Encoded], None]
    ) -> None:
        self.state, self.needs = state, needs
        self._target, self._prefixes, self._show = target, prefixes, show
        self._again = state.known is not None
        self._steps = self._open()
        self._next: Work | None = next(self._steps, None)
        self._made: Future[Any] | None = None  # the step that the other thread does

    @property
    def busy(self) -> bool:
        """True if the other thread is at work for this request."""
        return self._made is not None and not self._made.done()

    def finish(self) -> None:
        """Do all remaining steps in this thread, unless the request is cancelled meanwhile."""
        while self._next is not None and not self.state.over:
            self._go_on(self._next() if self._made is None else self._made.result())
            self.state.check_cancelled()

    def advance(self, submit: "Callable[[Work], Future[Any]]", held_s: float) -> bool:
        """Have the next steps done in another thread; true if nothing is left to do.

        Args:
            submit: starts work in that thread.
            held_s: seconds that are waited for a step, as both threads share the cores.
        """
        while self._next is not None:
            self._made = self._made or submit(self._next)
            wait([self._made], held_s)
            if not self._made.done():
                break
            self._go_on(self._made.result())
        return self._next is None

    def close(self) -> None:
        """Drop the remaining steps."""
        self._steps.close()
        self._next = None
        if self._made is not None:
            self._made.cancel()

    def _go_on(self, made: Any) -> None:
        self._made = self._next = None
        with suppress(StopIteration):
            self._next = self._steps.send(made)

    def _open(self) -> Generator[Work, Any, None]:
        """Yield each step, which any thread may do, and take its result."""
        state, target, shared = self.state, self._target, self.state.shared
        alone = self.needs.nothing and not self.needs.visual
        found = None if self._again or shared is None or not (alone or shared.drafting) else shared.known
        if state.known is not None:
            needs = NO_NEEDS if state.tokens else self.needs
            known = self._prefixes.lookup(target, state.known.prompt, state.request, needs)
        else:
            prompt = yield partial(self._prepare, found)
            known = found or self._prefixes.lookup(target, prompt, state.request, self.needs)
            state.begin(known, target)
        if shared is None or found is None:
            encoding = known.encoding(always=state.visual_features is not None and not self._again)
            made = encoding.make() if encoding.done else (yield partial(self._encode, encoding))
            encoded = encoding.keep(made)
        else:
            encoded = shared.encoded
        if not self._again:
            self._show(encoded)
        self._plan(known, encoded)
        if shared is not None and shared.reading is not None and found is not None:
            state.features = shared.reading.first(len(known.prefix))
        elif shared is not None:
            shared.encoded = encoded
            if target.traits.mixers:  # states are known where a pass ends
                last = state.pending[-1]
                parts = target.split(last, max(1, len(last.tokens) - 1))
                state.pending[-1:] = [part for part in parts if part is not None]

    def _plan(self, known: CachedPrompt, encoded: Encoded) -> None:
        """Store in the request's state the pieces to be read into its row."""
        state, target = self.state, self._target
        whole = bool(state.tokens) or not state.drafting
        state.known, state.prefix = replace(known, prefix=KVPrefix()), known.prefix
        state.pending, state.rope_delta = target.chunks(known.prompt, encoded, len(known.prefix), whole=whole)
        if state.tokens:  # the answer so far is read too, up to the root
            state.pending = [replace(chunk, skip_logits=True) for chunk in state.pending]
            state.pending.append(Chunk(torch.tensor(state.tokens)))
        else:
            positions = self._positions(known, encoded) if self.needs.visual_layers else None
            state.before = known.answered() if state.repeats else ()
            state.features = PromptReading(target.visual_end(known.prompt), known.prefix, positions)

    def _positions(self, known: CachedPrompt, encoded: Encoded) -> Tensor | None:
        """The positions of a prompt's tokens; `None` = their numbers."""
        pieces = self._target.chunks(known.prompt, encoded)[0] if len(known.prefix) else self.state.pending
        given = [piece.positions for piece in pieces if piece.positions is not None]
        return torch.cat(given, -1) if given else None

    def _prepare(self, known: CachedPrompt | None) -> Prompt:
        state, target = self.state, self._target
        with state.ledger.stage("prepare"):
            made = target.prepare(state.request) if known is None else known.prompt
            check_prompt(made.input_ids, embedded_ids(target.model.config), target.traits.visual_ids)
            if (structure := state.request.constraint) is not None:
                state.masks = structure.begin(target.text, target.vocab_size, target.defaults.eos)
            ends = {*state.ends, *(() if state.request.ignore_eos else target.eos)}
            state.texts = drafts_from_texts(state.request, target, ends)
        return made

    def _encode(self, encoding: Encoding) -> list[Encoded]:
        with self.state.ledger.stage("encode"):
            made = encoding.make()
            self._target.clock.mark().wait()
        return made
