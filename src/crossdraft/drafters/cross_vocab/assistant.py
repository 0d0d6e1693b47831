"""What the ways of drafting in a foreign vocabulary share: the drafter's model, and what it has written so far.

The answer exists twice: as the target's tokens, and as the drafter's. `said` is the text of the committed ones; `base`
are the drafter's tokens for it, and `tail` what the drafter wrote behind them and nobody has judged yet.
"""

import codecs
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from crossdraft.drafters.cross_vocab.vocabulary import TokenTable
from crossdraft.drafters.independent import own_prompt
from crossdraft.engine.cache import KVCache
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Chunk, Target
from crossdraft.engine.tree import DraftTree

LOOK_BACK = 8  # tokens of the prompt's end
SPLIT = 4  # drafter tokens that a target token takes at most, or a long answer is not drafted to its end


@dataclass(frozen=True, eq=False)
class Step:
    """What the drafter wrote in one go.

    Args:
        ids: its own tokens; several where an n-gram became one token of the target.
        confidence: its probability of them.
        token: the target's token, where there is one to one.
        law: [V] the distribution, over the target's ids, that `token` was drawn from; `None` = chosen for certain.
    """

    ids: tuple[int, ...]
    confidence: float
    token: int = -1
    law: Tensor | None = None


@dataclass(eq=False)
class AssistantState:
    """One answer as a drafter of another vocabulary sees it.

    `base` stands for the first `base_bytes` of `said`. `lead` is how the drafter begins an answer, with a space or with
    nothing; `target_lead` how the target is expected to, `None` = alike.
    """

    sampling: Sampling
    generator: torch.Generator
    cache: KVCache
    prompt: list[int]
    first: Tensor  # [V] logits behind the prompt
    last: Tensor  # [V] logits behind everything fed
    fed: list[int] = field(default_factory=list)  # answer tokens in the cache
    committed: list[int] = field(default_factory=list)  # the target's tokens
    said: bytes = b""
    base: list[int] = field(default_factory=list)
    base_bytes: int = 0
    tail: list[Step] = field(default_factory=list)
    lead: bytes = b" "
    target_lead: bytes | None = None
    on_trial: bool = False  # a fork: what happens to it teaches nothing

    @property
    def ids(self) -> list[int]:
        """Everything written, in the drafter's tokens."""
        return [*self.base, *(i for step in self.tail for i in step.ids)]

    def restate(self, own: TokenTable) -> None:
        """Say the committed text in the drafter's tokens; what it wrote itself is void.

        A last character that is not whole yet waits for its other bytes.
        """
        text, self.base_bytes = whole(self.said)
        self.base = own.encode(self.lead.decode() + text.lstrip(" ")) if text else []
        self.tail = []


class AssistantModel:
    """The drafter's model, reading and writing one page at a time."""

    def __init__(self, model: Target) -> None:
        self.model = model

    def open(self, request: Request) -> AssistantState:
        """Read a request.

        Raises:
            CrossdraftError: it does not fit into the model's context.
        """
        model = self.model
        prompt = own_prompt(model, request)
        capacity = min(model.context, len(prompt) + SPLIT * (request.token_limit + 1))
        cache = model.new_cache(capacity=capacity)
        logits = model.prefill(cache, prompt, model.encode(prompt), capacity).out.logits[0][-1]
        # A stream of its own: the target's draws must not depend on it.
        generator = request.sampling.generator(model.device, offset=1)
        ids = prompt.input_ids.tolist()
        return AssistantState(request.sampling, generator, cache, ids, logits, logits, lead=self._lead(ids))

    def _lead(self, prompt: list[int]) -> bytes:
        """A space follows "ASSISTANT:"; nothing follows the line break that a chat template ends with."""
        return b"" if self.model.decode(prompt[-LOOK_BACK:])[-1:].isspace() else b" "

    def mask(self, allowed: Iterable[int]) -> Tensor:
        """[V] to be added to logits: only these ids may be drafted."""
        mask = torch.full((self.model.vocab_size,), -math.inf, device=self.model.device)
        mask[[i for i in allowed if i < self.model.vocab_size]] = 0
        return mask

    def room(self, page: AssistantState, count: int) -> bool:
        """True if `count` answer tokens can be fed."""
        return len(page.prompt) + count <= min(self.model.context, page.cache.capacity)

    def behind(self, page: AssistantState, ids: Sequence[int]) -> Tensor:
        """[V] logits behind these answer tokens. The cache is kept as far as it agrees with them."""
        kept = common_prefix(page.fed, ids)
        if kept == len(ids) == len(page.fed):
            return page.last
        kept = max(0, min(kept, len(ids) - 1))  # the last one is fed again where its logits are gone
        page.cache.truncate(0, len(page.prompt) + kept)
        page.last = page.first
        if ids:
            chunk = Chunk(torch.tensor(ids[kept:]))
            page.last = self.model.extend(page.cache, slice(0, 1), [chunk], [DraftTree.empty()]).logits[0][-1]
        page.fed = list(ids)
        return page.last


def whole(data: bytes) -> tuple[str, int]:
    """Bytes as text, and how many of them that is: a character at the end that is not whole yet is left out.

    >>> whole("né".encode()[:-1])
    ('n', 1)
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, len(data) - len(decoder.getstate()[0])


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens agree."""
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return place
    return min(len(left), len(right))
