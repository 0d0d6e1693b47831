"""Media of requests that are left, refused, or about the same bytes."""

import asyncio
import base64
import threading
import time
from io import BytesIO

import cv2
import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError
from transformers.image_utils import load_image

from crossdraft.data_url import DataUrl
from crossdraft.errors import CrossdraftError
from crossdraft.events import Excerpt
from crossdraft.serve import media_files
from crossdraft.serve.decode import EventColumns, MediaDecoder
from crossdraft.serve.errors import ApiError
from crossdraft.serve.keys import Client
from crossdraft.serve.local_files import LocalFiles
from crossdraft.serve.media import MediaLoader
from crossdraft.serve.media_files import MediaFiles
from crossdraft.serve.recordings import DecodedRecording
from crossdraft.serve.schema import ChatRequest
from crossdraft.serve.uploads import Uploads
from crossdraft.video.clip import FrameSampling
from crossdraft.video.image import image_frames
from crossdraft.video.read import sample_frames
from tests.video.helpers import animation
from tests.video.test_image import FILES, HEIGHT, WIDTH, turned
from tests.video.test_upright import written


@pytest.fixture
def loader(tmp_path):
    """With one worker, which starts with the first job: that takes longer than anything that these tests do."""
    for folder in ("spool", "recordings"):
        (tmp_path / folder).mkdir()
    decoder = MediaDecoder(1, 2 << 30, 20)
    uploads = Uploads(tmp_path / "uploads", 1 << 20, 1 << 20, 1000)
    files = MediaFiles(uploads, LocalFiles(tmp_path), None, tmp_path / "spool", 1 << 20)
    yield MediaLoader(
        files, decoder, tmp_path / "recordings", cache_bytes=1 << 26, most_bytes=1 << 26, most_parts=16,
        sampling=FrameSampling(8),
    )  # fmt: skip
    files.close()
    uploads.close()
    decoder.close()


def asking(*urls: str) -> ChatRequest:
    shown = [{"type": "video_url", "video_url": {"url": url}} for url in urls]
    return ChatRequest.model_validate({"model": "x", "messages": [{"role": "user", "content": shown}]})


def named(kind: str, uuid: str, url: str | None = None, **more) -> ChatRequest:
    part = {"type": kind, "uuid": uuid, kind: {"url": url, **more}}
    return ChatRequest.model_validate({"model": "x", "messages": [{"role": "user", "content": [part]}]})


def inline(found: bytes) -> str:
    return "data:video/mp4;base64," + base64.b64encode(found).decode()


async def loaded(loader: MediaLoader, chat: ChatRequest, owner: str = "anna") -> int:
    async with loader.loaded(chat, Client(owner)) as media:
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
    assert loader.files.spooled == 0


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
    assert loader.files.spooled == 0


def test_a_part_that_is_refused_leaves_no_file_of_the_others(loader):
    """These are still being written in a thread then."""
    with pytest.raises(ApiError, match="no such file"):
        asyncio.run(loaded(loader, asking(inline(b"x" * (8 << 20)), inline(b"y" * (8 << 20)), "file:nothing.mp4")))
    assert loader.files.spooled == 0


def test_a_clip_that_cannot_be_decoded_is_so_for_all_that_wait(loader):
    async def run() -> list[object]:
        tasks = [loaded(loader, asking("data:video/mp4;base64,AAAA", inline(b"x"))) for _ in range(3)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(one, CrossdraftError) for one in asyncio.run(run()))
    assert loader.files.spooled == 0


def test_what_is_known_of_one_clients_recordings_is_not_of_anothers(loader, media_root):
    """Else how long an answer takes would tell who has what."""
    add, path = loader.files.uploads.add, media_root / "clip.h5"
    uploads = {owner: add(owner, "clip.h5", "x", path.open("rb")) for owner in "ab"}
    parts = [{"type": "file", "file": {"file_id": one.id}} for one in uploads.values()]
    for owner, part in zip("ab", parts, strict=True):
        chat = ChatRequest.model_validate({"model": "x", "messages": [{"role": "user", "content": [part]}]})
        asyncio.run(loaded(loader, chat, owner))
    for cache in (loader._kinds, loader._decoded):
        assert [key[0] for key in cache._values] == ["a", "b"]


def test_media_of_all_requests_together_are_bounded(loader, media_root):
    """Whoever comes too late is told so, and what a request held is free once it is over."""

    async def run() -> None:
        clip = inline((media_root / "clip.mp4").read_bytes())
        async with loader.loaded(asking(clip), Client("anna")):
            held = loader.budget.held
            assert held > 8 * 200 * 200 * 3  # the frames, and the bytes that were sent
            async with loader.loaded(asking(clip), Client("anna")):
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
    monkeypatch.setattr(
        media_files, "file_digest", lambda path: names.append(threading.current_thread().name) or b"digest"
    )
    asyncio.run(loader.files._digest(tmp_path / "clip.mp4", "x"))
    assert names[0].startswith("hash")


@pytest.mark.parametrize(
    "data",
    ["," + "%41" * 340_000, ";base64," + "%41" * 340_000, ";base64," + base64.b64encode(b"x" * 700_000).decode()],
)
def test_a_long_data_address_does_not_stop_the_others(loader, data):
    """Just below the limit of what is decoded at once, if it is base64."""

    async def run() -> float:
        working, longest = asyncio.create_task(loaded(loader, asking(f"data:video/mp4{data}"))), 0.0
        last = time.thread_time()
        while not working.done():
            await asyncio.sleep(0)
            longest, last = max(longest, time.thread_time() - last), time.thread_time()
        with pytest.raises(CrossdraftError):
            await working
        return longest

    assert asyncio.run(run()) < 0.03


@pytest.mark.parametrize(("sizes", "here"), [((1000,) * 3, 4000), ((60_000,) * 40, 1_021_000), ((2_000_000,), 1000)])
def test_what_is_sent_is_decoded_in_a_thread_beyond_a_total(loader, monkeypatch, sizes, here):
    """Characters of each part, and of all that are decoded on the event loop: of small requests all of them."""
    lengths, decoded = {True: 0, False: 0}, DataUrl.decoded

    def noted(data):
        lengths[threading.current_thread() is threading.main_thread()] += data.length
        return decoded(data)

    monkeypatch.setattr(DataUrl, "decoded", noted)
    shots = ",".join(base64.b64encode(b"x" * (size * 3 // 4)).decode() for size in (1000, *sizes))
    with pytest.raises(CrossdraftError, match="image"):
        asyncio.run(loaded(loader, asking(f"data:video/jpeg;base64,{shots}")))
    assert lengths[True] == here
    assert sum(lengths.values()) == 1000 + sum(sizes)


def asking_about(recording: bytes, **more) -> ChatRequest:
    url = "data:application/x-hdf5;base64," + base64.b64encode(recording).decode()
    shown = [{"type": "event_url", "event_url": {"url": url, **more}}]
    return ChatRequest.model_validate({"model": "x", "messages": [{"role": "user", "content": shown}]})


def test_a_drafter_reads_columns_and_never_the_recording(loader, media_root, tmp_path):
    """Kept for later requests, which share one file, and deleted with the last who holds it."""
    chat, wanted = asking_about((media_root / "clip.h5").read_bytes(), end_s=0.5), Excerpt(media_root / "clip.h5")
    folder = tmp_path / "recordings"

    async def run() -> None:
        async with loader.loaded(chat, Client("anna")) as media, loader.loaded(chat, Client("anna")) as again:
            (file,) = folder.iterdir()
            assert media.events == again.events
            assert media.events.path == again.events.path == file
            found, whole = media.events.read(), wanted.read()
            assert np.array_equal(found.t, whole.t[whole.t < 500_000])
            assert len(found) > 1000
            assert loader.cached_bytes - 13 * len(whole) in range(2000)
        loader._decoded.put("other", DecodedRecording(EventColumns(0, (1, 1), 5_100_000), None, b""))  # which is large
        del media, again, found

    asyncio.run(run())
    assert not list(folder.iterdir())
    assert loader.files.spooled == 0


def test_the_unit_of_a_recording_s_times_is_the_request_s(loader, tmp_path):
    np.savez(tmp_path / "a.npz", x=[1, 2], y=[1, 2], t=[0, 2_000_000], p=[0, 1])
    recording = (tmp_path / "a.npz").read_bytes()

    async def read(**more) -> list[int]:
        async with loader.loaded(asking_about(recording, sensor=[64, 48], **more), Client("anna")) as media:
            return media.events.read().t.tolist()

    assert asyncio.run(read()) == [0, 2_000_000]
    assert asyncio.run(read(time_unit="ns")) == [0, 2000]  # and not the one that is kept
    with pytest.raises(ValidationError, match="time_unit"):
        asking_about(recording, time_unit="minutes")


def test_of_a_long_recording_the_part_that_is_shown_is_decoded(loader, media_root, tmp_path, monkeypatch):
    monkeypatch.setattr("crossdraft.serve.recordings.MOST_WHOLE", 1000)
    recording, whole = (media_root / "clip.h5").read_bytes(), Excerpt(media_root / "clip.h5").read()

    async def run() -> None:
        chats = [asking_about(recording, start_s=start, end_s=start + 0.25, clock="video") for start in (0.0, 0.5)]
        async with loader.loaded(chats[0], Client("anna")) as first, loader.loaded(chats[1], Client("anna")) as second:
            assert first.events.digest != second.events.digest
            assert np.array_equal(first.events.read().t, whole.t[whole.t < 250_000])
            assert np.array_equal(second.events.read().t, whole.slice(500_000, 750_000).t)
            sizes = [path.stat().st_size for path in (tmp_path / "recordings").iterdir()]
            assert sum(sizes) < 13 * len(whole)

    asyncio.run(run())


def test_a_recording_that_nobody_waits_for_leaves_no_file(loader, media_root, tmp_path):
    async def run() -> None:
        recording = (media_root / "clip.h5").read_bytes()
        tasks = [asyncio.create_task(loaded(loader, asking_about(recording + bytes(number)))) for number in range(5)]
        await until(lambda: len(list((tmp_path / "recordings").iterdir())) == 5)
        await left(*tasks)
        assert not list((tmp_path / "recordings").iterdir())

    asyncio.run(run())
    loader.decoder.close()  # the job that had begun is over
    assert not list((tmp_path / "recordings").iterdir())
    assert loader.files.spooled == 0


def test_events_count_as_media_that_requests_hold(loader, media_root):
    async def run() -> None:
        loader.budget.most = 1 << 20  # the recording has half of that, its events 2.5 times
        with pytest.raises(ApiError) as error:
            await loaded(loader, asking_about((media_root / "clip.h5").read_bytes()))
        assert error.value.status == 413
        assert loader.budget.held == 0

    asyncio.run(run())


async def clip_of(loader: MediaLoader, chat: ChatRequest):
    async with loader.loaded(chat, Client("anna")) as media:
        return media.messages[0]["content"][0]["video"]


def sampled(*levels: int) -> str:
    """Frames that a client sampled."""
    shots = [cv2.imencode(".jpg", np.full((32, 32, 3), level, np.uint8))[1].tobytes() for level in levels]
    return "data:video/jpeg;base64," + ",".join(base64.b64encode(shot).decode() for shot in shots)


@pytest.mark.filterwarnings("ignore:Palette images:UserWarning")  # of transformers' reader
@pytest.mark.parametrize("name", ["jpeg 4:2:0", "png palette, alpha", "webp animated", "EXIF 6"])
def test_an_image_is_what_transformers_reads_however_its_base64_is_written(loader, name):
    data = turned("JPEG", 6) if name == "EXIF 6" else FILES[name]()
    wanted, usual = np.asarray(load_image(Image.open(BytesIO(data)))), base64.b64encode(data).decode()
    texts = [usual, usual.rstrip("="), base64.urlsafe_b64encode(data).decode(), base64.encodebytes(data).decode()]

    async def run() -> None:
        for text in texts:
            async with loader.loaded(named("image_url", "u", f"data:image/png;base64,{text}"), Client("anna")) as media:
                found = media.messages[0]["content"][0]["image"]
                assert np.array_equal(image_frames(found).frames[0], wanted)
                where = "messages[0].content[0]"
                said = (f"{where} is animated; only its first frame is shown. Give it as a video to show all.",)
                assert image_frames(found).notes == (said if name == "webp animated" else ())

    asyncio.run(run())


def test_a_data_address_that_is_no_base64_is_called_so(loader):
    with pytest.raises(ApiError, match=r"The data: address is no base64; encode the file again\."):
        asyncio.run(loaded(loader, named("image_url", "u", "data:image/png;base64,QUJD!")))


def test_clips_are_those_that_the_engine_reads_however_their_base64_is_written(loader, tmp_path):
    clips = [written(tmp_path / "turned.mp4", -90), animation(tmp_path / "a.gif", [100, 3000, 100], "gif")]
    clips += [animation(tmp_path / "a.webp", [100, 3000, 100], "webp")]
    for clip in clips:
        data, wanted = clip.read_bytes(), sample_frames(clip, 3)
        usual = base64.b64encode(data).decode()
        texts = [usual.rstrip("="), base64.urlsafe_b64encode(data).decode(), base64.encodebytes(data).decode()]
        for text in texts:
            found = asyncio.run(clip_of(loader, asking(f"data:video/mp4;base64,{text}"))).frames
            assert np.array_equal(found.frames, sample_frames(clip, len(found)).frames)
            assert found.timed
            assert found.notes == tuple(note.replace(str(clip), "messages[0].content[0]") for note in wanted.notes)


def test_frames_that_a_client_sampled_are_turned_and_their_notes_are_kept_once(loader):
    def shots(orientation: int) -> str:
        data = base64.b64encode(turned("JPEG", orientation)).decode()
        return f"data:video/jpeg;base64,{data},{data}"

    clip = asyncio.run(clip_of(loader, asking(shots(6))))
    assert clip.frames.pixels.shape == (2, WIDTH, HEIGHT, 3)
    assert not clip.frames.timed
    deep = base64.b64encode(FILES["png 16 bit grey"]()).decode()
    clip = asyncio.run(clip_of(loader, asking(f"data:video/jpeg;base64,{deep},{deep}")))
    (note,) = clip.frames.notes
    assert note.startswith("messages[0].content[0] is grey of more than 8 bits")


def test_a_uuid_names_what_was_sent_with_it_last(loader, media_root):
    async def run() -> None:
        clip = inline((media_root / "clip.mp4").read_bytes())
        first = await clip_of(loader, named("video_url", "u", clip))
        second = await clip_of(loader, named("video_url", "u", sampled(0, 100)))
        assert second.digest != first.digest
        again = await clip_of(loader, named("video_url", "u"))
        assert (again.digest, again.sampling, len(again.frames.times_s)) == (second.digest, None, 2)
        with pytest.raises(CrossdraftError):
            await loaded(loader, named("video_url", "u", "data:video/mp4;base64,AAAA"))
        with pytest.raises(ApiError) as error:  # and not about the clip before it
            await loaded(loader, named("video_url", "u"))
        assert error.value.code == "unknown_uuid"
        await clip_of(loader, named("video_url", "u", clip, num_frames=4))
        assert len((await clip_of(loader, named("video_url", "u", num_frames=4))).frames.times_s) == 4

    asyncio.run(run())


def test_frames_that_the_client_sampled_are_not_sampled_again(loader):
    async def run() -> None:
        await loaded(loader, named("video_url", "u", sampled(0, 100)))
        for url in (sampled(0, 100), None):
            with pytest.raises(ApiError, match="leave out num_frames, fps and max_frames"):
                await loaded(loader, named("video_url", "u", url, num_frames=1))
            await loaded(loader, named("video_url", "u", sampled(0, 100)))

    asyncio.run(run())
    assert loader.files.spooled == 0


@pytest.mark.parametrize("scheme", ["data:", "DATA:", "Data:"])
def test_the_address_of_a_recording_is_remembered_only_if_it_is_short(loader, media_root, tmp_path, scheme):
    """One that holds the recording is no name: it would be kept in memory, beside all that is bounded."""
    recording = (media_root / "clip.h5").read_bytes()
    (tmp_path / "clip.h5").write_bytes(recording)
    upload = loader.files.uploads.add("anna", "clip.h5", "x", (tmp_path / "clip.h5").open("rb")).id
    held = scheme + "application/x-hdf5;base64," + base64.b64encode(recording).decode()

    async def run() -> None:
        for url in ("file:clip.h5", "FILE:clip.h5", upload):
            await loaded(loader, named("event_url", "u", url))
            await loaded(loader, named("event_url", "u"))
            assert list(loader._addresses._values.values()) == [url]
        await loaded(loader, named("event_url", "u", held))
        assert not loader._addresses._values
        with pytest.raises(ApiError) as error:  # and not about the recording before it
            await loaded(loader, named("event_url", "u"))
        assert error.value.code == "unknown_uuid"

    asyncio.run(run())


def test_the_head_of_a_data_address_is_bounded(loader):
    with pytest.raises(ApiError, match="no comma within 256 characters"):
        asyncio.run(loaded(loader, named("event_url", "u", "DATA:" + "x" * (1 << 20) + ";base64,QUJD")))
    assert loader.budget.held == 0
