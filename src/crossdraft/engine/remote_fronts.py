"""RemoteFronts: prompts whose fronts another process reads, between a decode loop and a `RemotePrefill`.

While others are answered a request waits in the queue until its front has been read, so that nobody's round waits for
it; a thread of its own identifies and prepares it. Where nobody is answered the loop takes it up at once and waits for
the front itself, while the drafter drafts.
"""

import logging
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch

from crossdraft.engine.drafter import Needs
from crossdraft.engine.prefix_cache import CachedPrompt, PrefixCache
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.request_state import Job, RequestState
from crossdraft.engine.target import Target
from crossdraft.engine.workers.prefill import PrefillHandle, RemotePrefill
from crossdraft.engine.workers.process import LOOK_S, WorkerLost
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Front:
    """The front of a request: which is identified, then prepared, then read, each once.

    Args:
        request_id: of that request.
        job: it, as long as it waits.
        request: as the prefix cache knows it.
        prompt: once it is to be prepared.
        handle: once its front is being read.
    """

    request_id: int
    job: "weakref.ref[Job]"
    request: "Future[Request]"
    prompt: "Future[Prompt] | None" = None
    handle: PrefillHandle | None = None

    @property
    def waits(self) -> bool:
        """True if its request still waits."""
        return self.job() is not None


class RemoteFronts:
    """See the module's text. To be used by one thread.

    Args:
        target: which the prompts are for.
        prefixes: what is known of prompts, which need not be read.
        reader: reads fronts.
    """

    def __init__(self, target: Target, prefixes: PrefixCache, reader: RemotePrefill) -> None:
        self._target, self._prefixes = target, prefixes
        self._reader: RemotePrefill | None = reader
        self._waiting: dict[int, _Front] = {}  # those that were asked about
        self._current: _Front | None = None  # the one that is being prepared or read
        self._side = ThreadPoolExecutor(1, "fronts")

    @property
    def alive(self) -> bool:
        """True if the process prefills fronts; else the target prefills all of every prompt."""
        return self._reader is not None

    def ready(self, job: Job, needs: Needs) -> bool:
        """True if a waiting request may be taken up: its front has been prefilled, or is not prefilled elsewhere.

        Prefilling begins with the front of the first request that is asked about.
        """
        try:
            return self._reader is None or self._advanced(job, needs)
        except WorkerLost as error:
            self._lost(error)
        except Exception:
            log.debug("A front cannot be read.", exc_info=True)  # whoever takes it up meets it again
        return True

    def _advanced(self, job: Job, needs: Needs) -> bool:
        """Bring the front of a request on, if it is its turn; whether the request need not wait for it any more."""
        front = self._waiting.get(job.request_id) or self._begin(job)
        if front.handle is not None:
            return front.handle.ready
        if not front.request.done():
            return False
        request = front.request.result()
        if self._prefixes.knows(request):
            return True
        return not self._busy_with_another(front) and not self._occupies(front, request, needs)

    def _occupies(self, front: _Front, request: Request, needs: Needs) -> bool:
        """Have this front prepared, then read; whether it is, or will be."""
        self._current = front
        if front.prompt is None:
            front.prompt = self._side.submit(self._prepared, request)
        if not front.prompt.done():
            return True
        prompt = front.prompt.result()
        fits = len(prompt) < self._target.context
        if not fits or not self._worthwhile(self._prefixes.lookup(self._target, prompt, request, needs)):
            self._current = None
            return False
        self._start(front, prompt, needs)
        return True

    def _begin(self, job: Job) -> _Front:
        """Have a request identified, and forget those that nobody waits for any more."""
        self._waiting = {number: front for number, front in self._waiting.items() if front.waits}
        request = self._side.submit(self._identified, job.request)
        front = self._waiting[job.request_id] = _Front(job.request_id, weakref.ref(job), request)
        return front

    def _busy_with_another(self, front: _Front) -> bool:
        """True if another front is being prepared for a request that waits, or prefilled, whoever wants it."""
        current = self._current
        if current is None or current is front:
            return False
        if current.handle is not None:
            return not current.handle.ready
        return current.waits and current.prompt is not None and not current.prompt.done()

    @torch.inference_mode()
    def _identified(self, request: Request) -> Request:
        return self._prefixes.identify(self._target.defaults.resolve(request))

    @torch.inference_mode()
    def _prepared(self, request: Request) -> Prompt:
        request.check_length(self._target.context)
        prompt = self._target.prepare(request)
        dict(prompt.features)  # those that are made when they are asked for, too
        return prompt

    def identify(self, job: Job) -> Request:
        """The request of a job that is taken up, as the prefix cache knows it by now."""
        front = self._waiting.get(job.request_id)
        if front is None:
            return self._identified(job.request)
        found = front.request.result()
        return replace(found, known=self._prefixes.knows(found))

    def prepare(self, state: RequestState) -> Prompt:
        """The prompt of a request that is taken up."""
        front = self._waiting.pop(state.request_id, None)
        if front is None or front.prompt is None:
            return self._target.prepare(state.request)
        # What was read is what was identified then, whatever has become of its file.
        state.request = replace(state.request, content=front.request.result().content)
        return front.prompt.result()

    def read(self, known: CachedPrompt, state: RequestState, needs: Needs) -> CachedPrompt:
        """A prompt with its front; where another process does not read it, or nobody wants it any more, as it was."""
        if not self._worthwhile(known):
            return known
        try:
            handle = self._read(known, state, needs)
            if handle is None:
                return known
            self._current = None
            prefix, encoded = handle.prefix()
        except CrossdraftError as error:
            state.notes.append(f"The process of the prefill failed ({error}); the target read the prompt itself.")
            self._lost(error)
            return known
        return replace(known, prefix=prefix, encoded=encoded)

    def _read(self, known: CachedPrompt, state: RequestState, needs: Needs) -> PrefillHandle | None:
        """The front of a request, once it is read; `None` if it cannot be used, or the request is over."""
        current = self._current
        if current is None or current.request_id != state.request_id or current.handle is None:
            if current is not None and current.handle is not None and not _waited(current.handle, state):
                return None
            request: Future[Request] = Future()
            current = _Front(state.request_id, weakref.ref(state.job), request)
            self._start(current, known.prompt, needs)
        handle = current.handle
        if handle is None or handle.layers != tuple(needs.visual_layers):  # the drafter was lost meanwhile
            return None
        return handle if _waited(handle, state) else None

    def close(self, *, wait: bool = True) -> None:
        """End the process, and wait for what the thread has begun; the target reads by itself from now on."""
        reader, self._reader = self._reader, None
        self._current = None
        self._side.shutdown(wait=wait, cancel_futures=wait)
        if reader is not None:
            reader.close()

    def _lost(self, error: CrossdraftError) -> None:
        log.warning("A prefill's process failed: %s", error)
        if isinstance(error, WorkerLost):
            self.close(wait=False)  # those that wait are still identified there

    def _worthwhile(self, known: CachedPrompt) -> bool:
        return self._reader is not None and len(known.prefix) < self._reader.front(known.prompt)

    def _start(self, front: _Front, prompt: Prompt, needs: Needs) -> None:
        if self._reader is None:
            raise CrossdraftError("The process of the prefill is closed.")
        current, self._current = self._current, front
        if current is not None:
            current.handle = None  # only the last one's front is kept: it is read again, if anybody still waits for it
        front.handle = self._reader.start(prompt, needs.visual_layers)


def _waited(handle: PrefillHandle, state: RequestState) -> bool:
    """Wait for a front, or until the request that waits for it is over; false if it is."""
    while not handle.wait(LOOK_S):
        state.check_cancelled()
        state.check_time()
        if state.over:
            return False
    return True
