"""Decoding in a process of its own: what breaks it costs one file, in bounded time and memory."""

import asyncio
import os
import signal
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from crossdraft.errors import CrossdraftError
from crossdraft.events import Newest
from crossdraft.events.excerpt import DecodedExcerpt, Excerpt
from crossdraft.serve.decode import EventColumns, MediaDecoder
from crossdraft.serve.decode_process import DecoderLost
from crossdraft.serve.errors import ApiError, DecodeError
from crossdraft.serve.schema import EventUrl, ReplayedEvents
from crossdraft.video.clip import FrameSampling
from crossdraft.video.container import probe
from crossdraft.video.image import image_frames
from crossdraft.video.read import sample_frames
from tests.events.test_dtypes import GOOD, REFUSED, as_npz
from tests.serve.conftest import body
from tests.video.test_image import BOMBS, FILES

EIGHT = FrameSampling(8)


@pytest.fixture(scope="module")
def decoder():
    found = MediaDecoder(1, 1 << 30, 20)
    yield found
    found.close()


def worker(decoder):
    """Its one worker, which is idle."""
    found = decoder._idle.get()
    decoder._idle.put(found)
    return found


def test_frames_are_those_that_the_engine_reads_itself(decoder, media_root):
    found = asyncio.run(decoder.clip(media_root / "clip.mp4", EIGHT, "it"))
    wanted = sample_frames(media_root / "clip.mp4", 8)
    assert np.array_equal(found.frames.frames, wanted.frames)
    assert np.array_equal(found.frames.times_s, wanted.times_s)
    assert found.seconds == probe(media_root / "clip.mp4").seconds > 0


@pytest.mark.parametrize("name", FILES)
def test_images_are_those_that_the_engine_reads_itself(decoder, name, tmp_path):
    (tmp_path / "i").write_bytes(FILES[name]())
    found, wanted = asyncio.run(decoder.image(tmp_path / "i", "it")), image_frames(tmp_path / "i")
    assert np.array_equal(found.frames, wanted.frames)
    assert found.notes == tuple(note.replace(str(tmp_path / "i"), "it") for note in wanted.notes)
    kind = "video" if name == "webp animated" else "image"  # of an upload that does not say what it is
    assert asyncio.run(decoder.kind_of(tmp_path / "i", "it")) == kind


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_where_memory_is_limited(decoder, name, tmp_path):
    make, says = BOMBS[name]
    (tmp_path / "i").write_bytes(make())
    with pytest.raises(DecodeError, match=rf"^it .*{says}"):
        asyncio.run(decoder.image(tmp_path / "i", "it"))


def test_the_largest_image_fits_the_memory_of_a_worker(decoder, tmp_path):
    for kind, options in (("JPEG", {"progressive": True}), ("PNG", {}), ("WEBP", {"lossless": True, "quality": 0})):
        Image.new("RGB", (3072, 3072), (9, 8, 7)).save(tmp_path / "i", kind, **options)
        assert asyncio.run(decoder.image(tmp_path / "i", "it")).pixels.shape == (1, 3072, 3072, 3)


def test_a_worker_that_died_while_it_was_idle_is_nobodys_fault(decoder, media_root):
    path = media_root / "clip.mp4"
    assert asyncio.run(decoder.kind_of(path, "it")) == "video"
    dead = worker(decoder)
    os.kill(dead._process.pid, signal.SIGKILL)
    dead._process.wait()
    assert asyncio.run(decoder.kind_of(path, "it")) == "video"
    assert worker(decoder) is not dead
    assert dead.socket.fileno() == -1


def unknown_interpreter(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))


def broken_library(monkeypatch, tmp_path):
    (tmp_path / "av.py").write_text("raise ImportError('no-python')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


def no_pillow(monkeypatch, tmp_path):
    (tmp_path / "PIL.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


def no_time(monkeypatch, tmp_path):
    monkeypatch.setattr("crossdraft.serve.decode_process.START_S", 0)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (unknown_interpreter, "no-python"),
        (broken_library, "no-python"),
        (no_pillow, "pip install pillow"),
        (no_time, "TimeoutError"),
    ],
)
def test_a_worker_that_does_not_start_is_the_servers_fault_and_is_logged_once(
    media_root, monkeypatch, tmp_path, caplog, broken, says
):
    decoder, path = MediaDecoder(1, 1 << 30, 20), media_root / "clip.mp4"
    try:
        for times in (1, 2):
            with monkeypatch.context() as patched:
                broken(patched, tmp_path)
                for _ in range(2):
                    with pytest.raises(ApiError, match="cannot start a process") as error:
                        asyncio.run(decoder.clip(path, EIGHT, "it"))
                    assert (error.value.status, error.value.code) == (503, "no_decoder")
            said = [record.getMessage() for record in caplog.records if record.name == "crossdraft.serve"]
            assert len(said) == times
            assert says in said[-1]
            assert asyncio.run(decoder.kind_of(path, "it")) == "video"  # from here on it is news again
            decoder._idle.get().close()
            decoder._idle.put(None)
    finally:
        decoder.close()


def test_a_server_whose_workers_do_not_start_says_so_of_no_file(start, monkeypatch, tmp_path):
    unknown_interpreter(monkeypatch, tmp_path)
    server = start(decode_workers=1)
    reply = server.post(body(max_tokens=1))
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert reply.json()["error"]["code"] == "no_decoder"
    assert server.post(body(messages=[{"role": "user", "content": "Hello"}], max_tokens=1)).status_code == 200


def test_a_worker_that_is_worn_out_is_replaced_while_another_works(media_root, monkeypatch):
    monkeypatch.setattr("crossdraft.serve.decode.MOST_JOBS", 3)
    decoder, path = MediaDecoder(2, 1 << 30, 20), media_root / "clip.mp4"
    try:
        assert [asyncio.run(decoder.kind_of(path, "it")) for _ in range(8)] == ["video"] * 8
        until = time.monotonic() + 20
        while decoder._idle.qsize() < 2 and time.monotonic() < until:  # the last one is being started
            time.sleep(0.01)
        workers = [decoder._idle.get_nowait() for _ in range(2)]
        assert all(one is not None and one.jobs < 3 for one in workers)
        assert sum(one.jobs for one in workers) == 2  # of eight jobs; two workers had three each
        for one in workers:
            decoder._idle.put(one)
    finally:
        decoder.close()


@pytest.mark.parametrize(("workers", "at_once"), [(1, 3), (2, 8)])
def test_workers_are_replaced_while_more_jobs_wait_than_there_are_threads(media_root, monkeypatch, workers, at_once):
    """A replacement that waited behind those jobs would be waited for by them, for ever."""
    monkeypatch.setattr("crossdraft.serve.decode.MOST_JOBS", 2)
    decoder, path = MediaDecoder(workers, 1 << 30, 20), media_root / "clip.mp4"

    async def ask() -> list[str]:
        jobs = [asyncio.ensure_future(decoder.kind_of(path, "it")) for _ in range(at_once)]
        done, late = await asyncio.wait(jobs, timeout=60)
        for _ in late:  # so that the test ends where the pool does not
            decoder._idle.put(None)
        return [job.result() for job in done]

    try:
        assert asyncio.run(ask()) == ["video"] * at_once
    finally:
        decoder.close()


def test_a_job_whose_client_leaves_ends_and_counts_until_then(media_root, tmp_path):
    """A pipe that nobody writes to stands for a decoder that takes long."""
    decoder = MediaDecoder(1, 1 << 30, 600)
    os.mkfifo(tmp_path / "pipe")

    async def leave() -> None:
        job = asyncio.ensure_future(decoder.kind_of(tmp_path / "pipe", "it"))
        while found._process.poll() is None and found.jobs < 2:
            await asyncio.sleep(0.001)
        job.cancel()
        await asyncio.wait([job])
        assert job.cancelled()
        assert found._process.poll() is not None  # ended by then, not later
        assert await decoder.kind_of(media_root / "clip.mp4", "it") == "video"

    try:
        asyncio.run(decoder.kind_of(media_root / "clip.mp4", "it"))
        found = worker(decoder)
        asyncio.run(leave())
    finally:
        found.close()  # a pool that waits for the job would wait for ten minutes
        decoder.close()


def test_a_short_job_whose_client_leaves_keeps_its_worker(decoder, media_root, monkeypatch):
    monkeypatch.setattr("crossdraft.serve.decode.UNWANTED_S", 20)
    asyncio.run(decoder.kind_of(media_root / "clip.mp4", "it"))
    found, jobs = worker(decoder), worker(decoder).jobs

    async def leave() -> None:
        job = asyncio.ensure_future(decoder.clip(media_root / "clip.mp4", EIGHT, "it"))
        while found.jobs == jobs:
            await asyncio.sleep(0.001)
        job.cancel()
        await asyncio.wait([job])
        assert job.cancelled()

    asyncio.run(leave())
    assert worker(decoder) is found
    assert found._process.poll() is None


def mapped(path, found):
    return DecodedExcerpt(path, format="eventgpt", sensor=found.sensor, digest=b"").read()


def decoded(decoder, part, into, most=1_000_000):
    into.touch()
    return asyncio.run(decoder.events(part, most, into, "it"))


def test_a_recording_is_decoded_to_columns_that_are_mapped(decoder, media_root, tmp_path):
    recording = Excerpt(media_root / "clip.h5")
    found, whole = decoded(decoder, recording, tmp_path / "all"), recording.read()
    assert found == EventColumns(whole.t0, (whole.width, whole.height), len(whole))
    same = mapped(tmp_path / "all", found)
    for name in "xytp":
        column = getattr(same, name)
        assert np.array_equal(column, getattr(whole, name))
        assert column.flags.aligned
        assert column.flags.c_contiguous
        assert not column.flags.owndata or name == "p"  # nothing longer was copied


def test_of_a_long_recording_nothing_is_written_and_of_a_part_the_newest(decoder, media_root, tmp_path):
    recording = Excerpt(media_root / "clip.h5")
    whole = recording.read()
    found = decoded(decoder, recording, tmp_path / "all", most=len(whole) - 1)
    assert (found.count, found.first_us) == (None, whole.t0)
    assert (tmp_path / "all").stat().st_size == 0
    part = replace(recording, start_us=int(whole.t[100]), end_us=int(whole.t[5000]))
    found = decoded(decoder, part, tmp_path / "part", most=1000)
    same = mapped(tmp_path / "part", found)
    assert np.array_equal(same.t, part.read().t[-1000:])
    nothing = replace(recording, start_us=int(whole.t[-1]) + 1, end_us=int(whole.t[-1]) + 2)
    found = decoded(decoder, nothing, tmp_path / "nothing")
    assert found.count == len(mapped(tmp_path / "nothing", found)) == 0


def test_events_that_nobody_wants_any_more_are_not_decoded(decoder, media_root, tmp_path):
    with pytest.raises(FileNotFoundError):
        asyncio.run(decoder.events(Excerpt(media_root / "clip.h5"), 1_000_000, tmp_path / "gone", "it"))
    assert not list(tmp_path.iterdir())


def test_columns_that_do_not_fit_are_no_events(decoder, tmp_path):
    """They come from a process that a stranger's bytes went through."""
    asyncio.run(decoder.kind_of(Path(__file__), "it"))
    found = worker(decoder)
    names = ["int64", "uint16", "uint16", "uint8"]
    good = [{"dtype": name, "shape": [3]} for name in names]
    bad = [
        good[:3],
        [*good[:3], {"dtype": "uint8", "shape": [4]}],
        [{"dtype": "float64", "shape": [3]}, *good[1:]],
        [{"dtype": name, "shape": [1 << 40]} for name in names],
        [{"dtype": name, "shape": [-1]} for name in names],
    ]
    for described in bad:
        with (tmp_path / "columns").open("wb", buffering=0) as file, pytest.raises(DecoderLost):
            found._write_columns(described, file)


@pytest.mark.parametrize(
    "header", [{"sensor": [1, 1]}, {"sensor": [1], "first_us": 0}, {"sensor": [1, 1], "first_us": 1 << 99}]
)
def test_facts_of_a_recording_that_are_none_are_refused(decoder, tmp_path, header):
    class Answering(MediaDecoder):
        async def _run(self, *_, **more):
            return header, []

    with pytest.raises(DecodeError, match="it broke the decoder"):
        asyncio.run(Answering(1, 1 << 30, 1).events(Excerpt(tmp_path), 1, tmp_path, "it"))


def test_a_full_disk_is_the_servers_fault_and_costs_one_job(decoder, media_root):
    full = Path("/dev/full")
    with pytest.raises(ApiError, match="no room") as error:
        asyncio.run(decoder.events(Excerpt(media_root / "clip.h5"), 1_000_000, full, "it"))
    assert error.value.status == 503
    assert asyncio.run(decoder.kind_of(media_root / "clip.h5", "it")) == "event"


def test_kinds_are_known_by_bytes(decoder, media_root, tmp_path):
    (tmp_path / "a").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
    kinds = [asyncio.run(decoder.kind_of(path, "it")) for path in (media_root / "clip.mp4", media_root / "clip.h5")]
    assert [*kinds, asyncio.run(decoder.kind_of(tmp_path / "a", "it"))] == ["video", "event", "image"]


def test_what_cannot_be_decoded_is_called_by_its_name_not_its_path(decoder, tmp_path):
    path, into = tmp_path / "secret-name", tmp_path / "into"
    path.write_bytes(b"no video" * 10)
    into.touch()
    for ask in (
        decoder.clip(path, EIGHT, "part 1"),
        decoder.image(path, "part 1"),
        decoder.events(Excerpt(path), 1000, into, "part 1"),
    ):
        with pytest.raises(DecodeError, match="part 1") as error:
            asyncio.run(ask)
        assert "secret-name" not in str(error.value)
        assert error.value.param == "part 1"


def test_what_a_client_wrote_costs_no_worker_however_long(decoder, media_root, tmp_path):
    """Its error repeats it, and a reply has a limit."""
    used, into = worker(decoder), tmp_path / "columns"
    into.touch()
    part = Excerpt(media_root / "clip.h5", format="x" * (2 << 20))
    with pytest.raises(DecodeError, match="There is no event format 'xxx") as error:
        asyncio.run(decoder.events(part, 1, into, "it"))
    assert len(str(error.value)) == 1000
    assert worker(decoder) is used


@pytest.mark.parametrize("kind", [EventUrl, ReplayedEvents])
def test_the_name_of_a_format_is_bounded(kind):
    assert kind(url="file:x", format="ncaltech101").format == "ncaltech101"
    with pytest.raises(ValidationError, match="at most 32"):
        kind(url="file:x", format="x" * 33)


def test_a_worker_that_is_killed_at_a_job_is_replaced(decoder, media_root, tmp_path):
    """A pipe that nobody writes to holds it at the job."""
    asyncio.run(decoder.clip(media_root / "clip.mp4", EIGHT, "it"))
    found, jobs = worker(decoder), worker(decoder).jobs
    os.mkfifo(tmp_path / "pipe")

    async def killed() -> None:
        job = asyncio.ensure_future(decoder.kind_of(tmp_path / "pipe", "it"))
        while found.jobs == jobs:
            await asyncio.sleep(0.001)
        found.kill()
        await job

    with pytest.raises(DecodeError, match="broke the decoder"):
        asyncio.run(killed())
    assert len(asyncio.run(decoder.clip(media_root / "clip.mp4", EIGHT, "it")).frames) == 8


def test_a_worker_is_limited(decoder, media_root):
    asyncio.run(decoder.clip(media_root / "clip.mp4", EIGHT, "it"))
    limits = Path(f"/proc/{worker(decoder)._process.pid}/limits").read_text().splitlines()
    found = {line[:26].strip(): line[26:].split()[0] for line in limits[1:]}
    assert found["Max address space"] == str(1 << 30)
    assert found["Max core file size"] == "0"
    assert found["Max file size"] == str(1 << 20)
    assert int(found["Max cpu time"]) < 100
    environment = Path(f"/proc/{worker(decoder)._process.pid}/environ").read_text()
    assert "PYTEST_CURRENT_TEST" not in environment  # nothing of ours that it does not need
    assert Path(f"/proc/{worker(decoder)._process.pid}/fd/2").readlink() == Path(os.devnull)  # once it is there


def test_a_deadline_ends_a_job(media_root, tmp_path):
    """A pipe that nobody writes to stands for a decoder that hangs."""
    decoder = MediaDecoder(1, 1 << 30, 0.5)
    try:
        asyncio.run(decoder.kind_of(media_root / "clip.mp4", "it"))  # it is there
        os.mkfifo(tmp_path / "pipe")
        began = time.monotonic()
        with pytest.raises(DecodeError, match=r"0\.5 s"):
            asyncio.run(decoder.kind_of(tmp_path / "pipe", "it"))
        assert time.monotonic() - began < 20
    finally:
        decoder.close()


def test_an_image_bomb_is_refused_by_its_header(decoder, tmp_path):
    """A PNG of 43 bytes that says it has 3.6 billion pixels."""
    import zlib

    path, header = tmp_path / "bomb.png", b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)))
    with pytest.raises(DecodeError, match="it "):
        asyncio.run(decoder.image(path, "it"))


def test_a_video_bomb_costs_its_sender_alone(decoder, tmp_path):
    """Little to send, gigabytes to hold."""
    from crossdraft.video import write_mp4

    path = tmp_path / "bomb.mp4"
    write_mp4(path, repeat(np.zeros((2048, 2048, 3), np.uint8), 65), fps=25)
    assert path.stat().st_size < 200_000
    with pytest.raises(DecodeError, match="limit"):
        asyncio.run(decoder.clip(path, FrameSampling(65), "it"))


def test_nonsense_from_a_worker_is_no_frames():
    from crossdraft.serve.decode import _fit

    pixels, times = np.zeros((2, 4, 4, 3), np.uint8), np.zeros(2)
    assert _fit(pixels, times)
    assert _fit(pixels, np.zeros(3), np.array([0, 1, 1]))
    assert not _fit(pixels, np.zeros(3))
    assert not _fit(pixels, np.zeros(3), np.array([0, 1, 2]))
    assert not _fit(pixels, np.zeros(3), np.array([0, 1, -1]))
    assert not _fit(pixels[..., :2], times)
    assert not _fit(pixels[:0], times[:0])
    assert not _fit(pixels, np.array([0, np.nan]))
    assert not _fit(pixels.astype(np.int64), times)


@pytest.mark.parametrize("name", ["a.h5", "a.txt", "a.zip", "a.npy", "a.dat", "a.aedat4", "a.raw"])
def test_recordings_of_every_format_are_read_within_the_limits(decoder, media_root, tmp_path, name):
    from crossdraft.events import read_events, write_events

    if name in ("a.dat", "a.aedat4", "a.raw"):
        pytest.importorskip("faery")
    events = read_events(media_root / "clip.h5")
    write_events(tmp_path / name, events.take(slice(0, 20_000)))
    found = decoded(decoder, Excerpt(tmp_path / name), tmp_path / "into")
    assert found.first_us == events.t[0]
    assert found.count == 20_000


def test_what_a_reader_noted_goes_with_the_events(decoder, tmp_path):
    words = np.array([0x8005, 0x6009, 0x0001, 0x2001, 0x6003, 0x2002], "<u2")
    (tmp_path / "a.raw").write_bytes(b"% evt 3.0\n% geometry 640x480\n% end\n" + words.tobytes())
    notes = ("Events that came late, up to 6 µs, and were put in order: 1.",)
    assert decoded(decoder, Excerpt(tmp_path / "a.raw"), tmp_path / "into").notes == notes
    kept = DecodedExcerpt(tmp_path / "into", format="eventgpt", sensor=(640, 480), digest=b"", notes=notes)
    assert kept.read().notes == kept.read_windows(Newest(most=1))[0].notes == notes


def test_a_reply_that_trickles_is_late_all_the_same(decoder, media_root):
    """Each byte comes in time, all of them do not."""
    asyncio.run(decoder.kind_of(media_root / "clip.mp4", "it"))
    found = worker(decoder)
    (ours, theirs), held = socket.socketpair(), found.socket
    found.socket, found._seconds = ours, 0.5
    ours.settimeout(0.5)
    began, over = time.monotonic(), threading.Event()

    def trickle() -> None:
        with suppress(OSError):
            theirs.sendall(struct.pack("<I", 1000))
            while not over.wait(0.1) and time.monotonic() - began < 5:
                theirs.sendall(b" ")

    thread = threading.Thread(target=trickle)
    thread.start()
    with pytest.raises(DecoderLost):
        found.ask({"kind": "nothing"})
    took = time.monotonic() - began
    over.set()
    thread.join()
    theirs.close()
    found.close()
    held.close()
    assert took < 3


@pytest.mark.parametrize("kind", REFUSED)
def test_a_client_reads_of_a_column_what_a_reader_in_this_process_says(decoder, kind, tmp_path):
    """And never that the file is cut off or broken, which it is not."""
    path = as_npz(tmp_path, {**GOOD, "t": REFUSED[kind]})
    with pytest.raises(CrossdraftError) as here:
        Excerpt(path, sensor=(640, 480)).read()
    with pytest.raises(DecodeError) as there:
        decoded(decoder, Excerpt(path, sensor=(640, 480)), tmp_path / "into")
    said = str(there.value)
    assert "cut off" not in said
    assert said == str(here.value).replace(str(path), "it")
