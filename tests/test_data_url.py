"""Files that are written in addresses: found without a copy, decoded piece by piece as if at once."""

import base64
from urllib.parse import quote, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from crossdraft.data_url import MOST_HEAD, MOST_URL, data_url, scheme_of
from crossdraft.serve.schema import EventUrl, ImageUrl, ReplayedClip, ReplayedEvents, VideoUrl


def whole(text: str) -> bytes | None:
    """All of it at once: without white space, with the letters of RFC 4648 §4 and the padding that lacks."""
    plain = b"".join(unquote_to_bytes(text).split()).translate(bytes.maketrans(b"-_", b"+/"))
    try:
        return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
    except ValueError:
        return None


def by_parts(url: str, at_once: int) -> bytes | None:
    try:
        return b"".join(data_url(url).decoded(at_once))
    except ValueError:
        return None


@given(
    st.text("AQg-_+/=% \nDé", max_size=24) | st.binary(max_size=24).map(lambda found: base64.b64encode(found).decode())
)
def test_base64_by_parts_is_what_it_is_at_once(text):
    assert by_parts(f"data:;base64,{text}", 4) == whole(text)


@given(st.binary(min_size=1, max_size=200), st.integers(4, 9))
def test_base64_is_read_as_programs_write_it(data, at_once):
    usual, urlsafe = base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()
    lines, mime = base64.encodebytes(data).decode(), usual[:7] + "\r\n \t" + usual[7:]
    for text in (usual, urlsafe, usual.rstrip("="), urlsafe.rstrip("="), lines, mime, quote(usual, safe="")):
        assert by_parts(f"data:image/png;base64,{text}", at_once) == data
        assert by_parts(f"data:image/png; base64,{text}", at_once) == data
        assert data_url(f"data:;base64,{text}").nbytes >= len(data)


@pytest.mark.parametrize("text", ["QQ==QQ==", "QQ=Q", "Q", "QUJDR", "QQ!=", "QQ==\nQ", "QÜ==", "Q,Q=", "=", "QUI=="])
def test_what_is_no_base64_is_refused(text):
    assert [by_parts(f"data:;base64,{text}", at_once) for at_once in (4, 5, 100)] == [None] * 3


@given(st.text("%4a1é", max_size=24), st.sampled_from([4, 8, 16]))
def test_percent_encoding_by_parts_is_what_it_is_at_once(text, at_once):
    assert by_parts(f"data:,{text}", at_once) == unquote_to_bytes(text)


def test_frames_that_the_client_sampled_are_known_by_their_type_however_it_is_written():
    shots = data_url("DATA:Video/JPEG;Base64,QQ==,QUI=,QUJD").shots()
    assert [b"".join(shot.decoded()) for shot in shots] == [b"A", b"AB", b"ABC"]
    for other in ("data:video/mp4;base64,QQ==,QQ==", "data:video/jpeg;base64,QQ==", "data:video/jpeg,a,b"):
        assert data_url(other).shots() == []
    assert len(data_url("data:video/jpeg;base64,,").shots()) == 2  # which are empty, as whoever decodes them says


def test_a_head_is_bounded_and_counted():
    longest = "x" * (MOST_HEAD - 7) + ";base64"
    found = data_url(f"data:{longest},QUJD")
    assert (found.head, found.nbytes) == (longest, MOST_HEAD + 3)
    assert data_url(f"data:x{longest},QUJD") is None
    assert data_url("data:QUJD") is None


@pytest.mark.parametrize("kind", [ImageUrl, VideoUrl, EventUrl, ReplayedClip, ReplayedEvents])
def test_addresses_that_hold_no_file_are_bounded(kind):
    for scheme in ("file:", "https://", "", "dat:", "x" * 20 + "data:"):
        longest = scheme + "a" * (MOST_URL - len(scheme))
        assert kind(url=longest).url == longest
        with pytest.raises(ValidationError, match="more than 4,096 characters"):
            kind(url=longest + "a")
    assert len(kind(url="DATA:," + "a" * MOST_URL).url) > MOST_URL


@pytest.mark.parametrize("url", ["FILE:x", "Data:x", "http:x", "x", "", ":", "a" * 17 + ":x"])
def test_a_scheme_is_what_stands_in_front_of_the_first_colon(url):
    assert scheme_of(url) == {"FILE:x": "file", "Data:x": "data", "http:x": "http"}.get(url, "")
