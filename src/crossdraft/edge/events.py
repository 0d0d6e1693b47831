"""Placeholder in a request for events that lie at an edge. It imports nothing that only an edge or a server needs."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EdgeEvents:
    """A mark in `Request.events`: the recording lies at the edge, behind this `edge.remote.EdgeLink`.

    The link stays in this process. A copy in another process only says that the events are at the edge, so that a
    drafter that wants to read them there refuses the request.
    """

    link: Any = None

    def __reduce__(self) -> "tuple[type[EdgeEvents], tuple[()]]":
        return EdgeEvents, ()

    def __str__(self) -> str:
        return "at the edge"
