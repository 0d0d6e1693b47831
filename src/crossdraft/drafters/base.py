"""Copies of a drafter's memory of one answer, for its `fork`."""

from dataclasses import fields, replace
from typing import TYPE_CHECKING, TypeVar

from crossdraft.engine.cache import KVCache

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    State = TypeVar("State", bound=DataclassInstance)
else:
    State = TypeVar("State")


def fork_of(state: State) -> State:
    """A copy of a dataclass that goes its own way.

    What is changed in place is copied: lists, dicts, the cache. Whatever else a state holds, and what its lists hold,
    is only ever put in another's place, and may be shared. The source of chance must be: were numbers drawn twice,
    one would be known before its word is drawn, and the word would not follow the law that is told.
    """
    return replace(state, **{field.name: _own(getattr(state, field.name)) for field in fields(state)})


def _own(value: object) -> object:
    match value:
        case list() | dict() | KVCache():
            return value.copy()
        case _:
            return value
