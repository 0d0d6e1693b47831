"""`aligned` with `l5f` or `b1`: an adapter that reads the target's features of what is verified, too.

The hidden draft knows none, and goes on by the adapter's own outputs. After each verification the adapter reads what
was verified once more, with the target's features, and drafts from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from crossdraft.drafters.independent import IndependentState
from crossdraft.engine.drafter import Needs, VerifyOutput
from crossdraft.engine.passes import TargetOut
from crossdraft.engine.target import Target
from crossdraft_lab.align.drafter import PLAIN, AlignedDrafter, AlignedOptions, AlignedState, first_positions
from crossdraft_lab.align.networks.fused import TargetAdapter


@dataclass(eq=False)
class FusedState(AlignedState):
    """One answer; positions are counted from its first token.

    `sources` [n, S] are the drafter's features of the tokens that were fed; `target` [m, H] the target's one position
    before each token, as far as it has verified; `aligned` [1 + n, H] the adapter's outputs from the prompt's last
    position on. The past of the first `settled` tokens was computed from the target's features.
    """

    sources: Tensor = field(default_factory=lambda: torch.empty(0))
    target: Tensor = field(default_factory=lambda: torch.empty(0))
    aligned: Tensor = field(default_factory=lambda: torch.empty(0))
    settled: int = 0


class FusedDrafter(AlignedDrafter):
    """See the module's text; arguments and errors as in `AlignedDrafter`.

    Outside the target's process it never knows a feature of the target's.
    """

    state_class = FusedState
    adapter: TargetAdapter

    def __init__(self, model: Target, adapter: TargetAdapter, options: AlignedOptions = PLAIN) -> None:
        super().__init__(model, adapter, options)
        self.layer = adapter.config.num_layers
        if options.host is not None:
            self.needs = Needs(hidden_layers=(self.layer,), hides=True)

    def _read(self, state: AlignedState, out: TargetOut, tokens: Sequence[int]) -> None:
        """After the prompt, whose tokens these are, or after what `feed` fed and its candidates."""
        state = cast("FusedState", state)
        source = self.source_of(out)
        ids = torch.tensor(tokens, device=source.device)
        if not len(state.aligned):
            outputs, state.past = self.adapter.align(source[None], ids[None])
            state.aligned, state.sources = outputs[0, -1:], source[:0]
            state.target = state.target.to(state.aligned).view(-1, outputs.shape[-1])
        else:
            fed = len(state.fed)
            state.sources = torch.cat((state.sources[:fed], source))
            self._read_tokens(state, torch.cat((torch.tensor(state.fed, device=ids.device, dtype=ids.dtype), ids)))
        self.set_outputs(state, state.aligned[-len(out.logits[0]) :])

    def _read_tokens(self, state: FusedState, tokens: Tensor) -> None:
        """Outputs after all `tokens` [n] of the answer: in one pass where the target's features are known."""
        known = min(len(state.target), len(tokens))
        start = state.settled if known > state.settled else len(state.fed)
        past, aligned = first_positions(state.past, state.text + start), state.aligned[: 1 + start]
        while start < len(tokens):
            end = max(known, start + 1)
            before = state.target[start:end] if start < known else aligned[-1:]
            inputs = state.sources[None, start:end], before[None], tokens[None, start:end]
            outputs, past = self.adapter.fuse(*inputs, past)
            aligned, start = torch.cat((aligned, outputs[0])), end
        state.past, state.aligned, state.settled = past, aligned, max(known, state.settled)

    def _commit(self, state: IndependentState, output: VerifyOutput) -> None:
        super()._commit(state, output)
        state, rows = cast("FusedState", state), output.hidden.get(self.layer)
        if rows is not None:
            question = len(output.prompt.tokens) - 1 if output.prompt is not None else 0
            new = torch.cat((state.target, rows[question:].to(state.aligned)))
            state.target = new[: len(state.committed)]  # of an answer that was cut short there is one more
