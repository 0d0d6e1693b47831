import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.scenes.from_video import between, fit, simulator_frames
from crossdraft_lab.scenes.sensor import CLEAN
from crossdraft_lab.scenes.simulate import simulate


def texture(shift: float, size: int = 96) -> np.ndarray:
    """A smooth pattern moved right by `shift` pixels, exactly."""
    y, x = np.mgrid[:size, :size].astype(float)
    x = x - shift
    waves = np.sin(x / 5) + np.sin(y / 7) + np.sin((x + y) / 9) + np.cos((x - 2 * y) / 11)
    return np.rint(128 + 30 * waves).astype(np.uint8)


def test_grey_is_rec_601_and_times_are_microseconds():
    rgb = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]], np.uint8)
    (t_us, grey), (later, _) = simulator_frames([(0.0, rgb), (0.04, rgb)])
    assert grey.tolist() == [[76, 150, 29, 255]]
    assert (t_us, later) == (0, 40_000)


@pytest.mark.parametrize(
    ("size", "sensor", "inner"),
    [
        ((40, 20), (20, 20), (20, 10)),
        ((20, 40), (20, 20), (10, 20)),
        ((10, 10), (30, 20), (20, 20)),
        ((9, 9), (9, 9), (9, 9)),
    ],
)
def test_the_aspect_is_kept_and_the_rest_is_black(size, sensor, inner):
    fitted = fit(np.full((size[1], size[0]), 200, np.uint8), sensor)
    assert fitted.shape == (sensor[1], sensor[0])
    rows, columns = np.nonzero(fitted)
    assert (np.ptp(columns) + 1, np.ptp(rows) + 1) == inner
    assert set(np.unique(fitted)) <= {0, 200}
    assert (columns.min(), rows.min()) == ((sensor[0] - inner[0]) // 2, (sensor[1] - inner[1]) // 2)


def test_frames_in_between_move_instead_of_fading():
    first, last = texture(0), texture(6)
    inner = np.s_[16:-16, 16:-16]
    for share, middle in zip((0.25, 0.5, 0.75), between(first, last, (0.25, 0.5, 0.75)), strict=True):
        truth = texture(6 * share)[inner].astype(float)
        faded = ((1 - share) * first + share * last.astype(float))[inner]
        assert np.abs(middle[inner] - truth).mean() < 0.25 * np.abs(faded - truth).mean()


def test_interpolated_video_gives_the_events_of_a_dense_one():
    def video(shifts):
        return [(shift / 100, np.repeat(texture(shift)[..., None], 3, axis=2)) for shift in shifts]

    def edge_free(frames):
        return ((t_us, grey[16:-16, 16:-16].copy()) for t_us, grey in frames)

    dense = simulate(edge_free(simulator_frames(video(range(33)))), CLEAN, 1)
    sparse = simulate(edge_free(simulator_frames(video(range(0, 33, 8)))), CLEAN, 1)
    filled = simulate(edge_free(simulator_frames(video(range(0, 33, 8)), steps=8)), CLEAN, 1)
    assert abs(len(filled) - len(dense)) < 0.1 * len(dense)
    assert abs(len(filled) - len(dense)) < 0.5 * abs(len(sparse) - len(dense))


def test_times_of_the_frames_in_between():
    frames = [(0.0, np.zeros((20, 20, 3), np.uint8)), (0.1, np.zeros((20, 20, 3), np.uint8))]
    assert [t_us for t_us, _ in simulator_frames(frames, steps=4)] == [0, 25_000, 50_000, 75_000, 100_000]
    assert [t_us for t_us, _ in simulator_frames(frames, sensor=(4, 4), steps=2)] == [0, 50_000, 100_000]


@pytest.mark.parametrize("options", [{"steps": 0}, {"sensor": (0, 5)}])
def test_impossible_wishes_are_refused(options):
    with pytest.raises(CrossdraftError, match="must be positive"):
        next(simulator_frames([(0.0, np.zeros((2, 2, 3), np.uint8))], **options))
