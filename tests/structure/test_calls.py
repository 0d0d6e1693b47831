"""Calls of tools in an answer's text, in the form in which each family of models was published."""

import json
import time

import pytest

from crossdraft import CrossdraftError, Tools
from crossdraft.engine.detokenize import AnswerText, TokenText
from crossdraft.structure.call_forms import FORMS, MOST_READS, CallReader
from tests.structure.calls import TOOLS, published

WHOLE = [(form, text, *wanted) for form, text, *wanted in published()]


def read(form, parts, **more):
    """What the pieces of an answer say, joined; and its calls."""
    reader = CallReader(FORMS[form], Tools(TOOLS).schemas, **more)
    said = "".join(reader.push(part) for part in parts) + reader.push("", last=True)
    return said, [(call.name, json.loads(call.arguments)) for call in reader.taken()]


@pytest.mark.parametrize(("form", "text", "said", "calls"), WHOLE)
def test_calls_are_read(form, text, said, calls):
    assert read(form, [text]) == (said, calls)


@pytest.mark.parametrize(("form", "text", "said", "calls"), WHOLE)
def test_cut_anywhere_an_answer_has_the_same_calls(form, text, said, calls):
    """Cut in two at each letter, and into pieces of one to seven letters."""
    for at in range(len(text)):
        assert read(form, [text[:at], text[at:]]) == (said, calls)
    for length in range(1, 8):
        assert read(form, [text[at : at + length] for at in range(0, len(text), length)]) == (said, calls)


@pytest.mark.parametrize(("form", "text", "said", "calls"), WHOLE)
def test_no_part_of_a_mark_is_shown_early(form, text, said, calls):
    """What is shown at any time is a beginning of what is said in the end."""
    reader, shown = CallReader(FORMS[form], Tools(TOOLS).schemas), ""
    for letter in text:
        shown += reader.push(letter)
        assert said.startswith(shown)


def test_text_before_a_call_is_shown_at_once():
    reader = CallReader(FORMS["hermes"], {})
    assert [reader.push(part) for part in ("Let me ", "see.\n", "<tool", "_call>{")] == ["Let me", " see.", "", ""]


MALFORMED = {
    "hermes": ['<tool_call>{"name": "f"}</tool_call>', '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
               '<tool_call>{"name": 1, "arguments": {}}</tool_call>', "a <tool_call>\n</tool_call> b",
               '<tool_call>\n{"name": "f", "arguments": {"a": 1', '<tool_call>{"name": "f", "arguments": {"a": NaN}}',
               '<tool_call>{"name": "f", "arguments": {}} and more</tool_call>', "a < b <tool_cal", "\n \n"],
    "qwen3_coder": ["<tool_call>\n<function=f>\n<parameter=a>\n1\n</function>\n</tool_call>",
                    "<tool_call>\n<function=f>\n</function>\n",
                    "<tool_call>\n<function=f>text</function>\n</tool_call>"],
    "glm45": ["<tool_call>f\n<arg_key>a</arg_key>\n</tool_call>", "<tool_call>f\n<arg_key>a</arg_key>"],
    "gemma4": ["<|tool_call>call:f{a:}<tool_call|>", "<|tool_call>f{}<tool_call|>", "<|tool_call>call:f{a:1}"],
    "mistral": ["[TOOL_CALLS] nothing", '[TOOL_CALLS] [{"name": "f"}]'],
    "mistral_v11": ["[TOOL_CALLS]f[ARGS]", "[TOOL_CALLS]f[ARGS]{"],
    "llama3_json": ['{"name": "Ann", "age": 3}', '{"name": "f", "parameters": {"a": 1}', '{"type": "x"'],
}  # fmt: skip


@pytest.mark.parametrize(("form", "text"), [(form, text) for form, texts in MALFORMED.items() for text in texts])
def test_what_is_no_call_stays_as_it_was_written(form, text):
    for parts in ([text], list(text), [text[:5], text[5:]]):
        assert read(form, parts) == (text, [])


def test_a_call_behind_a_malformed_one_is_read():
    text = '<tool_call>no</tool_call>\n<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert read("hermes", list(text)) == ("<tool_call>no</tool_call>", [("f", {})])


def test_a_long_text_before_a_short_call():
    text = "word " * 40 + '<tool_call>{"name": "f", "arguments": {}}</tool_call>.'
    assert read("hermes", [text]) == (("word " * 40).rstrip() + ".", [("f", {})])


def test_where_one_call_is_allowed_later_ones_are_left_out():
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 3
    assert read("hermes", [text], most=1) == ("", [("f", {})])


def test_many_marks_cost_little():
    """Each mark that may begin or end a call would be one more reading of all that follows."""
    text = "<tool_call>" + '"</tool_call>' * 4000
    reader = CallReader(FORMS["hermes"], {})
    assert reader.push(text) + reader.push("", last=True) == text
    assert reader._reads <= MOST_READS + 1


BLANKS, KEYS = " " * 60_000, "<arg_key>" * 12_000
COSTLY = [
    ("hermes", f"<tool_call>{BLANKS}x</tool_call>"),
    ("mistral", f"[TOOL_CALLS]{BLANKS}x"),
    ("glm45", f"<tool_call>f{KEYS}</tool_call>"),
    ("glm45", f"<tool_call>f{'<arg_key></arg_key><arg_value>' * 4000}</tool_call>"),
    ("qwen3_coder", f"<tool_call><function=f>{'<parameter=a>' * 9000}</function></tool_call>"),
    ("gemma4", f"<|tool_call>call:f{{{'a,' * 30_000}}}<tool_call|>"),
]


@pytest.mark.parametrize(("form", "text"), COSTLY)
def test_no_text_costs_its_length_squared(form, text):
    start = time.thread_time()
    assert read(form, [text]) == (text, [])
    assert time.thread_time() - start < 1


def test_half_a_character_in_arguments_is_replaced():
    """JSON may spell half of a pair of surrogates, which no answer could be sent with."""
    text = '<tool_call>{"name": "f", "arguments": {"a": "x\\ud83d", "b": "\\ud83d\\ude00"}}</tool_call>'
    assert read("hermes", [text]) == ("", [("f", {"a": "x?", "b": "\U0001f600"})])
    named = text.replace('"f"', '"\\udc00"')
    assert read("hermes", [named]) == (named, [])


def test_special_tokens_of_a_form_are_seen_and_no_others():
    special = {7: "<|tool_call>", 8: "<tool_call|>", 9: '<|"|>', 10: "<eos>"}
    letters = dict(enumerate(["Hi ", "call:now{", "city:", "Paris", "}"]))
    text = TokenText(lambda ids: "".join(letters.get(one, "") for one in ids), special)
    reader, shown = Tools(TOOLS, form="gemma4").reader(text)
    answer = AnswerText(shown)
    said = [reader.push(answer.push(tokens)) for tokens in ((0, 7), (1, 2, 9), (3,), (9, 4, 8, 10))]
    assert "".join(said) + reader.push(answer.flush(), last=True) == "Hi"
    (call,) = reader.taken()
    assert (call.name, call.arguments, len(call.id)) == ("now", '{"city": "Paris"}', 9)
    assert AnswerText(text).push((7, 1, 8)) == "call:now{"


# -- definitions -----------------------------------------------------------------------------------------------------


def tool(name="f", **parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.mark.parametrize(
    ("given", "more", "part"),
    [
        ([], {}, "There are 0 tools"),
        ([tool(f"f{i}") for i in range(129)], {}, "There are 129 tools; give 1 to 128"),
        ([tool(), tool()], {}, "different names"),
        ([tool()], {"only": "g"}, "Unknown tool 'g'; choose one of"),
        ([tool("a" * 65)], {}, "1 to 64 of a-zA-Z0-9_-"),
        ([tool("get weather")], {}, "1 to 64 of a-zA-Z0-9_-"),
        ([tool("f\n")], {}, "1 to 64 of a-zA-Z0-9_-"),
        ([{"type": "function"}], {}, "One of the tools is not {"),
        ([{"type": "function", "function": {"name": "f", "parameters": "none"}}], {}, "One of the tools is not {"),
        ([tool(properties=[1])], {}, "One of the tools is not {"),
        ([tool(description={1})], {}, "no JSON"),
        ([tool(description="\ud800")], {}, "no JSON"),
        ([tool(description="é" * 140_000)], {}, "bytes, and 262,144 are the limit"),
        ([tool()], {"choice": "none"}, "Unknown choice of tools 'none'"),
        ([tool()], {"form": "hermes3"}, "Unknown form of calls"),
        ("get_weather", {}, "One of the tools is not {"),
        (None, {}, "One of the tools is not {"),
    ],
)  # fmt: skip
def test_definitions_are_bounded(given, more, part):
    with pytest.raises(CrossdraftError) as caught:
        Tools(given, **more)
    assert part in str(caught.value)


def test_deeply_nested_definitions_are_refused():
    deep: dict = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(CrossdraftError, match="no JSON"):
        Tools([tool(properties=deep)])


def test_arguments_have_the_types_of_their_schema():
    kinds = {"n": 2, "x": 1.5, "yes": True, "no": None, "o": {"a": 1}, "text": "2", "unknown": "3", "bad": "red"}
    properties = {"n": {"type": "integer"}, "x": {"type": ["number", "null"]}, "yes": {"type": "boolean"},
                  "no": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "o": {"$ref": "#/$defs/O"},
                  "text": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "bad": {"type": "integer"}}  # fmt: skip
    written = {
        "n": "2",
        "x": "1.5",
        "yes": "True",
        "no": "None",
        "o": '{"a": 1}',
        "text": "2",
        "unknown": "3",
        "bad": "red",
    }
    values = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in written.items())
    reader = CallReader(FORMS["glm45"], {"f": {"properties": properties}})
    assert reader.push(f"<tool_call>f\n{values}</tool_call>", last=True) == ""
    assert json.loads(reader.taken()[0].arguments) == kinds
