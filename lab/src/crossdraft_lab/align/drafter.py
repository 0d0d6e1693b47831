"""The drafter `aligned`: an event drafter whose features an adapter translates; logits come from the target's head.

It needs only rows of the target's head, which are read from the target's folder: so it drafts during the target's
prefill, in a process of its own, as the event drafter does.

With `l5f` or `b1` in the target's process (`FusedDrafter`) it also reads the target's features of verified tokens. The
hidden draft has none, and continues from the adapter's own outputs. After each verification the adapter reads the
verified tokens once more, with the target's features, and drafts from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from crossdraft.drafters.base import Draws, read_prompt
from crossdraft.drafters.independent import IndependentDrafter, IndependentState
from crossdraft.engine.drafter import Needs, VerifyOutput
from crossdraft.engine.passes import Chunk, PassRow, TargetOut
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft_lab.align.networks.attention import AutoregressiveAdapter, TargetAdapter
from crossdraft_lab.align.networks.base import Adapter, Past


@dataclass(eq=False)
class AlignedState(IndependentState):
    """State of one answer. The adapter's `past` covers all fed tokens; `outputs` [n, H] are those that give `logits`.

    `text` counts the prompt's tokens after the events, where the adapter begins.
    """

    past: Past = ()
    outputs: Tensor = field(default_factory=lambda: torch.empty(0))
    text: int = 0


@dataclass(frozen=True)
class AlignedOptions:
    """Options of a drafter with an adapter.

    Args:
        banned, words: as in `IndependentDrafter`.
        alone: number of tokens that the adapter drafts by itself after each pass of the event model, for `l5` and `b1`.
        host: the target, if it is in this process: `b1` and `l5f` read its features, `l4v` lets it encode frames.
    """

    banned: Sequence[int] = ()
    words: int = 1
    alone: int = 0
    host: Target | None = None


PLAIN = AlignedOptions()


class AlignedDrafter(IndependentDrafter):
    """Drafts with an event model and an adapter.

    Args:
        model: the event model behind the adapter of models, with its own `prepare`.
        adapter: adapter on the model's device.
        options: options of the drafter; see `AlignedOptions`.

    Raises:
        CrossdraftError: the adapter reads another model's features, or cannot draft alone.
    """

    state_class: type[AlignedState] = AlignedState

    def __init__(self, model: Target, adapter: Adapter, options: AlignedOptions = PLAIN) -> None:
        super().__init__(model.features_only(), options.banned, words=options.words)
        config, text = adapter.config, model.text_config
        if config.source_size != text.hidden_size or config.source_layers[-1] > text.num_hidden_layers:
            raise CrossdraftError(
                f"The adapter reads layers {', '.join(map(str, config.source_layers))} of {config.source_size} "
                f"features; the event model has {text.num_hidden_layers} of {text.hidden_size}; train one for it."
            )
        check_vocabulary(adapter, model)
        if options.alone and not adapter.drafts_alone:
            raise CrossdraftError(
                "Only the adapters l5 and b1 draft alone; leave out `alone`, or name the folder of one of them."
            )
        self.needs = Needs()
        self.adapter = adapter.eval()
        self.capture = adapter.reads
        self.alone = options.alone

    def _begin(self, request: Request) -> AlignedState:
        prompt, cache, out = read_prompt(
            self.model, request, request.token_limit, self.capture, self.prefixes, self._senses
        )
        draws, ids = Draws(request.sampling, self.model.device), prompt.input_ids.tolist()
        text = len(out.hidden[0][0])
        state = self.state_class(request.sampling, cache, ids, draws, torch.empty(0), text=text, notes=prompt.notes)
        self._see(state, request)
        self._read(state, out, ids[-text:])
        return state

    def feed(self, state: IndependentState, written: list[int], candidates: Sequence[int]) -> None:
        state = cast("AlignedState", state)
        chunk, tree = Chunk(torch.tensor(written[len(state.fed) :])), DraftTree.chain(candidates)
        out = self.model.extend(state.cache, [PassRow(0, chunk, tree, capture=self.capture)])
        self._read(state, out, [*chunk.tokens.tolist(), *candidates])
        state.fed = written

    def _read(self, state: AlignedState, out: TargetOut, tokens: Sequence[int]) -> None:
        """Run the adapter after a pass of the model over `tokens`, the last of which are candidates."""
        source = self.source_of(out)
        ids = torch.tensor(tokens, device=source.device)
        past = first_positions(state.past, state.text + len(state.fed))
        features, state.past = self._align(state, source[None], ids[None], past)
        self.set_outputs(state, features[0, -len(out.logits[0]) :])

    def _see(self, state: AlignedState, request: Request) -> None:
        """Read further inputs of the adapter from a request: by default none."""

    def _align(self, state: AlignedState, source: Tensor, tokens: Tensor, past: Past) -> tuple[Tensor, Past]:
        """Run the adapter; see `Adapter.align`."""
        return self.adapter.align(source, tokens, past)

    def source_of(self, out: TargetOut) -> Tensor:
        """Features [n, S · layers] that the adapter reads from a pass of the model."""
        hidden = dict(zip(self.capture, out.hidden[0], strict=True))
        return self.adapter.source(hidden).to(self.adapter.embeddings)

    def set_outputs(self, state: AlignedState, outputs: Tensor) -> None:
        """Store outputs [n, H], after the last fed token and after each candidate, and compute their logits."""
        state.outputs = outputs
        state.logits = self.adapter.to_full_vocab(self.adapter.logits(outputs)).float()

    def _write(self, state: IndependentState, most: int) -> list[int]:
        state, new = cast("AlignedState", state), super()._write(state, most)
        state.outputs = state.outputs[len(new) - 1 :]  # as for `logits`: after the last accepted candidate
        if self.alone:
            new += self._go_on(state, min(self.alone, most - len(new)))
        return new

    def _go_on(self, state: AlignedState, most: int) -> list[int]:
        """Draft up to `most` tokens with the adapter alone; the model reads them in its next pass."""
        adapter, new = cast("AutoregressiveAdapter", self.adapter), list[int]()
        logits, features = state.logits, state.outputs[:1]
        past = first_positions(state.past, state.text + len(state.fed))
        while len(new) < most and not self.ended(state) and self.room(state):
            token = torch.tensor([[state.pending[-1]]], device=features.device)
            output, past = adapter.go_on(features[None], token, past)
            features = output[0]
            state.logits = adapter.to_full_vocab(adapter.logits(features)).float()
            new += self._choose(state, [])
        state.logits = logits
        return new


def check_vocabulary(adapter: Adapter, model: Target) -> None:
    """Raise CrossdraftError unless an adapter drafts the vocabulary that the event model reads."""
    if adapter.config.vocab_size != model.vocab_size:
        raise CrossdraftError(
            f"The adapter drafts a vocabulary of {adapter.config.vocab_size} tokens, the event model reads one of "
            f"{model.vocab_size}; both must be the target's."
        )


def first_positions(past: Past, count: int) -> Past:
    """Cut `past` down to the first `count` positions."""
    return tuple((key[:, :, :count], value[:, :, :count]) for key, value in past)


@dataclass(eq=False)
class FusedState(AlignedState):
    """State of one answer; positions are counted from its first token.

    `sources` [n, S] are the drafter's features of the fed tokens; `target` [m, H] are the target's features, each one
    position late, as far as it has verified; `aligned` [1 + n, H] are the adapter's outputs from the prompt's last
    position on. The past of the first `settled` tokens was computed from the target's features.
    """

    sources: Tensor = field(default_factory=lambda: torch.empty(0))
    target: Tensor = field(default_factory=lambda: torch.empty(0))
    aligned: Tensor = field(default_factory=lambda: torch.empty(0))
    settled: int = 0


class FusedDrafter(AlignedDrafter):
    """See the module's docstring; arguments and errors as in `AlignedDrafter`.

    Outside the target's process it has none of the target's features.
    """

    state_class = FusedState
    adapter: TargetAdapter

    def __init__(self, model: Target, adapter: TargetAdapter, options: AlignedOptions = PLAIN) -> None:
        super().__init__(model, adapter, options)
        self.layer = adapter.config.num_layers
        if options.host is not None:
            self.needs = Needs(hidden_layers=(self.layer,), hides=True)

    def _read(self, state: AlignedState, out: TargetOut, tokens: Sequence[int]) -> None:
        """Run the adapter after the prompt's tokens, or after the tokens that `feed` fed and its candidates."""
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
        """Compute outputs after all `tokens` [n] of the answer: in one pass where the target's features are known."""
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
            state.target = new[: len(state.committed)]  # an answer that was cut short has one feature more
