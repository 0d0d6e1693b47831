"""Numbers by hand, and what is refused."""

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.heads.convert.converter import draft_ids_of, layer_numbers
from crossdraft_lab.train.heads.foreign import draft_maps


def test_a_layers_number_is_one_less_by_its_output():
    # A target of 32 layers: EAGLE's [2, L/2, L - 3] are SpecForge's [1, L/2 - 1, L - 4].
    assert layer_numbers([2, 16, 29], "entering", "output") == [1, 15, 28]
    assert layer_numbers([1, 15, 28], "output", "entering") == [2, 16, 29]
    assert layer_numbers([0, 3], "entering", "entering") == [0, 3]


def test_the_embeddings_are_no_layers_output():
    with pytest.raises(CrossdraftError, match=r"\[0, 3\] have no number"):
        layer_numbers([0, 3], "entering", "output")


def test_offsets_by_hand():
    maps = draft_maps((1, 2, 5, 9), 10)
    assert maps["d2t"].tolist() == [1, 1, 3, 6]  # 0+1, 1+1, 2+3, 3+6
    assert maps["d2t"].dtype == torch.int64
    assert maps["t2d"].nonzero().flatten().tolist() == [1, 2, 5, 9]
    assert maps["t2d"].dtype == torch.bool
    assert len(maps["t2d"]) == 10


@pytest.mark.parametrize("present", [("d2t", "t2d"), ("d2t",), ("t2d",)])
def test_either_map_is_enough(present):
    maps = draft_maps((1, 2, 5, 9), 10)
    assert draft_ids_of({name: maps[name] for name in present}, 4, 10) == (1, 2, 5, 9)


def test_no_map_is_the_whole_vocabulary_or_nothing():
    assert draft_ids_of({}, 4, 4) == (0, 1, 2, 3)
    with pytest.raises(CrossdraftError, match="drafts 4 of 10 ids and neither"):
        draft_ids_of({}, 4, 10)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"d2t": torch.tensor([1, 2, 5, 9])}, "do not agree .*offsets"),  # absolute ids
        ({"t2d": torch.ones(4, dtype=torch.bool)}, "about 4 ids, vocab_size says 10"),
        ({"d2t": torch.tensor([1, 1, 3])}, "has 3 ids, not of 4"),
    ],
)
def test_inconsistent_maps_are_refused(change, sentence):
    with pytest.raises(CrossdraftError, match=sentence):
        draft_ids_of(draft_maps((1, 2, 5, 9), 10) | change, 4, 10)
