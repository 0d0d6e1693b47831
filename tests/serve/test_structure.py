"""Structured answers over HTTP: OpenAI's `response_format` and vLLM's `structured_outputs`, by OpenAI's own client."""

import json
from typing import Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict

from crossdraft import Request, Sampling, Structure
from tests.serve.conftest import QUESTION, body


class Scene(BaseModel):
    """What a client parses an answer into."""

    model_config = ConfigDict(extra="forbid")
    side: Literal["left", "right"]
    red: bool


def alone(server, structure, tokens, sampling=None):
    video, sampling = str(server.root / "clip.mp4"), sampling or Sampling()
    return server.engine.alone(Request(QUESTION, video, max_new_tokens=tokens, structure=structure, sampling=sampling))


def test_parse_gives_an_object(server):
    """`parse` sends the class's schema and reads the answer into it; a bias keeps a random model off blanks."""
    tokenizer = server.engine.target.text.tokenizer
    blank = {token: -100 for token in range(len(tokenizer)) if not tokenizer.decode([token]).strip()}
    asked = body(max_tokens=64, logit_bias=blank)
    found = server.client().chat.completions.parse(**asked, response_format=Scene).choices[0]
    assert isinstance(found.message.parsed, Scene)
    assert found.finish_reason == "stop"
    structure = Structure.json(Scene.model_json_schema())
    assert found.message.content == alone(server, structure, 64, Sampling(logit_bias=tuple(blank.items()))).text
    later = [
        *asked["messages"],
        found.message,
        {"role": "user", "content": "Is it near?"},
    ]  # as it came, the object too
    assert server.client().chat.completions.create(**body(max_tokens=4, messages=later)).choices


@pytest.mark.parametrize(
    ("given", "structure"),
    [
        ({"regex": "(yes|no)!"}, Structure.regex("(yes|no)!")),
        ({"choice": ["two cars", "no car"]}, Structure.choice(["two cars", "no car"])),
        ({"grammar": 'root ::= "a" | "b"'}, Structure.grammar('root ::= "a" | "b"')),
        ({"json": {"enum": [1, 2]}}, Structure.json({"enum": [1, 2]})),
        ({"json": '{"enum": [1, 2]}'}, Structure.json({"enum": [1, 2]})),
        ({"json_object": True}, Structure.json()),
    ],
)
def test_vllms_field_is_taken(server, given, structure):
    asked = body(max_tokens=24, extra_body={"structured_outputs": given})
    found = server.client().chat.completions.create(**asked)
    wanted = alone(server, structure, 24)
    assert found.choices[0].message.content == wanted.text
    assert found.usage.completion_tokens == len(wanted.tokens)


@pytest.mark.parametrize("kind", ["json_object", "text"])
def test_a_stream_is_the_structured_answer_piece_by_piece(server, kind):
    asked = body(max_tokens=24, stream=True, response_format={"type": kind})
    chunks = list(server.client().chat.completions.create(**asked))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == alone(server, Structure.json() if kind == "json_object" else None, 24).text
    assert text.startswith("{") == (kind == "json_object")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "come together"),
        ({"response_format": {"type": "json_object", "json_schema": {"name": "a"}}}, "come together"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}}, "Invalid type"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"if": {}}}}}, "Unimplemented keys"),
        ({"extra_body": {"structured_outputs": {"regex": "(a"}}}, "unclosed group"),
        ({"extra_body": {"structured_outputs": {"regex": "a", "choice": ["b"]}}}, "exactly one"),
        ({"extra_body": {"structured_outputs": {}}}, "exactly one"),
        ({"extra_body": {"structured_outputs": {"choice": []}}}, "give a list of texts"),
        (
            {"response_format": {"type": "json_object"}, "extra_body": {"structured_outputs": {"regex": "a"}}},
            "send one of them",
        ),
        ({"extra_body": {"structured_outputs": {"regex": "a" * 70_000}}}, "16,384 are the limit"),
    ],
)
def test_bad_structures_are_refused_with_a_status(server, fields, part, stream):
    """In a stream too: it opens when the target's first piece is there."""
    with pytest.raises(openai.BadRequestError) as caught:
        server.client().chat.completions.create(**body(**fields, stream=stream))
    assert part in caught.value.message
    assert json.loads(caught.value.response.text)["error"]["type"] == "invalid_request_error"
