"""What copies of a drafter's state take: their keys and values, which for a 7B drafter are hundreds of megabytes."""

from dataclasses import fields, is_dataclass

from crossdraft.engine.cache import KVCache

FORK_BYTES = 2 * 2**30  # of all copies together that drafting ahead holds; for a 7B drafter about five


def held_bytes(state: object) -> int:
    """Bytes of the keys and values that a state holds."""
    return sum(cache.nbytes for cache in caches_of(state))


def copy_bytes(state: object) -> int:
    """Bytes of the keys and values that a copy of the state would hold."""
    return sum(cache.copy_bytes for cache in caches_of(state))


def caches_of(state: object) -> list[KVCache]:
    """The caches in a drafter's state: a dataclass, whose fields and lists may hold further states."""
    if isinstance(state, KVCache):
        return [state]
    if is_dataclass(state):
        return [cache for field in fields(state) for cache in caches_of(getattr(state, field.name))]
    if isinstance(state, list | tuple) and state and not isinstance(state[0], int | float | str):
        return [cache for part in state for cache in caches_of(part)]
    return []
