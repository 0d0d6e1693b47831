"""Clips of scenes as pixels: rendered once, in chunk files that are whole or absent, read through memory maps.

Chunk `c` of a split holds its clips `c*CHUNK …`; clip `i` is the scene of the split's `i`-th seed. Training
reads the clips in order, so it may start while later chunks are still being rendered: it waits for a chunk
that is not there yet, and a step's clips depend on nothing but the step.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossdraft.errors import CrossdraftError
from crossdraft.events import eventgpt_frames
from crossdraft.files import atomic_path
from crossdraft.video.preprocess import normalise, resize
from crossdraft.video.spec import FrameSpec
from crossdraft_lab import scenes
from crossdraft_lab.outputs import progress_bar
from crossdraft_lab.train.core.dist import worker_pool
from crossdraft_lab.train.reference.recipe import Jitter

CHUNK = 64
Kind = Literal["rgb", "events"]
PALETTE = np.array([[255, 255, 255], [0, 0, 255], [255, 0, 0]], dtype=np.uint8)
"""Colours of an EventGPT frame: no event, negative, positive."""


@dataclass(frozen=True, slots=True)
class ClipCache:
    """Folder of the chunks, and the shape of their clips."""

    folder: Path
    size: int = 112
    video_frames: int = 8
    event_frames: int = 5
    timeout_s: float = 900.0
    """Seconds that a reader waits for a chunk before it gives up."""

    def path(self, kind: Kind, split: str, chunk: int) -> Path:
        """File of one chunk, named after its clips' shape: a recipe of another shape renders its own."""
        frames, size = (self.video_frames, self.size) if kind == "rgb" else (self.event_frames, scenes.SENSOR_SIZE)
        return self.folder / f"{split}-{kind}-{frames}x{size}-{chunk:05d}.npy"

    def missing(self, kind: Kind, split: str, clips: int) -> list[int]:
        """Numbers of the chunks of the first `clips` clips that are not rendered yet."""
        return [c for c in range(-(-clips // CHUNK)) if not self.path(kind, split, c).exists()]

    def read(self, kind: Kind, split: str, indices: Sequence[int]) -> Tensor:
        """Read clips as RGB uint8 [n, F, h, w, 3]; event frames are coloured from their palette indices.

        Raises:
            CrossdraftError: a chunk did not appear in time.
        """
        clips = np.stack([self._chunk(kind, split, i // CHUNK)[i % CHUNK] for i in indices])
        return torch.from_numpy(PALETTE[clips] if kind == "events" else clips)

    def _chunk(self, kind: Kind, split: str, chunk: int) -> NDArray[np.uint8]:
        path = self.path(kind, split, chunk)
        deadline = time.monotonic() + self.timeout_s
        while not path.exists():
            if time.monotonic() > deadline:
                raise CrossdraftError(
                    f"The clips {path} never appeared; run the stage 'cache' first, or at the same time."
                )
            time.sleep(0.5)
        return _map(path)


@lru_cache(maxsize=4096)
def _map(path: Path) -> NDArray[np.uint8]:
    return np.load(path, mmap_mode="r")


def sample_times(frames: int) -> NDArray[np.float64]:
    """Seconds of the frames that uniform sampling takes from a clip's mp4 (`video.read_frames`)."""
    total = round(scenes.DURATION_S * scenes.VIDEO_FPS)
    return np.linspace(0, total - 1, frames, dtype=int) / scenes.VIDEO_FPS


def clip_seed(split: str, index: int) -> int:
    """The scene seed of a split's clip."""
    return scenes.split_seeds(split)[index]


def render_rgb(seed: int, cache: ClipCache) -> NDArray[np.uint8]:
    """Render a scene's frames as the target sees them, [F, h, w, 3], but without the video codec.

    They come straight from the renderer, while a user's clips come through H.264: moments and resize are equal, and
    pixels differ by the effects of compression.
    """
    frames = scenes.render(scenes.make_scene(seed), sample_times(cache.video_frames), scenes.VIDEO_SIZE)
    square = (cache.size, cache.size)  # resized exactly as inference does
    return resize(torch.from_numpy(frames).movedim(-1, 1), square, "bicubic").movedim(1, -1).numpy()


def render_events(seed: int, cache: ClipCache) -> NDArray[np.uint8]:
    """Render the event frames that the drafter sees, as palette indices [n, h, w]."""
    events = scenes.simulate_events(scenes.make_scene(seed))
    frames = eventgpt_frames(events, cache.event_frames)
    blue, red = frames[..., 0] == 0, frames[..., 2] == 0
    return np.where(blue, 1, np.where(red, 2, 0)).astype(np.uint8)


def render_chunk(cache: ClipCache, kind: Kind, split: str, chunk: int) -> None:
    """Render one chunk into its file, whole or not at all."""
    render = render_rgb if kind == "rgb" else render_events
    clips = [render(clip_seed(split, chunk * CHUNK + i), cache) for i in range(CHUNK)]
    with atomic_path(cache.path(kind, split, chunk)) as path:
        np.save(path, np.stack(clips))


def render_clips(cache: ClipCache, jobs: Sequence[tuple[Kind, str, int]], workers: int) -> None:
    """Render the missing chunks of each (kind, split, clips) job, in order, on `workers` processes."""
    cache.folder.mkdir(parents=True, exist_ok=True)
    work: list[tuple[Kind, str, int]] = [
        (kind, split, chunk) for kind, split, clips in jobs for chunk in cache.missing(kind, split, clips)
    ]
    with progress_bar() as bar:
        task = bar.add_task("rendering clips", total=len(work) * CHUNK)
        for _ in _rendered(cache, work, workers):
            bar.advance(task, CHUNK)


def _rendered(cache: ClipCache, work: Sequence[tuple[Kind, str, int]], workers: int) -> Iterator[None]:
    """Render the chunks; yield after each chunk."""
    if workers == 1:
        for kind, split, chunk in work:
            render_chunk(cache, kind, split, chunk)
            yield
        return
    with worker_pool(workers) as pool:
        futures = [pool.submit(render_chunk, cache, *job) for job in work]
        for future in as_completed(futures):
            future.result()
            yield


def to_pixels(frames: Tensor) -> Tensor:
    """uint8 RGB [n, F, h, w, 3] at the vision encoder's size -> normalised float32 [n, F, 3, h, w]."""
    return normalise(frames.movedim(-1, 2), FrameSpec())


def augment_frames(frames: Tensor, jitter: Jitter, generator: torch.Generator) -> Tensor:
    """Augment clips uint8 [n, F, h, w, 3] by effects of codecs, cameras and sensors; the shape stays.

    Every clip draws its own strengths. Half of the clips get no pixel noise, so that clean pictures stay in the
    training set; pixels uncovered by a translation repeat the border.
    """
    if jitter.noise or jitter.brightness:
        frames = _noisy(frames, jitter, generator)
    if jitter.drop:
        kept = torch.rand(frames.shape[:-1], generator=generator)
        share = jitter.drop * torch.rand(len(frames), generator=generator)
        frames = frames.masked_fill((kept < share.view(-1, 1, 1, 1))[..., None], 255)
    if jitter.shift:
        frames = torch.stack([_shifted(clip, jitter.shift, generator) for clip in frames])
    return frames


def _noisy(frames: Tensor, jitter: Jitter, generator: torch.Generator) -> Tensor:
    clips = len(frames)
    gain = 1 + jitter.brightness * (2 * torch.rand(clips, generator=generator) - 1)
    strength = jitter.noise * (torch.rand(clips, generator=generator) - 0.5).clamp_min(0) * 2
    noisy = frames.float() * gain.view(-1, 1, 1, 1, 1)
    noisy += strength.view(-1, 1, 1, 1, 1) * torch.randn(frames.shape, generator=generator)
    return noisy.round_().clamp_(0, 255).to(torch.uint8)


def _shifted(clip: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Move frames [F, h, w, 3] by up to `most` pixels each way."""
    down, right = torch.randint(-most, most + 1, (2,), generator=generator).tolist()
    rows = (torch.arange(clip.shape[1]) - down).clamp_(0, clip.shape[1] - 1)
    columns = (torch.arange(clip.shape[2]) - right).clamp_(0, clip.shape[2] - 1)
    return clip[:, rows][:, :, columns]
