"""Stores of answers by namespace, in memory and, if asked, in files that several processes share."""

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from crossdraft.drafters.memory.append_log import AppendLog
from crossdraft.drafters.memory.datastore import Datastore, Scope
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

CAPACITY = 1 << 18
OPEN = 16  # namespaces held at a time


class Datastores:
    """A store for every namespace; what one holds, no other sees.

    A file that cannot be used from the first is refused; one that fails later is told as a warning, and done without.

    Args:
        folder: where they are kept, a file for each namespace; `None` = only in memory.
        capacity: tokens for each namespace; the oldest answers make room for new ones.
        vocabulary: a fingerprint of the tokenizer that the tokens are of.
    """

    def __init__(
        self, folder: Path | None = None, capacity: int = CAPACITY, vocabulary: str = "", open_at_once: int = OPEN
    ) -> None:
        self.folder = folder
        self.capacity = capacity
        self.vocabulary = vocabulary
        self.open_at_once = open_at_once
        self._stores: OrderedDict[str, tuple[Datastore, AppendLog | None]] = OrderedDict()

    def store(self, namespace: str) -> Datastore:
        """Everything known in a namespace, other processes' answers included."""
        store, journal = self._entry(namespace)
        if journal is not None:
            try:
                for scope, tokens in journal.news():
                    store.add(scope, tokens)
            except CrossdraftError as error:
                self._forgo_file(namespace, error)
        return store

    def add(self, namespace: str, scope: Scope, tokens: Sequence[int]) -> None:
        """Remember an answer."""
        store, journal = self._entry(namespace)
        if journal is not None:
            try:
                journal.append(scope, tokens)
            except CrossdraftError as error:
                self._forgo_file(namespace, error)
            else:
                return  # it comes back with the news
        store.add(scope, tokens)

    @property
    def held(self) -> int:
        """How many namespaces are in memory."""
        return len(self._stores)

    def _forgo_file(self, namespace: str, error: CrossdraftError) -> None:
        """A disk that is full, or a folder that is gone, must not cost an answer that could do without."""
        log.warning("%s What is learned is kept in this process alone.", error)
        self._stores[namespace] = (self._stores[namespace][0], None)

    def _entry(self, namespace: str) -> tuple[Datastore, AppendLog | None]:
        if namespace not in self._stores:
            journal = None
            if self.folder is not None:
                journal = AppendLog(self.folder / file_name(namespace), self.capacity, self.vocabulary)
            self._stores[namespace] = (Datastore(self.capacity), journal)
            while len(self._stores) > self.open_at_once:  # the one not asked for longest; a file brings it back
                self._stores.popitem(last=False)
        self._stores.move_to_end(namespace)
        return self._stores[namespace]


def file_name(namespace: str) -> str:
    """The file of a namespace, whatever characters that has, even halves of one (surrogates)."""
    if not namespace:
        return "default.answers"
    return hashlib.blake2b(namespace.encode(errors="surrogatepass"), digest_size=12).hexdigest() + ".answers"
