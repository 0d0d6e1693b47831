"""A target that reads fewer frames of the clip."""

import numpy as np
import pytest

from crossdraft.compressions import compressed
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target
from tests.support import encodes_clips

pytestmark = encodes_clips

FRAMES, TOKENS = 8, 5


@pytest.fixture(scope="module")
def target(pair):
    return load_target(str(pair.target), "cpu", "float64", packed=False)


@pytest.mark.parametrize("count", [1, 2])
def test_it_reads_those_frames_alone(target, clip, count):
    request = Request("What is ahead?", str(clip.video), max_new_tokens=8)
    made = compressed(target, f"frames:count={count}")
    prompt, whole = made.prepare(request), target.prepare(request)
    assert len(whole) - len(prompt) == (FRAMES - count) * TOKENS
    visual = whole.input_ids.tolist().index(prompt.input_ids[made._last_visual(prompt) - 1])
    positions, delta = prompt.positions(None)
    first = [3] if count == 1 else [0, 7]
    own = [visual + frame * TOKENS + at for frame in first for at in range(TOKENS)]
    assert positions[visual : visual + count * TOKENS].tolist() == own
    assert (positions[-1], delta) == (len(whole) - 1, len(whole) - len(prompt))
    answer = DecodeLoop(made, None).generate([request])[0]
    assert answer.other_notes == (f"Lossy: the target reads its clip compressed (frames:count={count}).",)
    if count == 2:  # the first and the last are the same however many are read
        rows, full = (one.visual_features(one.encode(one.prepare(request))) for one in (made, target))
        assert rows.allclose(full.view(FRAMES, TOKENS, -1)[[0, 7]].flatten(0, 1), atol=1e-9)


def test_each_frame_of_a_file_stands_where_the_target_would_have_read_it(target, clip):
    """Of 24 frames the target reads 0 3 6 9 13 16 19 23: the four are its 0th, 2nd, 4th and 7th."""
    request = Request("What is ahead?", str(clip.video))
    made = compressed(target, "frames:count=4")
    rows, full = (one.visual_features(one.encode(one.prepare(request))) for one in (made, target))
    assert rows.allclose(full.view(FRAMES, TOKENS, -1)[[0, 2, 4, 7]].flatten(0, 1), atol=1e-9)


def test_of_a_shorter_clip_the_first_and_the_last_frame_are_read(target):
    frames = np.random.default_rng(0).integers(0, 256, (4, 40, 60, 3), dtype=np.uint8)
    made, request = compressed(target, "frames:count=2"), Request("What is ahead?", frames)
    rows, full = (one.visual_features(one.encode(one.prepare(request))) for one in (made, target))
    assert rows.allclose(full.view(4, TOKENS, -1)[[0, 3]].flatten(0, 1), atol=1e-9)


def test_a_text_alone_is_read_as_ever_and_stays_lossless(target):
    request = Request(messages=[{"role": "user", "content": "What is ahead?"}], max_new_tokens=6)
    made = compressed(target, "frames")
    answer, own = (DecodeLoop(one, None).generate([request])[0] for one in (made, target))
    assert (answer.tokens, answer.other_notes) == (own.tokens, own.other_notes)
    assert answer.stats.lossless


def test_what_cannot_be_is_refused(target, clip):
    two = [
        {"role": "user", "content": [{"type": "video", "video": str(clip.video)}] * 2 + [{"type": "text", "text": "x"}]}
    ]
    fewer = compressed(target, "frames")
    with pytest.raises(CrossdraftError, match="reads one clip a request"):
        fewer.prepare(Request(messages=two))
    with pytest.raises(CrossdraftError, match="sees 8 frames of a clip; leave it fewer"):
        compressed(target, "frames:count=8")
    with pytest.raises(CrossdraftError, match="a whole number of 1 or more"):
        compressed(target, "frames:count=0")
