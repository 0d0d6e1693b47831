"""Online distillation: a head that keeps learning from what its target says while it serves.

Of every finished answer the tokens and the features that the head reads are kept for a while. In the time that each
round allows, a second copy of the weights learns from them; when it would have had more accepted on answers that it did
not learn from, it takes over. What is emitted never changes: a draft is judged as it was told, whoever drew it. (Online
speculative decoding: Liu et al. 2024.)
"""

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossdraft.drafters.base import fork_of
from crossdraft.drafters.settings import OnlineSettings
from crossdraft.engine.drafter import Budget, Draft, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder
from crossdraft.heads.budget import TimeBudget
from crossdraft.heads.buffer import ReplayBuffer, Sample
from crossdraft.heads.drafting.head_drafter import HeadDrafter, HeadDrafterState
from crossdraft.heads.files import CONFIG, read_config, save_head
from crossdraft.heads.trainer import OnlineStats, OnlineTrainer

log = logging.getLogger(__name__)

ROOM = 64 << 20
LONGEST = 256  # places of an answer that are learned from, prompt's text included
SAID = 4  # fewest tokens of an answer that teaches
BETWEEN = 16  # answers from one save to the next, at least


@dataclass(frozen=True)
class HeadOrigin:
    """What a saved head says of itself: its network by name, and the hash of its target's weights."""

    network: str
    target: str


@dataclass(eq=False)
class OnlineState:
    """One answer: the head's own state, and what will be learned from it.

    `tokens` and `hidden` are as in `Sample`, features still in pieces; of a copy, a request that asked not to be
    learned from, or one whose words are drawn or penalised, `teaches` is false and they stay empty.
    `start` is 0 until the target has spoken.
    """

    inner: HeadDrafterState[Any]
    teaches: bool
    tokens: list[int] = field(default_factory=list)
    hidden: list[dict[int, Tensor]] = field(default_factory=list)
    start: int = 0


class OnlineDrafter:
    """See the module's text. Answers of all namespaces teach the same weights; those of no namespace teach nothing.

    Nor do sampled ones, and those under a penalty or bias: their words are not what the target finds likeliest.

    Args:
        drafter: around the head, whose layers must not be packed.
        rows: [D, H] the target's output rows of the draft vocabulary.
        seconds: of each round that learning may take; see `TimeBudget`.
        keep, room: most answers, and bytes of their features.
        rate: AdamW's.
        origin: of the head; without it, it cannot be saved.
        folder: where the weights are saved after a swap; at most every `BETWEEN` answers.
        clock: seconds that have gone by.

    Raises:
        CrossdraftError: the head reads visual features, or a number makes no sense.
    """

    def __init__(
        self,
        drafter: HeadDrafter[Any],
        rows: Tensor,
        seconds: float = OnlineSettings.seconds,
        keep: int = OnlineSettings.keep,
        room: int = ROOM,
        rate: float = OnlineSettings.rate,
        origin: HeadOrigin | None = None,
        folder: Path | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        head = drafter.head
        if head.visual_reads:
            raise CrossdraftError(
                f"A {type(head).__name__} reads visual features, which are too many to keep; let a head learn that "
                "reads text alone, such as eagle2."
            )
        if not 0 < rate < 1:
            raise CrossdraftError(f"rate is {rate}; give a learning rate between 0 and 1, such as 2e-4.")
        self.drafter = drafter
        # The last layer is the teacher: its features times the target's rows are what the target says.
        layers = tuple(sorted({*drafter.needs.hidden_layers, head.config.num_layers}))
        self.needs = replace(drafter.needs, hidden_layers=layers, learns=True)
        budget = TimeBudget(seconds) if clock is None else TimeBudget(seconds, clock)
        self.trainer = OnlineTrainer(head, rows, ReplayBuffer(keep, room), budget, rate)
        self.origin, self.folder = origin, folder
        self._unsaved = BETWEEN  # answers since the last save
        self._saved_swaps = 0

    # -- for whoever looks after it --------------------------------------------------------------------------------

    @property
    def figures(self) -> OnlineStats:
        """What learning has come to so far."""
        return self.trainer.figures

    def freeze(self) -> None:
        """Serve on with the weights as they are: nothing is learned, kept or saved."""
        self.trainer.frozen = True

    def thaw(self) -> None:
        """Learn again."""
        self.trainer.frozen = False

    def rollback(self, *, loaded: bool = False) -> None:
        """Serve with the weights from before the last swap again, or with those that were loaded, bit for bit."""
        self.trainer.rollback(loaded=loaded)
        self._saved_swaps = -1  # what is on disk is not what serves

    def save(self, folder: Path) -> None:
        """Write the weights that serve now; the folder is either whole or as it was, and keeps its other files.

        Raises:
            CrossdraftError: it cannot be written, holds something that is no head, or the drafter has no `origin`.
        """
        if self.origin is None:
            raise CrossdraftError("This head was not told which target it belongs to, and cannot be saved.")
        check_folder(folder)
        head = self.drafter.head
        with atomic_folder(folder) as new:
            if folder.is_dir():
                shutil.copytree(folder, new, dirs_exist_ok=True)
            save_head(new, head, self.origin.network, self.origin.target, head.lm_head.weight.dtype)

    # -- the drafter's seam ----------------------------------------------------------------------------------------

    def begin(self, requests: Sequence[Request]) -> list[OnlineState]:
        inner = self.drafter.begin(requests)
        teaches = [request.namespace is not None and request.sampling.plain for request in requests]
        return [OnlineState(state, teach) for state, teach in zip(inner, teaches, strict=True)]

    def propose(self, states: Sequence[OnlineState], budgets: Sequence[Budget]) -> list[Draft]:
        return self.drafter.propose([state.inner for state in states], budgets)

    def commit(self, states: Sequence[OnlineState], outputs: Sequence[VerifyOutput]) -> None:
        self.drafter.commit([state.inner for state in states], outputs)
        taught = [pair for pair in zip(states, outputs, strict=True) if pair[0].teaches]
        for state, output in taught:
            _attend(state, output, self.needs.hidden_layers)
        if taught:
            self.trainer.work()

    def fork(self, states: Sequence[OnlineState]) -> list[OnlineState]:
        inner = self.drafter.fork([state.inner for state in states])
        return [replace(fork_of(state), inner=own, teaches=False) for state, own in zip(states, inner, strict=True)]

    def end(self, states: Sequence[OnlineState]) -> None:
        self.drafter.end([state.inner for state in states])
        if self.trainer.frozen:
            return
        for state in states:
            told = _told(state)
            if told is not None:
                self.trainer.buffer.add(told)
        self._keep_on_disk(len(states))

    def _keep_on_disk(self, answers: int) -> None:
        """A disk that is full, or a folder that is gone, must not cost an answer that could do without."""
        self._unsaved += answers
        swaps = self.trainer.figures.swaps
        if self.folder is None or swaps == self._saved_swaps or self._unsaved < BETWEEN:
            return
        self._unsaved, self._saved_swaps = 0, swaps
        try:
            self.save(self.folder)
        except CrossdraftError as error:
            log.warning("%s What is learned is kept in this process alone.", error)
            self.folder = None


def check_folder(folder: Path) -> bool:
    """Whether there is a head in a folder; one that does not exist, or is empty, may become one.

    Raises:
        CrossdraftError: it holds something else.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    if not (folder / CONFIG).is_file():
        raise CrossdraftError(f"There is no head in {folder}, and it is not empty; name an empty or a new folder.")
    read_config(folder)
    return True


def _attend(state: OnlineState, output: VerifyOutput, layers: Sequence[int]) -> None:
    """Take down what was said, up to `LONGEST` places."""
    if output.prompt is not None:
        state.tokens, state.start = list(output.prompt.tokens), len(output.prompt.tokens)
    if not state.start or len(state.tokens) >= LONGEST:
        return
    # An answer that was cut short has fewer tokens than features.
    before = 0 if state.hidden else state.start - 1
    count = min(before + len(output.tokens), LONGEST)
    state.tokens += output.tokens
    state.hidden.append({layer: output.hidden[layer][:count] for layer in layers})


def _told(state: OnlineState) -> Sample | None:
    """The answer, if it says enough to be learned from."""
    tokens = tuple(state.tokens[:LONGEST])
    if not state.teaches or not state.start or len(tokens) - state.start < SAID:
        return None
    with torch.inference_mode(mode=False):  # copies that gradients may flow through
        hidden = {
            layer: torch.cat([piece[layer] for piece in state.hidden])[: len(tokens) - 1] for layer in state.hidden[0]
        }
    return Sample(tokens, state.start, hidden)
