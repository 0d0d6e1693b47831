"""The target's seam: an adapter over an unmodified `transformers` vision-language model.

`extend` is the only way tokens enter a target. A decode round extends by root + tree; a prefill is an extend whose
pending part is the prompt, so a tree can ride along with its last piece. Four traits differ between models and are
detected, not subclassed: how features are obtained, the position rule, the mask kind, and who sees how far. A fifth is
for speed alone: whether passes over text may take the lean path.
"""

import copy
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from crossdraft.engine.arrivals import VisualFuture
from crossdraft.engine.cache import KVCache, KVPrefix
from crossdraft.engine.clock import clock_of
from crossdraft.engine.detokenize import TokenText
from crossdraft.engine.devices import to_device, without_cudnn_attention
from crossdraft.engine.encoded import first_features, joined, last_features, visual_rows
from crossdraft.engine.fast.elastic import PollHook, poll_between
from crossdraft.engine.fast.forward import PassPart, find_lean
from crossdraft.engine.fast.static_cache import StaticKVCache
from crossdraft.engine.fast.static_pass import WIDTHS, StaticDecoder
from crossdraft.engine.frames import STILLS, ClipFeatures, FramewiseEncoder, KnownFrames
from crossdraft.engine.generation import GenerationDefaults
from crossdraft.engine.pass_inputs import PassInputs, as_input
from crossdraft.engine.passes import (
    NO_PREFIX,
    NO_TREE,
    Chunk,
    Masks,
    Prefill,
    PrefillChunk,
    RideAlong,
    TargetOut,
    by_row,
    by_size,
    real_tokens,
)
from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.tree import DraftTree
from crossdraft.engine.workers.encode import PIXELS, SpreadEncoder
from crossdraft.engine.workers.groups import DeviceGroup
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

MOST_REAL = 0.9  # of a pass; where more of it is padding it is left out


class Target(PassInputs):
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
        super().__init__(model)
        without_cudnn_attention(self.device)
        self.clock = clock_of(self.device)
        self.prepare = prepare
        self.text = decode if isinstance(decode, TokenText) else TokenText(decode)
        self.decode = self.text.decode
        self.eos = frozenset(eos)
        self.defaults = replace(defaults or GenerationDefaults(), eos=tuple(sorted(self.eos)))
        self.reserved = frozenset(reserved) | self.traits.visual_ids
        self.text_config = model.config.get_text_config()
        self.vocab_size: int = self.text_config.vocab_size
        self.context: int = self.text_config.max_position_embeddings
        self._lean = None if self.traits.mrope or self.traits.window else find_lean(model)
        self._static: StaticDecoder | None = None
        self._held: list[PollHook] = []
        self._poll_between()
        self._feature_functions = {
            name: (function, tuple(inspect.signature(inspect.unwrap(function)).parameters))
            for name in ("video", "image")
            if (function := getattr(model.base_model, f"get_{name}_features", None)) is not None
        }
        self.spread: SpreadEncoder | None = None
        by_frame = self._feature_functions.items() if self.device.type == "cpu" and self.traits.takes_encoded else ()
        send = partial(as_input, self.model, self.device)  # no method of this object, which would then hold itself
        self._frames = [FramewiseEncoder(kind, *function, send) for kind, function in by_frame]

    @property
    def source(self) -> str:
        """The folder that its weights were loaded from, as the model names it; empty = none."""
        return self.model.name_or_path or ""

    def hold(self) -> None:
        """The model is somebody's own, to be left as it was by `release`, once the last adapter that holds it goes."""
        self._held += self._poll_between(hold=True)

    def release(self) -> None:
        """After `hold`: leave the model as it was, unless another adapter holds it; this one works on."""
        held, self._held = self._held, []
        for hook in held:
            hook.release()
        self.encode_at_home()

    def _poll_between(self, *, hold: bool = False) -> list[PollHook]:
        skipped = () if self._lean is None else self._lean.skipped
        return poll_between(self.model, skipped, hold=hold) if self.device.type == "cpu" else []

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
        """True if two threads may prefill at the same time: on a CPU, where passes are lean."""
        return self.joins and self.device.type == "cpu" and self.spread is None

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
        if (clip := self.encode_frames(prompt)) is not None:
            return clip
        parts = [item.features for item in prompt.items] if len(prompt.items) > 1 else [prompt.features]
        return joined([self._encode(features) for features in parts])

    @torch.inference_mode()
    def encode_frames(
        self, prompt: Prompt, known: KnownFrames | None = None, arrivals: VisualFuture | None = None
    ) -> ClipFeatures | None:
        """The features of a prompt's clip frame by frame, some of which may be known, as `encode` returns them.

        `None` where it is not `Prompt.by_frame`, or cannot be: the model does not read frames one by one, is on a GPU,
        or spreads its encoder. `arrivals` gets the frames that it wants as they are known.
        """
        if not prompt.by_frame or self.spread is not None:
            return None
        found = (encode(prompt.features, known, arrivals) for encode in self._frames)
        return next((clip for clip in found if clip is not None), None)

    @torch.inference_mode()
    def encode_in_parts(self, prompt: Prompt, arrivals: VisualFuture) -> Encoded | None:
        """The features of a prompt's clip as `encode` returns them, to the bit; `arrivals` gets those it wants first.

        `None` where that cannot be: as in `encode_frames`, the bits would differ or are not known yet (`try_parts`), or
        it is not all of the features: there is more than one clip, or a subclass makes other ones.
        """
        several = sum(name in prompt.features for name in (PIXELS, STILLS)) != 1 or len(prompt.items) > 1
        if several or self.spread is not None or type(self).encode is not Target.encode:
            return None
        found = (encode.in_parts(prompt.features, arrivals) for encode in self._frames)
        return next((clip for clip in found if clip is not None), None)

    @torch.inference_mode()
    def try_parts(self) -> None:
        """Find out whether `encode_in_parts` may encode one of the clips it was asked for; when nobody waits."""
        any(encode.try_parts() for encode in self._frames)

    def _encode(self, inputs: Mapping[str, Tensor]) -> dict[str, object]:
        """Run the feature functions on the inputs that they take."""
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
        if prompt.items and encoded and start < cut and self.traits.takes_encoded:
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
        """Number of tokens up to the last visual one."""
        return max((at + 1 for at, token in enumerate(ids.tolist()) if token in self.traits.visual_ids), default=0)

    @property
    def joins(self) -> bool:
        """True if a prompt without a ride-along is prefilled faster in one pass."""
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
        if self._static is not None and static is not None and isinstance(cache, StaticKVCache):
            keys = self._static.window(cache, rows, width)
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
                real = real_tokens(sizes, width)
                read = self._lean.text.embed_tokens(ids) if embeds is None else embeds
                (packed,) = self._lean.together([PassPart(read, positions, mask, cache, real=real)])
                found = by_size(cache, rows, chunks, sizes, self._lean.head(packed[-1]), packed, capture)
                return TargetOut(*found, began, self.clock.mark(), sum(sizes) / len(sizes))
            scores, states = self._lean(ids, positions, mask, cache, kept, embeds)
        else:
            arguments = self._arguments(ids, positions, mask, chunks[0].encoded, embeds)
            if capture:
                arguments["output_hidden_states"] = True
            out = self.model(**arguments, past_key_values=cache, use_cache=True, logits_to_keep=kept)
            scores, states = out.logits, out.hidden_states
        done = self.clock.mark()
        logits, hidden = by_row(cache, rows, chunks, trees, scores, width - kept, states, capture)
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
        """True if these layers include the last one's output, of which no keys and values are made."""
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
            real = None if own is other else real_tokens(sizes, width)
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
        return TargetOut(*by_size(cache, rows, chunks, sizes, scores, states, capture), began, done, mean), read_out

    def _images(self, prompt: Prompt) -> Tensor | None:
        """[L] numbers of the images whose tokens see each other; `None` where the model reads all in one direction."""
        if not self.traits.images_whole or "token_type_ids" not in prompt.features:
            return None
        shown = prompt.features["token_type_ids"][0].cpu() == 1
        begins = shown & ~shown.roll(1)
        begins[:1] = shown[:1]
        return torch.where(shown, begins.cumsum(0) - 1, -1)

    def _visual_counts(self, ids: Tensor, encoded: Encoded) -> dict[str, int]:
        """Count the placeholders of each encoded kind; one token may stand for both kinds, but not at once."""
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
