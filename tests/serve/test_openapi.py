"""`/openapi.json` says what the routes say, and `--alias` what the model is also called."""

import json

import httpx
import pytest
from websockets.sync.client import connect

from crossdraft.errors import CrossdraftError
from crossdraft.serve.app import ROUTERS
from crossdraft.serve.openapi import BODIES
from crossdraft.serve.page import routes as page
from crossdraft.serve.settings import read_settings
from tests.serve.conftest import QUESTION, body


@pytest.fixture(scope="module")
def document(server) -> dict:
    return httpx.get(f"{server.url}/openapi.json").json()


def references(value: object):
    if isinstance(value, dict):
        yield from [value["$ref"]] if isinstance(value.get("$ref"), str) else ()
        value = list(value.values())
    for one in value if isinstance(value, list) else ():
        yield from references(one)


def test_every_route_and_method_stands_there_and_nothing_else(document):
    routes = [route for router in ROUTERS if router is not page.router for route in router.routes]
    wanted = {
        (route.path.replace(":path", ""), method.lower())
        for route in routes
        for method in getattr(route, "methods", ())  # no WebSocket
        if method != "HEAD"
    }
    found = {(path, method) for path, one in document["paths"].items() for method in one}
    assert found == wanted
    assert (document["openapi"][:2], document["info"]["title"]) == ("3.", "crossdraft")
    for path, one in document["paths"].items():
        for method, said in one.items():
            assert said["summary"], (path, method)
            names = {given["name"] for given in said.get("parameters", ()) if given["in"] == "path"}
            assert names == {part[1:-1] for part in path.split("/") if part[:1] == "{"}
            bodies = {"/v1/files", *BODIES}
            assert ("requestBody" in said) == (method == "post" and path in bodies)


def test_every_reference_leads_to_a_schema(document):
    found = set(references(document))
    assert found
    for one in found:
        assert one.removeprefix("#/components/schemas/") in document["components"]["schemas"]


def test_fields_are_those_that_a_route_takes(server, document):
    """A field that is listed is known to the route, and one that is not is refused by name."""
    every = {name for path in BODIES for name in fields(document, path)}
    assert BODIES.keys() == NEEDED.keys()
    for path, needed in NEEDED.items():
        for name in every:
            found = httpx.post(f"{server.url}{path}", json={**needed, name: ["no", {"such": "value"}]}).json()["error"]
            unknown = found["code"] == "unknown_parameter" and found["param"] == name
            assert unknown == (name not in fields(document, path)), (path, name, found)


NEEDED = {
    "/v1/chat/completions": body(),
    "/v1/completions": {"model": "reference", "prompt": "What?"},
    "/v1/responses": {"model": "reference", "input": "What?"},
    "/v1/batches": {"input_file_id": "file-x", "endpoint": "/v1/completions", "completion_window": "24h"},
}


def fields(document: dict, path: str) -> dict:
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"]


def test_some_types_as_they_are_on_the_wire(document):
    assert fields(document, "/v1/completions")["prompt"]["type"] == ["string", "array"]
    logprobs = fields(document, "/v1/completions")["logprobs"]
    assert logprobs["anyOf"] == [{"type": "integer", "minimum": 0, "maximum": 20}, {"type": "null"}]
    assert len(fields(document, "/v1/batches")["endpoint"]["enum"]) == 3
    assert fields(document, "/v1/responses")["input"]["type"] == ["string", "array"]
    assert fields(document, "/v1/chat/completions")["n"]["maximum"] == 8
    assert fields(document, "/v1/batches")["completion_window"]["const"] == "24h"
    (limit,) = [one for one in document["paths"]["/v1/batches"]["get"]["parameters"] if one["name"] == "limit"]
    assert (limit["required"], limit["schema"]["minimum"], limit["schema"]["maximum"]) == (False, 1, 100)


# -- names of the model ----------------------------------------------------------------------------------------------


@pytest.fixture
def named(start):
    return start(alias="gpt-4o, road ,gpt-4o")


def test_every_name_is_listed_accepted_and_echoed(named):
    client = named.client()
    assert [one.id for one in client.models.list()] == ["reference", "gpt-4o", "road"]
    asked = [{"role": "user", "content": QUESTION}]
    for name in ("reference", "gpt-4o", "road"):
        assert client.models.retrieve(name).id == name
        given = {"model": name, "messages": asked, "max_tokens": 2}
        assert client.chat.completions.create(**given).model == name
        assert {chunk.model for chunk in client.chat.completions.create(**given, stream=True)} == {name}
        assert client.completions.create(model=name, prompt="What?", max_tokens=2).model == name
        assert client.responses.create(model=name, input="What?", max_output_tokens=2).model == name
    assert httpx.get(f"{named.url}/metrics").text.count('model_name="gpt-4o"') == 0


def test_another_name_is_refused_and_the_error_names_the_models_own(named):
    for name in ("gpt-4", "Road", "", "gpt-4o,road"):
        found = named.post(body(model=name, max_tokens=1))
        assert (found.status_code, found.json()["error"]["code"]) == (404, "model_not_found")
        assert "but 'reference'" in found.json()["error"]["message"]
    assert httpx.get(f"{named.url}/v1/models/gpt-4").json()["error"]["code"] == "model_not_found"


def test_a_stream_may_name_them_too(named):
    for name, kind in (("road", "started"), ("other", "error")):
        asked = {"model": name, "questions": ["What?"], "replay": {"video_url": "file:clip.mp4"}}
        with connect(f"ws{named.url[4:]}/v1/watch") as socket:
            socket.send(json.dumps(asked))
            assert json.loads(socket.recv(20))["type"] == kind


def test_names_come_from_a_flag_a_file_and_the_environment(tmp_path, monkeypatch):
    (tmp_path / "serve.yaml").write_text("alias: [a, b]\n")
    assert read_settings(tmp_path / "serve.yaml", {}).alias == ("a", "b")
    monkeypatch.setenv("CROSSDRAFT_ALIAS", "c,d")
    assert read_settings(tmp_path / "serve.yaml", {}).alias == ("c", "d")
    assert read_settings(None, {"alias": "e"}).alias == ("e",)
    with pytest.raises(CrossdraftError, match="alias"):
        read_settings(None, {"alias": 5})
