import itertools

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.scenes import split_seeds


def test_splits_share_no_seed():
    splits = [split_seeds(name) for name in ("train", "validation", "test")]
    assert all(len(split) == 1_000_000 for split in splits)
    for one, other in itertools.combinations(splits, 2):
        assert one.stop <= other.start or other.stop <= one.start


def test_an_unknown_split_is_refused():
    with pytest.raises(CrossdraftError, match="no split 'dev'; choose one of train, validation, test"):
        split_seeds("dev")
