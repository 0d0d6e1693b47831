"""`/v1/batches`: lines answered behind all others, by OpenAI's client and by hand; bounds, keys, cancelling, ends."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from crossdraft import Engine, Options, Request
from crossdraft.serve import batches
from crossdraft.serve.keys import KeyRecord, digest_of, line_of
from crossdraft.serve.settings import read_settings
from tests.serve.conftest import QUESTION, Runner, body, content
from tests.serve.test_security import reaches
from tests.support import endless_target

QUESTIONS = ("What is ahead?", "Is it dark?", QUESTION)
URL = "/v1/chat/completions"


def line(name: object, question: str = QUESTION, video: str | None = "file:clip.mp4", url: str = URL, **more) -> bytes:
    asked = {"model": "reference", "messages": [{"role": "user", "content": content(question, video, None)}]}
    asked |= {"max_tokens": 8, **more}
    return json.dumps({"custom_id": str(name), "method": "POST", "url": url, "body": asked}).encode() + b"\n"


def long(name: object, tokens: int = 200) -> bytes:
    """A line whose answer has that many tokens."""
    return line(name, video=None, max_tokens=tokens, ignore_eos=True)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def upload(server, *lines: bytes, key: str = "none") -> str:
    given = {"files": {"file": ("in.jsonl", b"".join(lines))}, "data": {"purpose": "batch"}, "headers": bearer(key)}
    return httpx.post(f"{server.url}/v1/files", **given).json()["id"]


def create(server, file: str, key: str = "none", **more) -> httpx.Response:
    asked = {"input_file_id": file, "endpoint": URL, "completion_window": "24h", **more}
    return httpx.post(f"{server.url}/v1/batches", json=asked, headers=bearer(key))


def begin(server, *lines: bytes, key: str = "none", **more) -> str:
    return create(server, upload(server, *lines, key=key), key, **more).json()["id"]


def of(server, batch: str, key: str = "none") -> dict:
    return httpx.get(f"{server.url}/v1/batches/{batch}", headers=bearer(key)).json()


def listed(server, key: str = "none", **query) -> dict:
    return httpx.get(f"{server.url}/v1/batches", params=query, headers=bearer(key)).json()


def cancel(server, batch: str, key: str = "none") -> httpx.Response:
    return httpx.post(f"{server.url}/v1/batches/{batch}/cancel", headers=bearer(key))


def ended(server, batch: str, key: str = "none", seconds: float = 60) -> dict:
    until = time.monotonic() + seconds
    while (found := of(server, batch, key))["status"] not in batches.OVER and time.monotonic() < until:
        time.sleep(0.02)
    return found


def lines_of(server, file: str | None, key: str = "none") -> list[dict]:
    if file is None:
        return []
    found = httpx.get(f"{server.url}/v1/files/{file}/content", headers=bearer(key))
    assert found.status_code == 200
    return [json.loads(one) for one in found.content.splitlines()]


@pytest.fixture
def two_keys(start, tmp_path):
    """A server with the keys `anna` and `ben`, and the limits that are given for anna."""

    def begun(limits: dict | None = None, **more):
        records = [KeyRecord(name=name, sha256=digest_of(name)) for name in ("anna", "ben")]
        records[0] = records[0].model_copy(update=limits or {})
        (tmp_path / "keys.yaml").write_text("".join(f"- {line_of(one)}\n" for one in records))
        return start(keys_file=tmp_path / "keys.yaml", **more)

    return begun


# -- what comes of a batch -------------------------------------------------------------------------------------------


def test_answers_are_the_targets_own_by_openais_client(server):
    client = server.client()
    given = b"".join(line(f"r{at}", one) for at, one in enumerate(QUESTIONS))
    file = client.files.create(file=("in.jsonl", given), purpose="batch")
    begun = client.batches.create(
        input_file_id=file.id, endpoint=URL, completion_window="24h", metadata={"who": "anna"}
    )
    assert begun.status == "validating"
    assert ended(server, begun.id)["status"] == "completed"
    found = client.batches.retrieve(begun.id)
    assert (found.object, found.endpoint, found.input_file_id) == ("batch", URL, file.id)
    assert (found.metadata, found.errors, found.error_file_id) == ({"who": "anna"}, None, None)
    assert found.request_counts.model_dump() == {"total": 3, "completed": 3, "failed": 0}
    times = [found.created_at, found.in_progress_at, found.finalizing_at, found.completed_at]
    assert times == sorted(times)
    assert found.expires_at == found.created_at + 24 * 3600
    assert found.failed_at is found.cancelled_at is found.cancelling_at is found.expired_at is None
    answers = [json.loads(one) for one in client.files.content(found.output_file_id).read().splitlines()]
    video = str(server.root / "clip.mp4")
    alone = [server.engine.alone(Request(one, video, max_new_tokens=8, namespace=None)).text for one in QUESTIONS]
    said = [one["response"]["body"]["choices"][0]["message"]["content"] for one in answers]
    assert ([one["custom_id"] for one in answers], said) == (["r0", "r1", "r2"], alone)
    kept = client.files.retrieve(found.output_file_id)
    assert (kept.purpose, kept.filename) == ("batch_output", f"{begun.id}_output.jsonl")
    assert next(iter(client.batches.list(limit=1))).id == begun.id


def test_a_wrong_line_is_an_error_and_the_others_are_answered(server):
    lines = (
        line("a", video=None),
        b"nonsense\n\n",
        line("b", stream=True),
        line("c", video="file:none.mp4"),
        line("a", video=None),
        line("d", url="/v1/embeddings"),
        line("e", max_tokens=10**6),
        line("f", video=None, model="other"),
        line("g", video=None)[:-1],
    )
    found = ended(server, begin(server, *lines))
    assert (found["status"], found["errors"]) == ("completed", None)
    assert found["request_counts"] == {"total": 9, "completed": 2, "failed": 7}
    assert [one["custom_id"] for one in lines_of(server, found["output_file_id"])] == ["a", "g"]
    wrong = lines_of(server, found["error_file_id"])
    assert [one["custom_id"] for one in wrong] == [None, "b", "c", "a", "d", "e", "f"]
    codes = [one["error"] and one["error"]["code"] for one in wrong]
    assert codes == ["invalid_json", "invalid_value", None, "duplicate_id", "invalid_value", None, None]
    statuses = [one["response"] and one["response"]["status_code"] for one in wrong]
    assert statuses == [None, None, 400, None, None, 400, 404]
    assert wrong[2]["response"]["body"]["error"]["code"] == "no_such_file"


def test_a_line_may_ask_for_several_answers_and_other_endpoints(server):
    responses = {"custom_id": "r", "method": "POST", "url": "/v1/responses"}
    responses["body"] = {"model": "reference", "input": QUESTION, "max_output_tokens": 4}
    completions = {"custom_id": "c", "method": "POST", "url": "/v1/completions"}
    completions["body"] = {"model": "reference", "prompt": "USER: What?", "max_tokens": 4}
    others = [json.dumps(one).encode() + b"\n" for one in (responses, completions)]
    found = ended(server, begin(server, line("n", video=None, n=6, temperature=2.0), *others))
    several, response, completion = [one["response"]["body"] for one in lines_of(server, found["output_file_id"])]
    assert len(several["choices"]) == 6  # more than rows
    assert (response["object"], completion["object"]) == ("response", "text_completion")


def test_several_batches_are_listed_a_page_at_a_time(server):
    names = [begin(server, line("a", video=None, max_tokens=1)) for _ in range(3)]
    for name in names:
        assert ended(server, name)["status"] == "completed"
    first = listed(server, limit=2)
    assert [one["id"] for one in first["data"]] == [names[2], names[1]]
    assert (first["object"], first["has_more"], first["first_id"], first["last_id"]) == (
        "list",
        True,
        names[2],
        names[1],
    )
    assert listed(server, limit=1, after=names[1])["data"][0]["id"] == names[0]


# -- refusals and bounds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "status", "param", "code"),
    [
        ({"input_file_id": "file-" + "0" * 32}, 404, "input_file_id", "file_not_found"),
        ({"input_file_id": "../x y"}, 400, "input_file_id", "invalid_value"),
        ({"input_file_id": None}, 400, "input_file_id", "invalid_value"),
        ({"endpoint": "/v1/embeddings"}, 400, "endpoint", "invalid_value"),
        ({"completion_window": "1h"}, 400, "completion_window", "invalid_value"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 3600}},
            400,
            "output_expires_after",
            "unknown_parameter",
        ),
        ({"metadata": {str(at): "" for at in range(17)}}, 400, "metadata", "invalid_value"),
        ({"metadata": {"a": "x" * 513}}, 400, "metadata.a", "invalid_value"),
        ({"metadata": {"a": 1}}, 400, "metadata.a", "invalid_value"),
    ],
)
def test_a_wrong_batch_is_refused_by_name(server, wrong, status, param, code):
    file = upload(server, line("a"))
    found = create(server, file, **wrong)
    assert (found.status_code, found.json()["error"]["param"], found.json()["error"]["code"]) == (status, param, code)


def test_what_is_no_batch_and_no_json_is_refused(server):
    none = f"{server.url}/v1/batches/batch_{'0' * 32}"
    for found in (httpx.get(none), httpx.post(f"{none}/cancel"), httpx.get(f"{server.url}/v1/batches?after=x")):
        assert (found.status_code, found.json()["error"]["code"]) == (404, "batch_not_found")
    for query in ("limit=0", "limit=101", "limit=x"):
        assert httpx.get(f"{server.url}/v1/batches?{query}").status_code == 400
    for wrong, code in ((b"{", "invalid_json"), (b"[]", "invalid_value"), (b"\xff", "invalid_encoding")):
        found = httpx.post(f"{server.url}/v1/batches", content=wrong)
        assert (found.status_code, found.json()["error"]["code"]) == (400, code)
    assert httpx.delete(f"{server.url}/v1/batches/x").status_code == 405


@pytest.mark.parametrize("lines", [(b"\n \n",), (line("a"), line("b"), line("c"), line("d"))])
def test_a_batch_has_lines_and_not_too_many(server, monkeypatch, lines):
    monkeypatch.setattr(batches, "MOST_LINES", 3)
    found = ended(server, begin(server, *lines))
    assert (found["status"], found["output_file_id"], found["error_file_id"]) == ("failed", None, None)
    assert found["errors"]["data"][0]["message"] == "A batch has 1 to 3 lines; send others."
    assert found["failed_at"]


def test_a_file_that_is_gone_before_its_turn_fails_its_batch_and_one_that_goes_later_does_not(server, held_rounds):
    first, second = upload(server, long("a", 4)), upload(server, long("a", 4))
    names = [create(server, file).json()["id"] for file in (first, second)]
    assert reaches(lambda: held_rounds.begun, 1)
    for file in (first, second):
        assert httpx.delete(f"{server.url}/v1/files/{file}").status_code == 200
    held_rounds.go.set()
    assert ended(server, names[0])["status"] == "completed"
    found = ended(server, names[1])
    assert (found["status"], found["errors"]["data"][0]["code"]) == ("failed", "file_not_found")


def test_answers_beyond_the_quota_end_the_batch_and_those_before_are_kept(start):
    server = start(upload_quota=6_000)
    given = [line(f"r{at}", video=None, max_tokens=2) for at in range(12)]
    found = ended(server, begin(server, *given))
    assert (found["status"], found["errors"]["data"][0]["code"]) == ("failed", "quota_exceeded")
    kept = lines_of(server, found["output_file_id"])
    assert 0 < len(kept) == found["request_counts"]["completed"] < 12
    assert server.service.uploads.nbytes <= 6_000
    assert reaches(lambda: server.service.active, 0)


def test_batches_that_wait_are_bounded_and_old_ones_are_forgotten(two_keys, held_rounds, monkeypatch):
    monkeypatch.setattr(batches, "MOST_BATCHES", 3)
    server = two_keys()
    file = upload(server, long("a", 2), key="anna")
    names = [create(server, file, "anna").json()["id"] for _ in range(3)]
    refused = create(server, file, "anna")
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) > 0
    assert create(server, upload(server, line("b"), key="ben"), "ben").status_code == 200
    held_rounds.go.set()
    for _ in range(3):
        assert ended(server, names[-1], "anna")["status"] == "completed"
        names.append(create(server, file, "anna").json()["id"])
    ended(server, names[-1], "anna")
    assert [one["id"] for one in listed(server, "anna")["data"]] == names[:2:-1]


def test_a_batch_ends_after_its_window_with_what_it_has(server, monkeypatch):
    monkeypatch.setattr(batches, "WINDOW_S", 2)
    found = ended(server, begin(server, line("a", video=None), *(long(at, 900) for at in range(400))))
    assert found["status"] == "expired"
    assert found["expired_at"]
    assert found["request_counts"]["completed"] == len(lines_of(server, found["output_file_id"])) >= 1
    assert reaches(lambda: server.service.active, 0)


# -- keys ------------------------------------------------------------------------------------------------------------


def test_a_batch_and_its_files_are_its_keys_own(two_keys):
    server = two_keys()
    file = upload(server, line("a", video=None), key="anna")
    name = create(server, file, "anna").json()["id"]
    found = ended(server, name, "anna")
    assert found["status"] == "completed"
    assert create(server, file, "ben").json()["error"]["code"] == "file_not_found"
    assert listed(server, "ben")["data"] == []
    for asked in (of(server, name, "ben"), cancel(server, name, "ben").json(), of(server, f"batch_{'0' * 32}", "ben")):
        assert (asked["error"]["code"], name in str(asked)) == ("batch_not_found", False)
    foreign = httpx.get(f"{server.url}/v1/files/{found['output_file_id']}/content", headers=bearer("ben")).json()
    assert foreign["error"]["code"] == "file_not_found"
    assert listed(server, "anna")["data"][0]["id"] == name


def test_one_key_does_not_wait_for_the_batches_of_another(two_keys):
    server = two_keys()
    anna = [begin(server, *(long(at, 100) for at in range(40)), key="anna") for _ in range(2)]
    assert reaches(lambda: of(server, anna[0], "anna")["request_counts"]["total"], 40)
    ben = ended(server, begin(server, line("a", video=None), key="ben"), "ben")
    assert ben["status"] == "completed"
    now = [of(server, one, "anna")["status"] for one in anna]
    assert now == ["in_progress", "validating"]  # one of each key at a time
    for one in anna:
        cancel(server, one, "anna")
        assert ended(server, one, "anna")["status"] == "cancelled"


def test_lines_count_neither_as_requests_a_minute_nor_at_a_time_and_are_no_more_than_may_run(two_keys):
    server = two_keys({"requests_per_minute": 4, "concurrent": 1, "max_new_tokens": 8})
    most, count = 0, server.service.behind.running

    def counted(client, answers=1):
        nonlocal most
        most = max(most, server.service.behind.active + answers)
        return count(client, answers)

    server.service.behind.running = counted
    given = [line(at, video=None) for at in range(6)] + [line("too long", video=None, max_tokens=9)]
    found = ended(server, begin(server, *given, key="anna"), "anna")
    assert found["request_counts"] == {"total": 7, "completed": 6, "failed": 1}
    assert most == 1
    statuses = [server.post(body(max_tokens=1), headers=bearer("anna")).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]


# -- others go first -------------------------------------------------------------------------------------------------


def test_a_request_takes_the_row_of_a_batchs_line(server):
    name = begin(server, *(long(at, 150) for at in range(2)))
    assert reaches(server.rows, 2)
    assert server.post(body(max_tokens=4)).status_code == 200
    assert of(server, name)["request_counts"]["completed"] == 0
    found = ended(server, name)
    assert found["request_counts"]["completed"] == 2
    answers = [one["response"]["body"]["choices"][0] for one in lines_of(server, found["output_file_id"])]
    said = [{"role": "user", "content": QUESTION}]
    alone = server.engine.alone(Request(messages=said, max_new_tokens=150, ignore_eos=True, namespace=None)).text
    assert [(one["message"]["content"], one["finish_reason"]) for one in answers] == [(alone, "length")] * 2


def test_a_batch_leaves_the_whole_queue_to_others(server, held_rounds):
    name = begin(server, *(long(at, 30) for at in range(8)))
    assert reaches(lambda: server.service.behind.active, 2)
    asked = body(max_tokens=2, messages=[{"role": "user", "content": QUESTION}])
    with ThreadPoolExecutor(6) as threads:  # as many as rows and queue hold
        waiting = [threads.submit(server.post, asked) for _ in range(6)]
        assert reaches(lambda: server.service.limits.active, 6)
        assert server.post(asked).json()["error"]["code"] == "queue_full"
        held_rounds.go.set()
        assert [one.result().status_code for one in waiting] == [200] * 6
    assert ended(server, name)["request_counts"]["completed"] == 8


def test_while_others_have_the_rows_one_line_waits(server, held_rounds):
    asked = body(max_tokens=4, messages=[{"role": "user", "content": QUESTION}])
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(server.post, asked) for _ in range(2)]
        assert reaches(lambda: server.service.limits.active, 2)
        name = begin(server, *(line(at, video=None) for at in range(4)))
        assert reaches(lambda: server.service.behind.active, 1)
        time.sleep(0.3)
        assert server.service.behind.active == 1
        held_rounds.go.set()
        assert [one.result().status_code for one in waiting] == [200, 200]
    assert ended(server, name)["request_counts"]["completed"] == 4


# -- ends ------------------------------------------------------------------------------------------------------------


def test_a_batch_is_cancelled_midway_and_keeps_its_answers(server):
    name = begin(server, line("first", video=None), *(long(at, 900) for at in range(50)))
    assert reaches(lambda: of(server, name)["request_counts"]["completed"], 1)
    waiting = begin(server, line("a", video=None))
    for one in (waiting, name):
        found = cancel(server, one).json()
        assert (found["status"], cancel(server, one).status_code in (200, 400)) == ("cancelling", True)
    found = ended(server, name)
    assert (found["status"], found["error_file_id"]) == ("cancelled", None)
    assert found["cancelled_at"] >= found["cancelling_at"] > 0
    kept = lines_of(server, found["output_file_id"])
    assert [one["custom_id"] for one in kept] == ["first", *map(str, range(50))][: found["request_counts"]["completed"]]
    assert ended(server, waiting)["output_file_id"] is None
    again = cancel(server, name)
    assert (again.status_code, again.json()["error"]["code"]) == (400, "invalid_status")
    assert reaches(lambda: server.service.active, 0)
    assert reaches(server.rows, 0)


def test_a_connection_that_is_cut_within_the_body_begins_nothing_and_one_behind_it_cuts_nothing(server):
    before = len(listed(server)["data"])
    file = upload(server, line("a", video=None))
    asked = json.dumps({"input_file_id": file, "endpoint": URL, "completion_window": "24h"}).encode()
    head = b"POST /v1/batches HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(asked)
    for sent, begun in ((head + asked[:-1], 0), (head + asked, 1)):
        with server.connection() as connection:
            connection.sendall(sent)
        assert reaches(lambda: len(listed(server)["data"]), before + begun, 2 if begun else 0.5)
    assert ended(server, listed(server)["data"][0]["id"])["status"] == "completed"


@pytest.fixture
def endless(pair, tmp_path):
    """An engine whose answers take many seconds: no token ends them."""
    folder = endless_target(pair, tmp_path / "endless")
    with Engine.load(folder, None, Options(max_batch=2, max_queue=6)) as engine:
        yield engine


@pytest.mark.parametrize(("tokens", "seconds"), [(300, 30), (15_000, 0.3)])
def test_the_servers_end_ends_a_batch_cleanly(endless, tmp_path, caplog, tokens, seconds):
    """What runs may end; what waits is not begun; no file, task or error is left."""
    ours = {"target": str(tmp_path / "endless"), "max_new_tokens": 20_000, "drain_seconds": seconds}
    ours |= {"max_batch": 2, "max_queue": 4, "upload_folder": tmp_path / "uploads"}
    server, network, thread = Runner(endless, tmp_path).start(read_settings(None, ours))
    given = [line(at, video=None, max_tokens=tokens, model="endless") for at in range(6)]
    name = begin(server, *given)
    assert reaches(lambda: server.service.behind.active, 2)
    waiting = begin(server, *given)
    network.handle_exit(signal.SIGTERM, None)
    thread.join(60)
    assert not thread.is_alive()
    server.service.close()
    said = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert said == ([] if tokens == 300 else ["2 requests did not end in time"])
    assert [path.name for path in (tmp_path / "uploads").iterdir() if path.name != ".lock"] == []
    assert name != waiting


def test_a_batch_that_is_made_while_the_server_drains_is_refused(server, monkeypatch):
    file = upload(server, line("a"))
    monkeypatch.setattr(server.service, "draining", True)
    refused = create(server, file)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")


def test_openais_client_knows_the_errors(server):
    client = server.client()
    with pytest.raises(openai.NotFoundError) as error:
        client.batches.retrieve("batch_none")
    assert error.value.code == "batch_not_found"
    with pytest.raises(openai.BadRequestError):
        client.batches.create(input_file_id="file-x", endpoint="/v1/embeddings", completion_window="24h")
