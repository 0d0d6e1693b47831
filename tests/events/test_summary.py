import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, write_events
from crossdraft.events.excerpt import Summary, summarise, window_in_seconds
from crossdraft.events.stream import Window


def test_a_case_worked_by_hand():
    parts = [
        Events.empty(10, 5),
        Events.checked([0, 1], [0, 0], [1000, 1500], [1, 0], 10, 5),
        Events.checked([2, 3], [0, 0], [2000, 3000], [0, 0], 10, 5),
    ]
    assert summarise(parts) == Summary(10, 5, 4, 1000, 2000, 0.002, 40.0, 0.25)
    assert summarise([Events.empty(10, 5)]) == Summary(10, 5, 0, 0, 0, 0.0, 0.0, 0.0)
    with pytest.raises(CrossdraftError, match="no events"):
        summarise([])


def test_seconds_count_from_the_first_event(tmp_path):
    write_events(tmp_path / "a.txt", Events.checked([0, 1], [0, 0], [5_000_000, 7_000_000], [1, 0], 10, 5))
    assert window_in_seconds(tmp_path / "a.txt", None, None, None, None) == Window()
    assert window_in_seconds(tmp_path / "a.txt", None, None, 0.5, None) == Window(5_500_000, None)
    assert window_in_seconds(tmp_path / "a.txt", None, None, None, 1.25) == Window(None, 6_250_000)
    write_events(tmp_path / "b.txt", Events.empty(10, 5))
    with pytest.raises(CrossdraftError, match="holds no events"):
        window_in_seconds(tmp_path / "b.txt", None, None, 1.0, None)


@pytest.mark.parametrize("second", [float("nan"), float("inf"), float("-inf"), 1e300, 1.1e9])
def test_a_span_without_sense_is_refused_before_anything_is_read(tmp_path, second):
    for name, start, end in (("start", second, None), ("end", 0.5, second)):
        with pytest.raises(CrossdraftError, match=f"The {name} of the span is"):
            window_in_seconds(tmp_path / "absent.txt", None, None, start, end)
