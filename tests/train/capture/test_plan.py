"""Layers are counted as `hidden_states` are."""

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.sizes import default_layers
from crossdraft_lab.train.capture.plan import canonical, default_visual_layers


def test_negative_indexes_count_from_the_end_and_each_is_taken_once() -> None:
    assert canonical([-1, 2, 0, 7, -8], 7) == (0, 2, 7)


@pytest.mark.parametrize("layer", [8, -9])
def test_a_layer_outside_the_model_is_refused(layer: int) -> None:
    with pytest.raises(CrossdraftError, match=rf"Layer {layer} is outside the target: its 7 layers .* 0 .* to 7 "):
        canonical([2, layer], 7)


def test_the_defaults_are_what_heads_read() -> None:
    assert default_layers(7) == (2, 3, 4, 6, 7)  # EAGLE-3's 2, L//2, L-3; Hydra's L-1; the last
    assert default_layers(32) == (2, 16, 29, 31, 32)
    assert default_layers(2) == (1, 2)
    assert default_visual_layers(7) == (0, 7)
