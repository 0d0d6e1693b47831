"""The drafter `memory`: trees retrieved from what the target has already answered.

It trusts, most to least, this answer so far, answers about the same clip, to the same question, and all others. It
needs no model and no training, costs well under a millisecond a round, and improves with every answer. If one question
is asked several times at once, as in the rollouts of reinforcement learning, the answers draft for each other while
they are being written (SRT: Chang et al. 2026).
"""

import hashlib
import logging
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from weakref import WeakValueDictionary

from crossdraft.drafters.base import PerRequestDrafter, show
from crossdraft.drafters.memory import MemorySettings
from crossdraft.drafters.memory.append_log import AppendLog, Record
from crossdraft.drafters.memory.datastore import START, Datastore, Scope
from crossdraft.drafters.memory.retrieval import GRAM, retrieve
from crossdraft.drafters.recycled import RANKS, RecycledTokens
from crossdraft.drafters.token_index import TokenIndex
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

OPEN = 16  # namespaces held at a time
NO_FILE = "%s What is learned is kept in this process alone."


class Datastores:
    """One datastore per namespace, in memory and, if asked, in files that several processes share.

    A file that cannot be used is reported as a warning, and left out.

    Args:
        folder: folder with a file for each namespace; `None` = only in memory.
        capacity: tokens for each namespace; the oldest answers make room for new ones.
        vocabulary: fingerprint of the tokens' tokenizer.
        open_at_once: namespaces held at a time.
        seed: answers that every namespace knows from the beginning; they are not written to files.
    """

    def __init__(
        self,
        folder: Path | None = None,
        capacity: int = MemorySettings.capacity,
        vocabulary: str = "",
        open_at_once: int = OPEN,
        seed: Sequence[Record] = (),
    ) -> None:
        self.folder = folder
        self.capacity = capacity
        self.vocabulary = vocabulary
        self.open_at_once = open_at_once
        self.seed = tuple(seed)
        self._stores: OrderedDict[str, tuple[Datastore, AppendLog | None]] = OrderedDict()

    def store(self, namespace: str) -> Datastore:
        """The datastore of a namespace, with other processes' new answers read from its file."""
        store, file = self._entry(namespace)
        if file is not None:
            edition = file.edition
            try:
                for scope, tokens in file.news():
                    if store.answers and file.edition != edition:  # the file's answers all come again, and none is new
                        store = self._new_store()
                        self._stores[namespace] = store, file
                    edition = file.edition
                    store.add(scope, tokens)
            except CrossdraftError as error:
                self._drop_file(namespace, error)
        return store

    def add(self, namespace: str, scope: Scope, tokens: Sequence[int]) -> None:
        """Add an answer to a namespace."""
        store, file = self._entry(namespace)
        if file is not None:
            try:
                file.append(scope, tokens)
            except CrossdraftError as error:
                self._drop_file(namespace, error)
            else:
                return  # it comes back with the news
        store.add(scope, tokens)

    @property
    def held(self) -> int:
        """Number of namespaces in memory."""
        return len(self._stores)

    def _drop_file(self, namespace: str, error: CrossdraftError) -> None:
        """Stop using a namespace's file after an error: a full disk or a missing folder must not cost an answer."""
        log.warning(NO_FILE, error)
        self._stores[namespace] = (self._stores[namespace][0], None)

    def _file(self, namespace: str) -> AppendLog | None:
        """The file of a namespace, or `None` without a folder or if the file cannot be used."""
        if self.folder is None:
            return None
        try:
            return AppendLog(self.folder / file_name(namespace), self.capacity, self.vocabulary)
        except CrossdraftError as error:
            log.warning(NO_FILE, error)
            return None

    def _new_store(self) -> Datastore:
        store = Datastore(self.capacity)
        for scope, tokens in self.seed:
            store.add(scope, tokens)
        return store

    def _entry(self, namespace: str) -> tuple[Datastore, AppendLog | None]:
        if namespace not in self._stores:
            self._stores[namespace] = (self._new_store(), self._file(namespace))
            while len(self._stores) > self.open_at_once:  # drops the one used least recently; its file can restore it
                self._stores.popitem(last=False)
        self._stores.move_to_end(namespace)
        return self._stores[namespace]


@dataclass(eq=False)
class MemoryState:
    """One answer: its namespace, scope, text with the prompt, tokens after START, and a number shared by its forks."""

    namespace: str | None
    scope: Scope
    text: TokenIndex
    written: list[int]
    number: int
    recycled: RecycledTokens = field(default_factory=RecycledTokens)


class MemoryDrafter(PerRequestDrafter[MemoryState]):
    """Drafts deterministic trees from earlier answers, and adds every finished answer to the datastores.

    Args:
        datastores: the answers; a request sees only answers of its own namespace.
    """

    needs = Needs(learns=True, prompt=True, successors=RANKS)

    def __init__(self, datastores: Datastores | None = None) -> None:
        self.datastores = datastores or Datastores()
        self._running = WeakValueDictionary[int, MemoryState]()  # by number, in the order in which they began
        self._numbers = count()

    def end(self, states: Sequence[MemoryState]) -> None:
        for state in states:
            self._running.pop(state.number, None)
            if state.namespace is not None and len(state.written) > 1:
                self.datastores.add(state.namespace, state.scope, state.written[1:])

    def _begin(self, request: Request) -> MemoryState:
        text = TokenIndex(GRAM, request.prompt_ids)
        state = MemoryState(request.namespace, scope_of(request), text, [START], next(self._numbers))
        self._running[state.number] = state
        return state

    def _propose(self, state: MemoryState, budget: Budget) -> Draft:
        if state.namespace is None:
            return Draft(DraftTree.empty())
        store = self.datastores.store(state.namespace)
        running = [
            other.written
            for other in list(self._running.values())
            if other.number != state.number and (other.namespace, other.scope) == (state.namespace, state.scope)
        ]
        state.text.read_prompt()
        given = budget.nodes, budget.min_confidence, running, state.text, state.recycled
        draft = retrieve(store, state.scope, state.written, *given)
        show(draft.tree.main_path_tokens, budget)
        return draft

    def _commit(self, state: MemoryState, output: VerifyOutput) -> None:
        state.written += output.tokens
        state.text.append(output.tokens)
        state.recycled.learn(output)


def scope_of(request: Request) -> Scope:
    """The scope of a request: the question by its words, ignoring case and spacing; the clip by its file."""
    clip = request.clip if isinstance(request.clip, str | os.PathLike) else None
    return Scope(number(str(Path(clip).resolve())) if clip is not None else 0, question_number(request.question))


def question_number(question: str) -> int:
    """The `number` of a question's words."""
    return number(" ".join(question.casefold().split()))


def number(text: str) -> int:
    """A number of 63 bits for a text, the same in every process; never 0. File names may be no UTF-8."""
    content = text.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) >> 1 or 1


def file_name(namespace: str) -> str:
    """The file name of a namespace, which may hold any characters, even unpaired surrogates."""
    if not namespace:
        return "default.answers"
    return hashlib.blake2b(namespace.encode(errors="surrogatepass"), digest_size=12).hexdigest() + ".answers"
