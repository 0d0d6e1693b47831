"""Tools, and answers that call them in the form of each family, as chat templates and model cards show it."""

from collections.abc import Iterator

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["celsius", "kelvin"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "wind": {"type": "boolean"},
    },
    "required": ["city", "unit"],
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
PARIS = {"city": "Paris", "unit": "celsius", "days": 3, "wind": True}
CALLS = [("get_weather", PARIS), ("now", {})]
JSON = '{"city": "Paris", "unit": "celsius", "days": 3, "wind": true}'
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": ' + JSON + "}\n</tool_call>\n"
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=unit>\n"
    "celsius\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=wind>\ntrue\n</parameter>\n</function>\n"
    "</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "glm45": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>unit</arg_key>\n"
    "<arg_value>celsius</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>wind</arg_key>\n"
    "<arg_value>true</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
    "gemma4": '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,unit:<|"|>celsius<|"|>,days:3,wind:true}<tool_call|>'
    "<|tool_call>call:now{}<tool_call|>",
    "mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": ' + JSON + '}, {"name": "now", "arguments": {}}]',
    "mistral_v11": f"[TOOL_CALLS]get_weather[ARGS]{JSON}[TOOL_CALLS]now[ARGS]{{}}",
    "llama3_json": '{"name": "get_weather", "parameters": ' + JSON + "}",
}
"""The same calls in each form, as its grammar writes them; Llama's models call one tool at a time."""


def called(form: str) -> list[tuple[str, dict]]:
    return CALLS[:1] if form == "llama3_json" else CALLS


def published() -> Iterator[tuple[str, str, str, list]]:
    """Form, answer, what it says, and its calls."""
    for form, text in WRITTEN.items():
        yield form, text, "", called(form)
        if form != "llama3_json":
            yield form, f"I look. \n{text}", "I look.", CALLS
    f = [("f", {"a": 1})]
    yield "hermes", "No call, 1 < 2.", "No call, 1 < 2.", []
    yield "hermes", '<tool_call>{"arguments":{"a":1},"name":"f"}</tool_call>\n', "", f
    yield "hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}', "", f  # ends with the answer
    yield "hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", f  # as Granite 4 writes
    yield "hermes", 'A <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call> b \n', "A b \n", f
    quoted = {"a": 'x </tool_call> "y" <tool_call>'}
    yield (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "x </tool_call> \\"y\\" <tool_call>"}}</tool_call>',
        "",
        [("f", quoted)],
    )
    lines, mark = 'New\nYork, "NY"', "a </tool_call> b"
    yield (
        "qwen3_coder",
        f"<tool_call>\n<function=f>\n<parameter=a>\n{lines}\n</parameter>\n</function>\n</tool_call>",
        "",
        [("f", {"a": lines})],
    )
    yield (
        "qwen3_coder",
        f"<tool_call>\n<function=f>\n<parameter=a>\n{mark}\n</parameter>\n</function>\n</tool_call>",
        "",
        [("f", {"a": mark})],
    )
    yield "glm45", "<tool_call>now</tool_call>", "", [("now", {})]  # GLM 4.7 breaks no lines
    yield "glm45", "<tool_call>f<arg_key>a</arg_key><arg_value>一 b</arg_value></tool_call>", "", [("f", {"a": "一 b"})]
    nested = '{o:{<|"|>3<|"|>:[<|"|>a<|"|>,true],b:1.5},n:null,s:<|"|>x {y:1}, z<|"|>}'
    values = {"o": {"3": ["a", True], "b": 1.5}, "n": None, "s": "x {y:1}, z"}
    yield "gemma4", f"<|tool_call>call:f{nested}<tool_call|>", "", [("f", values)]
    yield "mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "a1b2c3d4e"}]\nmore', "\nmore", f
    yield "mistral_v11", 'Hi{[TOOL_CALLS]f{"a": 1}', "Hi{", f
    yield "mistral_v11", '[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{"a": 1}', "", f
    yield "llama3_json", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", f
    typed = '{"type": "function", "name": "f", "parameters": {"a": 1}}'
    yield "llama3_json", f"{typed}; {typed}", "", f * 2
    yield "llama3_json", '\n{"name": "f", "parameters": {"a": 1}} It is {warm}.', " It is {warm}.", f
    yield "llama3_json", 'So: {"name": "f", "parameters": {"a": 1}}', 'So: {"name": "f", "parameters": {"a": 1}}', []


TEMPLATE = (
    "{%- for tool in tools or [] %}{{ tool.function.name }}\n{% endfor %}"
    "{%- for one in messages %}{{ one.role }}: "
    "{%- if one.content is string %}{{ one.content }}{% else %}{% for part in one.content %}"
    "{{ '<video>' if part.type == 'video' else '<image>' if part.type == 'image' else part.text }}"
    "{% endfor %}{% endif %}"
    '{%- for call in one.tool_calls or [] %}\n<tool_call>\n{"name": "{{ call.function.name }}", '
    '"arguments": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}\n{% endfor %}assistant: '
)
"""A short template in the form of Hermes and Qwen that takes clips, too."""
ARGUMENTS = "{{ call.arguments | tojson }}"
TEMPLATES = [
    ("hermes", TEMPLATE),
    (
        "hermes",
        r"""{{ tools }}{{- "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args>}\n</tool_call>" }}""",
    ),
    ("qwen3_coder", "{{ tools }}<tool_call>\n<function={{ call.name }}>\n<parameter=a>\n</parameter>"),
    ("glm45", "{{ tools }}<tool_call>{{ call.name }}\n<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>"),
    ("gemma4", "{{ tools }}{{- '<|tool_call>call:' + call.name + '{' -}}{{- '}<tool_call|>' -}}"),
    ("mistral", '{{ tools }}{{- "[TOOL_CALLS] [" }}{{ call | tojson }}]'),
    ("mistral_v11", '{{ tools }}{{- "[TOOL_CALLS]" + call.name + "[ARGS]" }}' + ARGUMENTS),
    ("llama3_json", """{{ tools }}{{- '{"name": "' + call.name + '", ' }}{{- '"parameters": ' }}{# ipython #}"""),
]
"""What tells the forms apart in the templates that were published."""
