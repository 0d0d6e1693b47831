"""Which windows of a recording a model reads."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.engine.content import ContentDigests
from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, Excerpt, Newest, read_events, write_events
from crossdraft.events.excerpt import DecodedExcerpt, _share
from crossdraft.events.npy import COLUMNS, column_header
from crossdraft.events.read import gathered
from tests.events.helpers import made_up, same

SUFFIXES = (".h5", ".npy", ".txt")


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """Two seconds of 4000 events, in three formats, and as arrays of rows and of columns."""
    folder, events = tmp_path_factory.mktemp("excerpt"), made_up(4000, 640, 480, 7_000_000, 2_000_000)
    for suffix in SUFFIXES:
        write_events(folder / f"a{suffix}", events)
    structured = np.zeros(len(events), [("x", "u2"), ("y", "u2"), ("t", "i8"), ("p", "u1")])
    for name in "xytp":
        structured[name] = getattr(events, name)
    np.save(folder / "b.npy", structured)
    columns = [getattr(events, name).astype(dtype).tobytes() for name, dtype in COLUMNS.items()]
    (folder / "c.npy").write_bytes(b"".join([column_header(len(events)), *columns]))
    return [*(folder / f"a{suffix}" for suffix in SUFFIXES), folder / "b.npy", folder / "c.npy"], events


def by_hand(events: Events, newest: Newest) -> Events:
    """The definition, event by event."""
    rows = [
        i
        for i, t in enumerate(events.t)
        if newest.us is None or t > events.t[-1] - newest.us or i >= len(events) - newest.least
    ]
    return events.take(slice(rows[0] if rows else 0, None)).take(slice(-(newest.most or len(rows) or 1), None))


@given(
    st.none() | st.integers(1, 3_000_000),
    st.integers(0, 30),
    st.none() | st.integers(30, 5000),
    st.integers(6_900_000, 9_100_000),
)
def test_the_newest_of_a_span_is_the_same_in_every_format(recording, us, least, most, end):
    paths, events = recording
    newest = Newest(us, least, most)
    span = events.slice(0, end)
    wanted = by_hand(span, newest)
    assert same(newest.of(span), wanted)
    for path in paths:
        assert same(read_events(path, end_us=end, newest=newest), wanted), path.name


def test_chunks_give_the_newest_without_being_held(recording):
    _, events = recording
    parts = [events.take(slice(i, i + 70)) for i in range(0, 4000, 70)]
    held = []

    def watched():
        for part in parts:
            yield part
            held.append(len(part))

    for newest in (Newest(100_000, 5), Newest(most=130), Newest(1, 200), Newest(10**9), Newest()):
        assert same(gathered(watched(), "it", newest=newest), by_hand(events, newest))
    empty = Events.empty(640, 480)
    assert same(gathered([empty, events, empty], "it", newest=Newest(1, 3)), by_hand(events, Newest(1, 3)))
    assert len(gathered([empty, empty], "it", newest=Newest(5))) == 0


def test_where_a_recording_begins_and_ends(recording):
    paths, events = recording
    for path in paths:
        assert Excerpt(path).time_span() == (events.t0, int(events.t[-1]))
        assert Excerpt(path, start_us=8_000_000).first_time() == int(events.slice(8_000_000, 1 << 60).t[0])
        assert Excerpt(path, end_us=5).time_span() is None


def test_a_model_reads_the_end_the_whole_or_a_part_of_an_excerpt(recording):
    paths, events = recording
    size = Newest(300_000, 5, 400)
    for path in paths:
        (end,) = Excerpt(path).read_windows(size)
        assert same(end, by_hand(events, size))
        assert len(end) == 400
        (part,) = Excerpt(path, end_us=7_900_000).read_windows(size)
        assert same(part, by_hand(events.slice(0, 7_900_000), size))
        whole = Excerpt(path, 7_500_000, 8_500_000, whole=True)
        assert same(whole.read_windows(size)[0], events.slice(7_500_000, 8_500_000))
        assert same(whole.read(), events.slice(7_500_000, 8_500_000))


def test_windows_are_spread_over_the_excerpt(recording):
    paths, events = recording
    for path in paths:
        windows = Excerpt(path, 7_200_000, 8_800_000, windows=4).read_windows(Newest(400_000, 4, 4000))
        assert [round(window.duration_us, -4) for window in windows] == [100_000] * 4
        assert windows[0].t0 == events.slice(7_200_000, 1 << 60).t0
        assert windows[-1].t[-1] == events.slice(0, 8_800_000).t[-1]
        gaps = np.diff([int(window.t[-1]) for window in windows])
        assert gaps == pytest.approx(gaps[0], abs=5_000)
        thirds = Excerpt(path, windows=3, whole=True).read_windows(Newest(1, 1))
        assert sum(map(len, thirds)) == pytest.approx(len(events), abs=5)
        assert same(read_events(path, start_us=int(events.t[-9]), newest=Newest(1, 30)), events.take(slice(-9, None)))


def test_windows_end_with_their_share_of_the_time_and_with_the_last_event(tmp_path):
    """Of 30 µs, and of the 16 µs that two windows read together."""
    write_events(tmp_path / "a.h5", Events.checked([0] * 6, [0] * 6, [0, 7, 8, 15, 22, 29], [0] * 6, 64, 48))
    halves = [[0, 7, 8], [15, 22, 29]]
    for size, whole, times in (
        (Newest(16), False, [[0, 7], [22, 29]]), (Newest(99), False, halves), (Newest(), False, halves),
        (Newest(1, 8), True, [[0, 7, 8], [8, 15, 22, 29]]),
    ):  # fmt: skip
        found = Excerpt(tmp_path / "a.h5", windows=2, whole=whole).read_windows(size)
        assert [window.t.tolist() for window in found] == times
    assert _share(Newest(1, 5, 5), 30, 2) == Newest(1, 3, 3)


def test_a_quiet_end_gives_as_many_events_as_there_are_frames(tmp_path):
    t = np.array([0, 10, 20, 30, 40, 5_000_000])
    write_events(tmp_path / "a.h5", Events.checked(t * 0, t * 0, t, t * 0, 64, 48))
    (found,) = Excerpt(tmp_path / "a.h5").read_windows(Newest(50_000, 5, 100))
    assert found.t.tolist() == [10, 20, 30, 40, 5_000_000]


def test_no_window_is_no_excerpt(tmp_path):
    with pytest.raises(CrossdraftError, match="at least 1"):
        Excerpt(tmp_path / "a.h5", windows=0)
    for wrong in ({"us": 0}, {"most": 0}, {"least": 5, "most": 4}):
        with pytest.raises(CrossdraftError, match="holds nothing"):
            Newest(**wrong)


def test_a_path_is_a_path_however_it_is_given(tmp_path):
    assert Excerpt(str(tmp_path / "a.h5")) == Excerpt(tmp_path / "a.h5")
    with pytest.raises(CrossdraftError, match="path is an int; give the path of a recording"):
        Excerpt(5)


def test_seconds_count_from_the_first_event(tmp_path):
    write_events(tmp_path / "a.txt", Events.checked([0, 1], [0, 0], [5_000_000, 7_000_000], [1, 0], 10, 5))
    assert Excerpt.in_seconds(tmp_path / "a.txt") == Excerpt(tmp_path / "a.txt")
    assert Excerpt.in_seconds(tmp_path / "a.txt", 2.01) == Excerpt(tmp_path / "a.txt", 7_010_000)
    assert Excerpt.in_seconds(tmp_path / "a.txt", end_s=1.25) == Excerpt(tmp_path / "a.txt", end_us=6_250_000)
    write_events(tmp_path / "b.txt", Events.empty(10, 5))
    with pytest.raises(CrossdraftError, match="holds no events"):
        Excerpt.in_seconds(tmp_path / "b.txt", 1.0)


@pytest.mark.parametrize("second", [float("nan"), float("inf"), float("-inf"), 1e300, 1.1e9])
def test_a_span_without_sense_is_refused_before_anything_is_read(tmp_path, second):
    for name, start, end in (("start", second, None), ("end", 0.5, second)):
        with pytest.raises(CrossdraftError, match=f"The {name} of the span is"):
            Excerpt.in_seconds(tmp_path / "absent.txt", start, end)


def test_what_was_decoded_is_known_by_its_digest_and_not_by_its_file(recording, tmp_path):
    digests, (*_, columns) = ContentDigests(), recording[0]
    one = DecodedExcerpt(columns, 1, 2, format="eventgpt", digest=b"a")
    other = replace(one, path=tmp_path / "there is no such file")
    assert one == other
    assert digests.of(one) == digests.of(other)
    assert digests.of(one).files == ()
    for more in ({"digest": b"b"}, {"end_us": 3}, {"windows": 2}):
        assert digests.of(replace(one, **more)) != digests.of(one)
