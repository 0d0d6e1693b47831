"""The target's seam: an adapter over an unmodified `transformers` vision-language model.

`extend` is the only way tokens enter a target. A decode round extends by root + tree; a prefill is an extend whose
pending part is the prompt, so a tree can ride along with its last piece. `extend` builds a `Pass` and hands it to one
of three executors. Traits that differ between models are detected, not subclassed: how features are obtained, the
position rule, the mask kind, and who sees how far.
"""

import copy
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from crossdraft.engine.cache import KVCache
from crossdraft.engine.clock import clock_of
from crossdraft.engine.detokenize import TokenText
from crossdraft.engine.devices import to_device, without_cudnn_attention
from crossdraft.engine.encoded import first_features, joined, last_features, visual_rows
from crossdraft.engine.fast.elastic import PollHook, poll_between
from crossdraft.engine.fast.forward import FastDecoder, find_fast
from crossdraft.engine.fast.static_pass import WIDTHS, StaticDecoder, check_compiler
from crossdraft.engine.generation import GenerationDefaults
from crossdraft.engine.own_forward import OwnForward
from crossdraft.engine.passes import Chunk, Executor, Pass, PassBuilder, PassRow, TargetOut
from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.recurrent.cache import StateCache
from crossdraft.engine.recurrent.mixers import read_along_paths
from crossdraft.engine.recurrent.rules import ReadTree, read_tree
from crossdraft.engine.request import Request
from crossdraft.engine.traits import rope_positions
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

PIXELS = ("pixel_values", "image_pixel", "image_patches")  # beginnings of the names of visual inputs


@final
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

    def __init__(
        self,
        model: PreTrainedModel,
        prepare: Callable[[Request], Prompt],
        decode: Callable[[Sequence[int]], str] | TokenText,
        eos: Sequence[int],
        reserved: Sequence[int] = (),
        defaults: GenerationDefaults | None = None,
    ) -> None:
        self.passes = PassBuilder.of(model.eval())
        self.model, self.device, self.traits = model, self.passes.device, self.passes.traits
        without_cudnn_attention(self.device)
        read_along_paths(self.traits.mixers, self.traits.relative)
        self.clock = clock_of(self.device)
        self.prepare = prepare
        self._encoder: Callable[[Prompt], Encoded] | None = None
        self._extender: Callable[[KVCache, Sequence[PassRow]], TargetOut] | None = None
        self.text = decode if isinstance(decode, TokenText) else TokenText(decode)
        self.decode = self.text.decode
        self.eos = frozenset(eos)
        self.defaults = replace(defaults or GenerationDefaults(), eos=tuple(sorted(self.eos)))
        self.text_config = model.config.get_text_config()
        padded: int = self.text_config.vocab_size
        self.vocab_size: int = getattr(self.text_config, "unpadded_vocab_size", None) or padded  # Inkling's logits
        self.reserved = frozenset(reserved) | self.traits.visual_ids | frozenset(range(self.vocab_size, padded))
        self.context: int = self.text_config.max_position_embeddings
        plain = not (self.traits.window or self.traits.mixers)
        self.fast = find_fast(model, mrope=bool(self.traits.mrope)) if plain else None
        self._own = OwnForward(self.passes)
        self._static: StaticDecoder | None = None
        self._tree_rule: ReadTree = read_tree
        self._held: list[PollHook] = []
        self._poll_between()
        images = getattr(model.base_model, "get_image_features", None)  # of clips, too, in some classes
        self._feature_functions = {
            name: (function, tuple(inspect.signature(inspect.unwrap(function)).parameters))
            for name in ("video", "image")
            if (function := getattr(model.base_model, f"get_{name}_features", images)) is not None
        }

    @property
    def source(self) -> str:
        """Folder that the weights were loaded from, by the model's `name_or_path`; empty = none."""
        return self.model.name_or_path or ""

    def hold(self) -> None:
        """Hold the model's hooks, so that `release` removes them: the model is the caller's own."""
        self._held += self._poll_between(hold=True)

    def release(self) -> None:
        """Remove the hooks that were held by `hold`, unless another adapter holds them; this adapter still works."""
        held, self._held = self._held, []
        for hook in held:
            hook.release()

    def _poll_between(self, *, hold: bool = False) -> list[PollHook]:
        return poll_between(self.model, hold=hold) if self.device.type == "cpu" else []

    def reading(
        self,
        prepare: Callable[[Request], Prompt] | None = None,
        encode: Callable[[Prompt], Encoded] | None = None,
        extend: Callable[[KVCache, Sequence[PassRow]], TargetOut] | None = None,
        executor: FastDecoder | None = None,
    ) -> "Target":
        """Return another adapter over the same model with other parts; `None` = this adapter's own part.

        Args:
            prepare: turns a request into a prompt.
            encode: makes the visual features of a prompt.
            extend: runs passes, as a rule by calling this adapter's `extend`.
            executor: executor in place of `fast`.
        """
        made = copy.copy(self)
        made.prepare, made.fast = prepare or self.prepare, executor or self.fast
        made._encoder, made._extender = encode or self._encoder, extend or self._extender  # noqa: SLF001
        made._static, made._held = None, []  # noqa: SLF001
        return made

    def features_only(self) -> "Target":
        """A view of the model for callers that want only features: if its passes are `fast`, logits are [n, 0]."""
        return self.reading(executor=None if self.fast is None else self.fast.features_only())

    @property
    def _in_one_piece(self) -> bool:
        """True if the executor must read a prompt with images or clips in one piece."""
        return self.fast is not None and self.fast.whole_prompts

    def new_cache(self, max_rows: int = 1, capacity: int = 512) -> KVCache:
        """An empty cache for this model."""
        layers = self.text_config.num_hidden_layers
        if (static := self._static) is not None and capacity <= (static.longest or capacity):
            return static.new_cache(layers, max_rows, static.longest or max(self.context, capacity))
        if self.traits.mixers:
            return StateCache(layers, self.traits.mixers, max_rows, capacity, self._tree_rule)
        return KVCache(layers, max_rows, capacity)

    @torch.inference_mode()
    def compile(self, max_rows: int = 1, widest: int = WIDTHS[-1], *, longest: int = 0, now: bool = True) -> None:
        """Run decode passes as compiled functions of fixed shapes from now on; see `engine.fast.static_pass`.

        Each shape takes seconds, most of them only the first time on a machine: PyTorch caches what it has compiled.
        On CUDA, models with recurrent layers get the fused kernel of their rules in place of fixed shapes.

        Args:
            max_rows: most rows of a pass.
            widest: most tokens of a row; wider passes run in the ordinary way.
            longest: tokens of a row of a cache, by default its context; longer requests run in the ordinary way.
            now: compile all shapes now; otherwise each when it is first used.

        Raises:
            CrossdraftError: there is no compiler here, the model's decoder has no executor `fast`, or the target's
                compression has an executor of its own.
        """
        if self.traits.mixers and self.device.type == "cuda":
            check_compiler(self.device)
            from crossdraft.engine.recurrent.fused import fused_tree  # imports triton

            self._tree_rule = fused_tree
            return
        if self.fast is None or not self.fast.plain:
            raise CrossdraftError(
                "compile is for Llama and Qwen2 decoders with sdpa attention, and on CUDA for recurrent layers, which "
                f"{type(self.model).__name__} has not here; leave it out."
            )
        if self._in_one_piece:
            raise CrossdraftError("Passes of a target with such a compression cannot be compiled; leave out compile.")
        self._static = static = StaticDecoder(self.fast, self.device, widest, longest)
        if not now:
            return
        cache = self.new_cache(max_rows)
        for _ in range(max_rows):
            cache.add_row(cache.capacity - static.padding)
        token = Chunk(torch.zeros(1, dtype=torch.long))
        self.extend(cache, [PassRow(0, token)])  # an ordinary pass, by which the cache learns the sizes of keys
        shapes = list(static.shapes(max_rows, cache.capacity))
        for number, (rows, width, length) in enumerate(shapes, 1):
            log.info("Compiling pass %d of %d: %d x %d tokens.", number, len(shapes), rows, width)
            cache.lengths[:] = [length] * max_rows
            tree = DraftTree.chain([0] * (width - 1))
            self.extend(cache, [PassRow(row, token, tree) for row in range(rows)])
        static.keep_for_next(cache)

    @torch.inference_mode()
    def encode(self, prompt: Prompt) -> Encoded:
        """Encode a prompt's images and clips, the heavy part of reading; changes no state, so threads may share it."""
        if self._encoder is not None:
            return self._encoder(prompt)
        if not self.traits.takes_encoded:
            known = inspect.signature(inspect.unwrap(self.model.forward)).parameters
            return {name: self._sent(value) for name, value in prompt.features.items() if name in known}
        parts = [item.features for item in prompt.items] if len(prompt.items) > 1 else [prompt.features]
        return joined([self._encode(features) for features in parts])

    def _encode(self, inputs: Mapping[str, Tensor]) -> dict[str, object]:
        """Run the feature functions on the inputs that they take."""
        encoded: dict[str, object] = {}
        for kind, (function, parameters) in self._feature_functions.items():
            pixels = "pixel_values_videos" if kind == "video" else "pixel_values"
            if pixels in inputs:
                shown = {**inputs, "pixel_values": inputs[pixels]}
                wanted = {name: self._sent(shown[name]) for name in parameters if name in shown}
                encoded[kind] = function(**wanted, return_dict=True)
        return encoded

    def visual_features(self, encoded: Encoded) -> Tensor | None:
        """[N, E] features of a prompt's clip, frame by frame; `None` if only the model's own forward makes them."""
        features = encoded.get("video", encoded.get("image"))  # some models read a clip as a row of images
        return None if features is None or not self.traits.takes_encoded else visual_rows(features)

    def chunks(
        self, prompt: Prompt, encoded: Encoded | None, start: int = 0, *, whole: bool = False
    ) -> tuple[list[Chunk], int]:
        """Split a prompt after its last visual token, so that a tree can follow the second piece in its pass.

        The first piece is read with plain causal attention; the second is text only, which a tree can follow in M-RoPE
        models too. Tokens before `start` are cached. Returns the pieces and the row's rope delta. There is one piece if
        no token is visual, if the last one is, or if the prompt is to be read `whole` and the executor `fast` can.
        """
        ids = prompt.input_ids.cpu()
        positions, delta = self._positions(prompt) if prompt.positions is None else prompt.positions(encoded)
        images, routes = self._images(prompt), [name for name in self.traits.routed if name in prompt.features]
        cut = self._last_visual(prompt)
        if not cut and any(name.startswith(PIXELS) for name in prompt.features):
            raise CrossdraftError(
                f"The request shows an image or a clip, but no token of the prompt stands for it: "
                f"{type(self.model).__name__} reads them in a way not known here; ask in words alone."
            )
        if prompt.items and encoded and start < cut and self.traits.takes_encoded:
            encoded = last_features(encoded, self._visual_counts(ids[start:cut], encoded))
        # The last token is the root of the tree that rides along. If it is visual, it must be in the piece of the other
        # visual tokens, and there is one piece only.
        fast = self.fast is not None and self.fast.usable and self.fast.embeds_features and self.traits.takes_encoded
        whole = self._in_one_piece or (whole and fast) or not start < cut < len(prompt)
        spans = [(start, len(prompt))] if whole else [(start, cut), (cut, len(prompt))]
        pieces = [
            Chunk(
                ids[a:b],
                None if positions is None else positions[..., a:b],
                encoded if a < cut else None,
                skip_logits=b < len(prompt),
                images=None if images is None or a >= cut else images[a:b],
                routes={name: prompt.features[name][0, a:b] for name in routes} if a < cut else {},
            )
            for a, b in spans
        ]
        return pieces, delta

    def visual_end(self, prompt: Prompt) -> int:
        """Number of a prompt's tokens up to the last visual one; 0 if no token is visual, or no text follows."""
        end = self._last_visual(prompt)
        return 0 if end == len(prompt) else end

    def _last_visual(self, prompt: Prompt) -> int:
        """Number of tokens up to the last one that is visual, or is seen by visual ones before it (Molmo2)."""
        shown = torch.isin(prompt.input_ids.cpu(), torch.tensor(sorted(self.traits.visual_ids)))
        if (images := self._images(prompt)) is not None:
            shown |= images >= 0
        return max((at + 1 for at, one in enumerate(shown.tolist()) if one), default=0)

    def split(self, piece: Chunk, size: int) -> tuple[Chunk, Chunk | None]:
        """Split a piece of a prompt after `size` tokens; the second part is `None` if nothing is left.

        A piece is not split if its images' tokens see each other, have experts of their own, or stand between marks
        that need the features, too; or if only the model makes its features.
        """
        cuttable = self.traits.takes_encoded and not (self._in_one_piece or self.traits.marks)
        if len(piece.tokens) <= size or piece.images is not None or piece.routes or (piece.encoded and not cuttable):
            return piece, None
        ids, positions, encoded = piece.tokens, piece.positions, piece.encoded or {}
        before, after = (self._visual_counts(part, encoded) for part in (ids[:size], ids[size:]))
        shown = first_features(encoded, before) or None
        first = Chunk(ids[:size], None if positions is None else positions[..., :size], shown, skip_logits=True)
        rest = None if positions is None else positions[..., size:]
        return first, replace(piece, tokens=ids[size:], positions=rest, encoded=last_features(encoded, after) or None)

    @torch.inference_mode()
    def extend(self, cache: KVCache, rows: Sequence[PassRow]) -> TargetOut:
        """Run one pass over each row's chunk and the draft tree after it.

        The chunks are committed; nodes of the trees are not, until `cache.keep` commits an accepted path. Chunks and
        trees may be of any lengths.
        """
        if self._extender is not None:
            return self._extender(cache, rows)
        one, executor = self._planned(cache, rows)
        began = self.clock.mark()
        logits, hidden = one.by_row(*executor(one, cache))
        done = self.clock.mark()
        for row in rows:
            cache.advance(row.index, len(row.chunk.tokens))
        return TargetOut(logits, hidden, began, done, len(one.ids) / len(rows))

    def _planned(self, cache: KVCache, rows: Sequence[PassRow]) -> tuple[Pass, Executor]:
        """The pass over these rows, and the executor that runs it."""
        if self._static is not None and (shape := self._static.shape(cache, rows)) is not None:
            return self.passes.build(cache, rows, *shape), self._static
        one = self.passes.build(cache, rows)
        if self.fast is not None and self.fast.usable:
            embeds = self._shown(one, self.fast.text.embed_tokens(one.ids))
            if embeds is not None:
                return replace(one, embeds=embeds), self.fast
        return one, self._own

    def _shown(self, one: Pass, embeds: Tensor) -> Tensor | None:
        """[N, h] embeddings with visual features in place of placeholders; `None` if only the model can do that."""
        first = 0
        fast = self.fast is not None and self.fast.embeds_features
        whole = fast and self.traits.takes_encoded and not self.traits.marks
        for row in one.rows:
            encoded = row.chunk.encoded or {}
            if encoded and not whole:
                return None
            for kind, features in encoded.items():
                # Count on the host, so as not to wait for the device.
                indexes = (row.chunk.tokens == self.traits.placeholders.get(kind, -1)).nonzero().flatten()
                rows = visual_rows(features).to(embeds)
                if len(indexes) != len(rows):
                    return None
                embeds.index_copy_(0, to_device(first + indexes, self.device), rows)
            first += len(row)
        return embeds

    def _sent(self, value: Tensor) -> Tensor:
        return as_input(self.model, self.device, value)

    def _images(self, prompt: Prompt) -> Tensor | None:
        """[L] number of each token's image, -1 = none; `None` if the model attends causally within images, too."""
        blocks = self.traits.blocks
        if blocks is None or blocks.name not in prompt.features:
            return None
        return blocks.of(prompt.features[blocks.name][0].cpu())

    def _visual_counts(self, ids: Tensor, encoded: Encoded) -> dict[str, int]:
        """Count the placeholders of each encoded kind; one token may stand for both kinds, but not at once."""
        tokens = {kind: {self.traits.placeholders.get(kind, -1)} for kind in encoded}
        own = tokens if len(tokens) > 1 else dict.fromkeys(encoded, self.traits.visual_ids)
        return {kind: sum(token in own[kind] for token in ids.tolist()) for kind in own}

    def _positions(self, prompt: Prompt) -> tuple[Tensor | None, int]:
        """Explicit [axes, L] positions and the offset of later text for M-RoPE models; `None` and 0 if all is text."""
        if not self.traits.mrope or not prompt.features:
            return None, 0
        positions, delta = rope_positions(self.model, prompt.input_ids[None].cpu(), prompt.features)
        return positions[:, 0], int(delta)


def as_input(model: PreTrainedModel, device: torch.device, value: Tensor) -> Tensor:
    """Move an input to the device that a model reads from; floating-point values get the model's dtype."""
    value = value.to(device)
    return value.to(model.dtype) if value.is_floating_point() else value
