import json
import math
from dataclasses import replace

import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, concatenate
from crossdraft_lab.scenes.sensor import CLEAN, DEFAULT, IDEAL, NOISY, PRESETS, SimulatorConfig
from crossdraft_lab.scenes.simulate import PixelArray, Simulator, lin_log, log_brightness, relative_light, simulate

FPS, HEIGHT, WIDTH = 100, 96, 128
FRAMES = 101  # of a scene in which something moves
COUNTS, SPREADS = 0.01, 0.1  # how far from v2e's: numbers of events, spreads from pixel to pixel (`docs/formats.md`)


def grating(frames: int = FRAMES, wavelength: float = 32.0, speed: float = 40.0) -> np.ndarray:
    """A sine wave moving right at `speed` px/s: the first scene of the v2e reference."""
    x, t = np.arange(WIDTH), np.arange(frames)[:, None] / FPS
    row = np.rint(128 + 100 * np.sin(2 * np.pi * (x - speed * t) / wavelength)).astype(np.uint8)
    return np.repeat(row[:, None, :], HEIGHT, axis=1)


def square(frames: int = FRAMES) -> np.ndarray:
    """A bright square moving right over grey: the second scene."""
    scene = np.full((frames, HEIGHT, WIDTH), 50, np.uint8)
    for i in range(frames):
        left = 10 + round(60 * i / FPS)
        scene[i, 36:60, left : left + 24] = 200
    return scene


def gray(frames: int = 201) -> np.ndarray:
    """Nothing happens: the third scene."""
    return np.full((frames, HEIGHT, WIDTH), 128, np.uint8)


SCENES = {"grating": grating, "square": square, "gray": gray}
FREE = replace(IDEAL, max_rate_hz_px=None)  # for scenes that change all over in one frame
REFERENCE_NAMES = {"ideal": "ideal", "clean": "clean", "v2e_default": "default", "noisy": "noisy"}


def run(frames: np.ndarray, config: SimulatorConfig, seed: int = 1, hz: float = FPS) -> Events:
    return simulate(((round(i * 1e6 / hz), frame) for i, frame in enumerate(frames)), config, seed)


def per_pixel(events: Events) -> np.ndarray:
    return np.bincount(events.y.astype(int) * events.width + events.x, minlength=events.width * events.height)


@pytest.fixture(scope="module")
def reference(shared) -> dict:
    return json.loads((shared / "data" / "v2e_reference.json").read_text())


@pytest.mark.parametrize("scene", ["grating", "square"])
@pytest.mark.parametrize("preset", REFERENCE_NAMES)
def test_counts_are_those_of_v2e(reference, scene, preset):
    expected = reference[f"{scene}/{preset}"]
    events = run(SCENES[scene](), PRESETS[REFERENCE_NAMES[preset]])
    found, wanted = len(events), expected["n"]
    assert found == pytest.approx(wanted, rel=COUNTS)
    assert int(events.p.sum()) == pytest.approx(expected["on"], rel=0.02)
    counts = per_pixel(events)
    assert np.count_nonzero(counts) == pytest.approx(expected["px_active"], rel=0.005)
    # Per-pixel spread. v2e's noise is drawn per step and not as a Poisson process: there the spreads part a little.
    assert counts.std() == pytest.approx(expected["cnt_std"], rel=SPREADS)


@pytest.mark.parametrize("preset", ["ideal", "clean"])
def test_nothing_moves_so_nothing_happens(preset):
    assert len(run(gray(), PRESETS[preset])) == 0


def test_noise_on_grey_is_that_of_v2e(reference):
    for seed in (1, 2):
        events = run(gray(), NOISY, seed)
        rate = len(events) / (events.width * events.height * 2)
        assert rate == pytest.approx(3.2, rel=0.02)
        assert len(events) == pytest.approx(reference["gray/noisy"]["n"], rel=COUNTS)
        assert per_pixel(events).std() == pytest.approx(reference["gray/noisy"]["cnt_std"], rel=0.08)


def test_a_pixel_that_forgets_its_remainder_would_fail_the_gate(reference, monkeypatch):
    honest = PixelArray._crossings

    def forgetful(self, at, change, before, t_us):
        found = honest(self, at, change, before, t_us)
        self._memory[at] = self._level[at]
        return found

    monkeypatch.setattr(PixelArray, "_crossings", forgetful)
    found = len(run(grating(), CLEAN))
    assert found != pytest.approx(reference["grating/clean"]["n"], rel=COUNTS)


def test_a_periodic_scene_gives_as_many_on_as_off():
    # 40 px/s over 32 px: a period is 0.8 s. The first one depends on where each pixel's wave began.
    events = run(grating(161), IDEAL)
    second = events.slice(800_001, 1_600_001)
    assert int(second.p.sum()) == len(second) // 2


@pytest.mark.parametrize(("low", "high"), [(40, 55), (40, 90), (30, 250), (100, 101)])
def test_a_step_edge_gives_floor_of_contrast_over_threshold(low, high):
    frames = np.full((3, 4, 4), low, np.uint8)
    frames[1:, :2] = high
    expected = math.floor(math.log(high / low) / 0.2)
    counts = per_pixel(run(frames, FREE)).reshape(4, 4)
    assert (counts[:2] == expected).all()
    assert (counts[2:] == 0).all()
    backwards = run(frames[::-1], FREE)
    assert (per_pixel(backwards).reshape(4, 4)[:2] == expected).all()
    assert run(frames, FREE).p.all()
    assert not backwards.p.any()


def test_there_and_back_leaves_no_trace():
    frames = np.full((40, 3, 3), 60, np.uint8)
    frames[1::2] = 193
    events = run(frames, FREE)
    assert (per_pixel(events.take(np.flatnonzero(events.p))) == 5 * 20).all()
    assert (per_pixel(events.take(np.flatnonzero(1 - events.p))) == 5 * 19).all()


def test_crossings_are_stamped_where_the_level_crosses():
    # ln brightness rises by 1.0 in 1 ms: with thresholds of 0.2 an event every 200 µs, worked by hand.
    frames = np.array([100.0, 100.0 * math.e]).reshape(2, 1, 1)
    events = run(frames, FREE, hz=1000)
    assert events.t.tolist() == [200, 400, 600, 800, 1000]
    # From 0.9 thresholds above memory to 2.1 above: crossings at 1/12 and 11/12 of the interval.
    frames = 100 * np.exp(0.2 * np.array([0.0, 0.9, 2.1])).reshape(3, 1, 1)
    assert run(frames, FREE, hz=1000).t.tolist() == [1083, 1917]
    stepped = replace(FREE, stamps="stepped")
    assert run(frames, stepped, hz=1000).t.tolist() == [1500, 2000]


def test_a_dead_pixel_fires_when_its_dead_time_is_over():
    frames = 100 * np.exp(np.array([0.0, 1.0, 1.0])).reshape(3, 1, 1)
    events = run(frames, replace(FREE, refractory_us=350), hz=1000)
    assert events.t.tolist() == [200, 550, 900, 1250, 1600]


@pytest.mark.parametrize("preset", [DEFAULT, replace(NOISY, refractory_us=4000)])
def test_no_pixel_fires_within_its_dead_time(preset):
    events = run(grating(41), preset)
    pixel = events.y.astype(np.int64) * events.width + events.x
    order = np.lexsort((events.t, pixel))
    waits = np.diff(events.t[order])[np.diff(pixel[order]) == 0]
    assert waits.min() >= preset.refractory_us - 1  # stamps are rounded to whole µs


def test_leak_makes_on_events_at_its_rate():
    config = replace(IDEAL, leak_hz=10)
    events = run(np.full((501, 32, 32), 100, np.uint8), config, hz=500)
    assert events.p.all()
    assert len(events) / 1024 == pytest.approx(10, rel=0.06)


def test_low_pass_follows_its_time_constant():
    # White light, 10 Hz: after one time constant (15.9 ms) a step has gone 1 - 1/e of its way.
    frames = np.full((160, 1, 1), 255.0)
    frames[0] = 100.0
    pixels = PixelArray(replace(FREE, cutoff_hz=10), frames[0], 0, np.random.default_rng(0))
    for i in range(1, 160):
        pixels.advance(frames[i], i * 100)
    gone = (pixels._level[0] - math.log(100)) / math.log(2.55)
    assert gone == pytest.approx(1 - 1 / math.e, abs=0.01)


def test_lin_log_joins_at_grey_level_20():
    assert lin_log(np.array([0.0, 10.0, 20.0, 100.0])) == pytest.approx(
        [0, math.log(20) / 2, math.log(20), math.log(100)], abs=1e-6
    )
    greys = np.arange(256, dtype=np.uint8)
    assert np.array_equal(log_brightness(greys), lin_log(greys.astype(np.float64)))
    assert relative_light(greys) == pytest.approx((np.arange(256) + 20) / 275, abs=1e-7)
    assert relative_light(greys.astype(np.float32)) == pytest.approx(relative_light(greys), abs=1e-7)


def test_profile_across_the_square_is_that_of_a_plain_pixel_model():
    """Column counts against a second implementation, written pixel by pixel in float64, with other thresholds."""
    rng, level, counts = (np.random.default_rng(7), np.log(square().astype(np.float64)), np.zeros((HEIGHT, WIDTH)))
    on, off = (np.maximum(0.2 + 0.02 * rng.standard_normal((HEIGHT, WIDTH)), 0.01) for _ in range(2))
    memory = level[0].copy()
    for now in level[1:]:
        ups = np.floor(np.maximum(now - memory, 0) / on + 1e-4)
        downs = np.floor(np.maximum(memory - now, 0) / off + 1e-4)
        memory += ups * on - downs * off
        counts += ups + downs
    ours = per_pixel(run(square(), CLEAN)).reshape(HEIGHT, WIDTH).sum(axis=0)
    assert np.corrcoef(ours, counts.sum(axis=0))[0, 1] > 0.97


def test_a_cut_is_held_to_the_readout_rate(caplog):
    frames = np.zeros((4, 30, 40), np.uint8)
    frames[2:] = 255
    free = run(frames, replace(CLEAN, max_rate_hz_px=None))
    simulator = Simulator(replace(CLEAN, max_rate_hz_px=200.0), 1)
    chunks = [simulator.feed(frame, i * 10_000) for i, frame in enumerate(frames)]
    assert [len(chunk) for chunk in chunks[:2]] == [0, 0]
    budget = 200 * 0.01 * 1200
    assert len(free) > 5 * budget
    assert len(chunks[2]) == pytest.approx(budget, rel=0.02)
    assert simulator.dropped == len(free) - len(chunks[2])
    assert len(chunks[3]) == 0  # the pixels have seen the change, though the readout lost it
    assert "dropped" in caplog.text


def test_same_seed_same_events_and_chunks_join_in_order():
    frames = grating(11)
    assert np.array_equal(run(frames, NOISY, 3).t, run(frames, NOISY, 3).t)
    assert not np.array_equal(run(frames, NOISY, 3).t[:100], run(frames, NOISY, 4).t[:100])
    simulator = Simulator(NOISY, 3)
    chunks = [simulator.feed(frame, i * 10_000) for i, frame in enumerate(frames)]
    for i, chunk in enumerate(chunks[1:]):
        assert chunk.t.min() >= i * 10_000
        assert chunk.t.max() <= (i + 1) * 10_000
    assert np.array_equal(concatenate(chunks).t, run(frames, NOISY, 3).t)


def test_float_frames_equal_uint8_frames():
    frames = grating(11)
    assert np.array_equal(run(frames, DEFAULT).t, run(frames.astype(np.float32), DEFAULT).t)


def test_long_intervals_are_sorted_too():
    frames = 100 * np.exp(np.linspace(0, 1, 6)).reshape(2, 3, 1)
    events = run(frames, FREE, hz=0.1)
    assert (np.diff(events.t) >= 0).all()
    assert events.t[-1] == 10_000_000


@pytest.mark.parametrize(
    ("feed", "words"),
    [
        (((np.zeros((2, 2, 3), np.uint8), 0),), r"\[H, W\]"),
        (((np.zeros((2, 2), np.uint8), 0), (np.zeros((2, 3), np.uint8), 1)), "resize"),
        (((np.zeros((2, 2), np.uint8), 5), (np.zeros((2, 2), np.uint8), 5)), "must rise"),
    ],
)
def test_bad_frames_are_refused(feed, words):
    simulator = Simulator(IDEAL, 0)
    *before, last = feed
    for frame, t_us in before:
        simulator.feed(frame, t_us)
    with pytest.raises(CrossdraftError, match=words):
        simulator.feed(*last)


def test_no_frames_are_refused():
    with pytest.raises(CrossdraftError, match="no frames"):
        simulate([], IDEAL, 0)


@pytest.mark.parametrize(
    "setting",
    [{"threshold_on": 0.0}, {"leak_hz": -1.0}, {"cutoff_hz": math.inf}, {"max_rate_hz_px": 0.0}, {"stamps": "none"}],
)
def test_impossible_physics_is_refused(setting):
    with pytest.raises(CrossdraftError, match="Simulator"):
        SimulatorConfig(**setting)
