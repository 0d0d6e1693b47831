"""Reading: a request whose prompt is being read, chunk by chunk where others are answered meanwhile.

What comes before the last piece of a prompt, the front, is read into a cache of its own, so that a request that is
given up leaves nothing behind; its keys and values join the others' cache when the last piece is read. A chunk shares
the pass of a round, where passes are lean (Sarathi-Serve, Agrawal et al. 2024). Preparing and encoding a clip are not
to be cut: while others are answered a second thread does them.

On a CPU that thread may read all of the front, on half of the cores, while the rounds go on on the other half, where a
prompt is read before each round as well as long as more wait than are answered (`read_here`). And while nobody is
answered and two requests wait, two prompts may be read at once (`read_pair`). See `engine.lanes`.
"""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from crossdraft.engine.cache import KVCache, KVPrefix
from crossdraft.engine.checks import check_prompt
from crossdraft.engine.drafter import Needs
from crossdraft.engine.estimates import Ema, LinearFit
from crossdraft.engine.fast.cores import available_cores
from crossdraft.engine.lanes import Lanes, done_on
from crossdraft.engine.passes import Chunk, PrefillChunk, TargetOut
from crossdraft.engine.prefix_cache import CachedPrompt, Encoding, PrefixCache
from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.remote_fronts import RemoteFronts
from crossdraft.engine.request_state import RequestState
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree

ALONE = 2048  # tokens of a chunk while nobody is answered: between two of them it can be cancelled
FIRST = 64  # of the first chunk beside others, before anything is measured
LEAST = 16
HELD_ROUNDS = 1.5  # a chunk beside others takes so many of their rounds: with the work around it, less than two
WHOLE_ROUNDS = 4.0  # a prompt that takes no more of them is read at once, where that has to happen in this thread

Work = Callable[[], Any]


@dataclass
class ChunkTimes:
    """Times of chunks and rounds, which set the number of tokens that a chunk may have.

    Args:
        size: tokens of a chunk beside others; `None` = as many as take `HELD_ROUNDS` rounds.
    """

    size: int | None = None
    chunk: LinearFit = field(default_factory=lambda: LinearFit(decay=0.9))  # tokens -> seconds
    round_s: Ema = field(default_factory=Ema)
    prompt_s: Ema = field(default_factory=Ema)  # of a prompt that is read at once

    @property
    def tokens(self) -> int:
        """Tokens of the next chunk."""
        if self.size is not None:
            return self.size
        round_s, seconds = self.round_s.value, self.chunk
        if round_s is None or not seconds.w:
            return FIRST
        slope = seconds.slope or seconds(FIRST) / FIRST
        if not slope:
            return FIRST
        wanted = (HELD_ROUNDS * round_s - seconds(0)) / slope
        return int(min(ALONE, max(LEAST, wanted // LEAST * LEAST)))

    def fits_prompt(self, waiting: int, held_s: float) -> bool:
        """True if a prompt may be prefilled at once: within a few rounds, or the time of a chunk for each that waits.

        Args:
            waiting: prompts.
            held_s: seconds since the last round.
        """
        round_s, prompt_s = self.round_s.value, self.prompt_s.value
        if round_s is None or prompt_s is None:
            return False
        return held_s + prompt_s <= max(WHOLE_ROUNDS, waiting * HELD_ROUNDS) * round_s


class Reading:
    """See the module's text. To be used by one thread.

    Args:
        state: the request, whose drafter has begun to read it. If it has an answer already, it had a row before; then
            its prompt is read again, and its answer up to the root.
        target, prefixes, fronts: see `Decoder`.
        needs: of the drafter.
        times: how large the chunks are.
        show: called with the visual features, once they are there.
        interleaved: others are answered now.
    """

    def __init__(
        self,
        state: RequestState,
        target: Target,
        prefixes: PrefixCache,
        fronts: RemoteFronts | None,
        needs: Needs,
        times: ChunkTimes,
        show: Callable[[Encoded], None],
        *,
        interleaved: bool = False,
    ) -> None:
        self.state = state
        self._interleaved = interleaved
        self.needs = needs
        self.prompt = Prompt(torch.empty(0, dtype=torch.long))
        self._known: CachedPrompt | None = None  # with the front, in the end
        self.encoded: Encoded = {}
        self.again = bool(state.tokens)
        self.rope_delta = 0
        self.chunked = False  # whether any of it was read while others were answered
        self.paired = False  # whether it was read at the same time as another prompt
        self.elsewhere = False  # whether it is read in another thread while others are answered
        self.answered: TargetOut | None = None  # what the pass over its last token returned, if that was read, too
        self._error: BaseException | None = None
        self._target, self._prefixes, self._fronts, self._times, self._show = target, prefixes, fronts, times, show
        self._steps = self._read()
        self._next: Work | PrefillChunk | None = next(self._steps)
        self._made: Future[Any] | None = None  # what is done elsewhere
        self._borrows = False  # on spare cores

    @property
    def front(self) -> CachedPrompt:
        """The prompt with all of it that has been read.

        Raises:
            ValueError: it is not prepared yet.
        """
        if self._known is None:
            raise ValueError("The prompt is not prepared yet.")
        return self._known

    def finish(self) -> None:
        """Read all of the front at once, unless the request is cancelled meanwhile.

        Raises:
            Exception: whatever fails, or has failed in `read_pair`.
        """
        if self._error is not None:
            raise self._error
        self._interleaved = False
        while not self.state.over and self._next is not None:
            if self.piece is not None:
                self.read()
            else:
                self._take(self.work() if self._made is None else self._made.result())
            self.state.check_cancelled()

    def advance(self, elsewhere: Executor, spare: Sequence[int], lanes: Lanes | None = None) -> bool:
        """Have done `elsewhere` what is to be done there next; true if nothing is left to read but the last piece.

        Args:
            elsewhere: another thread.
            spare: cores for it; without any it shares ours, and is given about `HELD_ROUNDS` rounds.
            lanes: the second one is for the other thread, which then reads all chunks, too; `None` = it does not.
        """
        self.chunked = self._interleaved = True
        if lanes is not None and self.piece is None:
            self.elsewhere = True
        if self._next is None or self.piece is not None:
            return self._next is None
        if self._made is None:
            self._borrows = bool(spare) or lanes is not None
            cores = spare or available_cores()
            threads = min(len(cores), torch.get_num_threads())
            if lanes is not None:
                cores, threads = lanes.cores[1], lanes.threads
            self._made = elsewhere.submit(done_on, self.work, cores, threads)
        if not self._borrows:
            wait([self._made], HELD_ROUNDS * (self._times.round_s.value or 0.0))
        if self._made.done():
            self._take(self._made.result())
        return self._next is None

    @property
    def fresh(self) -> bool:
        """True if it may be prefilled together with another one: it never had a row, and nothing is under way."""
        return self.unread and not self.again and self._made is None

    @property
    def borrows(self) -> bool:
        """True if another thread is working on it, on cores of its own."""
        return self._borrows and self._made is not None and not self._made.done()

    @property
    def piece(self) -> PrefillChunk | None:
        """The chunk to be read here next; `None` while something else is to be done, or it is read elsewhere."""
        here = not self.elsewhere and self._error is None
        return self._next if here and isinstance(self._next, PrefillChunk) else None

    def read(self, shared: TargetOut | None = None, others_s: float = 0.0) -> None:
        """Read that chunk, unless it was in a pass that was `shared`, which without it had taken `others_s` seconds."""
        if (piece := self.piece) is None:
            return
        out = self._extend(piece) if shared is None else shared
        self._times.chunk.add(len(piece.chunk.tokens), max(0.0, out.seconds - others_s))
        self._go_on_after(piece, out)

    @property
    def unread(self) -> bool:
        """True if there is more to do for the front, and the request still wants it."""
        return self._next is not None and self._error is None and not self.state.over

    @property
    def work(self) -> Work:
        """The next step to run, in any thread; `took` takes its result."""
        if self._next is None:
            raise ValueError("Nothing is left to do.")
        return partial(self._extend, self._next) if isinstance(self._next, PrefillChunk) else self._next

    def took(self, made: Future[Any]) -> None:
        """Take the result of `work`; an error is kept for `finish`."""
        self.paired = True
        try:
            self._take(made.result())
            self.state.check_cancelled()
        except Exception as error:  # noqa: BLE001 - it is the request's, and raised to who reads it
            self._error = error

    def read_here(self) -> None:
        """Do what is to be done next, in this thread, while another one reads other prompts; errors as of `took`."""
        self.chunked, self._interleaved = True, False
        self.took(_done_here(self.work))

    def close(self) -> None:
        """Nothing more of it is wanted: what was read is given up."""
        self._steps.close()
        self._next = None
        if self._made is not None:
            self._made.cancel()

    def _take(self, made: Any) -> None:
        """Go on with what `work` returned."""
        if isinstance(piece := self._next, PrefillChunk):
            self._go_on_after(piece, made)
        else:
            self._go_on(made)

    def _extend(self, piece: PrefillChunk) -> TargetOut:
        return self._target.extend(piece.cache, slice(0, 1), [piece.chunk], [DraftTree.empty()], piece.capture)

    def _go_on_after(self, piece: PrefillChunk, out: TargetOut) -> None:
        self.state.ledger.read_chunk(out.began.wait(), out.done.wait(), len(piece.chunk.tokens))
        self._go_on(out)

    def _go_on(self, made: Any) -> None:
        self._made = None
        self._next = None
        with suppress(StopIteration):
            self._next = self._steps.send(made)

    def _read(self) -> Generator[Work | PrefillChunk, Any, None]:
        """Yields what is to be done next, a chunk to be read or anything else, and is sent its result."""
        state, needs = self.state, self.needs
        if self.again and state.known is not None:
            self.prompt = state.known.prompt
            known = self._prefixes.lookup(self._target, self.prompt, state.request)
        else:
            self.prompt = yield self._prepare
            known = self._prefixes.lookup(self._target, self.prompt, state.request, needs)
            state.begin(known, self._target)
            if self._fronts is not None:
                known = yield partial(self._fronts.read, known, state, needs)
        encoding = known.encoding(always=state.visual_features is not None and not self.again)
        made = self._encode(encoding) if encoding.done else (yield partial(self._encode, encoding))
        encoding.count_frames(made, state.stats)
        self.encoded, self._known = encoding.keep(made), known
        if not self.again:
            self._show(self.encoded)
        yield from self._read_front(known)

    def _prepare(self) -> Prompt:
        state, target, fronts = self.state, self._target, self._fronts
        with state.ledger.stage("prepare"):
            made = target.prepare(state.request) if fronts is None else fronts.prepare(state)
            check_prompt(made.input_ids, target.vocab_size, target.traits.visual_ids)
        return made

    def _encode(self, encoding: Encoding) -> list[Encoded]:
        target, state = self._target, self.state
        with state.ledger.stage("encode"):
            made = encoding.make(None if self.again else state.visual_features)
            target.clock.mark().wait()
        return made

    def _read_front(self, known: CachedPrompt) -> Generator[PrefillChunk, TargetOut, None]:
        """Read what comes before the last piece, unless that is little and nobody waits meanwhile.

        Beside another prompt or rounds of others, if nothing is to ride along, the last piece as well.
        """
        nobody = self.state.drafter is None
        target, layers = self._target, () if self.again or nobody else self.needs.visual_layers
        joined = (self.paired or self.elsewhere) and nobody and not self.again and target.joins
        pieces, delta = target.chunks(self.prompt, self.encoded, len(known.prefix), joined=joined)
        whole = sum(len(piece.tokens) for piece in pieces)
        if not (self.chunked or self.paired or self.again) and whole <= ALONE:
            return
        written = self.state.tokens[:-1]
        if written:
            pieces.append(Chunk(torch.tensor(written)))
        if self.again:
            pieces = [replace(piece, skip_logits=True) for piece in pieces]
        self.rope_delta = delta
        room = len(self.prompt) + len(written)
        cache = KVCache(target.text_config.num_hidden_layers, 1, room)
        cache.add_row(room)
        cache.rope_deltas[0] = delta
        cache.append(0, known.prefix)
        outs: list[TargetOut] = []
        for piece in pieces:
            rest: Chunk | None = piece
            # Of the last piece a drafter that looks into the target wants all features at once.
            while rest is not None and (
                self.again
                or joined
                or piece is not pieces[-1]
                or (self.needs.nothing and len(rest.tokens) > self._size)
            ):
                first, rest = target.cut(rest, self._size)
                if rest is None and piece is pieces[-1] and not (self.again or joined):
                    break  # not to be cut
                outs.append((yield PrefillChunk(cache, first, layers)))
        if joined:
            self.answered = outs[-1]
        if outs:
            found = [*known.prefix.hidden, *(dict(zip(layers, out.hidden[0], strict=True)) for out in outs)]
            hidden = {layer: torch.cat([part[layer] for part in found]) for layer in layers}
            self._known = replace(known, prefix=KVPrefix(((cache.view(0), cache.lengths[0]),), (hidden,)))

    @property
    def _size(self) -> int:
        return self._times.tokens if self._interleaved and not self.elsewhere else ALONE


def can_pair(first: Reading, second: Reading) -> bool:
    """True if both prompts are yet to be prefilled, and prefilling one would make nothing of the other known."""
    known = first.state.request.known or second.state.request.known
    return first.fresh and second.fresh and not known and not show_the_same(first, second)


def show_the_same(first: Reading, second: Reading) -> bool:
    """True if prefilling the first prompt makes a part of the second one known."""
    shown = [() if (content := one.state.request.content) is None else content.items for one in (first, second)]
    return not set(shown[0]).isdisjoint(shown[1])


def read_pair(pair: Sequence[Reading], lanes: Lanes, elsewhere: Executor) -> None:
    """Read the fronts of two prompts at once.

    Args:
        pair: both; what fails in one of them is kept for its `finish`.
        lanes: the first is this thread.
        elsewhere: a thread that is the other one.
    """
    threads = lanes.threads
    while going := [(reading, cores) for reading, cores in zip(pair, lanes.cores, strict=True) if reading.unread]:
        (first, own), others = going[0], going[1:]
        made = [elsewhere.submit(done_on, reading.work, cores, threads) for reading, cores in others]
        try:
            mine = _done_here(partial(done_on, first.work, own, threads))
        finally:
            wait(made)
        for (reading, _), result in zip(going, [mine, *made], strict=True):
            reading.took(result)


def _done_here(work: Work) -> Future[Any]:
    """Run some work in this thread; the future holds its result or error, unless that ends the thread."""
    made: Future[Any] = Future()
    try:
        made.set_result(work())
    except Exception as error:  # noqa: BLE001 - raised to who asks
        made.set_exception(error)
    return made
