"""PrefixCache: encoder features, keys and values of prompts' beginnings, shared between requests.

Each namespace has a radix tree over tokens (RadixAttention, Zheng et al. 2024). An edge holds the keys and values of
its tokens, copied out of a cache row; a request whose prompt begins like an earlier prompt, or like an earlier prompt
with its answer, starts with a copy of them in its own row. Visual placeholders are equal only if their image or clip
has the same content digest: prompts about two different clips share only the tokens in front of the clip. When the
budget is full, the least recently used leaves and encoder features are dropped first.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import accumulate
from types import MappingProxyType
from typing import Concatenate, ParamSpec
from weakref import ref

from torch import Tensor

from crossdraft.engine.cache import KVCache, KVPrefix, KVSpan
from crossdraft.engine.content import DIGEST_BYTES, Content, ContentDigests
from crossdraft.engine.drafter import NO_NEEDS, Needs
from crossdraft.engine.encoded import joined, without_unread
from crossdraft.engine.prompt import Encoded, Prompt
from crossdraft.engine.request import Request, nbytes_of
from crossdraft.engine.target import Target
from crossdraft.engine.tree import common_prefix

log = logging.getLogger(__name__)

WORTHWHILE = 64  # least number of cached tokens that are used in front of a clip that is not cached
SEEN = ("visuals", "inputs")  # fields of a request that a video model reads
SENSED = ("events", "inputs")  # fields of a request that an event model reads
# Inputs that hold the text, not what is shown.
TEXT = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")
ID_BITS = 32  # bits of a placeholder's number that hold its token id and its token type
TYPE_BITS = 2


@dataclass(eq=False)
class _Edge:
    """An edge of the radix tree: consecutive tokens with their keys and values.

    Args:
        above: the edge above this one, which holds it among its children; `None` for a root.
        ids: [n] token ids; visual placeholders as numbers of their content, see `_placeholder`.
        span: keys and values of the tokens.
        hidden: [n, h] features of each captured layer.
        namespace: namespace of a root.
    """

    above: "ref[_Edge] | None"
    ids: tuple[int, ...] = ()
    span: KVSpan | None = None
    hidden: Mapping[int, Tensor] = field(default_factory=dict)
    children: "dict[int, _Edge]" = field(default_factory=dict)
    namespace: str = ""

    @property
    def parent(self) -> "_Edge | None":
        """The edge above this one; `None` for a root."""
        return None if self.above is None else self.above()

    @property
    def nbytes(self) -> int:
        """Bytes of the edge's tensors."""
        span = 0 if self.span is None else self.span.nbytes
        return span + sum(features.nbytes for features in self.hidden.values())

    @property
    def contents(self) -> set[bytes]:
        """Digests of the images and clips among the edge's tokens."""
        return {_digest(token) for token in set(self.ids) if token < 0}

    def split(self, at: int) -> "_Edge":
        """A new edge above this one takes the first `at` tokens; this one keeps the others, and its children."""
        parent = self.parent
        if self.span is None or parent is None:
            raise ValueError("A root has no tokens to split.")
        first = {layer: features[:at].clone() for layer, features in self.hidden.items()}
        above = _Edge(self.above, self.ids[:at], self.span.part(0, at), first, {self.ids[at]: self})
        parent.children[self.ids[0]] = above
        self.hidden = {layer: features[at:].clone() for layer, features in self.hidden.items()}
        self.above, self.ids, self.span = ref(above), self.ids[at:], self.span.part(at, len(self.span))
        return above


@dataclass
class _Features:
    """Vision encoder output for one content."""

    encoded: Encoded
    nbytes: int


P = ParamSpec("P")


def _harmless(method: "Callable[Concatenate[PrefixCache, P], None]") -> "Callable[Concatenate[PrefixCache, P], None]":
    """Decorate a method that stores something: an error, as when memory runs out, only empties the cache."""

    @wraps(method)
    def safe(self: "PrefixCache", *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception:
            log.exception("The prefix cache failed, and is emptied.")
            self.clear()

    return safe


class PrefixCache:
    """Cache of prompts' beginnings and encoder features. To be used by one thread.

    Args:
        most_bytes: bytes of all keys, values and features together; 0 = nothing is kept.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.nbytes = 0
        self._digests = ContentDigests()
        self._roots: dict[str, _Edge] = {}
        self._features: dict[bytes, _Features] = {}
        self._known: Counter[bytes] = Counter()  # number of edges and features that hold each content
        # Least recently used first. Using an edge also uses the edges above it, which are moved to the end after it:
        # the first edge is always a leaf.
        self._used: OrderedDict[_Edge | bytes, None] = OrderedDict()
        self._warned = False

    def identify(self, request: Request, names: Sequence[str] = SEEN) -> Request:
        """Set a request's `content`, the digests of these fields, and `known`, if it is cached here; in any thread.

        A request without a namespace has no content, nor has a request that shows something without a digest.
        """
        if not self.most_bytes or request.namespace is None:
            return replace(request, content=None, known=False)  # another model's cache may have set them
        found: list[Content] = []
        for kind, value in _shown(request, names):
            content = self._digests.of({"namespace": request.namespace, "kind": kind}, value)
            if content is None:
                return replace(request, content=None, known=False)
            found.append(content)
        content = Content.joined(found)
        request = replace(request, content=content)
        return replace(request, known=self.knows(request))

    def knows(self, request: Request) -> bool:
        """True if something is cached of an identified request's content as a whole, or of each of its items."""
        content: Content | None = request.content
        if content is None or not content.items:
            return False
        return content.digest in self._known or all(one in self._known for one in content.items)

    def lookup(self, target: Target, prompt: Prompt, request: Request, needs: Needs = NO_NEEDS) -> "CachedPrompt":
        """Look up the cached parts of a prompt.

        Args:
            target: the model that the prompt was prepared for.
            prompt: the prompt to look up.
            request: the prompt's request, as `identify` returned it.
            needs: needs of the drafter. If the drafter reads the target's features, text after the last visual token is
                not taken from the cache, and other tokens only with the features of `visual_layers`.
        """
        content: Content | None = request.content
        plain = CachedPrompt(self, target, prompt)
        if content is None:
            return plain
        ids = prompt.input_ids.tolist()
        visual = [at for at, token in enumerate(ids) if token in target.traits.visual_ids]
        types = _token_types(prompt, visual)
        if types is None:
            return plain
        items = _items(target, prompt, content, visual)
        for item in items:
            for at in range(item.start, item.end):
                if ids[at] in target.traits.visual_ids:
                    ids[at] = _placeholder(item.digest, ids[at] << TYPE_BITS | types[at])
        cached = replace(plain, content=content, ids=tuple(ids), namespace=request.namespace or "", items=items)
        first, cut = (visual[0], visual[-1] + 1) if visual else (0, 0)
        # The last token is always read: it is the root of the tree that rides along.
        most = min(len(ids) if needs.nothing else cut, len(ids) - 1)
        prefix = self._find(cached, most, needs.visual_layers)
        length = len(prefix)
        for item in items:  # an item is taken from the cache as a whole or not at all
            length = item.start if item.start < length < item.end else length
        if length <= first and length < min(cut, WORTHWHILE):
            length = 0
        return replace(cached, prefix=prefix.first(length))

    def _find(self, cached: "CachedPrompt", most: int, layers: Sequence[int]) -> KVPrefix:
        """The longest cached prefix, of at most `most` tokens."""
        parts: list[tuple[KVSpan, int]] = []
        hidden: list[Mapping[int, Tensor]] = []
        found: list[_Edge] = []
        length = 0
        for edge, agreed in self._walk(cached):
            count = min(agreed, most - length)
            if count == 0 or edge.span is None or not edge.hidden.keys() >= set(layers):
                break
            found.append(edge)
            parts.append((edge.span, count))
            hidden.append({layer: edge.hidden[layer][:count] for layer in layers})
            length += count
        self._use(found)
        return KVPrefix(tuple(parts), tuple(hidden))

    def _use(self, edges: Sequence[_Edge]) -> None:
        """Note that edges were used, each below the one before it."""
        for edge in reversed(edges):
            self._used[edge] = None
            self._used.move_to_end(edge)

    def _walk(self, cached: "CachedPrompt") -> Iterator[tuple[_Edge, int]]:
        """The edges along a prompt's ids, each with the number of its tokens that agree."""
        edge, at, ids = self._roots.get(cached.namespace), 0, cached.ids
        while edge is not None and at < len(ids) and (edge := edge.children.get(ids[at])) is not None:
            count = common_prefix(edge.ids, ids[at : at + len(edge.ids)])
            yield edge, count
            if count < len(edge.ids):
                return
            at += count

    def after(self, cached: "CachedPrompt") -> tuple[int, ...]:
        """The token ids that were last stored behind a prompt; none if nothing was, or it is not cached."""
        walked = list(self._walk(cached))
        if sum(agreed for _, agreed in walked) < len(cached.ids):
            return ()
        edge, agreed = walked[-1]
        ids = [*edge.ids[agreed:]]
        while edge.children:
            edge = next(reversed(edge.children.values()))
            ids += edge.ids
        return tuple(ids)

    def features(self, digest: bytes) -> Encoded | None:
        """Return the cached encoder features of an item, or of all of them together; `None` if there are none."""
        found = self._features.get(digest)
        if found is None:
            return None
        self._used.move_to_end(digest)
        return found.encoded

    @_harmless
    def add_features(self, content: Content, digest: bytes, encoded: Encoded) -> None:
        """Keep the encoder features of one item of a content, or of all items together."""
        encoded = {kind: without_unread(features) for kind, features in encoded.items()}
        nbytes = nbytes_of(encoded)
        if not nbytes or digest in self._features or not content.unchanged or not self._fits(nbytes):
            return
        self._hold(digest, encoded, nbytes)
        self._evict()

    def _hold(self, digest: bytes, encoded: Encoded, nbytes: int) -> None:
        self._features[digest] = _Features(encoded, nbytes)
        self._used[digest] = None
        self._known[digest] += 1
        self.nbytes += nbytes

    @_harmless
    def add(
        self, cached: "CachedPrompt", cache: KVCache, row: int, hidden: Mapping[int, Tensor], layers: Sequence[int]
    ) -> None:
        """Keep the keys and values of a prompt's ids, which a row holds.

        Args:
            cached: the prompt; the row holds all of its ids, or more tokens.
            cache, row: place of the keys and values.
            hidden: [n, h] features of each of `layers`, of the same tokens.
        """
        if cached.content is None or not cached.content.unchanged:
            return
        ids, at = cached.ids, 0
        above = self._roots.get(cached.namespace) or _Edge(None, namespace=cached.namespace)
        path: list[_Edge] = []
        for known, count in list(self._walk(cached)):
            edge = known if count == len(known.ids) else self._split(known, count)
            if not edge.hidden.keys() >= set(layers):  # cached without the layers that are captured now
                self.nbytes -= edge.nbytes
                edge.hidden = {**edge.hidden, **{layer: hidden[layer][at : at + count].clone() for layer in layers}}
                self.nbytes += edge.nbytes
            path.append(edge)
            above, at = edge, at + count
        if at < len(ids):
            path += self._append(above, cached, at, cache, row, {layer: hidden[layer][at:] for layer in layers})
        self._use(path)
        self._evict()

    def _split(self, edge: _Edge, at: int) -> _Edge:
        self._known.subtract(edge.contents)
        above = edge.split(at)
        self._known.update((*above.contents, *edge.contents))
        return above

    def _append(
        self, above: _Edge, cached: "CachedPrompt", at: int, cache: KVCache, row: int, hidden: Mapping[int, Tensor]
    ) -> list[_Edge]:
        """Add an edge for the ids from `at` on; returns a list of that edge, empty if the edge is too large."""
        ids = cached.ids[at:]
        size = cache.token_bytes * len(ids) + cache.state_bytes + sum(features.nbytes for features in hidden.values())
        if not self._fits(size):
            return []
        if above.above is None:
            self._roots[cached.namespace] = above
        span = cache.span(row, at, len(cached.ids))
        own = {layer: features.clone() for layer, features in hidden.items()}
        edge = above.children[ids[0]] = _Edge(ref(above), ids, span, own)
        self._known.update(edge.contents)
        self.nbytes += edge.nbytes
        return [edge]

    def _fits(self, nbytes: int) -> bool:
        """True if an entry of `nbytes` bytes fits the budget at all."""
        if nbytes > self.most_bytes and not self._warned:
            self._warned = True
            log.warning(
                "The prefix cache's %s bytes do not hold one prompt, of %s; questions about a known clip are read "
                "anew. Give it more: cache_bytes=….", f"{self.most_bytes:,}", f"{nbytes:,}",
            )  # fmt: skip
        return nbytes <= self.most_bytes

    def _evict(self) -> None:
        """Drop the least recently used entries until the rest fits the budget; an edge goes after those below it."""
        while self.nbytes > self.most_bytes:
            oldest, _ = self._used.popitem(last=False)
            if isinstance(oldest, bytes):
                self._drop_features(oldest)
                continue
            self._drop(oldest)

    def _drop_features(self, digest: bytes) -> None:
        self.nbytes -= self._features.pop(digest).nbytes
        self._forget(digest)

    def _drop(self, leaf: _Edge) -> None:
        """Forget a leaf, and its namespace's root if that has no edges left."""
        self.nbytes -= leaf.nbytes
        for digest in leaf.contents:
            self._forget(digest)
        if (parent := leaf.parent) is not None:
            del parent.children[leaf.ids[0]]
            if parent.above is None and not parent.children:
                del self._roots[parent.namespace]

    def _forget(self, digest: bytes) -> None:
        self._known[digest] -= 1
        if not self._known[digest]:
            del self._known[digest]

    def clear(self) -> None:
        """Forget everything."""
        self._roots, self._features, self._known, self.nbytes = {}, {}, Counter(), 0
        self._used.clear()


@dataclass(frozen=True)
class _Item:
    """A unit of encoding: one image or clip, or all of a prompt's together.

    Args:
        digest: digest of its content.
        start, end: where its placeholders begin and end in the prompt.
        prompt: a prompt with its inputs alone.
    """

    digest: bytes
    start: int
    end: int
    prompt: Prompt


@dataclass(frozen=True)
class CachedPrompt:
    """A prompt, and the parts of it that a `PrefixCache` holds.

    Args:
        prefixes: the cache.
        target: the model that the prompt was prepared for.
        prompt: the prompt, as that model reads it.
        content: content of its images and clips; `None` = the prompt is not cached.
        ids: its token ids; visual placeholders as numbers of their content, see `_placeholder`.
        namespace: namespace of its request.
        items: its images and clips, in the order of the ids.
        prefix: its cached beginning, which need not be read.
    """

    prefixes: PrefixCache
    target: Target
    prompt: Prompt
    content: Content | None = None
    ids: tuple[int, ...] = ()
    namespace: str = ""
    items: tuple[_Item, ...] = ()
    prefix: KVPrefix = field(default_factory=KVPrefix)

    def answered(self) -> tuple[int, ...]:
        """The tokens of the last answer to it, as far as the cache holds them, and text that followed those."""
        found = () if self.content is None else self.prefixes.after(self)
        return found[: next((at for at, token in enumerate(found) if token < 0), None)]

    def encode(self, *, always: bool = False) -> Encoded:
        """Make the visual features that the target has yet to read; with `always` also those of the cached prefix."""
        encoding = self.encoding(always=always)
        return encoding.keep(encoding.make())

    def encoding(self, *, always: bool = False) -> "Encoding":
        """Return the work that `encode` does, to be done in another thread."""
        if self.content is None:
            return Encoding(self, (), (None,))
        items = tuple(item for item in self.items if always or item.end > len(self.prefix))
        return Encoding(self, items, tuple(self.prefixes.features(item.digest) for item in items))

    def store(self, cache: KVCache, row: int, cut: int, hidden: Mapping[int, Tensor] = MappingProxyType({})) -> None:
        """Cache the prompt up to its last visual token, or all of it if it has none.

        Args:
            cache, row: place of its keys and values.
            cut: number of tokens up to the last visual one.
            hidden: [cut, h] features of each captured layer.
        """
        if self.content is None:
            return
        if min(self.ids, default=0) >= 0:  # no drafter asks for features of text alone
            cut, hidden = len(self.ids), {}
        if cache.keeps_states and cache.lengths[row] != cut:  # states are known only where a pass has ended
            if cache.lengths[row] < len(self.ids):
                return
            cut, hidden = len(self.ids), {}
        self.prefixes.add(replace(self, ids=self.ids[:cut]), cache, row, hidden, tuple(hidden))

    def store_answer(self, cache: KVCache, row: int, tokens: Sequence[int]) -> None:
        """Cache the prompt with its answer, as far as a row holds them, for the next turn of the conversation."""
        if self.content is not None:
            text = replace(self, ids=(*self.ids, *tokens)[: cache.lengths[row]])
            self.prefixes.add(text, cache, row, {}, ())


@dataclass(frozen=True)
class Encoding:
    """Visual features of a prompt, some of which are still to be made.

    Args:
        known: the prompt.
        items: the items to encode; `()` = all together.
        found: cached features of each item, or of all together; `None` = to be made.
    """

    known: CachedPrompt
    items: tuple[_Item, ...]
    found: tuple[Encoded | None, ...]

    @property
    def done(self) -> bool:
        """True if nothing has to be encoded."""
        return None not in self.found

    def make(self) -> list[Encoded]:
        """Encode what is missing, in any thread."""
        prompts = [item.prompt for item in self.items] if self.items or not self.found else [self.known.prompt]
        pairs = zip(prompts, self.found, strict=True)
        return [self.known.target.encode(one) if found is None else found for one, found in pairs]

    def keep(self, made: Sequence[Encoded]) -> Encoded:
        """Join the features of all items, and cache the new ones; to be called in the cache's thread."""
        content, target, prefixes = self.known.content, self.known.target, self.known.prefixes
        for item, found, encoded in zip(self.items, self.found, made, strict=False):
            if found is None and content is not None and target.traits.takes_encoded:
                prefixes.add_features(content, item.digest, encoded)
        return joined(made) if self.items or not made else made[0]


def _placeholder(digest: bytes, token: int) -> int:
    """Number that stands for a visual token's content, id and type; negative, as no token id is."""
    return -1 - (int.from_bytes(digest) << ID_BITS | token)


def _digest(placeholder: int) -> bytes:
    return (-1 - placeholder >> ID_BITS).to_bytes(DIGEST_BYTES)


def _token_types(prompt: Prompt, visual: Sequence[int]) -> list[int] | None:
    """Types of a prompt's tokens, on which positions depend; `None` if one outside `visual` is not typed as text."""
    types = prompt.features.get("mm_token_type_ids")
    found: list[int] = [0] * len(prompt) if types is None else types[0].tolist()
    shown = set(visual)
    text = all(kind == 0 or at in shown for at, kind in enumerate(found))
    return found if text and 0 <= min(found) <= max(found) < 1 << TYPE_BITS else None


def _shown(request: Request, names: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Yield what these fields of a request show a model, each part with its kind."""
    for name in names:
        if name == "visuals":
            yield from ((part.kind, part.value) for part in request.visuals)
        elif name != "inputs":
            yield name, getattr(request, name)
        elif request.inputs is not None:
            yield name, {field: value for field, value in request.inputs.items() if field not in TEXT}


def _items(target: Target, prompt: Prompt, content: Content, visual: Sequence[int]) -> tuple[_Item, ...]:
    """Split a prompt into units of encoding: each item, or all that is visual, with placeholders at `visual`."""
    if not visual:
        return ()
    ends = list(accumulate(item.tokens for item in prompt.items))
    by_item = target.traits.takes_encoded and ends[-1:] == [len(visual)] and len(ends) == len(content.items)
    if not by_item:
        return (_Item(content.digest, visual[0], visual[-1] + 1, prompt),)
    return tuple(
        _Item(
            content.items[item.source],
            visual[end - item.tokens],
            visual[end - 1] + 1,
            Prompt(prompt.input_ids[:0], item.features),
        )
        for item, end in zip(prompt.items, ends, strict=True)
    )
