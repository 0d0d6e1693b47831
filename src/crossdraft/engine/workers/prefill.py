"""A prefill in another process: it reads the front of a prompt, and its keys and values are handed over.

Disaggregated prefill, as in DistServe (Zhong et al. 2024) and Splitwise (Patel et al. 2024). The front is everything
up to the last visual token; the last piece, with which a draft tree rides, is read where the answer is written, as
after a hit of the prefix cache.
"""

import logging
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from crossdraft.engine.cache import KVPrefix, KVSpan
from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.engine.workers.objects import share
from crossdraft.engine.workers.process import SILENT_S, WorkerLost, WorkerProcess
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

Pooled = tuple[str, int, bool]  # kind of features, how many tensors, whether they are a list


@dataclass
class FrontReader:
    """The model in the prefill's process, which prefills fronts.

    Args:
        model: the target's.
    """

    model: PreTrainedModel

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.model = state["model"]
        self._target = Target(self.model, _no_prompt, lambda tokens: "", eos=())

    def __call__(
        self, question: tuple[Sequence[str], Sequence[int]], tensors: Sequence[Tensor]
    ) -> tuple[list[Pooled], list[Tensor]]:
        """Read a front.

        Args:
            question: names of the prompt's features, and the hidden layers that are wanted.
            tensors: the prompt's ids, and its features.

        Returns:
            What the vision encoder made; keys and values of each layer, the hidden layers, and these features.
        """
        (names, layers), target = question, self._target
        prompt = Prompt(tensors[0].clone(), dict(zip(names, tensors[1:], strict=True)))
        encoded = target.encode(prompt)
        pieces, delta = target.chunks(prompt, encoded)
        front = pieces[0]
        cache = target.new_cache(1, len(front.tokens))
        cache.add_row(len(front.tokens))
        cache.rope_deltas[0] = delta
        out = target.extend(cache, slice(0, 1), [front], [DraftTree.empty()], layers)
        span = cache.span(0, 0, len(front.tokens))
        made = [tensor for pair in span.layers for tensor in pair] + list(out.hidden[0])
        pooled: list[Pooled] = []
        for kind, features in encoded.items():
            found: Any = getattr(features, "pooler_output", None)
            if found is not None:
                parts = [found] if isinstance(found, Tensor) else list(found)
                pooled.append((kind, len(parts), not isinstance(found, Tensor)))
                made += parts
        return pooled, made


def _no_prompt(request: Request) -> Prompt:
    raise CrossdraftError("A prefill's process reads prompts that were prepared before.")


class PrefillHandle:
    """A front that is being read; made by `RemotePrefill.start`."""

    def __init__(self, worker: WorkerProcess, size: int, model_layers: int, layers: tuple[int, ...]) -> None:
        self.layers = layers
        self._worker, self._size, self._model_layers = worker, size, model_layers
        self._found: tuple[KVPrefix, Encoded] | None = None
        self.taken = False  # whether the reply was

    @property
    def ready(self) -> bool:
        """True if `prefix` need not wait."""
        return self.wait(0.0)

    def wait(self, seconds: float) -> bool:
        """The same, after waiting so long at most."""
        return self.taken or self._worker.answered(seconds)

    def prefix(self) -> tuple[KVPrefix, Encoded]:
        """The front's keys, values and hidden layers, and the visual features.

        Raises:
            CrossdraftError: it could not be read; a `WorkerLost`: none can be any more.
        """
        if not self.taken:
            self.taken = True
            self._found = self._unpacked(*self._worker.receive())
        if self._found is None:
            raise CrossdraftError("The front could not be read.")
        return self._found

    def _unpacked(self, pooled: Sequence[Pooled], tensors: Sequence[Tensor]) -> tuple[KVPrefix, Encoded]:
        # The next front is written where this one lies, while this one's request may still wait for room.
        tensors = [tensor.clone() for tensor in tensors]
        keys_values, rest = tensors[: 2 * self._model_layers], tensors[2 * self._model_layers :]
        span = KVSpan(tuple(zip(keys_values[::2], keys_values[1::2], strict=True)))
        hidden, rest = dict(zip(self.layers, rest, strict=False)), rest[len(self.layers) :]
        encoded: dict[str, object] = {}
        for kind, count, listed in pooled:
            parts, rest = rest[:count], rest[count:]
            encoded[kind] = SimpleNamespace(pooler_output=parts if listed else parts[0])
        return KVPrefix(((span, self._size),), (hidden,)), encoded


class RemotePrefill:
    """A process, on CPU cores of its own, that reads fronts for a target. One at a time.

    It shares the weights that the target holds in the plain layout; of packed layers it has a plain copy.

    Args:
        target: on a CPU.
        cores: of the process.
        silent_s: see `WorkerProcess`.

    Raises:
        CrossdraftError: the target is on a GPU or encodes clips as it reads them, there is no memory, its model cannot
            be handed to another process, or none could be started.
    """

    def __init__(self, target: Target, cores: Sequence[int], silent_s: float = SILENT_S) -> None:
        kind = type(target.model).__name__
        if target.device.type != "cpu":
            raise CrossdraftError(
                f"disaggregated is for CPU cores, but the target is on {target.device}; leave it out."
            )
        if not target.traits.takes_encoded:
            raise CrossdraftError(
                f"{kind} encodes clips as it reads them, in this version of transformers; leave out disaggregated."
            )
        try:
            shared = share(FrontReader(target.model), moved=True)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise CrossdraftError(
                f"{kind} cannot be handed to another process ({error}); leave out disaggregated."
            ) from error
        self._target = target
        self._open: PrefillHandle | None = None
        self.worker = WorkerProcess(shared, cores, silent_s)
        try:
            self.worker.ready()
        except BaseException:
            self.worker.close()
            raise

    def front(self, prompt: Prompt) -> int:
        """Tokens of a prompt up to its last visual one; 0 = there is nothing to read elsewhere."""
        visual = [at for at, token in enumerate(prompt.input_ids.tolist()) if token in self._target.traits.visual_ids]
        return visual[-1] + 1 if visual and visual[-1] + 1 < len(prompt) else 0

    def start(self, prompt: Prompt, layers: Sequence[int] = ()) -> PrefillHandle:
        """Have the front of a prompt read, with these hidden layers of it.

        Raises:
            WorkerLost: the process is gone.
        """
        if self._open is not None and not self._open.taken:  # nobody wants it any more
            self._open.taken = True
            try:
                self.worker.receive()
            except WorkerLost:
                raise
            except CrossdraftError as error:
                log.info("A front that nobody wants any more could not be read: %s", error)
        features = dict(prompt.features)
        with torch.inference_mode():
            self.worker.send((tuple(features), tuple(layers)), [prompt.input_ids.cpu(), *features.values()])
        count = self._target.text_config.num_hidden_layers
        self._open = PrefillHandle(self.worker, self.front(prompt), count, tuple(layers))
        return self._open

    def close(self) -> None:
        """End the process; may be called twice."""
        self.worker.close()
