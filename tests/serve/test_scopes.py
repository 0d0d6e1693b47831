"""Scopes of keys: every route × method × scope, and what a scope opens inside a request."""

import json
import re

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from crossdraft.errors import CrossdraftError
from crossdraft.serve.app import ROUTERS
from crossdraft.serve.errors import ApiError
from crossdraft.serve.gate import PUBLIC
from crossdraft.serve.keys import Client, KeyRecord, digest_of, line_of, read_keys
from crossdraft.serve.scopes import ALL, check_route, require
from tests.serve.conftest import body, messages

ROUTES = [route for router in ROUTERS for route in router.routes if route.path not in PUBLIC]
UPLOADS = {"files", "edge"}
# Written by hand, not taken from the table that is tested: which scopes open a route.
OPENED_BY = {
    "/v1/chat/completions": {"chat"},
    "/page/alone": {"chat"},
    "/v1/edge": {"edge"},
    "/v1/watch": {"watch"},
    "/v1/files": UPLOADS,
    "/v1/files/{found}": UPLOADS,
    "/v1/files/{found}/content": UPLOADS,
    "/v1/completions": {"chat"},
    "/v1/responses": {"chat"},
    "/v1/responses/{found}": {"chat"},
    "/v1/batches": {"chat"},
    "/v1/batches/{found}": {"chat"},
    "/v1/batches/{found}/cancel": {"chat"},
    "/v1/media": {"media"},
    "/v1/media/content": {"media"},  # of a file of the media folder
    "/page/events.png": {"media"},  # likewise
    "/metrics": {"metrics"},
    "/version": set(ALL),
    "/v1/models": set(ALL),
    "/v1/models/{name:path}": set(ALL),
}


@pytest.fixture
def scoped(start, tmp_path):
    """A server with a key for each scope, which is its name, and one, `all`, without scopes of its own."""
    records = [KeyRecord(name=name, sha256=digest_of(name), scopes=(name,)) for name in sorted(ALL)]
    records.append(KeyRecord(name="all", sha256=digest_of("all")))
    (tmp_path / "keys.yaml").write_text("".join(f"- {line_of(one)}\n" for one in records))
    return start(keys_file=tmp_path / "keys.yaml")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_every_route_and_method_is_open_to_its_scopes_alone(scoped):
    assert {route.path for route in ROUTES} == OPENED_BY.keys()
    for route in ROUTES:
        path = re.sub(r"{.*?}", "x", route.path) + ("?url=file:nothing" if "media/c" in route.path else "")
        path += "?url=file:nothing" if "events" in path else ""
        for scope in ALL:
            opened = scope in OPENED_BY[route.path]
            for method in getattr(route, "methods", None) or ["WEBSOCKET"]:
                if method == "WEBSOCKET":
                    status, said = socket_status(scoped, path, scope)
                else:
                    found = httpx.request(method, scoped.url + path, headers=bearer(scope))
                    status, said = found.status_code, found.text
                assert (status == 403) == (not opened), (method, path, scope, status, said)
                assert status not in (401, 500)
                if not opened and method != "HEAD":
                    error = json.loads(said)["error"]
                    assert (error["type"], error["code"]) == ("permission_error", "missing_scope")
                    assert any(f"scope {one}" in error["message"] for one in OPENED_BY[route.path])


def socket_status(server, path: str, key: str) -> tuple[int, str]:
    try:
        with connect(f"ws{server.url[4:]}{path}", additional_headers=bearer(key)):
            return 101, ""
    except InvalidStatus as error:
        return error.response.status_code, error.response.body.decode()


@pytest.mark.parametrize("scope", sorted(ALL))
def test_public_routes_models_and_what_is_no_route_are_as_before(scoped, scope):
    for path in PUBLIC:
        assert httpx.get(scoped.url + path, headers=bearer(scope)).status_code == 200
    assert httpx.get(f"{scoped.url}/v1/models", headers=bearer(scope)).json()["data"][0]["id"] == "reference"
    assert httpx.get(f"{scoped.url}/openapi.json", headers=bearer(scope)).status_code == 200
    assert httpx.get(f"{scoped.url}/openapi.json").status_code == 401
    for path in ("/nothing", "/v1/chat", "/v1/filesx", "/page/other", "/v1/embeddings"):
        assert httpx.get(scoped.url + path, headers=bearer(scope)).status_code == 404, path


def test_a_route_that_the_table_does_not_list_takes_keys_with_all_scopes_alone():
    check_route("/v1/new", ALL)
    with pytest.raises(ApiError) as error:
        check_route("/v1/new", ALL - {"edge"})
    assert error.value.status == 404


def test_a_key_without_the_scope_media_names_no_file_of_the_media_folder(scoped):
    for key, status in (("chat", 403), ("all", 200)):
        found = scoped.post(body(max_tokens=1), headers=bearer(key))
        assert found.status_code == status
        for url in ("file:clip.mp4", "file:///nothing"):  # whether there is one is not told
            refused = scoped.post(body(max_tokens=1, messages=messages(video=url)), headers=bearer("chat"))
            assert refused.json()["error"]["code"] == "missing_scope"
    plain = body(max_tokens=1, messages=[{"role": "user", "content": "What?"}])
    assert scoped.post(plain, headers=bearer("chat")).status_code == 200
    address = f"{scoped.url}/v1/media/content"
    assert httpx.get(address, params={"url": "file:clip.mp4"}, headers=bearer("media")).status_code == 200
    assert httpx.get(address, params={"url": "file:clip.mp4"}, headers=bearer("files")).status_code == 403


def test_a_replayed_stream_names_its_clip_with_the_scope_media(scoped):
    asked = {"questions": ["What?"], "replay": {"video_url": "file:clip.mp4"}}
    with connect(f"ws{scoped.url[4:]}/v1/watch", additional_headers=bearer("watch")) as socket:
        socket.send(json.dumps(asked))
        said = json.loads(socket.recv(20))
    assert (said["type"], said["error"]["code"]) == ("error", "missing_scope")


def test_an_edges_key_keeps_its_own_uploads_and_nothing_else(scoped):
    files = f"{scoped.url}/v1/files"
    others = httpx.post(files, files={"file": ("b.mp4", b"y")}, headers=bearer("files")).json()["id"]
    own = httpx.post(files, files={"file": ("a.mp4", b"x")}, headers=bearer("edge")).json()["id"]
    assert [one["id"] for one in httpx.get(files, headers=bearer("edge")).json()["data"]] == [own]
    assert httpx.get(f"{files}/{own}/content", headers=bearer("edge")).content == b"x"
    assert httpx.get(f"{files}/{others}", headers=bearer("edge")).status_code == 404
    assert httpx.get(f"{scoped.url}/v1/media/content?url={own}", headers=bearer("edge")).status_code == 403
    assert httpx.delete(f"{files}/{own}", headers=bearer("edge")).json()["deleted"]


def test_scopes_stand_in_the_keys_file(tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text(f'- {{name: cam, sha256: "{digest_of("cam")}", scopes: [edge, media]}}\n')
    client = read_keys(path, Client()).client("cam")
    assert client is not None
    assert client.scopes == {"edge", "media"}
    require(client.scopes, "media", "files")
    with pytest.raises(ApiError, match="scope files or chat"):
        require(client.scopes, "files", "chat")


@pytest.mark.parametrize("scopes", ["[edge, camera]", "[]", "edge", "[Edge]"])
def test_scopes_that_there_are_not_are_refused_at_the_start(tmp_path, scopes):
    path = tmp_path / "keys.yaml"
    path.write_text(f'- {{name: cam, sha256: "{digest_of("cam")}", scopes: {scopes}}}\n')
    with pytest.raises(CrossdraftError, match=r"scopes.*; mend the record\.$"):
        read_keys(path, Client())
