"""Which clip a request is about, by which it finds its replica."""

import asyncio
import hashlib
import json
import tracemalloc

import pytest

from crossdraft.serve.bodies import INLINE
from crossdraft_ray.sticky import clip_name, digest, session_of
from tests.serve.conftest import body, content


def asked(*messages, **more) -> bytes:
    found = [{"role": role, "content": parts} for role, parts in messages]
    return json.dumps({"model": "reference", "messages": found, **more}).encode()


def clip(url=None, uuid=None, kind="video_url"):
    return {"type": kind} | ({kind: {"url": url}} if url else {}) | ({"uuid": uuid} if uuid else {})


MOST = 16
TEXT = {"type": "text", "text": "What is ahead?"}


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ([clip("file:a.mp4"), TEXT], "file:a.mp4"),
        ([clip("file:a.mp4", uuid="one"), TEXT], "one"),
        ([clip(uuid="one"), TEXT], "one"),  # as it is asked about again
        ([clip("data:image/png;base64,aaaa", kind="image_url"), clip("file:a.mp4")], "data:image/png;base64,aaaa"),
        ([clip("file:a.h5", kind="event_url"), clip("file:a.mp4"), TEXT], "file:a.mp4"),
        ([clip("file:a.h5", kind="event_url"), TEXT], "file:a.h5"),
        ([{"type": "file", "file": {"file_id": "file-0"}}, TEXT], "file-0"),
        ([TEXT], None),
    ],
)
def test_a_request_is_named_by_its_clip(parts, name):
    assert clip_name(asked(("user", parts)), MOST) == name


def test_a_conversation_keeps_the_name_of_its_first_clip():
    first = ("user", [clip("file:a.mp4"), TEXT])
    later = ("user", [clip("file:b.mp4"), TEXT])
    assert clip_name(asked(("system", "Be brief."), first, ("assistant", "A van."), later), MOST) == "file:a.mp4"


@pytest.mark.parametrize("found", [b"", b"{", b"[]", b'{"model": 1}', b"\xff", asked(("user", "Hello"))])
def test_what_names_no_clip_has_no_session(found):
    assert clip_name(found, MOST) is None
    assert asyncio.run(session_of(found, "", MOST)) == ""


def test_the_session_is_of_the_client_and_the_clip_and_of_nothing_else():
    def session(client="", question="What is ahead?", video="file:clip.mp4", **more):
        parts = [{"role": "user", "content": content(question, video)}]
        return asyncio.run(session_of(json.dumps(body(messages=parts, **more)).encode(), client, MOST))

    assert session() == session(question="Is it raining?", stream=True, seed=7)
    assert len({session(), session("a"), session("b"), session(video="file:other.mp4")}) == 4


def test_a_large_clip_has_the_same_session_whatever_reads_it():
    large = asked(("user", [clip("data:video/mp4;base64," + "A" * INLINE), TEXT]))
    assert len(large) > INLINE
    assert asyncio.run(session_of(large, "", MOST)) != ""
    small = asked(("user", [clip("data:video/mp4;base64," + "A" * INLINE, uuid="x"), TEXT]))
    assert asyncio.run(session_of(small, "", MOST)) == asyncio.run(
        session_of(asked(("user", [clip(uuid="x")])), "", MOST)
    )


def test_of_more_media_than_a_request_may_hold_none_is_looked_at():
    parts = [clip(f"file:{number}.mp4") for number in range(MOST)]
    assert clip_name(asked(("user", [*parts, TEXT]), ("user", [TEXT])), MOST) == "file:0.mp4"
    for more in (clip("file:x.mp4"), clip("file:x.h5", kind="event_url"), {"type": "file", "file": {"file_id": "x"}}):
        assert clip_name(asked(("user", parts), ("user", [more, TEXT])), MOST) is None


def test_a_large_clip_is_hashed_without_a_copy():
    name = "data:video/mp4;base64," + "Aé" * (4 << 20)
    tracemalloc.start()
    try:
        found = digest("anna", name)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    assert found == hashlib.sha256(f"anna\0{name}".encode()).hexdigest()
