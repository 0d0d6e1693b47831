"""Pooled frames by hand, and a target that reads them."""

import pytest
import torch
from torch.nn import functional as F

from crossdraft.compressions import compressed
from crossdraft.engine.encoded import visual_rows
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.prefill import prefill
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft_lab.compression.pool import FrameGrid
from tests.engine.zoo import VIDEO, ZOO, as_target

REQUEST = Request("xx", max_new_tokens=12)


@pytest.fixture(scope="module")
def plain():
    return as_target(*ZOO["video_llava"]())


def test_a_frame_of_four_by_four_by_hand():
    """Means of two by two; the class token stays. Two frames, the second ten times the first."""
    patches = torch.arange(16.0)
    frame = torch.cat((torch.tensor([-1.0]), patches))
    rows = torch.cat((frame, 10 * frame))[:, None]
    means = [2.5, 4.5, 10.5, 12.5]
    grid = FrameGrid(4, class_token=True)
    assert grid.pool(rows, 2).flatten().tolist() == [-1, *means, -10, *(10 * mean for mean in means)]
    assert grid.tokens == 17
    assert FrameGrid(4, class_token=False).pool(patches[:, None], 2).flatten().tolist() == means


def test_the_queries_are_those_of_tokenpacker():
    """Of an odd side too: 7 x 7 -> 3 x 3, bilinearly, as the authors interpolate."""
    rows = torch.randn(2 * 49, 6, generator=torch.Generator().manual_seed(0))
    theirs = F.interpolate(rows.reshape(2, 7, 7, 6).permute(0, 3, 1, 2), size=(3, 3), mode="bilinear")
    assert torch.equal(FrameGrid(7, False).pool(rows, 2), theirs.permute(0, 2, 3, 1).reshape(-1, 6))


def test_a_target_reads_as_many_placeholders_as_are_left(plain):
    target = compressed(plain, "pool:factor=2")
    whole, pooled = plain.prepare(REQUEST), target.prepare(REQUEST)
    counts = [int((prompt.input_ids == VIDEO).sum()) for prompt in (whole, pooled)]
    assert counts[0] // 5 * 2 == counts[1]  # class token and 2 x 2 patches -> class token and one
    assert [t for t in whole.input_ids.tolist() if t != VIDEO] == [t for t in pooled.input_ids.tolist() if t != VIDEO]
    rows, full = (visual_rows(one.encode(prompt)["video"]) for one, prompt in ((target, pooled), (plain, whole)))
    assert len(rows) == counts[1]
    frames = full.view(-1, 5, full.shape[-1])
    wanted = torch.stack((frames[:, 0], frames[:, 1:].mean(1)), 1).flatten(0, 1)
    assert torch.allclose(rows, wanted, atol=1e-6)
    cache = target.new_cache()
    prefill(target, cache, pooled, target.encode(pooled), 200)
    assert cache.lengths == [len(pooled)]
    assert len(pooled) < len(whole)


def test_it_answers_otherwise_and_leaves_the_target_as_it_is(plain):
    before = DecodeLoop(plain, None).generate([REQUEST])[0].tokens
    pooled = DecodeLoop(compressed(plain, "pool:factor=2"), None).generate([REQUEST])[0]
    again = DecodeLoop(plain, None).generate([REQUEST])[0]
    assert pooled.tokens != before == again.tokens
    assert pooled.notes == ("Lossy: the target reads its clip compressed (pool:factor=2).",)
    assert again.notes == ()


def test_what_cannot_be_is_refused(plain):
    with pytest.raises(CrossdraftError, match="2 x 2 patches; pool by a factor of at most that"):
        compressed(plain, "pool:factor=3")
    with pytest.raises(CrossdraftError, match="a whole number of 2 or more"):
        compressed(plain, "pool:factor=1")
    with pytest.raises(CrossdraftError, match="no grid of patches"):
        compressed(as_target(*ZOO["qwen2_5_vl"]()), "pool")
