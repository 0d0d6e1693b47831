"""Grammars of answers that are calls of tools, in llguidance's Lark."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from crossdraft.structure.call_forms import CallForm, Schemas, is_text
from crossdraft.structure.structure import Structure, _check_schema

if TYPE_CHECKING:
    from llguidance import LLTokenizer

STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # of templates' own JSON
MOST_WRITTEN = 1 << 22  # bytes of each schema times its arguments, which may each be written with all of it
MARKED = re.compile(rb"\xff\[(\d+)\]")  # how llguidance writes a token that is no text


class CallGrammar(Structure):
    """A grammar that is as long as the definitions of tools may be."""

    def __post_init__(self) -> None:
        pass


class MarkedTokenizer:
    """A tokenizer of llguidance's that takes and gives `marks` as llguidance's forced text spells them."""

    def __init__(self, tokenizer: "LLTokenizer", marks: Collection[int]) -> None:
        self._tokenizer, self._marks = tokenizer, marks

    def tokenize_bytes(self, text: bytes) -> list[int]:
        parts = enumerate(MARKED.split(text))
        return [one for at, part in parts for one in ([int(part)] if at % 2 else self._tokenizer.tokenize_bytes(part))]

    def decode_bytes(self, tokens: Sequence[int]) -> bytes:
        decode = self._tokenizer.decode_bytes
        return b"".join(b"\xff[%d]" % one if one in self._marks else decode([one]) for one in tokens)


def call_grammar(form: CallForm, schemas: Schemas, marks: Mapping[str, int], *, several: bool) -> str:
    """Write the grammar of an answer that is a call, or `several`.

    Arguments in JSON fulfil the tool's schema; of those that stand one by one a text is any, or one of an `enum`.

    Args:
        form: the form of calls.
        schemas: of the tools that may be called.
        marks: ids of the form's marks that are tokens of their own.

    Raises:
        ValueError: a schema would compile to a huge automaton, or the grammar would be huge.
    """
    costs = [len(schema.get("properties") or ()) * len(json.dumps(schema)) for schema in schemas.values()]
    if form.keyed is not None and sum(costs) > MOST_WRITTEN:
        raise ValueError("they have too many arguments for their length")
    split = re.compile(f"({'|'.join(map(re.escape, marks)) or '(?!)'})")
    rules: list[str] = ["TEXT: /(?s:.*)/"]

    def literal(text: str) -> str:
        pieces = (one for one in split.split(text) if one)
        return " ".join(f"<[{marks[one]}]>" if one in marks else json.dumps(one, ensure_ascii=False) for one in pieces)

    def until(end: str) -> str:
        if split.match(end):
            return f"TEXT {literal(end)}"
        rules.append(f"until{len(rules)}[suffix={json.dumps(end)}]: /(?s:.*)/")
        return f"until{len(rules) - 1}"

    def value(schema: Any, root: Mapping[str, Any], opening: str, closing: str) -> str:
        texts = schema.get("enum") if isinstance(schema, Mapping) else None
        if texts and all(isinstance(one, str) for one in texts):
            return f"({' | '.join(literal(opening + one + closing) for one in texts)})"
        if is_text(schema):
            return f"{literal(opening)} {until(closing)}"
        return f"{_json({**root, **schema})} {literal(closing.removeprefix(opening))}"

    def arguments(schema: Mapping[str, Any], before: str, opening: str, closing: str) -> str:
        root = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        written = {
            key: f"{literal(before.replace('KEY', key))} {value(part, root, opening, closing)}"
            for key, part in (schema.get("properties") or {}).items()
        }
        return _listed(written, schema.get("required") or (), comma=bool(opening))

    calls: list[str] = []
    for name, schema in schemas.items():
        _check_schema(schema)
        given = _json(schema) if form.keyed is None else arguments(schema, *form.keyed)
        calls.append(f"{literal(form.head.replace('NAME', name))} {given} {literal(form.tail)}")
    more = f"({literal(form.between or '')} call)*" if several and form.between is not None else ""
    start = f"start: {literal(form.around[0])} call {more} {literal(form.around[1])}"
    return "\n".join([start, f"call: {' | '.join(calls)}", *rules])


def _listed(arguments: Mapping[str, str], needed: Collection[str], *, comma: bool) -> str:
    """Arguments in their order, or where commas stand between them, needed ones first."""
    if not comma:
        return " ".join(one if key in needed else f"({one})?" for key, one in arguments.items())
    free = [one for key, one in arguments.items() if key not in needed]
    rest = [f'("," {one})?' for one in free]
    if len(free) < len(arguments):
        return " ".join([' "," '.join(one for key, one in arguments.items() if key in needed), *rest])
    ways = [" ".join([one, *rest[at + 1 :]]) for at, one in enumerate(free)]
    return f"({' | '.join(ways)})?" if ways else ""


def _json(schema: Mapping[str, Any]) -> str:
    closed = {"additionalProperties": False} if "properties" in schema else {}
    return f"%json {json.dumps({**closed, **schema, 'x-guidance': STYLE})}"
