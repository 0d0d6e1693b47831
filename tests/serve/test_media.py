"""Media of requests that are left, refused, or about the same bytes."""

import asyncio
import base64
import threading
import time

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.serve import media
from crossdraft.serve.decode import MediaDecoder
from crossdraft.serve.errors import ApiError
from crossdraft.serve.local_files import LocalFiles
from crossdraft.serve.media import MediaLoader
from crossdraft.serve.schema import ChatRequest
from crossdraft.serve.uploads import Uploads
from crossdraft.video.clip import FrameSampling


@pytest.fixture
def loader(tmp_path):
    """With one worker, which starts with the first job: that takes longer than anything that these tests do."""
    (tmp_path / "spool").mkdir()
    decoder = MediaDecoder(1, 2 << 30, 20)
    uploads = Uploads(tmp_path / "uploads", 1 << 20, 1 << 20, 1000)
    found = MediaLoader(
        uploads, LocalFiles(tmp_path), None, decoder, tmp_path / "spool", cache_bytes=1 << 26, most_bytes=1 << 26,
        most_local=1 << 20, most_parts=16, sampling=FrameSampling(8),
    )  # fmt: skip
    yield found
    found.close()
    uploads.close()
    decoder.close()


def asking(*urls: str) -> ChatRequest:
    shown = [{"type": "video_url", "video_url": {"url": url}} for url in urls]
    return ChatRequest.model_validate({"model": "x", "messages": [{"role": "user", "content": shown}]})


def inline(found: bytes) -> str:
    return "data:video/mp4;base64," + base64.b64encode(found).decode()


async def loaded(loader: MediaLoader, chat: ChatRequest, owner: str = "anna") -> int:
    async with loader.loaded(chat, owner) as media:
        return len(media.messages)


async def until(reached) -> None:
    async with asyncio.timeout(20):
        while not reached():
            await asyncio.sleep(0.001)


async def left(*tasks: asyncio.Task[int]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_a_request_that_is_left_takes_no_clip_from_another_that_waits_for_it(loader, media_root):
    async def run() -> None:
        chat = asking(inline((media_root / "clip.mp4").read_bytes()))
        first = asyncio.create_task(loaded(loader, chat))
        await until(lambda: loader._decoded._making)
        second = asyncio.create_task(loaded(loader, chat))
        await until(lambda: next(iter(loader._decoded._making.values())).waiting == 2)
        await left(first)
        assert await second == 1

    asyncio.run(run())
    assert loader.spooled == 0


def test_what_nobody_waits_for_is_not_decoded(loader):
    """Else requests that are sent and left would fill a queue without an end."""

    async def run() -> None:
        tasks = [asyncio.create_task(loaded(loader, asking(inline(bytes([number]) * 100)))) for number in range(50)]
        await until(lambda: loader.decoder._threads._work_queue.qsize() == 49)  # one has begun
        await left(*tasks)
        assert not loader._decoded._making

    asyncio.run(run())
    jobs = [loader.decoder._threads._work_queue.get_nowait() for _ in range(49)]
    assert all(job.future.cancelled() for job in jobs)
    assert loader.spooled == 0


def test_a_part_that_is_refused_leaves_no_file_of_the_others(loader):
    """These are still being written in a thread then."""
    with pytest.raises(ApiError, match="no such file"):
        asyncio.run(loaded(loader, asking(inline(b"x" * (8 << 20)), inline(b"y" * (8 << 20)), "file:nothing.mp4")))
    assert loader.spooled == 0


def test_a_clip_that_cannot_be_decoded_is_so_for_all_that_wait(loader):
    async def run() -> list[object]:
        tasks = [loaded(loader, asking("data:video/mp4;base64,AAAA", inline(b"x"))) for _ in range(3)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(one, CrossdraftError) for one in asyncio.run(run()))
    assert loader.spooled == 0


def test_what_is_known_of_one_clients_recordings_is_not_of_anothers(loader, media_root):
    """Else how long an answer takes would tell who has what."""
    uploads = {owner: loader.uploads.add(owner, "clip.h5", "x", (media_root / "clip.h5").open("rb")) for owner in "ab"}
    parts = [{"type": "file", "file": {"file_id": one.id}} for one in uploads.values()]
    for owner, part in zip("ab", parts, strict=True):
        chat = ChatRequest.model_validate({"model": "x", "messages": [{"role": "user", "content": [part]}]})
        asyncio.run(loaded(loader, chat, owner))
    for cache in (loader._kinds, loader._recordings):
        assert [key[0] for key in cache._values] == ["a", "b"]


def test_media_of_all_requests_together_are_bounded(loader, media_root):
    """Whoever comes too late is told so, and what a request held is free once it is over."""

    async def run() -> None:
        clip = inline((media_root / "clip.mp4").read_bytes())
        async with loader.loaded(asking(clip), "anna"):
            held = loader.budget.held
            assert held > 8 * 200 * 200 * 3  # the frames, and the bytes that were sent
            async with loader.loaded(asking(clip), "anna"):
                assert loader.budget.held - held < len(clip)  # the frames count once
            assert loader.budget.held == held
            loader.budget.most = held + 100
            with pytest.raises(ApiError) as error:
                await loaded(loader, asking(inline(b"x" * 200)), "ben")
            assert (error.value.status, error.value.code) == (503, "media_full")
            assert error.value.headers["Retry-After"]
            with pytest.raises(ApiError) as error:
                await loaded(loader, asking(inline(b"x" * (held + 200))), "ben")
            assert (error.value.status, error.value.code) == (413, "media_too_large")
        assert loader.budget.held == 0
        assert not loader.budget.holders

    asyncio.run(run())


def test_a_file_of_the_media_folder_is_not_read_whole_if_it_is_huge(loader, tmp_path):
    with (tmp_path / "huge.mp4").open("wb") as file:
        file.truncate(1 << 40)  # none of it on the disk
    began = time.monotonic()
    with pytest.raises(ApiError, match="more than 1,048,576 bytes"):
        asyncio.run(loaded(loader, asking("file:huge.mp4")))
    assert time.monotonic() - began < 5


def test_files_are_hashed_in_threads_of_their_own(loader, tmp_path, monkeypatch):
    """So that none of the shared ones, in which uploads are kept and pictures packed, waits for the disk."""
    (tmp_path / "clip.mp4").write_bytes(b"x")
    names = []
    monkeypatch.setattr(media, "_hashed", lambda path: names.append(threading.current_thread().name) or b"digest")
    asyncio.run(loader._digest(tmp_path / "clip.mp4", "x"))
    assert names[0].startswith("hash")


@pytest.mark.parametrize("text", ["%41" * 340_000, base64.b64encode(b"x" * 700_000).decode()])
def test_a_long_data_address_does_not_stop_the_others(loader, text):
    """Just below the limit of what is decoded at once, if it is base64."""

    async def run() -> float:
        url = ("data:video/mp4," if "%" in text else "data:video/mp4;base64,") + text
        working, longest = asyncio.create_task(loaded(loader, asking(url))), 0.0
        last = time.thread_time()
        while not working.done():
            await asyncio.sleep(0)
            longest, last = max(longest, time.thread_time() - last), time.thread_time()
        with pytest.raises(CrossdraftError):
            await working
        return longest

    assert asyncio.run(run()) < 0.03
