"""Forms in which models write calls of tools: how a call is found in an answer, read, and written by a grammar."""

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from crossdraft.files import parse_json
from crossdraft.messages import ToolCall

Calls = list[tuple[str, Mapping[str, Any]]]
"""Names of the tools that are called, each with its arguments."""
Schemas = Mapping[str, Mapping[str, Any]]
"""JSON schema of each tool's parameters."""
BEFORE_JSON = re.compile(r"(?:[\s;,]|\[TOOL_CALLS\])*+(?:([\w.-]++)(?:\[CALL_ID\]\w++)?(?:\[ARGS\])?)?\s*+(?=[\[{])")
BRACED = re.compile(r"\s*call:([\w.-]+)\s*(\{.*\})\s*", re.DOTALL)
KEY = re.compile(r"([{,]\s*)([^\s\"{}\[\]:,]+)\s*:")
WORDS = {"True": "true", "False": "false", "None": "null"}  # as templates print Python's values
MOST_READS = 256  # of an answer's texts that may be calls


@dataclass(frozen=True)
class CallForm:
    """A form of calls.

    Args:
        known_by: texts in the chat templates of this form.
        begin: marks that begin a call; all but the first are part of it, and count at an answer's beginning alone.
        end: the mark behind it; empty = the answer's end.
        read: reads the text between the marks; returns the calls, and text behind them.
        head, tail: before and after a call's arguments, `NAME` being the tool's name.
        keyed: before an argument, `KEY` being its name, then before and after a string; `None` = they are JSON.
        around, between: around all calls, and between two; `None` = there is one at most.
    """

    known_by: tuple[str, ...]
    begin: tuple[str, ...]
    end: str
    read: Callable[[str, Schemas], tuple[Calls, str]]
    head: str
    tail: str
    keyed: tuple[str, str, str] | None = None
    around: tuple[str, str] = ("", "")
    between: str | None = "\n"

    @property
    def text(self) -> str:
        """All that is written in this form besides names and values, where special tokens may stand."""
        return "".join((*self.begin, self.end, self.head, *(self.keyed or ()), *self.around, "[CALL_ID]"))


def read_json(text: str, schemas: Schemas) -> tuple[Calls, str]:
    """Read calls in JSON, `{"name": …, "arguments": {…}}` or `name{…}`, one after another or in a list."""
    calls, at, decoder = Calls(), 0, json.JSONDecoder()
    while (found := BEFORE_JSON.match(text, at)) is not None:
        try:
            value, end = decoder.raw_decode(text, found.end())
            value = {"name": found[1], "arguments": value} if found[1] else value
            for one in value if isinstance(value, list) else [value]:
                given: Any = one.get("arguments", one.get("parameters"))
                calls.append((one["name"], {**(parse_json(given) if isinstance(given, str) else given)}))
        except (ValueError, LookupError, AttributeError, TypeError):
            break
        at = end
    return calls, text[at:]


def tagged(head: str, argument: str) -> Callable[[str, Schemas], tuple[Calls, str]]:
    """Make a reader of a call whose arguments stand between tags, as text; the schema says which are JSON."""
    whole, each = re.compile(head, re.DOTALL), re.compile(rf"\s*+{argument}", re.DOTALL)

    def value_of(text: str, schema: Any) -> Any:
        try:
            return text if is_text(schema) else parse_json(WORDS.get(text.strip(), text))
        except ValueError:
            return text

    def read(text: str, schemas: Schemas) -> tuple[Calls, str]:
        if (found := whole.fullmatch(text)) is None:
            return [], text
        known: Any = schemas.get(found[1], {}).get("properties") or {}
        given, rest, at = dict[str, Any](), found[2], 0
        while (one := each.match(rest, at)) is not None:  # one after another: a search would begin at each letter
            given[one[1]], at = value_of(one[2], known.get(one[1])), one.end()
        return ([], text) if rest[at:].strip() else ([(found[1], given)], "")

    return read


def read_braced(text: str, schemas: Schemas) -> tuple[Calls, str]:
    """Read `call:name{key:value}`, where keys are bare, and `<|"|>` stands around strings."""
    if (found := BRACED.fullmatch(text)) is None:
        return [], text
    parts = found[2].split('<|"|>')
    parts[::2] = [KEY.sub(r'\1"\2":', part) for part in parts[::2]]
    parts[1::2] = [json.dumps(part) for part in parts[1::2]]
    return [(found[1], parse_json("".join(parts)))], ""


def is_text(schema: Any) -> bool:
    """True if a schema allows strings, or does not say."""
    kinds = [schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())] if isinstance(schema, Mapping) else []
    return not schema or any("string" in (one.get("type") or ()) for one in kinds)


FORMS: Mapping[str, CallForm] = {
    "qwen3_coder": CallForm(
        ("<tool_call>", "<function="), ("<tool_call>",), "</tool_call>",
        tagged(r"\s*<function=([^>\s]+)>(.*)</function>\s*", r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>"),
        "<tool_call>\n<function=NAME>\n", "</function>\n</tool_call>", ("<parameter=KEY>\n", "", "\n</parameter>\n"),
    ),
    "glm45": CallForm(
        ("<tool_call>", "<arg_key>"), ("<tool_call>",), "</tool_call>",
        tagged(r"\s*([^\s<]+)(.*)", r"<arg_key>([^<]*+)</arg_key>\s*+<arg_value>(.*?)</arg_value>"),
        "<tool_call>NAME\n", "</tool_call>", ("<arg_key>KEY</arg_key>\n<arg_value>", "", "</arg_value>\n"),
    ),
    "gemma4": CallForm(
        ("<|tool_call>",), ("<|tool_call>",), "<tool_call|>", read_braced,
        "<|tool_call>call:NAME{", "}<tool_call|>", ("KEY:", '<|"|>', '<|"|>'), between="",
    ),
    "mistral_v11": CallForm(
        ("[TOOL_CALLS]", "[ARGS]"), ("[TOOL_CALLS]",), "", read_json, "[TOOL_CALLS]NAME[ARGS]", "", between="",
    ),
    "mistral": CallForm(
        ("[TOOL_CALLS]",), ("[TOOL_CALLS]",), "", read_json, '{"name": "NAME", "arguments": ', "}",
        around=("[TOOL_CALLS][", "]"), between=", ",
    ),
    "hermes": CallForm(
        ("<tool_call>", '"arguments": '), ("<tool_call>",), "</tool_call>", read_json,
        '<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>",
    ),
    "llama3_json": CallForm(
        ('"parameters": ', "ipython"), ("<|python_tag|>", '{"name"', '{"type"'), "", read_json,
        '{"name": "NAME", "parameters": ', "}", between=None,
    ),
}  # fmt: skip
"""The forms by vLLM's names of their parsers; a chat template has the first one that it is known by."""


class CallReader:
    """Takes the calls out of one answer's text.

    Text before a mark is handed out at once, without the blanks in front of a call; a call once it is whole. What turns
    out to be none is handed out as it was written.

    Args:
        form: the form of the calls.
        schemas: of the tools' parameters.
        most: calls that are taken; later ones are left out. `None` = all are.
    """

    def __init__(self, form: CallForm, schemas: Schemas, most: int | None = None) -> None:
        self._form, self._schemas, self._most = form, schemas, most
        self._held = ""  # text that may belong to a call
        self._inside = self._said = False  # whether a mark begins what is held; whether text came since the last call
        self._looked = self._reads = self._count = 0  # letters searched for an end; texts read; calls found
        self._calls: list[ToolCall] = []

    def push(self, text: str, *, last: bool = False) -> str:
        """Read more text, perhaps the last of it; returns what belongs to no call."""
        self._held += text
        content = ""
        while self._held and (part := (self._inner if self._inside else self._outer)(last=last)) is not None:
            self._said |= bool(part.strip())
            content += part
        return content

    def taken(self) -> tuple[ToolCall, ...]:
        """The calls that were completed since this was last asked."""
        calls, self._calls = tuple(self._calls), []
        return calls

    def _outer(self, *, last: bool) -> str | None:
        """Take text before a mark; `None` if there is none now."""
        begins = self._form.begin[: 1 if self._said or self._count else None]
        found = [(mark, self._held.find(mark)) for mark in begins]
        places = [at for mark, at in found if at >= 0 and (mark == begins[0] or not self._held[:at].strip())]
        if places and self._reads < MOST_READS:
            self._inside, self._looked = True, 0
            return self._take(len(self._held[: min(places)].rstrip()))
        if last:
            return self._take(len(self._held)) if self._held.strip() or self._said or not self._count else None
        kept = max(n for mark in begins for n in range(len(mark)) if self._held.endswith(mark[:n]))
        return self._take(len(self._held[: len(self._held) - kept].rstrip())) or None

    def _inner(self, *, last: bool) -> str | None:
        """Take a call; `None` if its end is still to come. An end mark in a string is none, as nothing can be read."""
        end = self._form.end
        at = self._held.find(end, self._looked) if end else -1
        if at < 0 and not last:
            self._looked = max(self._looked, len(self._held) - len(end))
            return None
        stop = len(self._held) if at < 0 else at + len(end)
        self._looked, self._reads = stop, self._reads + 1
        calls, rest = self._read(self._held[:stop].strip(), whole=at >= 0)
        if calls or at < 0 or self._reads > MOST_READS:
            self._inside = False
        if not calls:
            return "" if self._inside else self._take(1 + len(self._held) - len(self._held.lstrip()))
        self._calls += calls[: None if self._most is None else max(0, self._most - self._count)]
        self._count, self._said = self._count + len(calls), False
        self._take(stop)
        return rest

    def _read(self, text: str, *, whole: bool) -> tuple[list[ToolCall], str]:
        """Read the calls of a text; what lacks its end mark must be JSON, whose own end shows."""
        if not whole and self._form.keyed is not None:
            return [], text
        body = text.removeprefix(self._form.begin[0]).removesuffix(self._form.end)
        try:
            found, rest = self._form.read(body, self._schemas)
            spelt = [(name.encode(), json.dumps(given, ensure_ascii=False, allow_nan=False)) for name, given in found]
            made = [(name.decode(), given.encode(errors="replace").decode()) for name, given in spelt]
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
            return [], text
        rest = rest if rest.strip() else ""
        calls = [ToolCall(name, given, secrets.token_hex(5)[:9]) for name, given in made]
        return ([], text) if self._form.end and rest else (calls, rest)

    def _take(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        return text
