"""Online distillation (Liu et al. 2024): a head is trained on its target's answers while it serves.

Tokens and features of every finished answer enter a replay buffer; between rounds `OnlineTrainer` trains a copy of the
weights on them and swaps it in when it is better. Answers never change: drafts are verified, whichever weights made
them.
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
from crossdraft.engine.drafter import Budget, Draft, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder
from crossdraft.heads.drafting.head_drafter import HeadDrafter, HeadDrafterState
from crossdraft.heads.files import CONFIG, load_head, read_config, save_head
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.load import target_fingerprint
from crossdraft_lab.drafters.online import OnlineSettings
from crossdraft_lab.drafters.online.training import OnlineStats, OnlineTrainer, ReplayBuffer, Sample, TimeBudget

log = logging.getLogger(__name__)

ROOM = 64 << 20
LONGEST = 256  # positions of an answer that are trained on, prompt's text included
SHORTEST = 4  # fewest tokens of an answer that is trained on
BETWEEN = 16  # answers from one save to the next, at least


@dataclass(frozen=True)
class HeadOrigin:
    """Origin of a saved head: its network by name, and the hash of its target's weights."""

    network: str
    target: str


@dataclass(eq=False)
class OnlineState:
    """State of one answer: the head's own state, and the future sample's tokens and features.

    `tokens`, `start` and `hidden` are as in `Sample`, features still in pieces; they stay empty where `trains` is
    false: of a fork, of a request without a namespace, or of one that is sampled or penalised. `start` is
    0 until the target has answered.
    """

    inner: HeadDrafterState[Any]
    trains: bool
    tokens: list[int] = field(default_factory=list)
    hidden: list[dict[int, Tensor]] = field(default_factory=list)
    start: int = 0

    def record(self, output: VerifyOutput, layers: Sequence[int]) -> None:
        """Keep what was emitted, up to `LONGEST` positions."""
        if output.prompt is not None:
            self.tokens, self.start = list(output.prompt.tokens), len(output.prompt.tokens)
        if not self.start or len(self.tokens) >= LONGEST:
            return
        # An answer that was cut short has fewer tokens than features.
        before = 0 if self.hidden else self.start - 1
        count = min(before + len(output.tokens), LONGEST)
        self.tokens += output.tokens
        self.hidden.append({layer: output.hidden[layer][:count] for layer in layers})

    def sample(self) -> Sample | None:
        """Return the answer as a sample, if it is long enough to train on."""
        tokens = tuple(self.tokens[:LONGEST])
        if not self.trains or not self.start or len(tokens) - self.start < SHORTEST:
            return None
        with torch.inference_mode(mode=False):  # copies that gradients may flow through
            hidden = {
                layer: torch.cat([piece[layer] for piece in self.hidden])[: len(tokens) - 1] for layer in self.hidden[0]
            }
        return Sample(tokens, self.start, hidden)


class OnlineDrafter:
    """A head's drafter whose weights are trained while it serves.

    Greedy answers of all namespaces train the same weights. Requests without a namespace train nothing; nor do sampled
    answers, and those under a penalty or bias: their tokens are not the target's argmax.

    Args:
        drafter: around the head, whose layers must not be packed.
        lm_head: [D, H] the target's, rows of the draft vocabulary.
        seconds: seconds of each round that training may take; see `TimeBudget`.
        keep, room: most answers, and bytes of their features.
        rate: AdamW's.
        origin: origin of the head; without it, the head cannot be saved.
        folder: where the weights are saved after a swap; at most every `BETWEEN` answers.
        clock: seconds that have gone by.

    Raises:
        CrossdraftError: the head reads visual features, or a number makes no sense.
    """

    def __init__(
        self,
        drafter: HeadDrafter[Any],
        lm_head: Tensor,
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
                f"A {type(head).__name__} reads visual features, which are too many to keep; train a head online that "
                "reads text alone, such as eagle2."
            )
        if not 0 < rate < 1:
            raise CrossdraftError(f"rate is {rate}; give a learning rate between 0 and 1, such as 2e-4.")
        self.drafter = drafter
        # The teacher's logits are computed from the last feature, which is needed in any case.
        layers = tuple(sorted({*drafter.needs.hidden_layers, head.config.num_layers}))
        self.needs = replace(drafter.needs, hidden_layers=layers, learns=True)
        budget = TimeBudget(seconds) if clock is None else TimeBudget(seconds, clock)
        self.trainer = OnlineTrainer(head, lm_head, ReplayBuffer(keep, room), budget, rate)
        self.origin, self.folder = origin, folder
        self._unsaved = BETWEEN  # answers since the last save
        self._saved_swaps = 0

    # -- control ---------------------------------------------------------------------------------------------------

    @property
    def stats(self) -> OnlineStats:
        """Counts and figures of training so far."""
        return self.trainer.stats

    def freeze(self) -> None:
        """Stop training, keeping and saving; the weights stay as they are."""
        self.trainer.frozen = True

    def thaw(self) -> None:
        """Train again."""
        self.trainer.frozen = False

    def rollback(self, *, loaded: bool = False) -> None:
        """Restore the weights from before the last swap, or those that were loaded, bit for bit."""
        self.trainer.rollback(loaded=loaded)
        self._saved_swaps = -1  # what is on disk is not what serves

    def save(self, folder: Path) -> None:
        """Write the weights that serve now; the folder is either whole or as it was, and keeps its other files.

        Raises:
            CrossdraftError: it cannot be written, holds something that is no head, or the drafter has no `origin`.
        """
        if self.origin is None:
            raise CrossdraftError("A head without an origin (its network and target) cannot be saved.")
        check_folder(folder)
        head = self.drafter.head
        with atomic_folder(folder) as new:
            if folder.is_dir():
                shutil.copytree(folder, new, dirs_exist_ok=True)
            save_head(new, head, self.origin.network, self.origin.target, head.lm_head.weight.dtype)

    # -- the `Drafter` protocol ------------------------------------------------------------------------------------

    def begin(self, requests: Sequence[Request]) -> list[OnlineState]:
        inner = self.drafter.begin(requests)
        trains = [request.namespace is not None and request.sampling.plain for request in requests]
        return [OnlineState(state, train) for state, train in zip(inner, trains, strict=True)]

    def propose(self, states: Sequence[OnlineState], budgets: Sequence[Budget]) -> list[Draft]:
        return self.drafter.propose([state.inner for state in states], budgets)

    def commit(self, states: Sequence[OnlineState], outputs: Sequence[VerifyOutput]) -> None:
        self.drafter.commit([state.inner for state in states], outputs)
        training = [pair for pair in zip(states, outputs, strict=True) if pair[0].trains]
        for state, output in training:
            state.record(output, self.needs.hidden_layers)
        if training:
            self.trainer.run()

    def fork(self, states: Sequence[OnlineState]) -> list[OnlineState]:
        inner = self.drafter.fork([state.inner for state in states])
        return [replace(fork_of(state), inner=own, trains=False) for state, own in zip(states, inner, strict=True)]

    def end(self, states: Sequence[OnlineState]) -> None:
        self.drafter.end([state.inner for state in states])
        if self.trainer.frozen:
            return
        for state in states:
            sample = state.sample()
            if sample is not None:
                self.trainer.buffer.add(sample)
        self._save_if_due(len(states))

    def _save_if_due(self, answers: int) -> None:
        """Save after a swap. A full disk, or a folder that is gone, must not cost an answer."""
        self._unsaved += answers
        swaps = self.trainer.stats.swaps
        if self.folder is None or swaps == self._saved_swaps or self._unsaved < BETWEEN:
            return
        self._unsaved, self._saved_swaps = 0, swaps
        try:
            self.save(self.folder)
        except CrossdraftError as error:
            log.warning("%s What is learned is kept in this process alone.", error)
            self.folder = None


def check_folder(folder: Path) -> bool:
    """True if a folder holds a head; one that does not exist, or is empty, may be written to.

    Raises:
        CrossdraftError: it holds something else.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    if not (folder / CONFIG).is_file():
        raise CrossdraftError(f"There is no head in {folder}, and it is not empty; name an empty or a new folder.")
    read_config(folder)
    return True


def load_learning_drafter(
    drafter: HeadDrafter[Any],
    network: str,
    host: Target,
    source: str,
    seconds: float,
    keep: int,
    rate: float,
    folder: Path | None = None,
) -> OnlineDrafter:
    """A head's drafter that is trained online while it serves.

    Args:
        drafter: around the head, loaded with `packed=False`.
        network: the head's.
        host, source: as in `load_head_drafter`.
        seconds, keep, rate: see `OnlineDrafter`.
        folder: where the weights are saved, and loaded from if there are any.

    Raises:
        CrossdraftError: the folder holds something else, or a head that does not fit; and as `OnlineDrafter`.
    """
    shared, origin = SharedWeights.of(host.model), HeadOrigin(network, target_fingerprint(source))
    head = drafter.head
    if folder is not None and check_folder(folder):
        head.restore(load_head(folder, shared, origin.target, network).stored())
    lm_head = shared.lm_head.to(host.device)[head.draft_ids]
    return OnlineDrafter(drafter, lm_head, seconds, keep, rate=rate, origin=origin, folder=folder)
