"""The picture of docs/architecture.md, drawn from the imports: `python docs/rooms.py` brings it up to date.

An arrow says that modules of one room import modules of another. One that follows from two others is left out.
"""

import re
from pathlib import Path

import grimp

PAGE = Path(__file__).parent / "architecture.md"
MARKED = re.compile(r"(<!-- rooms -->\n).*?(<!-- end -->)", re.DOTALL)
ALONE = (
    "api",
    "assembly",
    "builders",
    "compressions",
    "load",
    "methods",
)  # modules of the package itself that are shown
PARTS = ("heads.networks", "heads.convert")  # rooms within a room that know less than it does
LEFT_OUT = ("reference",)  # holds weights
ROOMS = {path.parent.name for path in (PAGE.parents[1] / "src" / "crossdraft").glob("*/__init__.py")}


def room_of(module: str) -> str | None:
    """The room that a module is in; `None` for small ones that everybody may use."""
    name = module.partition(".")[2]
    part = next((part for part in PARTS if f"{name}.".startswith(f"{part}.")), None)
    if part is not None:
        return part
    first = name.partition(".")[0]
    return first if first in ALONE or (first in ROOMS and first not in LEFT_OUT) else None


def imports() -> dict[str, set[str]]:
    """For every room those that it imports."""
    graph = grimp.build_graph("crossdraft", exclude_type_checking_imports=True)
    found: dict[str, set[str]] = {}
    for module in graph.modules:
        room = room_of(module)
        if room is not None:
            others = {room_of(other) for other in graph.find_modules_directly_imported_by(module)}
            found.setdefault(room, set()).update(other for other in others if other not in (None, room))
    return found


def reduced(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Without arrows that follow from two others."""

    def below(room: str, seen: frozenset[str] = frozenset()) -> set[str]:
        direct = edges.get(room, set()) - seen
        return direct.union(*(below(other, seen | {room}) for other in direct)) if direct else set()

    return {
        room: {other for other in others if not any(other in below(third) for third in others - {other})}
        for room, others in edges.items()
    }


def picture() -> str:
    """The rooms as a Mermaid flowchart."""
    edges = reduced(imports())
    name = {room: room.replace(".", "_") for room in edges}
    lines = [f'  {name[room]}["{room}"]' for room in sorted(edges)]
    lines += [f"  {name[room]} --> {name[other]}" for room in sorted(edges) for other in sorted(edges[room])]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```", ""])


def drawn(page: str) -> str:
    """A page with its picture as the imports are now."""
    return MARKED.sub(lambda found: found[1] + picture() + found[2], page)


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
