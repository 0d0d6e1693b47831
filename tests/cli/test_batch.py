"""`crossdraft batch`: lines in, lines out, begun again wherever it was cut."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from crossdraft import Request
from crossdraft.cli.batch import BatchFiles
from crossdraft.cli.main import main
from crossdraft.errors import CrossdraftError
from crossdraft.files import only_process
from crossdraft.serve.local_files import OwnFiles
from crossdraft.serve.service import Service, load_engine
from tests.serve.conftest import settings, with_clip

QUESTIONS = ("What is ahead?", "Is it dark?", "What is the car in front doing?")
MOST = 1 << 20


def line(name: object, question: str, clip: object = None, url: str = "/v1/chat/completions", **more) -> bytes:
    shown = [] if clip is None else [{"type": "video_url", "video_url": {"url": f"file:{clip}"}}]
    asked = [{"role": "user", "content": [*shown, {"type": "text", "text": question}]}]
    body = {"model": "reference", "messages": asked, "max_tokens": 8, **more}
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body}).encode() + b"\n"


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    return with_clip(tmp_path_factory.mktemp("clip")) / "clip.mp4"


@pytest.fixture(scope="module")
def service():
    chosen = settings(drafter="none")
    with load_engine(chosen) as engine:
        made = Service(chosen, engine, local=OwnFiles())
        yield made
        made.close()


def answered(run: BatchFiles, service: Service, step=lambda name: None) -> list[dict]:
    run.find_known(force=False)
    if run.done < run.total:
        asyncio.run(run.answer(service, step))
    return [json.loads(one) for one in run.out.read_bytes().splitlines()]


def said(found: list[dict]) -> list[tuple[str, str]]:
    return [(one["custom_id"], one["response"]["body"]["choices"][0]["message"]["content"]) for one in found]


@pytest.fixture(scope="module")
def whole(service, clip, tmp_path_factory) -> tuple[Path, bytes]:
    """A file of requests, and all answers to it."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "in.jsonl").write_bytes(b"".join(line(f"r{at}", one, clip) for at, one in enumerate(QUESTIONS)))
    answered(BatchFiles(folder / "in.jsonl", folder / "out.jsonl", MOST), service)
    return folder / "in.jsonl", (folder / "out.jsonl").read_bytes()


def test_answers_are_the_targets_own_and_in_order(service, clip, whole):
    alone = [service.engine.alone(Request(one, str(clip), max_new_tokens=8, namespace=None)) for one in QUESTIONS]
    found = [json.loads(one) for one in whole[1].splitlines()]
    assert said(found) == [(f"r{at}", one.text) for at, one in enumerate(alone)]
    for one in found:
        assert set(one) == {"id", "custom_id", "response", "error"}
        assert one["id"] == f"batch_req_{one['response']['request_id']}"
        assert (one["response"]["status_code"], one["error"]) == (200, None)


def test_a_cut_at_any_byte_leaves_the_whole_lines_before_it(whole, tmp_path):
    given, full = whole
    out = tmp_path / "out.jsonl"
    for cut in range(len(full) + 1):
        out.write_bytes(full[:cut])
        run = BatchFiles(given, out, MOST)
        run.find_known(force=False)
        assert (run.done, run.size) == (full[:cut].count(b"\n"), full[:cut].rfind(b"\n") + 1)
        assert run.total == 3


def test_a_run_that_was_cut_goes_on_and_asks_nothing_twice(service, whole, tmp_path):
    given, full = whole
    ends = [at + 1 for at, byte in enumerate(full) if byte == ord("\n")]
    for cut in (0, 1, ends[0] - 1, ends[0], ends[0] + 1, ends[1] - 1, ends[2] - 1, ends[2]):
        out = tmp_path / f"{cut}.jsonl"
        out.write_bytes(full[:cut])
        found = answered(BatchFiles(given, out, MOST), service)
        kept = full[: full[:cut].rfind(b"\n") + 1]
        assert out.read_bytes()[: len(kept)] == kept  # ids too, so they were not asked again
        assert said(found) == said([json.loads(one) for one in full.splitlines()])


def test_a_second_line_of_an_id_is_refused_wherever_the_run_was_cut(service, clip, tmp_path):
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_bytes(line("a", QUESTIONS[0], clip, stream=True) + line("a", QUESTIONS[0], clip))
    whole = answered(BatchFiles(given, out, MOST), service)
    assert [one["error"]["code"] for one in whole] == ["invalid_value", "duplicate_id"]
    out.write_bytes(out.read_bytes().splitlines(keepends=True)[0])
    again = answered(BatchFiles(given, out, MOST), service)
    assert [one["error"] for one in again] == [one["error"] for one in whole]


def test_an_interrupt_leaves_whole_lines(service, whole, tmp_path):
    run, counted = BatchFiles(whole[0], tmp_path / "out.jsonl", MOST), []

    def step(name: str) -> None:
        counted.append(name)
        if len(counted) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answered(run, service, step)
    kept = run.out.read_bytes()
    assert kept.count(b"\n") == 2
    assert kept.endswith(b"\n")
    assert said(answered(BatchFiles(whole[0], run.out, MOST), service)) == said(
        [json.loads(one) for one in whole[1].splitlines()]
    )
    assert run.out.read_bytes().startswith(kept)


def test_two_runs_never_write_one_file(service, whole, tmp_path):
    out = tmp_path / "out.jsonl"

    def step(name: str) -> None:
        with pytest.raises(CrossdraftError, match="Another process fills"), only_process(out):
            pass

    with only_process(out), pytest.raises(CrossdraftError, match="Another process fills"):
        answered(BatchFiles(whole[0], out, MOST), service)
    found = answered(BatchFiles(whole[0], out, MOST), service, step)
    assert said(found) == said([json.loads(one) for one in whole[1].splitlines()])


def test_a_full_disk_is_one_sentence_and_leaves_whole_lines(service, whole, tmp_path, monkeypatch):
    import resource

    out, first = tmp_path / "out.jsonl", whole[1].index(b"\n") + 1
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (first + 40, before[1]))
    try:
        with pytest.raises(CrossdraftError, match="there is no room"):
            answered(BatchFiles(whole[0], out, MOST), service)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert out.read_bytes().count(b"\n") == 1
    assert out.read_bytes().endswith(b"\n")


def test_a_bad_line_becomes_an_error_and_the_run_goes_on(clip, tmp_path, capsys):
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = (
        line("a", QUESTIONS[0], clip),
        b"nonsense\n\n",
        line("b", QUESTIONS[0], clip, stream=True),
        line("c", QUESTIONS[0], tmp_path / "none.mp4"),
        line("a", QUESTIONS[1], clip),
        line("d", "", url="/v1/embeddings"),
        line(5, QUESTIONS[0]),
        line("e", QUESTIONS[0], clip, max_tokens=10**6),
        line("f", QUESTIONS[1], clip)[:-1],  # the last line needs no end
    )
    given.write_bytes(b"".join(lines))
    words = ["batch", str(given), str(out), "--drafter", "none", "--json"]
    assert main(words) == 1
    assert {**json.loads(capsys.readouterr().out), "seconds": 0} == {
        "lines": 9, "known": 0, "answered": 2, "failed": 7, "seconds": 0,
    }  # fmt: skip
    found = [json.loads(one) for one in out.read_bytes().splitlines()]
    assert [one["custom_id"] for one in found] == ["a", None, "b", "c", "a", "d", None, "e", "f"]
    codes = [one["error"] and one["error"]["code"] for one in found]
    assert codes == [
        None,
        "invalid_json",
        "invalid_value",
        None,
        "duplicate_id",
        "invalid_value",
        "invalid_value",
        None,
        None,
    ]
    statuses = [one["response"] and one["response"]["status_code"] for one in found]
    assert statuses == [200, None, None, 400, None, None, None, 400, 200]
    assert "leave it out" in found[2]["error"]["message"]
    assert found[3]["response"]["body"]["error"]["code"] == "no_such_file"
    assert "/v1/chat/completions" in found[5]["error"]["message"]
    kept = out.read_bytes()
    assert main(words) == 1  # nothing is asked again, and no model is loaded
    assert json.loads(capsys.readouterr().out)["known"] == 9
    assert out.read_bytes() == kept


@pytest.mark.parametrize(
    ("given", "held", "part"),
    [
        (None, None, "Cannot read"),
        (b"\n\n", None, "is empty"),
        (line("a", "x"), line("a", "x"), "in its line 1"),
        (line("a", "x"), b'{"custom_id": "b", "response": null, "error": null}\n', "in its line 1"),
        (line("a", "x"), b'{"custom_id": "a", "response": null, "error": null}\n' * 2, "in its line 2"),
        (line("a", "x"), b"\xff\n", "in its line 1"),
    ],
)
def test_wrong_files_are_refused_before_models_are_loaded(tmp_path, given, held, part):
    files = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    for path, content in zip(files, (given, held), strict=True):
        if content is not None:
            path.write_bytes(content)
    with pytest.raises(CrossdraftError, match=part):
        BatchFiles(*files, MOST).find_known(force=False)
    assert files[1].exists() == (held is not None)
    if held is not None:
        assert files[1].read_bytes() == held
        BatchFiles(*files, MOST).find_known(force=True)


def test_the_requests_are_never_overwritten(tmp_path):
    given = tmp_path / "in.jsonl"
    given.write_bytes(line("a", "x"))
    for force in (False, True):
        with pytest.raises(CrossdraftError, match="holds the requests"):
            BatchFiles(given, given, MOST).find_known(force=force)
    assert main(["batch", str(given), str(tmp_path / "none" / "out.jsonl")]) == 2


def test_a_missing_media_folder_is_refused_before_models_are_loaded(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("crossdraft.serve.service.load_engine", None)
    (tmp_path / "in.jsonl").write_bytes(line("a", "x"))
    words = ["batch", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")]
    assert main([*words, "--media-root", str(tmp_path / "none")]) == 2
    assert "There is no media folder at" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_ends_the_command_between_two_lines(clip, tmp_path):
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_bytes(b"".join(line(f"r{at}", QUESTIONS[at % 3], clip, max_tokens=60) for at in range(200)))
    words = [str(Path(sys.executable).parent / "crossdraft"), "batch", str(given), str(out), "--drafter", "none"]
    running = subprocess.Popen(words, stderr=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True)
    until = time.monotonic() + 120
    while not (out.exists() and out.stat().st_size) and time.monotonic() < until:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in errors
    kept = out.read_bytes()
    assert 0 < kept.count(b"\n") < 200
    assert kept.endswith(b"\n")
    assert all(json.loads(one)["response"]["status_code"] == 200 for one in kept.splitlines())
