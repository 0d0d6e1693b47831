"""The captures that aligning a pair begins with."""

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.align.pair import AnswerSettings, capture_splits, open_splits, scene_splits


def test_a_capture_of_more_clips_than_are_wanted_is_refused(pair, tmp_path):
    """It would be learned from as a whole."""
    settings = AnswerSettings(str(pair.target), "cpu", max_new_tokens=4, workers=0)
    begun = []

    def progress(split, count):
        begun.append((split, count))
        return lambda: None

    two, one = (scene_splits(clips, 1, 2, 0, 0.0) for clips in (2, 1))
    capture_splits(tmp_path, two, settings, progress)
    assert begun == [("train", 2), ("validation", 1)]
    with pytest.raises(CrossdraftError, match=r"train is of 2 clips, .* where 1 are wanted; ask for 2 clips, or name"):
        capture_splits(tmp_path, one, settings, progress)
    capture_splits(tmp_path, two, settings, progress)  # it is complete
    assert len(begun) == 2
    assert len(open_splits(tmp_path, two, settings)["train"]) == 4
