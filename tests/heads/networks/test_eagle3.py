"""EAGLE-3's levels: where a new head begins, and scales that help it to learn and are in nobody's files."""

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import make
from tests.heads.consistency import HIDDEN, shared, some_head

LEVELS, SCALES = (1, 2, 4), (0.5, 0.25, 4.0)


def hidden():
    generator = torch.Generator().manual_seed(3)
    return {k: torch.randn(1, 5, HIDDEN, generator=generator, dtype=torch.double) for k in LEVELS}


def eagle3(**more):
    return some_head("eagle3", levels=LEVELS, **more)


def test_a_head_with_scales_and_one_without_are_the_same_file():
    scaled, plain = eagle3(level_scales=SCALES), eagle3()
    plain.restore(scaled.stored())
    assert torch.allclose(plain.fuse(hidden()), scaled.fuse(hidden()))
    assert not torch.allclose(plain.fc.weight, scaled.fc.weight)


def test_one_norm_over_all_levels_keeps_their_scales_and_a_norm_of_each_undoes_them():
    """By hand: fc(norm([s1 x1; s2 x2; s3 x3])), one root mean square over all three."""
    scaled = eagle3(level_scales=SCALES, norm_before_fc=True)
    both = torch.cat([hidden()[k] * scale for k, scale in zip(LEVELS, SCALES, strict=True)], -1)
    normed = both / (both.square().mean(-1, keepdim=True) + scaled.config.eps).sqrt() * scaled.input_norm.weight
    assert torch.allclose(scaled.fuse(hidden()), normed @ scaled.fc.weight.T)
    each, plain = eagle3(level_scales=SCALES, fc_norm=True), eagle3(fc_norm=True)
    plain.restore(each.stored())
    assert torch.equal(plain.fuse(hidden()), each.fuse(hidden()))


def test_stored_weights_are_restored():
    written, read = eagle3(level_scales=SCALES), eagle3(level_scales=SCALES)
    with torch.no_grad():
        written.fc.weight.normal_()
    read.restore(written.stored())
    assert torch.allclose(read.fc.weight, written.fc.weight)


def test_a_new_head_begins_with_the_high_level_alone():
    head = make("eagle3", eagle3().config, shared()).double()
    assert torch.equal(head.fuse(hidden()), hidden()[LEVELS[-1]])


@pytest.mark.parametrize("scales", [(1.0, 1.0), (1.0, 0.0, 1.0)])
def test_scales_are_three_and_positive(scales):
    with pytest.raises(CrossdraftError, match="3 positive numbers"):
        eagle3(level_scales=scales)
