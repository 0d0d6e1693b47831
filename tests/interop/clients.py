"""OpenAI's clients and what is built on them, unchanged, against our server: `make interop-clients`.

Each way is a client's usual code. The server is the reference target, whose folder gets a chat template that writes
tools. What was run goes into docs/results/clients.json, and from there into docs/clients.md (`python tools/tables.py`).
"""

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "clients.json"
OURS = ROOT / ".venv" / "bin"
CLIENTS = ROOT / ".venv-clients"
NODE = CLIENTS / "node"
ALONE = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # litellm reads prices from the net otherwise
QUESTION, TOKENS, LONG = "What is ahead?", 24, 300
LOOK = {
    "name": "look",
    "description": "Look to a side.",
    "parameters": {"type": "object", "properties": {"side": {"enum": ["left", "right"]}}, "required": ["side"]},
}
SIDES = ("left", "right")
TEMPLATE = """{% for message in messages %}{% if message.role == 'user' %}USER: {% if message.content is string %}\
{{ message.content }}{% else %}{% for part in message.content %}{% if part.type == 'video' %}<video>
{% elif part.type == 'image' %}<image>
{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %} {% elif message.role == 'assistant' %}ASSISTANT: \
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}</s>{% elif message.role == 'tool' %}<tool_response>{{ message.content }}</tool_response>\
{% else %}{{ message.content }} {% endif %}{% endfor %}{% if tools %}Tools: {{ tools | tojson }} To call one, write \
<tool_call>{"name": <function-name>, "arguments": <args-json-object>}</tool_call> {% endif %}\
{% if add_generation_prompt %}ASSISTANT:{% endif %}"""


class Sight(BaseModel, extra="forbid"):
    """What a structured answer must be."""

    side: Literal["left", "right"]
    clear: bool


@contextmanager
def served(folder: Path) -> Iterator[dict[str, str]]:
    """Start the server on a free port; yields its address, and a clip and an image that it may be asked about."""
    target = folder / "target"
    shutil.copytree(ROOT / "src/crossdraft/reference/target", target)
    (target / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    media = folder / "media"
    subprocess.run([OURS / "crossdraft", "scenes", "make", "--count", "1", "--out", media], check=True, timeout=300)
    clip = next(path for path in media.rglob("*") if path.suffix in (".mp4", ".avi", ".mkv"))
    command = [OURS / "crossdraft", "serve", "--target", target, "--drafter", "union:memory,ngram", "--port", "0"]
    with subprocess.Popen([*command, "--media-root", media], stdout=subprocess.PIPE, text=True) as server:
        try:
            line = next(line for line in server.stdout or () if "http://" in line)
            address = "http://" + line.partition("http://")[2].split()[0].rstrip("/")
            yield {"url": f"{address}/v1", "clip": clip.as_uri(), "image": image(clip), "key": "none"}
        finally:
            server.terminate()
            server.wait(60)


def image(clip: Path) -> str:
    """The first frame of a clip, as a `data:` address."""
    script = "import av, sys; next(av.open(sys.argv[1]).decode(video=0)).to_image().save(sys.stdout.buffer, 'png')"
    done = subprocess.run([OURS / "python", "-c", script, clip], capture_output=True, check=True, timeout=120)
    return "data:image/png;base64," + base64.b64encode(done.stdout).decode()


def refused(ask: Callable[[], object], kind: type[Exception]) -> Any:
    """The error of a request that must be refused."""
    try:
        ask()
    except kind as error:
        return error
    raise AssertionError("the request was not refused")


def give_up(ask: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Ask, and cancel soon after."""

    async def leave() -> None:
        task = asyncio.create_task(ask())
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(leave())


# -- openai ---------------------------------------------------------------------------------------------------------


def openai_ways(at: dict[str, str], model: str) -> dict[str, Callable[[], object]]:
    """OpenAI's own client."""
    from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

    client = OpenAI(base_url=at["url"], api_key=at["key"])
    asked: list[Any] = [
        {
            "role": "user",
            "content": [{"type": "video_url", "video_url": {"url": at["clip"]}}, {"type": "text", "text": QUESTION}],
        }
    ]
    given: dict[str, Any] = {"model": model, "messages": asked, "max_tokens": TOKENS}
    tools: list[Any] = [{"type": "function", "function": LOOK}]

    def ask() -> object:
        answer = client.chat.completions.create(**given)
        assert answer.usage.completion_tokens > 0
        assert answer.choices[0].message.content.strip()
        return answer

    def stream() -> None:
        whole = ask().choices[0].message.content
        chunks = client.chat.completions.create(**given, stream=True, stream_options={"include_usage": True})
        texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(texts) == whole
        assert len(texts) > 2

    def call_tools() -> None:
        must = {**given, "max_tokens": LONG, "tools": tools, "tool_choice": "required"}
        first = client.chat.completions.create(**must).choices[0]
        assert first.finish_reason == "tool_calls"
        call = first.message.tool_calls[0]
        assert json.loads(call.function.arguments)["side"] in SIDES
        result = {"role": "tool", "tool_call_id": call.id, "content": "A van is near."}
        turns = [*asked, first.message, result]
        second = client.chat.completions.create(model=model, messages=turns, tools=tools, max_tokens=TOKENS)
        assert second.choices[0].finish_reason in ("stop", "length")
        with client.chat.completions.stream(**must) as events:
            again = events.get_final_completion().choices[0].message.tool_calls[0]
        assert again.function.arguments == call.function.arguments

    def structured() -> None:
        found = client.chat.completions.parse(**given | {"max_tokens": LONG}, response_format=Sight)
        assert found.choices[0].message.parsed.side in SIDES

    def predicted() -> None:
        text = ask().choices[0].message.content
        found = client.chat.completions.create(**given, prediction={"type": "content", "content": text})
        assert found.choices[0].message.content == text
        assert found.usage.completion_tokens_details.accepted_prediction_tokens > 0

    def cancel() -> None:
        async def waiting() -> object:
            async with AsyncOpenAI(base_url=at["url"], api_key=at["key"]) as other:
                return await other.chat.completions.create(**given)

        give_up(waiting)
        chunks = client.chat.completions.create(**given, stream=True)
        next(iter(chunks))
        chunks.close()
        ask()

    def error() -> None:
        create = client.chat.completions.create
        assert refused(lambda: create(**given | {"model": "other"}), NotFoundError).code == "model_not_found"
        assert refused(lambda: create(**given | {"max_tokens": -1}), BadRequestError).code == "invalid_value"

    return {
        "ask": ask, "stream": stream, "tools": call_tools, "structured": structured, "cancel": cancel, "error": error,
        "prediction": predicted,
    }  # fmt: skip


def openai_routes(at: dict[str, str], model: str) -> dict[str, Callable[[], object]]:
    """OpenAI's own client, by its other routes."""
    from openai import OpenAI

    client = OpenAI(base_url=at["url"], api_key=at["key"])

    def responses() -> None:
        shown = [{"type": "input_image", "image_url": at["image"]}, {"type": "input_text", "text": QUESTION}]
        first = client.responses.create(model=model, input=[{"role": "user", "content": shown}], max_output_tokens=9)
        assert first.output_text
        then = client.responses.create(
            model=model, input="And then?", previous_response_id=first.id, max_output_tokens=9
        )
        assert then.usage.input_tokens > first.usage.input_tokens
        given: dict[str, Any] = {"model": model, "input": QUESTION, "max_output_tokens": 9}
        events = list(client.responses.create(**given, stream=True))
        assert events[0].type == "response.created"
        assert events[-1].response.output_text == client.responses.create(**given).output_text
        parsed = client.responses.parse(model=model, input=QUESTION, text_format=Sight, max_output_tokens=LONG)
        assert parsed.output_parsed.side in SIDES
        called = client.responses.create(
            model=model, input=QUESTION, tools=[{"type": "function", **LOOK}], tool_choice="required"
        )
        call = next(item for item in called.output if item.type == "function_call")
        assert json.loads(call.arguments)["side"] in SIDES

    def completions() -> None:
        found = client.completions.create(model=model, prompt="USER: What is ahead? ASSISTANT:", max_tokens=TOKENS)
        assert found.choices[0].text.strip()
        chunks = client.completions.create(
            model=model, prompt="USER: What is ahead? ASSISTANT:", max_tokens=TOKENS, stream=True
        )
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == found.choices[0].text

    def several() -> None:
        asked: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": QUESTION}]}
        answers = client.chat.completions.create(**asked, n=3, temperature=2.0, seed=5).choices
        assert [one.index for one in answers] == [0, 1, 2]
        assert len({one.message.content for one in answers}) > 1

    def batches() -> None:
        body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 9}
        line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
        given = [{"custom_id": "a", **line}, {"custom_id": "b", **line, "body": {"model": "other", "messages": []}}]
        content = "\n".join(map(json.dumps, given)).encode()
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=line["url"], completion_window="24h")
        until = time.monotonic() + 60
        while batch.status not in ("completed", "failed") and time.monotonic() < until:
            time.sleep(0.1)
            batch = client.batches.retrieve(batch.id)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 1, 1)
        answer = json.loads(client.files.content(batch.output_file_id).text)
        said = client.chat.completions.create(**body).choices[0].message.content
        assert (answer["custom_id"], answer["response"]["body"]["choices"][0]["message"]["content"]) == ("a", said)
        wrong = json.loads(client.files.content(batch.error_file_id).text)
        assert (wrong["custom_id"], wrong["response"]["status_code"]) == ("b", 400)
        assert batch.id in [one.id for one in client.batches.list()]

    return {"several answers": several, "responses": responses, "completions": completions, "batches": batches}


# -- litellm, instructor --------------------------------------------------------------------------------------------


def litellm_ways(at: dict[str, str], model: str) -> dict[str, Callable[[], object]]:
    """LiteLLM with an OpenAI-compatible server."""
    import litellm

    shown = [{"type": "video_url", "video_url": {"url": at["clip"]}}, {"type": "text", "text": QUESTION}]
    asked: list[Any] = [{"role": "user", "content": shown}]
    given: dict[str, Any] = {
        "model": f"openai/{model}", "api_base": at["url"], "api_key": at["key"], "max_tokens": TOKENS,
        "messages": asked, "num_retries": 0,
    }  # fmt: skip
    tools: list[Any] = [{"type": "function", "function": LOOK}]

    def ask() -> str:
        text = litellm.completion(**given).choices[0].message.content
        assert text.strip()
        return text

    def stream() -> None:
        texts = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**given, stream=True)]
        assert "".join(texts) == ask()

    def call_tools() -> None:
        must = {**given, "max_tokens": LONG, "tools": tools, "tool_choice": "required"}
        first = litellm.completion(**must).choices[0].message
        assert json.loads(first.tool_calls[0].function.arguments)["side"] in SIDES
        result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "A van is near."}
        litellm.completion(**given | {"messages": [*asked, first.model_dump(), result]}, tools=tools)

    def structured() -> None:
        text = litellm.completion(**given | {"max_tokens": LONG}, response_format=Sight).choices[0].message.content
        assert Sight.model_validate_json(text)

    def cancel() -> None:
        give_up(lambda: litellm.acompletion(**given))
        ask()

    def error() -> None:
        wrong = given | {"model": "openai/other"}
        assert "other" in str(refused(lambda: litellm.completion(**wrong), litellm.NotFoundError))

    return {
        "ask": ask, "stream": stream, "tools": call_tools, "structured": structured, "cancel": cancel, "error": error,
    }  # fmt: skip


def instructor_ways(at: dict[str, str], model: str) -> dict[str, Callable[[], object]]:
    """Instructor: objects out of answers, by its three modes."""
    import instructor
    from openai import OpenAI

    asked: list[Any] = [{"role": "user", "content": "Where is the van?"}]

    def made(mode: Any) -> Sight:
        client = instructor.from_openai(OpenAI(base_url=at["url"], api_key=at["key"]), mode=mode)
        found = client.chat.completions.create(
            model=model, messages=asked, response_model=Sight, max_tokens=LONG, max_retries=0
        )
        assert found.side in SIDES
        return found

    def structured() -> None:
        made(instructor.Mode.JSON_SCHEMA)

    def call_tools() -> None:
        made(instructor.Mode.TOOLS)

    def stream() -> None:
        client = instructor.from_openai(OpenAI(base_url=at["url"], api_key=at["key"]), mode=instructor.Mode.JSON_SCHEMA)
        partial = client.chat.completions.create_partial(
            model=model, messages=asked, response_model=Sight, max_tokens=LONG, max_retries=0
        )
        *_, last = partial
        assert last.side in SIDES

    def error() -> None:
        client = instructor.from_openai(OpenAI(base_url=at["url"], api_key=at["key"]))
        create = client.chat.completions.create
        wrong = refused(lambda: create(model="other", messages=asked, response_model=Sight, max_retries=0), Exception)
        assert "model_not_found" in str(wrong)

    return {"stream": stream, "tools": call_tools, "structured": structured, "error": error}


# -- LangChain, LlamaIndex --------------------------------------------------------------------------------------------


def langchain_ways(at: dict[str, str], model: str) -> dict[str, Callable[[], object]]:
    """LangChain's ChatOpenAI."""
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from openai import NotFoundError

    def limited(tokens: int) -> ChatOpenAI:
        return ChatOpenAI(model=model, base_url=at["url"], api_key=at["key"], max_tokens=tokens, temperature=0)

    chat, long = limited(TOKENS), limited(LONG)
    clip = HumanMessage([{"type": "video_url", "video_url": {"url": at["clip"]}}, {"type": "text", "text": QUESTION}])

    @tool
    def look(side: Literal["left", "right"]) -> str:
        """Look to a side."""
        return f"A van is {side}."

    def ask() -> str:
        text = chat.invoke([clip]).content
        assert text.strip()
        return text

    def stream() -> None:
        assert "".join(chunk.content for chunk in chat.stream([clip])) == ask()

    def call_tools() -> None:
        first = long.bind_tools([look], tool_choice="required").invoke([clip])
        call = first.tool_calls[0]
        result = look.invoke(call["args"])
        chat.bind_tools([look]).invoke([clip, first, ToolMessage(result, tool_call_id=call["id"])])

    def structured() -> None:
        for method in ("json_schema", "function_calling"):
            assert long.with_structured_output(Sight, method=method).invoke("Where is the van?").side in SIDES

    def cancel() -> None:
        give_up(lambda: chat.ainvoke([clip]))
        ask()

    def error() -> None:
        other = ChatOpenAI(model="other", base_url=at["url"], api_key=at["key"])
        refused(lambda: other.invoke("?"), NotFoundError)

    return {
        "ask": ask, "stream": stream, "tools": call_tools, "structured": structured, "cancel": cancel, "error": error,
    }  # fmt: skip


def llamaindex_ways(at: dict[str, str], model: str) -> dict[str, Callable[[], object]]:
    """LlamaIndex's class for OpenAI-compatible servers."""
    from llama_index.core.llms import ChatMessage, ImageBlock, TextBlock
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike
    from openai import NotFoundError

    settings: dict[str, Any] = {
        "api_base": at["url"], "api_key": at["key"], "is_chat_model": True, "is_function_calling_model": True,
        "max_tokens": LONG, "temperature": 0, "max_retries": 0, "context_window": 1024,
    }  # fmt: skip
    chat = OpenAILike(model=model, **settings)
    shown = ChatMessage(blocks=[ImageBlock(url=at["image"]), TextBlock(text=QUESTION)])

    def look(side: Literal["left", "right"]) -> str:
        """Look to a side."""
        return f"A van is {side}."

    def ask() -> str:
        text = chat.chat([shown]).message.content
        assert text.strip()
        return text

    def stream() -> None:
        assert "".join(chunk.delta or "" for chunk in chat.stream_chat([shown])) == ask()

    def call_tools() -> None:
        made = FunctionTool.from_defaults(look)
        found = chat.chat_with_tools([made], user_msg="Where is the van?", tool_required=True)
        calls = chat.get_tool_calls_from_response(found)
        assert calls[0].tool_kwargs["side"] in SIDES
        result = ChatMessage(role="tool", content=look(**calls[0].tool_kwargs))
        result.additional_kwargs["tool_call_id"] = calls[0].tool_id
        asked = ChatMessage(role="user", content="Where is the van?")
        chat.chat_with_tools([made], chat_history=[asked, found.message, result])

    def structured() -> None:
        found = chat.as_structured_llm(Sight).complete("Where is the van?")
        assert found.raw.side in SIDES

    def error() -> None:
        refused(lambda: OpenAILike(model="other", **settings).complete("?"), NotFoundError)

    return {"ask": ask, "stream": stream, "tools": call_tools, "structured": structured, "error": error}


Ways = Callable[[dict[str, str], str], dict[str, Callable[[], object]]]
# By environment: the newest `openai`, and an older one, which the others ask for.
PYTHON: dict[str, dict[str, tuple[str, Ways]]] = {
    "openai": {"openai (Python)": ("openai", lambda at, model: openai_ways(at, model) | openai_routes(at, model))},
    "others": {
        "litellm": ("litellm", litellm_ways),
        "instructor": ("instructor", instructor_ways),
        "LangChain": ("langchain-openai", langchain_ways),
        "LlamaIndex": ("llama-index-llms-openai-like", llamaindex_ways),
    },
}


def tried(way: Callable[[], object]) -> str:
    """`ok`, or how a way failed."""
    try:
        way()
    except Exception as error:  # noqa: BLE001 - the table says it
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
    return "ok"


def in_python(environment: str) -> None:
    """Run the ways of the clients of this process's environment, and write what came of each to standard output."""
    at = json.load(sys.stdin)
    found = {
        name: {"version": version(package), "ways": {one: tried(way) for one, way in ways(at, at["model"]).items()}}
        for name, (package, ways) in PYTHON[environment].items()
    }
    sys.stdout.write(json.dumps(found))


def main(say: Callable[[str], object] = print) -> int:
    """Run every way of every client; returns 1 if one failed."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as at:
        with urllib.request.urlopen(f"{at['url']}/models") as answer:
            model = json.loads(answer.read())["data"][0]["id"]
        commands: list[list[Any]] = [
            [CLIENTS / name / "bin" / "python", "-W", "ignore", __file__, name] for name in PYTHON
        ]
        if shutil.which("node") is not None and (NODE / "node_modules").exists():
            shutil.copy(Path(__file__).with_name("clients.mjs"), NODE)
            commands.append(["node", NODE / "clients.mjs"])
        asked = json.dumps({**at, "model": model, "question": QUESTION}).encode()
        for command in commands:
            done = subprocess.run(command, input=asked, stdout=subprocess.PIPE, check=True, timeout=600, env=ALONE)
            found |= json.loads(done.stdout.splitlines()[-1])
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name, client in found.items():
        say(f"{name} {client['version']}")
        for way, result in client["ways"].items():
            say(f"  {way}: {result}")
    return int(any(result != "ok" for client in found.values() for result in client["ways"].values()))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        in_python(sys.argv[1])
    else:
        sys.exit(main())
