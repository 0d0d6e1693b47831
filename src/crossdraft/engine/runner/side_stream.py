"""A CUDA stream for a drafter, on which its work can run concurrently with the target's prefill on one GPU.

Work in one stream runs in order; two streams are ordered only where one is told to wait for the other. So the drafter's
stream waits for the drafter's inputs, and the stream that takes a draft waits for the drafter's stream, never for the
whole device. All of the drafter's calls run on its stream, so that memory which the drafter keeps between calls is
allocated, freed and reused in that stream's order. A tensor that passes from one stream to the other is recorded on the
second, so that its memory stays until both are done with it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import Tensor

from crossdraft.engine.drafter import Budget, Draft, Drafter, VerifyOutput
from crossdraft.engine.request import Request

State = TypeVar("State")


class StreamDrafter(Generic[State]):
    """A drafter on a stream of its own.

    Args:
        drafter: what drafts, on `device`.
        device: a CUDA device.
    """

    def __init__(self, drafter: Drafter[State], device: torch.device) -> None:
        self.drafter = drafter
        self.needs = drafter.needs
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def point(self) -> torch.cuda.Event:
        """Record an event in this thread's stream: another thread's work can wait for all that came before it."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    @contextmanager
    def concurrent(self, point: torch.cuda.Event) -> Iterator[None]:
        """Run the body on the drafter's stream, after `point` but not after later work; for another thread."""
        self.stream.wait_event(point)
        with torch.cuda.stream(self.stream):
            yield

    def take(self, drafts: Sequence[Draft]) -> None:
        """Let this thread's stream read drafts from the drafter's stream; `propose` does so for its own drafts."""
        stream = torch.cuda.current_stream(self.device)
        if stream == self.stream:
            return  # the thread that collects the draft takes it later
        stream.wait_stream(self.stream)
        for draft in drafts:
            self._cross([draft.tree.dists], stream)

    def begin(self, requests: Sequence[Request]) -> list[State]:
        with self._entered():
            return self.drafter.begin(requests)

    def propose(self, states: Sequence[State], budgets: Sequence[Budget]) -> list[Draft]:
        with self._entered():
            drafts = self.drafter.propose(states, budgets)
        self.take(drafts)
        return drafts

    def commit(self, states: Sequence[State], outputs: Sequence[VerifyOutput]) -> None:
        with self._entered():
            for output in outputs:
                visual = output.prompt.visual.values() if output.prompt is not None else ()
                self._cross((*output.hidden.values(), *visual), self.stream)
            self.drafter.commit(states, outputs)

    def fork(self, states: Sequence[State]) -> list[State]:
        with self._entered():
            return self.drafter.fork(states)

    def end(self, states: Sequence[State]) -> None:
        with self._entered():
            self.drafter.end(states)

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Run the body's work on the drafter's stream, after all that this thread has launched."""
        stream = torch.cuda.current_stream(self.device)
        if stream != self.stream:
            self.stream.wait_stream(stream)
        with torch.cuda.stream(self.stream):
            yield

    def _cross(self, tensors: Sequence[Tensor | None], stream: torch.cuda.Stream) -> None:
        """Record that `stream` reads the tensors too, so that their memory is not reused before it has."""
        for tensor in tensors:
            if tensor is not None and tensor.device == self.device:
                tensor.record_stream(stream)
