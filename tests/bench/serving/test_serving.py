"""`crossdraft bench serve`: its arithmetic, its client, and one small run of all of it."""

import logging
import socket
import threading
import traceback

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.serve.logs import TextLines
from crossdraft_lab.bench.serving.load import Block, _compared, most_wait_ms
from crossdraft_lab.bench.serving.plan import ServePlan, percentiles_ms
from crossdraft_lab.bench.serving.process import Connection, ServerProcess
from crossdraft_lab.bench.serving.run import lines, run_serve
from crossdraft_lab.bench.serving.vllm_server import TimedReply, _level


def test_percentiles_are_in_ms():
    assert percentiles_ms([0.001 * i for i in range(1, 102)]) == {"p50": 51.0, "p95": 96.0, "p99": 100.0, "max": 101.0}
    assert percentiles_ms([]) == {}


def test_an_answer_may_take_three_times_what_the_queue_does(tmp_path):
    """12 are held; at 17 a second an answer takes 0.706 s on average."""
    plan = ServePlan(tmp_path, max_batch=4, max_queue=8, seconds=300)
    assert most_wait_ms(plan, 5100) == pytest.approx(3 * 1000 * 12 / 17)
    assert most_wait_ms(plan, 0) == 0


def test_throughput_over_vllm_s_is_drawn_over_blocks():
    """Two blocks of two questions: ours 10 tokens in 1 s and in 2 s, vLLM's in 2 s each."""
    ours, theirs = ([TimedReply("a", 5, seconds)] * 4 for seconds in (0.5, 1.0))
    level = _level({"crossdraft": ours, "vllm": theirs}, {"crossdraft": [1.0, 2.0], "vllm": [2.0, 2.0]})
    assert level["throughput_ratio"] == {"value": pytest.approx(4 / 3, abs=1e-6), "ci95": [1.0, 2.0], "n": 2}
    assert (level["sooner"], level["n"]) == (2.0, 4)
    way = {
        "e2e_difference_ms": {"p50": 6.5, "ci95": [5.0, 8.0], "n": 24},
        "added_ms_p50": 2.5,
        "ci95": [2.0, 3.0],
        "n": 24,
        "e2e_ms": {"server": {"p50": 52.0}, "direct": {"p50": 50.0}},
    }
    rate = {"threads": 4, "ratio": 0.98, "ci95": [0.97, 0.99], "n": 4}
    parts = {
        "overhead": {"passed": True, "new": way, "known": way},
        "throughput": {"passed": True, "busy": {**rate, "threads": 8, "ratio": 0.97}, "matched": rate},
        "vllm": {"passed": True, "clients": {"1": level}},
    }
    said = lines(parts)
    assert "takes 6.5 [5.0, 8.0; n=24 questions] ms (p50) longer" in said[0]
    assert "it is 2.50 [2.00, 3.00; n=24 questions] ms, with decoding." in said[0]
    assert "with 8 clients: 0.970 [0.970, 0.990; n=4 starts] of the engine's own" in said[2]
    assert "with 4 clients: 0.980 [0.970, 0.990; n=4 starts] of the engine's own" in said[3]
    assert "2.00 [2.00, 2.00; n=4 questions] times sooner; 1.33 [1.00, 2.00; n=2 blocks] of its throughput" in said[4]


def test_throughput_of_the_engine_s_own_is_drawn_over_starts():
    """Two starts of 10 tokens either way: directly in 1 s each, over HTTP in 1 s and in 2 s."""
    starts = {"server": [Block(4, 0.5) + Block(6, 0.5), Block(10, 2.0)], "direct": [Block(10, 1.0)] * 2}
    found = _compared(starts)
    assert found["ratio"] == pytest.approx(2 / 3, abs=1e-6)
    assert (found["ci95"], found["n"]) == ([0.5, 1.0], 2)
    assert found["tokens_per_s"] == {"server": 6.7, "direct": 10.0}


def test_a_plan_is_refused_before_anything_is_loaded(tmp_path):
    with pytest.raises(CrossdraftError, match="pairs"):
        ServePlan(tmp_path, pairs=0)
    with pytest.raises(CrossdraftError, match="kills"):
        ServePlan(tmp_path, kills=-1)
    with pytest.raises(CrossdraftError, match="seconds is 0"):
        ServePlan(tmp_path, seconds=0)


def logged(level: int, message: str, error: Exception | None = None) -> str:
    """As the server writes it."""
    about = None if error is None else (type(error), error, error.__traceback__)
    return TextLines().format(logging.LogRecord("a", level, "a.py", 1, message, None, about)) + "\n"


def chained() -> ValueError:
    """An error with another one behind it."""
    try:
        try:
            int("a")
        except ValueError:
            int("b")
    except ValueError as error:
        return error


def test_an_error_in_the_log_counts_once_with_its_traceback_and_so_does_a_plain_one(tmp_path):
    error = chained()
    plain = "".join(traceback.format_exception(error))
    assert plain.count("Traceback") == 2
    served = logged(logging.INFO, "POST /v1/chat/completions")
    expected = {
        served: 0,
        logged(logging.WARNING, "12:00:00 error\n12:00:00 error"): 0,
        logged(logging.ERROR, "A request failed."): 1,
        logged(logging.ERROR, "A request failed.", error): 1,
        logged(logging.CRITICAL, "A thread ended.", error): 1,
        f"Exception in thread Thread-1 (run):\n{plain}": 1,
        f"{served}{plain}": 1,  # of a child, which says nothing before
    }
    found = {}
    for number, text in enumerate((*expected, "".join(expected))):
        (log := tmp_path / f"{number}.log").write_text(text, encoding="utf-8")
        found[text] = ServerProcess(0, 0, tmp_path, log).logged_errors()
    assert found == {**expected, "".join(expected): 5}


@pytest.fixture
def canned():
    """A server that answers with given bytes, in pieces, and hangs up when it has no more."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(*replies: list[bytes]) -> int:
        def run():
            for pieces in replies:
                connection, _ = listener.accept()
                with connection:
                    for piece in pieces:
                        connection.recv(4096)
                        connection.sendall(piece)

        threading.Thread(target=run, daemon=True).start()
        return listener.getsockname()[1]

    yield serve
    listener.close()


def test_a_kept_connection_reads_one_response_after_another(canned):
    port = canned(
        [
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            b"HTTP/1.1 503 X\r\nRetry-After: 1\r\ncontent-length: 0\r\n\r\n",
        ]
    )
    with Connection(port) as connection:
        first, second = connection.request("GET", "/a"), connection.request("GET", "/b")
    assert (first.status, first.body, second.status, second.retry_s) == (200, b"ok", 503, 1.0)


def test_a_connection_that_was_closed_meanwhile_is_made_anew(canned):
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    port = canned([reply], [reply])
    with Connection(port) as connection:
        assert [connection.request("GET", "/").body for _ in range(2)] == [b"ok", b"ok"]


@pytest.mark.slow
def test_a_small_run_measures_everything(tmp_path):
    plan = ServePlan(tmp_path, pairs=2, repeats=1, max_new_tokens=8, clients=3, seconds=2, cancels=4, kills=1)
    parts = run_serve(plan)
    assert parts["overhead"]["answers_that_differ"] == 0
    assert set(parts["load"]["statuses"]) <= {"200", "503"}
    assert parts["cancels"]["passed"]
    assert parts["cancels"]["left"]["recordings"] == 0
    assert parts["load"]["most_p99_ms"] > 0
    assert (parts["kills"]["kills"], parts["kills"]["wrong_answers"]) == (1, 0)
    assert len(lines(parts)) >= 6
    assert parts["passed"] is (lines(parts)[-1] == "All is as it should be.")
    failed = {**parts, "load": {**parts["load"], "passed": False}}
    assert "load" in lines(failed)[-1]
