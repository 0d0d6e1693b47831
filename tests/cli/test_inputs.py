"""What is looked at before a model is loaded."""

import numpy as np
import pytest

from crossdraft.cli.inputs import HOUR_US, Clock, check_files
from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, write_dsec_h5


def recording(path, first_us):
    t = np.array([first_us, first_us + 1000])
    write_dsec_h5(path, Events.checked([0, 1], [0, 1], t, [0, 1], 64, 64))
    return path


def test_a_clip_of_one_moment_passes(clip):
    check_files(clip.video, clip.events, Clock.AUTO)
    check_files(clip.video, None, Clock.AUTO)


@pytest.mark.parametrize("clock", [Clock.AUTO, Clock.VIDEO])
def test_events_after_the_video_do_not(clip, tmp_path, clock):
    late = recording(tmp_path / "late.h5", 1_500_000)
    with pytest.raises(
        CrossdraftError, match=r"begin 1.500 s after the video, which lasts 1.000 s; .*--clock own"
    ):
        check_files(clip.video, late, clock)
    check_files(clip.video, late, Clock.OWN)


def test_times_beyond_an_hour_are_a_clock_of_their_own(clip, tmp_path):
    sensor = recording(tmp_path / "sensor.h5", 2 * HOUR_US)
    check_files(clip.video, sensor, Clock.AUTO)
    with pytest.raises(CrossdraftError, match="No overlap in time"):
        check_files(clip.video, sensor, Clock.VIDEO)


def test_missing_and_empty_files_are_named(clip, tmp_path):
    with pytest.raises(CrossdraftError, match=r"nowhere\.mp4"):
        check_files(tmp_path / "nowhere.mp4", clip.events, Clock.AUTO)
    with pytest.raises(CrossdraftError, match=r"nowhere\.h5"):
        check_files(clip.video, tmp_path / "nowhere.h5", Clock.AUTO)
    empty = tmp_path / "empty.h5"
    write_dsec_h5(empty, Events.empty(64, 64))
    with pytest.raises(CrossdraftError, match=r"empty\.h5 holds no events"):
        check_files(clip.video, empty, Clock.AUTO)
