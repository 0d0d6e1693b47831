"""Parts that drafters of another vocabulary share: the assistant model, and its state for one answer.

The answer exists twice: as the target's tokens, and as the assistant's. `text` is what the committed tokens spell;
`own_ids` are the assistant's tokens for it, and `pending` the steps drafted after them and not verified yet.
"""

import codecs
import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from crossdraft.drafters.base import Draws, PerRequestDrafter, fork_of, own_prompt, read_encoded
from crossdraft.drafters.cross_vocab.vocabulary import TokenTable
from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import Needs
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft.engine.tree import common_prefix

LOOK_BACK = 8  # tokens of the prompt's end
SPLIT = 4  # assistant tokens that a target token takes at most, or a long answer is not drafted to its end
HELD = 16  # namespaces whose learned values are held at a time
Learned = TypeVar("Learned")


class ByNamespace(Generic[Learned]):
    """Values learned from the answers of each namespace; beyond `HELD`, the one not asked for longest is dropped.

    The namespace `None` keeps and finds nothing: see `Request.namespace`.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[str, Learned] = OrderedDict()

    def get(self, namespace: str | None) -> Learned | None:
        """The value learned in a namespace, or `None`."""
        if namespace is None or namespace not in self._held:
            return None
        self._held.move_to_end(namespace)
        return self._held[namespace]

    def set(self, namespace: str | None, learned: Learned) -> None:
        """Set the value of a namespace."""
        if namespace is None:
            return
        self._held[namespace] = learned
        self._held.move_to_end(namespace)
        if len(self._held) > HELD:
            self._held.popitem(last=False)


@dataclass(frozen=True, eq=False)
class DraftStep:
    """Tokens that the assistant drafted in one step.

    Args:
        ids: the assistant's tokens; several where an n-gram became one token of the target.
        prob: the assistant's probability of `ids`.
        token: the target's token, where `ids` stand for exactly one.
        dist: [V] the distribution, over the target's ids, that `token` was drawn from; `None` = deterministic.
    """

    ids: tuple[int, ...]
    prob: float
    token: int = -1
    dist: Tensor | None = None


@dataclass(eq=False)
class AssistantState:
    """One answer as the assistant sees it.

    `own_ids` stand for the first `own_bytes` of `text`. `prefix_space` begins the assistant's answers: a space or
    nothing; `target_prefix` is the same for the target, `None` = as the assistant's. Whatever is learned from the
    answer is kept for its `namespace`.
    """

    sampling: Sampling
    draws: Draws
    cache: KVCache
    prompt: list[int]
    prompt_logits: Tensor  # [V] after the prompt
    last_logits: Tensor  # [V] after everything fed
    fed: list[int] = field(default_factory=list)  # answer tokens in the cache
    committed: list[int] = field(default_factory=list)  # the target's tokens
    text: bytes = b""
    own_ids: list[int] = field(default_factory=list)
    own_bytes: int = 0
    pending: list[DraftStep] = field(default_factory=list)
    prefix_space: bytes = b" "
    target_prefix: bytes | None = None
    is_fork: bool = False  # nothing is learned from it
    namespace: str | None = ""
    notes: tuple[str, ...] = ()  # of its own prompt

    @property
    def written(self) -> list[int]:
        """The committed and the pending text, in the assistant's tokens."""
        return [*self.own_ids, *(i for step in self.pending for i in step.ids)]

    def retokenise(self, own: TokenTable) -> None:
        """Encode the committed text in the assistant's tokens, and drop the pending steps.

        An incomplete last character is left out until its other bytes come.
        """
        text, self.own_bytes = complete_text(self.text)
        self.own_ids = own.encode(self.prefix_space.decode() + text.lstrip(" ")) if text else []
        self.pending = []


class CrossVocabDrafter(PerRequestDrafter[AssistantState]):
    """A drafter with a language model of another vocabulary ("assistant" in HF's universal assisted generation).

    Args:
        model: the assistant behind the adapter, with its own `prepare`.
        own: the assistant's tokenizer, as wide as the assistant's head.
        target: the target's tokenizer, as wide as the target's head; ids that must not be drafted have no bytes in it.
        sees: true if the assistant looks at the request's video.
        learns: true if the drafter learns from answers.
    """

    def __init__(
        self, model: Target, own: TokenTable, target: TokenTable, *, sees: bool = False, learns: bool = False
    ) -> None:
        self.needs = Needs(video=sees, learns=learns)
        self.model = model
        self.own = own
        self.target = target
        self.readable = self.allow_only(i for i, text in enumerate(own.token_bytes) if text is not None or i in own.eos)

    def _begin(self, request: Request) -> AssistantState:
        """Prefill; ready-made inputs hold ids of the target's, so the text beside them is read.

        Raises:
            CrossdraftError: the request does not fit into the model's context.
        """
        model = self.model
        prompt = own_prompt(model, replace(request, inputs=None) if request.prompt else request)
        capacity = min(model.context, len(prompt) + SPLIT * (request.token_limit + 1))
        cache, out = read_encoded(model, prompt, model.encode(prompt), capacity - len(prompt))
        logits, ids, draws = out.logits[0][-1], prompt.input_ids.tolist(), Draws(request.sampling, model.device)
        state = AssistantState(request.sampling, draws, cache, ids, logits, logits, namespace=request.namespace)
        state.prefix_space, state.notes = self.prefix_space(ids), prompt.notes
        return state

    def _fork(self, state: AssistantState) -> AssistantState:
        return replace(fork_of(state), is_fork=True)

    def prefix_space(self, prompt: list[int]) -> bytes:
        """A space after a prompt such as "ASSISTANT:"; nothing after the line break that ends a chat template."""
        return b"" if self.model.decode(prompt[-LOOK_BACK:])[-1:].isspace() else b" "

    def allow_only(self, allowed: Iterable[int]) -> Tensor:
        """[V] to be added to logits: -inf at all ids but the `allowed` ones."""
        mask = torch.full((self.model.vocab_size,), -math.inf, device=self.model.device)
        mask[[i for i in allowed if i < self.model.vocab_size]] = 0
        return mask

    def has_room(self, state: AssistantState, count: int) -> bool:
        """True if `count` answer tokens can be fed."""
        return len(state.prompt) + count <= min(self.model.context, state.cache.capacity)

    def logits_behind(self, state: AssistantState, ids: Sequence[int]) -> Tensor:
        """[V] logits after these answer tokens. The cache is kept as far as it agrees with them."""
        kept = common_prefix(state.fed, ids)
        if kept == len(ids) == len(state.fed):
            return state.last_logits
        kept = max(0, min(kept, len(ids) - 1))  # the last one is fed again where its logits are gone
        kept = state.cache.truncate(0, len(state.prompt) + kept) - len(state.prompt)
        state.last_logits = state.prompt_logits
        if ids:
            chunk = Chunk(torch.tensor(ids[kept:]))
            out = self.model.extend(state.cache, [PassRow(0, chunk)])
            state.last_logits = out.logits[0][-1]
            if list(ids) == state.own_ids:
                state.cache.mark(0)
        state.fed = list(ids)
        return state.last_logits


def complete_text(data: bytes) -> tuple[str, int]:
    """Decode bytes without an incomplete last character; returns the text and the number of bytes decoded.

    >>> complete_text("né".encode()[:-1])
    ('n', 1)
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, len(data) - len(decoder.getstate()[0])
