"""The target's seam: an adapter over an unmodified `transformers` vision-language model.

`extend` is the only way tokens enter a target. A decode round extends by root + tree; a prefill is an extend whose
pending part is the prompt, so a tree can ride along with its last piece. Four traits differ between models and are
detected, not subclassed: how features are obtained, the position rule, the mask kind, and who sees how far. A fifth is
for speed alone: whether passes over text may take the lean path.
"""

import copy
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from crossdraft.engine.cache import KVCache, KVPrefix
from crossdraft.engine.clock import Mark, clock_of
from crossdraft.engine.detokenize import TokenText
from crossdraft.engine.devices import entry_device, to_device
from crossdraft.engine.drafter import PromptFeatures
from crossdraft.engine.encoded import first_features, joined, last_features
from crossdraft.engine.fast.elastic import poll_between
from crossdraft.engine.fast.forward import PassPart, find_lean
from crossdraft.engine.fast.static_cache import StaticKVCache
from crossdraft.engine.fast.static_pass import WIDTHS, StaticDecoder
from crossdraft.engine.generation import GenerationDefaults
from crossdraft.engine.request import Request
from crossdraft.engine.traits import detect_traits
from crossdraft.engine.tree import DraftTree
from crossdraft.engine.workers.encode import PIXELS, SpreadEncoder
from crossdraft.engine.workers.groups import DeviceGroup
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

# Modality -> what the model's own feature function returned; from a model that cannot take these, its raw inputs.
Encoded = Mapping[str, object]


class LazyFeatures(Mapping[str, Tensor]):
    """Inputs of a model, some of which are only made when they are asked for.

    Args:
        ready: those that are there.
        names: of the others.
        load: makes them.
    """

    def __init__(
        self, ready: Mapping[str, Tensor], names: Sequence[str], load: Callable[[], Mapping[str, Tensor]]
    ) -> None:
        self._found = dict(ready)
        self._names = (*ready, *(name for name in names if name not in ready))
        self._load = load

    def __getitem__(self, name: str) -> Tensor:
        if name in self._names and name not in self._found:
            self._found |= self._load()
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class VisualItem:
    """An image or a clip of a prompt.

    Args:
        source: its number among the `visuals` of the request.
        tokens: how many ids stand for it.
        features: its own inputs of the model, a batch of one.
    """

    source: int
    tokens: int
    features: Mapping[str, Tensor]


@dataclass(frozen=True)
class Prompt:
    """A request as the model reads it.

    Args:
        input_ids: [L] token ids with the visual placeholders expanded.
        features: further inputs of the model, batch of one (`pixel_values_videos`, `video_grid_thw`, …).
        notes: what the user should know of the input, such as a damaged clip; they reach `Answer.notes`.
        items: what is visual, in the order of the ids, each to be encoded by itself; `()` = all of it together.
    """

    input_ids: Tensor
    features: Mapping[str, Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    items: tuple[VisualItem, ...] = ()

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True)
class Chunk:
    """Committed tokens that are not in the cache yet; the last one is the root of the row's tree.

    Args:
        tokens: [m] ids, m ≥ 1.
        positions: [m] or [3, m] positions; `None` = count on from the row's length.
        encoded: visual features whose placeholders stand in `tokens`.
        skip_logits: nobody will ask for logits after it: another chunk follows.
        images: [m] the number of the image that a token belongs to, -1 = none, where those of one see each other.
    """

    tokens: Tensor
    positions: Tensor | None = None
    encoded: Encoded | None = None
    skip_logits: bool = False
    images: Tensor | None = None


Masks = Tensor | dict[str, Tensor | None] | None  # one for all layers, or for each type of layer
RideAlong = tuple[DraftTree, Tensor | None]
TOKEN_TYPES = ("mm_token_type_ids", "token_type_ids")
NO_TREE: RideAlong = (DraftTree.empty(), None)
NO_PREFIX = KVPrefix()
MOST_REAL = 0.9  # of a pass; where more of it is padding it is left out


@dataclass(frozen=True)
class TargetOut:
    """What one pass returns, row by row.

    Args:
        logits: [1 + n, V] at the root and at every node; [0, V] after a chunk that skips them.
        hidden: for each captured layer [m + n, h], at the chunk's tokens and at every node.
        began, done: where the model's own forward begins and ends in the device's work.
        width: tokens of a row that were computed, padding included; their mean where it is left out.

    The pass is launched, and may not be done yet: on a GPU whoever reads a time, or acts on its end, waits for `done`.
    """

    logits: list[Tensor]
    hidden: list[tuple[Tensor, ...]]
    began: Mark
    done: Mark
    width: float = 0.0

    @property
    def seconds(self) -> float:
        """Time of the model's own forward on its device, without the adapter's work; waits for its end."""
        return self.done.wait() - self.began.wait()


@dataclass(frozen=True)
class Prefill:
    """A prompt that was read.

    Args:
        row: of the cache, where its keys and values are.
        tokens: its ids.
        prefix: its beginning, which was known.
        pieces: the rest, as `Target.chunks` split it; the last one carried the tree, if one was to ride along.
        front: what the passes over the pieces before it returned, one row each.
        out: what the last pass returned.
        cut: tokens up to the last visual one; 0 if none is, or no text follows.
    """

    row: int
    tokens: tuple[int, ...]
    prefix: KVPrefix
    pieces: tuple[Chunk, ...]
    front: list[TargetOut]
    out: TargetOut
    cut: int

    @property
    def last(self) -> int:
        """Tokens of the last piece."""
        return len(self.pieces[-1].tokens)

    def front_hidden(self, layers: Sequence[int]) -> dict[int, Tensor]:
        """[n, h] features of each of these layers, of all tokens before the last piece; they were captured."""
        found = [*self.prefix.hidden, *(dict(zip(layers, out.hidden[0], strict=True)) for out in self.front)]
        return {layer: torch.cat([part[layer] for part in found]) for layer in layers if found}


def prompt_features(read: Prefill, layers: Sequence[int]) -> PromptFeatures:
    """A prompt for drafters that look into it: its last piece, and these hidden layers of those in front."""
    cut = len(read.tokens) - read.last
    return PromptFeatures(read.tokens[cut:], read.tokens[:cut], read.front_hidden(layers))


def visual_rows(features: Any) -> Tensor:
    """[n, h] visual features, in the order of their placeholders."""
    pooled = features.pooler_output
    parts = [pooled] if isinstance(pooled, Tensor) else list(pooled)
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


@dataclass(frozen=True)
class PrefillChunk:
    """A piece of a prompt that may share a pass with other rows.

    Args:
        cache: where it is read, into row 0.
        chunk: the piece.
        capture: hidden layers wanted of it.
    """

    cache: KVCache
    chunk: Chunk
    capture: Sequence[int] = ()


def _by_row(
    cache: KVCache,
    rows: slice,
    chunks: Sequence[Chunk],
    trees: Sequence[DraftTree],
    scores: Tensor,
    skipped: int,
    states: Any,
    capture: Sequence[int],
) -> tuple[list[Tensor], list[tuple[Tensor, ...]]]:
    """Logits and hidden layers of each row of a pass, whose chunks are committed; see `TargetOut`.

    `scores` [B, k, V] are those of all tokens but the first `skipped`.
    """
    logits, hidden = [], []
    for row, (chunk, tree) in enumerate(zip(chunks, trees, strict=True)):
        m = len(chunk.tokens)
        cache.advance(rows.start + row, m)
        first = m - 1 - skipped  # the root's row among them
        logits.append(scores[row, first : first + 1 + len(tree)])
        hidden.append(tuple(states[layer][row, : m + len(tree)] for layer in capture))
    return logits, hidden


def _real_tokens(sizes: Sequence[int], width: int) -> Tensor | None:
    """[m] where the tokens of rows of these sizes stand among all that are padded to one width; `None` if none is.

    >>> _real_tokens([1, 2], 3)
    tensor([0, 3, 4])
    """
    if min(sizes) == width:
        return None
    return torch.cat([torch.arange(row * width, row * width + size) for row, size in enumerate(sizes)])


def _by_size(
    cache: KVCache,
    rows: slice,
    chunks: Sequence[Chunk],
    sizes: list[int],
    scores: Tensor,
    states: Sequence[Tensor],
    capture: Sequence[int],
) -> tuple[list[Tensor], list[tuple[Tensor, ...]]]:
    """As `_by_row`, of scores [1, tokens, V] and states [1, tokens, h] in which no row is padded beyond its size."""
    logits = [one[len(chunk.tokens) - 1 :] for one, chunk in zip(scores[0].split(sizes), chunks, strict=True)]
    layers = [states[layer][0].split(sizes) for layer in capture]
    for row, chunk in enumerate(chunks, rows.start):
        cache.advance(row, len(chunk.tokens))
    return logits, [tuple(layer[row] for layer in layers) for row in range(len(sizes))]


class Target:
    """An adapter over a `transformers` model that reads visual input and writes text.

    Args:
        model: any vision-language model with a `get_video_features` or `get_image_features` method, in eval mode.
        prepare: turns a request into the model's inputs (its own processor and prompt template).
        decode: turns token ids into text; a `TokenText` also knows special tokens and those that stand for a byte.
        eos: ids that end an answer.
        reserved: ids that must never be drafted, besides the visual placeholders (padded rows of the head).
        defaults: what the checkpoint's generation_config asks for where a request says nothing.
    """

    keeps_prefixes = True  # what was read of a prompt's beginning holds whatever follows it

    def __init__(
        self,
        model: PreTrainedModel,
        prepare: Callable[[Request], Prompt],
        decode: Callable[[Sequence[int]], str] | TokenText,
        eos: Sequence[int],
        reserved: Sequence[int] = (),
        defaults: GenerationDefaults | None = None,
    ) -> None:
        self.model = model.eval()
        self.device = entry_device(model)
        self.clock = clock_of(self.device)
        self.prepare = prepare
        self.text = decode if isinstance(decode, TokenText) else TokenText(decode)
        self.decode = self.text.decode
        self.eos = frozenset(eos)
        self.defaults = replace(defaults or GenerationDefaults(), eos=tuple(sorted(self.eos)))
        self.traits = detect_traits(model)
        self.reserved = frozenset(reserved) | self.traits.visual_ids
        self.text_config = model.config.get_text_config()
        self.vocab_size: int = self.text_config.vocab_size
        self.context: int = self.text_config.max_position_embeddings
        self._lean = None if self.traits.mrope or self.traits.window else find_lean(model)
        self._static: StaticDecoder | None = None
        skipped = () if self._lean is None else self._lean.skipped
        self._hooks = poll_between(model, without=skipped) if self.device.type == "cpu" else []
        self._feature_functions = {
            name: (function, tuple(inspect.signature(inspect.unwrap(function)).parameters))
            for name in ("video", "image")
            if (function := getattr(model.base_model, f"get_{name}_features", None)) is not None
        }
        self.spread: SpreadEncoder | None = None

    def release(self) -> None:
        """Leave the model as it was; this adapter works on, on its own cores alone."""
        for hook in self._hooks:
            hook.remove()
        self.encode_at_home()

    def spread_encoder(self, groups: Sequence[DeviceGroup], probe: Prompt) -> None:
        """From now on, encode clips on several devices or core groups; see `SpreadEncoder`.

        Args:
            groups: where.
            probe: a prompt with two frames or more, with which it is tried.

        Raises:
            CrossdraftError: as `SpreadEncoder`.
        """
        if not self.traits.takes_encoded:
            raise CrossdraftError(
                f"{type(self.model).__name__} encodes clips as it reads them, in this version of transformers; leave "
                "out encode_devices."
            )
        names = self._feature_functions["video"][1] if "video" in self._feature_functions else ()
        inputs = {name: self._sent(probe.features[name]) for name in names if name in probe.features}
        self.spread = SpreadEncoder(self.model, groups, inputs)

    def encode_at_home(self) -> None:
        """Encode clips where the model is; ends the threads that did so until now."""
        if self.spread is not None:
            self.spread.close()
            self.spread = None

    @property
    def reads_pairs(self) -> bool:
        """Whether two threads may read prompts at the same time: on a CPU, where passes are lean."""
        lean = self._lean is not None and self._lean.usable and self.traits.takes_encoded
        return lean and self.device.type == "cpu" and self.spread is None

    def features_only(self) -> "Target":
        """This model for those who only want its features: where its passes are lean, no logits are made [n, 0]."""
        silent = copy.copy(self)
        silent._lean = None if self._lean is None else self._lean.features_only()  # noqa: SLF001
        silent._static = None  # noqa: SLF001
        return silent

    def new_cache(self, max_rows: int = 1, capacity: int = 512) -> KVCache:
        """An empty cache for this model."""
        layers = self.text_config.num_hidden_layers
        if self._static is not None:  # rows of the whole context: their memory must not move
            return self._static.new_cache(layers, max_rows, max(self.context, capacity))
        return KVCache(layers, max_rows, capacity)

    @torch.inference_mode()
    def compile(self, max_rows: int = 1, widest: int = WIDTHS[-1], *, now: bool = True) -> None:
        """Have decode passes run as compiled functions of fixed shapes from now on; see `engine.fast.static_pass`.

        Takes seconds for each shape, most of them the first time on a machine only: PyTorch keeps what it compiled.

        Args:
            max_rows: the most rows of a pass.
            widest: its most tokens in a row; what is wider goes the ordinary way.
            now: make all of them; else each when it is first wanted.

        Raises:
            CrossdraftError: no compiler is here, or the model's decoder is not one of those with a lean path.
        """
        if self._lean is None:
            raise CrossdraftError(
                f"compile is for Llama and Qwen2 decoders with sdpa attention, which {type(self.model).__name__} has "
                "not; leave it out."
            )
        self._static = static = StaticDecoder(self._lean, self.device, widest)
        if not now:
            return
        cache = self.new_cache(max_rows)
        for _ in range(max_rows):
            cache.add_row(cache.capacity - static.padding)
        token, empty = Chunk(torch.zeros(1, dtype=torch.long)), DraftTree.empty()
        self.extend(cache, slice(0, 1), [token], [empty])  # the ordinary way: it tells the sizes of keys
        shapes = list(static.shapes(max_rows, cache.capacity))
        for number, (rows, width, length) in enumerate(shapes, 1):
            log.info("Compiling pass %d of %d: %d x %d tokens.", number, len(shapes), rows, width)
            cache.lengths[:] = [length] * max_rows
            tree = DraftTree.chain([0] * (width - 1))
            self.extend(cache, slice(0, rows), [token] * rows, [tree] * rows)
        static.keep_for_next(cache)

    @torch.inference_mode()
    def encode(self, prompt: Prompt) -> Encoded:
        """The visual features of a prompt: the heavy part of reading. Touches no state, so threads may share it."""
        if not self.traits.takes_encoded:
            known = inspect.signature(inspect.unwrap(self.model.forward)).parameters
            return {name: self._sent(value) for name, value in prompt.features.items() if name in known}
        parts = [item.features for item in prompt.items] if len(prompt.items) > 1 else [prompt.features]
        return joined([self._encode(features) for features in parts])

    def _encode(self, inputs: Mapping[str, Tensor]) -> dict[str, object]:
        """What the feature functions make of the inputs that they take."""
        encoded: dict[str, object] = {}
        for kind, (function, parameters) in self._feature_functions.items():
            pixels = "pixel_values_videos" if kind == "video" else "pixel_values"
            if pixels in inputs:
                wanted = {name: self._sent(inputs[name]) for name in parameters if name in inputs}
                spread = self.spread if pixels == PIXELS else None
                encoded[kind] = function(**wanted, return_dict=True) if spread is None else spread(wanted)
        return encoded

    def visual_features(self, encoded: Encoded) -> Tensor | None:
        """[N, E] the features of a prompt's clip, frame by frame; `None` if they come only with its reading."""
        features = encoded.get("video", encoded.get("image"))  # some read a clip as a row of images
        return None if features is None or not self.traits.takes_encoded else visual_rows(features)

    def chunks(
        self, prompt: Prompt, encoded: Encoded | None, start: int = 0, *, joined: bool = False
    ) -> tuple[list[Chunk], int]:
        """Split a prompt after its last visual token, so that a tree can ride with the second piece.

        The first piece goes on the plain causal fast path; the last is text, which works for M-RoPE models too.
        What is before `start` is known already. Returns the pieces (one if nothing is visual, or the last token is,
        or they are to be `joined`) and the row's rope delta.
        """
        ids = prompt.input_ids.cpu()
        positions, delta = self._positions(prompt)
        images = self._images(prompt)
        cut = self._cut(ids)
        if prompt.items and encoded and start < cut:
            encoded = last_features(encoded, self._visual_counts(ids[start:cut], encoded))
        # The last token is the root of the tree that rides along. If it is itself visual, its feature belongs to the
        # same piece as the others, and there is one piece only.
        whole = joined or not start < cut < len(prompt)
        spans = [(start, len(prompt))] if whole else [(start, cut), (cut, len(prompt))]
        pieces = [
            Chunk(
                ids[a:b],
                None if positions is None else positions[..., a:b],
                encoded if a < cut else None,
                skip_logits=b < len(prompt),
                images=None if images is None or a >= cut else images[a:b],
            )
            for a, b in spans
        ]
        return pieces, delta

    def _cut(self, ids: Tensor) -> int:
        """How many tokens there are up to the last visual one."""
        return max((at + 1 for at, token in enumerate(ids.tolist()) if token in self.traits.visual_ids), default=0)

    @property
    def joins(self) -> bool:
        """Whether a prompt, along with which nothing rides, is read faster in one pass."""
        return self._lean is not None and self._lean.usable and self.traits.takes_encoded

    def cut(self, piece: Chunk, size: int) -> tuple[Chunk, Chunk | None]:
        """The first `size` tokens of a piece of a prompt, and what is left; `None` = nothing.

        Whole where it must be read at once: images whose tokens see each other, features that come only with reading.
        """
        if len(piece.tokens) <= size or piece.images is not None or (piece.encoded and not self.traits.takes_encoded):
            return piece, None
        ids, positions, encoded = piece.tokens, piece.positions, piece.encoded or {}
        before, after = (self._visual_counts(part, encoded) for part in (ids[:size], ids[size:]))
        shown = first_features(encoded, before) or None
        first = Chunk(ids[:size], None if positions is None else positions[..., :size], shown, skip_logits=True)
        rest = None if positions is None else positions[..., size:]
        return first, replace(piece, tokens=ids[size:], positions=rest, encoded=last_features(encoded, after) or None)

    @torch.inference_mode()
    def prefill(
        self,
        cache: KVCache,
        prompt: Prompt,
        encoded: Encoded | None,
        capacity: int,
        ride_along: Callable[[], RideAlong] | None = None,
        capture: Sequence[int] = (),
        visual_capture: Sequence[int] = (),
        prefix: KVPrefix = NO_PREFIX,
        answered: TargetOut | None = None,
    ) -> Prefill:
        """Read a prompt into a new row; a draft tree rides along with its last piece.

        Args:
            cache: gets the row; loses it again if anything fails.
            prompt, encoded: what is read; features as `encode` returns them.
            capacity: tokens that the row must be able to hold.
            ride_along: called when the target is at the last piece: the tree, and embeddings of its last nodes.
                `None` = nothing rides along.
            capture: hidden layers wanted of the last piece and the tree.
            visual_capture: those wanted of the pieces in front.
            prefix: what need not be read, with its features of those layers; it ends before or after all that is
                visual.
            answered: what a pass over the whole prompt returned: `prefix` is all of it.
        """
        joined = answered is not None or (ride_along is None and self.joins and not capture and not visual_capture)
        start = 0 if answered is not None else len(prefix)
        pieces, delta = self.chunks(prompt, encoded, start, joined=joined)
        row = cache.add_row(capacity)
        own = slice(row, row + 1)
        cache.rope_deltas[row] = delta
        try:
            cache.append(row, prefix)
            empty = [DraftTree.empty()]
            front = [self.extend(cache, own, [piece], empty, visual_capture) for piece in pieces[:-1]]
            for out in front:  # launched is not done: until then the drafter goes on
                out.done.wait()
            tree, embeds = NO_TREE if ride_along is None else ride_along()
            out = answered or self.extend(cache, own, pieces[-1:], [tree], capture, [embeds])
            out.done.wait()
        except BaseException:
            cache.drop_row(row)
            raise
        cut = self._cut(prompt.input_ids) % len(prompt)
        return Prefill(row, tuple(prompt.input_ids.tolist()), prefix, tuple(pieces), front, out, cut)

    @torch.inference_mode()
    def extend(
        self,
        cache: KVCache,
        rows: slice,
        chunks: Sequence[Chunk],
        trees: Sequence[DraftTree],
        capture: Sequence[int] = (),
        probe_embeds: Sequence[Tensor | None] = (),
    ) -> TargetOut:
        """One pass over each row's chunk and, after it, its draft tree.

        The chunks are committed; of the trees nothing is, until `cache.keep` says which path. Rows may differ in
        every length. Feature `capture` indexes `hidden_states` (0 = embeddings, last = after the final norm).
        `probe_embeds` are, row by row, [k, h] embeddings that a tree's last k nodes are read as, whatever their ids.
        """
        pending = [len(chunk.tokens) for chunk in chunks]
        sizes = [m + len(tree) for m, tree in zip(pending, trees, strict=True)]
        given = any(one is not None for one in probe_embeds)
        static = None if given else self._static_width(cache, rows, chunks, max(sizes))
        width = static or max(sizes)
        keys = cache.open_window(rows, width)
        ids, positions = self._inputs(cache, rows, chunks, trees, width)
        embeds = self._embeds(ids, sizes, probe_embeds) if given else None
        if self._static is not None and static is not None:
            keys = self._static.window(cache.capacity, keys)
        mask = self._masks(cache, rows, chunks, trees, width, keys)
        kept = max(len(tree) for tree in trees) + 1 if len(set(pending)) == 1 and static is None else width
        began = self.clock.mark()
        unread = chunks[0].skip_logits
        if not unread and static is None and len(chunks) == 1 and width == pending[0] > 1 and not capture:
            scores = self._answer(cache, chunks[0], ids, positions, mask)
            if scores is not None:
                cache.advance(rows.start, width)
                return TargetOut([scores[0]], [()], began, self.clock.mark(), width)
        if unread and (filled := self._fill(cache, chunks[0], ids, positions, mask, capture)) is not None:
            cache.advance(rows.start, pending[0])
            nothing = torch.empty(0, self.vocab_size, device=self.device)
            return TargetOut([nothing], [filled], began, self.clock.mark())
        ours = not isinstance(mask, dict)  # passes of our own know no sliding layers
        if ours and self._static is not None and static is not None and isinstance(cache, StaticKVCache):
            scores, states = self._static(ids, positions, mask, cache, keys)
        elif ours and self._lean is not None and self._lean.usable and not chunks[0].encoded:
            if self.device.type == "cpu" and sum(sizes) < MOST_REAL * len(sizes) * width:
                # Not on a GPU: padding is cheap there, and another number of tokens a pass is not.
                real = _real_tokens(sizes, width)
                read = self._lean.text.embed_tokens(ids) if embeds is None else embeds
                (packed,) = self._lean.together([PassPart(read, positions, mask, cache, real=real)])
                found = _by_size(cache, rows, chunks, sizes, self._lean.head(packed[-1]), packed, capture)
                return TargetOut(*found, began, self.clock.mark(), sum(sizes) / len(sizes))
            scores, states = self._lean(ids, positions, mask, cache, kept, embeds)
        else:
            arguments = self._arguments(ids, positions, mask, chunks[0].encoded, embeds)
            if capture:
                arguments["output_hidden_states"] = True
            out = self.model(**arguments, past_key_values=cache, use_cache=True, logits_to_keep=kept)
            scores, states = out.logits, out.hidden_states
        done = self.clock.mark()
        logits, hidden = _by_row(cache, rows, chunks, trees, scores, width - kept, states, capture)
        return TargetOut(logits, hidden, began, done, width)

    def _static_width(self, cache: KVCache, rows: slice, chunks: Sequence[Chunk], width: int) -> int | None:
        """The padded width of a pass that a compiled function does; `None` if it goes the ordinary way."""
        if self._static is None or any(len(one.tokens) > 1 or one.encoded or one.skip_logits for one in chunks):
            return None
        return self._static.width(cache, rows, width)

    def _fill(
        self, cache: KVCache, chunk: Chunk, ids: Tensor, positions: Tensor, mask: Masks, capture: Sequence[int]
    ) -> tuple[Tensor, ...] | None:
        """Read a piece of a prompt without answering it; its features, or `None` if the lean path cannot."""
        if self._lean is None or len(ids) > 1 or isinstance(mask, dict) or (embeds := self._read(chunk, ids)) is None:
            return None
        states = self._lean.fill(embeds, positions, mask, cache, whole=self._wants_last(capture))
        return tuple(states[layer][0] for layer in capture)

    def _answer(self, cache: KVCache, chunk: Chunk, ids: Tensor, positions: Tensor, mask: Masks) -> Tensor | None:
        """Read a piece of a prompt; its last token's logits [1, 1, V], or `None` if the lean path cannot."""
        if self._lean is None or isinstance(mask, dict) or (embeds := self._read(chunk, ids)) is None:
            return None
        return self._lean.answer(embeds, positions, mask, cache)

    def _wants_last(self, capture: Sequence[int]) -> bool:
        """Whether these layers are more than what the keys and values of all layers are made of."""
        return not {-1, self.text_config.num_hidden_layers}.isdisjoint(capture)

    def _read(self, chunk: Chunk, ids: Tensor) -> Tensor | None:
        """[1, m, h] what a piece of a prompt is read as; `None` if the lean path cannot read it."""
        if self._lean is None or not self._lean.usable or not self.traits.takes_encoded:
            return None
        embeds = self._lean.text.embed_tokens(ids)
        for kind, features in (chunk.encoded or {}).items():
            rows = visual_rows(features).to(embeds)
            # Counted on the host: the device has not made them yet.
            indexes = (chunk.tokens == self.traits.placeholders.get(kind, -1)).nonzero().flatten()
            if len(indexes) != len(rows):
                return None  # the model puts them together in a way of its own
            embeds[0].index_copy_(0, to_device(indexes, self.device), rows)
        return embeds

    @torch.inference_mode()
    def extend_shared(
        self,
        cache: KVCache,
        rows: slice,
        chunks: Sequence[Chunk],
        trees: Sequence[DraftTree],
        capture: Sequence[int],
        extra: PrefillChunk,
    ) -> tuple[TargetOut, TargetOut] | None:
        """An `extend`, and one of a piece of a prompt in another cache, in one pass; `None` if that cannot be.

        It can where passes are lean. Both are as they would be by themselves, but for the order of sums in products.
        """
        piece, other, lean = extra.chunk, extra.cache, self._lean
        if lean is None or not piece.skip_logits or self._static is not None:
            return None
        embeds = self._read(piece, self._sent(piece.tokens)[None])
        if embeds is None or self._wants_last(extra.capture):
            return None
        sizes = [len(chunk.tokens) + len(tree) for chunk, tree in zip(chunks, trees, strict=True)]
        parts: list[PassPart] = []
        empty = [DraftTree.empty()]
        for own, window, pieces, drafts, width in (
            (cache, rows, chunks, trees, max(sizes)),
            (other, slice(0, 1), [piece], empty, len(piece.tokens)),
        ):
            keys = own.open_window(window, width)
            ids, positions = self._inputs(own, window, pieces, drafts, width)
            mask = self._masks(own, window, pieces, drafts, width, keys)
            if isinstance(mask, dict):
                return None
            read = embeds if own is other else lean.text.embed_tokens(ids)
            real = None if own is other else _real_tokens(sizes, width)
            real = None if real is None else to_device(real, self.device)
            parts.append(PassPart(read, positions, mask, own, fill=own is other, real=real))
        began = self.clock.mark()
        states, front = lean.together(parts)
        scores = lean.head(states[-1])
        done = self.clock.mark()
        other.advance(0, len(piece.tokens))
        filled = tuple(front[layer][0] for layer in extra.capture)
        nothing = torch.empty(0, self.vocab_size, device=self.device)
        read_out = TargetOut([nothing], [filled], began, done)
        mean = sum(sizes) / len(sizes)
        return TargetOut(*_by_size(cache, rows, chunks, sizes, scores, states, capture), began, done, mean), read_out

    def _inputs(
        self, cache: KVCache, rows: slice, chunks: Sequence[Chunk], trees: Sequence[DraftTree], width: int
    ) -> tuple[Tensor, Tensor]:
        """Ids [B, width] and positions [(3,) B, width] of one pass; rows are padded after their tree."""
        ids, positions = [], []
        for row, (chunk, tree) in enumerate(zip(chunks, trees, strict=True), rows.start):
            m, start = len(chunk.tokens), cache.lengths[row] + cache.rope_deltas[row]
            padding = [0] * (width - m - len(tree))
            ids.append([*chunk.tokens.tolist(), *tree.tokens, *padding])
            nodes = [start + m - 1 + depth for depth in self._depths(tree)]
            positions.append([*range(start, start + m), *nodes, *padding])
        table = self._position_ids(torch.tensor(positions), chunks).view(-1, len(ids), width)
        sent = to_device(torch.cat([torch.tensor(ids)[None], table]), self.device)
        return sent[0], sent[1:] if self.traits.mrope else sent[1]

    def _embeds(self, ids: Tensor, sizes: Sequence[int], given: Sequence[Tensor | None]) -> Tensor:
        """[B, width, h] what ids [B, width] are read as; those that end each row's `sizes` may be given."""
        embeds = self.model.get_input_embeddings()(ids).clone()
        for row, (size, last) in enumerate(zip(sizes, given, strict=True)):
            if last is not None:
                embeds[row, size - len(last) : size] = last.to(embeds)
        return embeds

    def _arguments(
        self, ids: Tensor, positions: Tensor, mask: Masks, encoded: Encoded | None, embeds: Tensor | None
    ) -> dict[str, object]:
        """What the model's own forward takes."""
        taken = (
            {kind: self._as_taken(one) for kind, one in mask.items()}
            if isinstance(mask, dict)
            else self._as_taken(mask)
        )
        arguments: dict[str, object] = {"input_ids": ids, "position_ids": positions, "attention_mask": taken}
        if embeds is not None:  # after text alone: features that replace placeholders need their ids
            arguments["input_ids"], arguments["inputs_embeds"] = None, embeds
        if encoded and self.traits.takes_encoded:
            arguments["mm_encoder_outputs"] = dict(encoded)
        elif encoded:
            # Token types span the whole prompt and only serve positions and masks, which are given.
            arguments |= {name: value for name, value in encoded.items() if name not in TOKEN_TYPES}
        return arguments

    def _as_taken(self, mask: Tensor | None) -> Tensor | None:
        """A mask as the model's attention takes it."""
        if mask is None or not self.traits.additive_mask:
            return mask
        # Eager attention adds its mask to the scores.
        lowest = torch.finfo(self.model.dtype).min
        return torch.zeros_like(mask, dtype=self.model.dtype).masked_fill_(~mask, lowest)

    def _depths(self, tree: DraftTree) -> Sequence[int]:
        return tree.depths

    def _position_ids(self, positions: Tensor, chunks: Sequence[Chunk]) -> Tensor:
        if self.traits.mrope:
            positions = positions.expand(3, *positions.shape).contiguous()
        for row, chunk in enumerate(chunks):
            if chunk.positions is not None:
                positions[..., row, : len(chunk.tokens)] = chunk.positions
        return positions

    def _masks(
        self, cache: KVCache, rows: slice, chunks: Sequence[Chunk], trees: Sequence[DraftTree], width: int, keys: int
    ) -> Masks:
        """The mask of a pass; one for each type of layer where sliding layers see less."""
        mask = self._mask(cache, rows, chunks, trees, width, keys)
        if self.traits.window is None or keys <= self.traits.window:
            return mask
        near = self._near(cache, rows, chunks, trees, width, keys)
        if mask is None and width > 1:  # whose first pass is all causal
            mask = torch.ones(width, keys, dtype=torch.bool, device=self.device).tril()[None, None]
        sliding = near if mask is None else mask & near
        return sliding if self.traits.all_slide else {"full_attention": mask, "sliding_attention": sliding}

    def _near(
        self, cache: KVCache, rows: slice, chunks: Sequence[Chunk], trees: Sequence[DraftTree], width: int, keys: int
    ) -> Tensor:
        """[B, 1, width, keys], True = not further back than a sliding layer looks, along a node's own path."""
        own, index = [], []
        for length, chunk, tree in zip(cache.lengths[rows], chunks, trees, strict=True):
            m, n = len(chunk.tokens), len(tree)
            nodes = [length + m - 1 + depth for depth in tree.depths]
            # Padding, too, sees at least itself: nothing but NaN comes of a query that sees nothing.
            own.append([*range(length, length + m), *nodes, *range(length + m + n, length + width)])
            index.append([*range(length), *own[-1], *range(length + width, keys)])
        queries, seen = (to_device(torch.tensor(table), self.device) for table in (own, index))
        return seen[:, None, None] > queries[:, None, :, None] - (self.traits.window or keys)

    def _mask(
        self, cache: KVCache, rows: slice, chunks: Sequence[Chunk], trees: Sequence[DraftTree], width: int, keys: int
    ) -> Tensor | None:
        """[B, 1, width, keys], True = may attend. `None` where the plain causal path says the same."""
        lengths = cache.lengths[rows]
        level = len(set(lengths)) == 1
        plain = all(tree.is_chain for tree in trees) and level and all(chunk.images is None for chunk in chunks)
        if plain and (width == 1 or lengths[0] == 0):
            return None
        past: int | Tensor = lengths[0]
        if not level:
            past = to_device(torch.tensor(lengths), self.device).view(-1, 1, 1, 1)
        # Up to itself is right for a chunk and for a chain; what is padded after them nobody sees.
        queries = torch.arange(width, device=self.device)[:, None]
        causal = torch.arange(keys, device=self.device) <= past + queries
        mask = causal.expand(len(chunks), 1, width, keys).contiguous()
        for row, (chunk, tree) in enumerate(zip(chunks, trees, strict=True)):
            if not tree.is_chain:
                m, n = len(chunk.tokens), len(tree)
                first = lengths[row] + m
                mask[row, 0, m : m + n, first : first + n] = to_device(tree.visible, self.device)
            if chunk.images is not None:
                whole = (chunk.images[:, None] == chunk.images) & (chunk.images >= 0)
                m, first = len(whole), lengths[row]
                mask[row, 0, :m, first : first + m] |= to_device(whole, self.device)
        return mask

    def _images(self, prompt: Prompt) -> Tensor | None:
        """[L] numbers of the images whose tokens see each other; `None` where the model reads all in one direction."""
        if not self.traits.images_whole or "token_type_ids" not in prompt.features:
            return None
        shown = prompt.features["token_type_ids"][0].cpu() == 1
        begins = shown & ~shown.roll(1)
        begins[:1] = shown[:1]
        return torch.where(shown, begins.cumsum(0) - 1, -1)

    def _visual_counts(self, ids: Tensor, encoded: Encoded) -> dict[str, int]:
        """How many placeholders of each encoded kind there are; one token may stand for both kinds, but not at once."""
        tokens = {kind: {self.traits.placeholders.get(kind, -1)} for kind in encoded}
        own = tokens if len(tokens) > 1 else dict.fromkeys(encoded, self.traits.visual_ids)
        return {kind: sum(token in own[kind] for token in ids.tolist()) for kind in own}

    def _positions(self, prompt: Prompt) -> tuple[Tensor | None, int]:
        """Explicit [3, L] positions and the offset of later text for M-RoPE models; nothing where all is text."""
        if not self.traits.mrope or not prompt.features:
            return None, 0
        function: Callable[..., tuple[Tensor, Tensor]] = getattr(self.model.base_model, "get_rope_index")  # noqa: B009
        names = inspect.signature(inspect.unwrap(function)).parameters
        wanted = {name: prompt.features[name] for name in names if name in prompt.features}
        positions, delta = function(input_ids=prompt.input_ids[None].cpu(), **wanted)
        return positions[:, 0], int(delta)

    def _sent(self, value: Tensor) -> Tensor:
        value = value.to(self.device)
        return value.to(self.model.dtype) if value.is_floating_point() else value
