"""RemoteFronts: prompts whose fronts another process reads, between a decode loop and a `RemotePrefill`.

While others are answered a request waits in the queue until its front has been read, so that nobody's round waits for
it. Where nobody is answered the loop takes it up at once and waits for the front itself, while the drafter drafts.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from crossdraft.engine.drafter import Needs
from crossdraft.engine.prefix_cache import CachedPrompt, PrefixCache
from crossdraft.engine.request_state import Job, RequestState
from crossdraft.engine.target import Prompt, Target
from crossdraft.engine.workers.prefill import PrefillHandle, RemotePrefill
from crossdraft.engine.workers.process import WorkerLost
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Reading:
    """A request whose front is being read, its prompt, and what was asked for."""

    request_id: int
    prompt: Prompt
    handle: PrefillHandle


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
        self._reading: _Reading | None = None

    def ready(self, job: Job, needs: Needs) -> bool:
        """Whether a waiting request may be taken up: its front has been read, or is not read elsewhere.

        The first one that is asked about has its front read from now on.
        """
        reading = self._reading
        if reading is not None and reading.request_id == job.request_id:
            return self._reader is None or reading.handle.ready
        try:
            return self._reader is None or not self._waits(job, needs)
        except Exception:  # noqa: BLE001 - whoever takes it up meets it again, and says what is wrong
            return True

    def _waits(self, job: Job, needs: Needs) -> bool:
        """Whether a request waits for its front, which is begun if nothing else is being read."""
        request = self._prefixes.identify(self._target.defaults.resolve(job.request))
        if request.known:
            return False
        if self._reading is not None and not self._reading.handle.ready:
            return True
        request.check_length(self._target.context)
        prompt = self._target.prepare(request)
        fits = len(prompt) < self._target.context
        waits = fits and self._worthwhile(self._prefixes.lookup(self._target, prompt, request, needs))
        if waits:
            self._start(job.request_id, prompt, needs.visual_layers)
        return waits

    def prepare(self, state: RequestState) -> Prompt:
        """The prompt of a request that is taken up."""
        reading = self._reading
        if reading is not None and reading.request_id == state.request_id:
            return reading.prompt
        return self._target.prepare(state.request)

    def read(self, known: CachedPrompt, state: RequestState, needs: Needs) -> CachedPrompt:
        """A prompt with its front; where another process does not read it, as it was."""
        if not self._worthwhile(known):
            return known
        try:
            reading = self._reading
            if reading is None or reading.request_id != state.request_id:
                reading = self._start(state.request_id, known.prompt, needs.visual_layers)
            if reading.handle.layers != tuple(needs.visual_layers):  # the drafter was lost meanwhile
                return known
            prefix, encoded = reading.handle.prefix()
        except CrossdraftError as error:
            log.warning("A prefill's process failed: %s", error)
            state.notes.append(f"The process of the prefill failed ({error}); the target read the prompt itself.")
            if isinstance(error, WorkerLost):
                self.close()
            return known
        finally:
            self._reading = None
        return replace(known, prefix=prefix, encoded=encoded)

    def close(self) -> None:
        """End the process; the target reads by itself from now on."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _worthwhile(self, known: CachedPrompt) -> bool:
        return self._reader is not None and len(known.prefix) < self._reader.front(known.prompt)

    def _start(self, request_id: int, prompt: Prompt, layers: Sequence[int]) -> _Reading:
        if self._reader is None:
            raise CrossdraftError("The process of the prefill is closed.")
        self._reading = None
        self._reading = _Reading(request_id, prompt, self._reader.start(prompt, layers))
        return self._reading
