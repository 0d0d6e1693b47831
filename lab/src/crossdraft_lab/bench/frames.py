"""`crossdraft bench frames`: windows of a stream, with features of shared frames reused, and each encoded whole.

Both ways take turns, window by window, in one engine. Windows are asked about one after another, none is dropped. Each
question begins with nothing known, so that its first window counts in full.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from crossdraft.api import Engine
from crossdraft.engine.fast.pinning import one_thread
from crossdraft.engine.prefix_cache import PrefixCache
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Answer, Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.events import Excerpt
from crossdraft.options import Options
from crossdraft.streams import (
    RecordedEvents,
    ReplayClock,
    SlidingWindows,
    StreamWindow,
    Windowing,
    frames_per_window,
    replay,
)
from crossdraft.video import iter_frames
from crossdraft_lab import scenes
from crossdraft_lab.bench.encode import EncodeBench, encode_target
from crossdraft_lab.bench.statistics import Interval, Quartiles, quartiles, ratio
from crossdraft_lab.bench.watch import stream_files

WAYS = ("whole", "reused")
PLENTY = 1 << 30
WARM_UPS = 3  # the first clip is new, and with the second it is tried to encode so many frames at once
Tick = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FrameBench:
    """Settings of a measurement of encoding frame by frame.

    Args:
        target, drafter: as in `Engine.load`.
        windowing: which windows; the frames of each are the target's own number.
        seconds: of the stream, a held-out scene each.
        questions: one after another; `()` = one of every kind, in wordings that no training has seen.
        max_new_tokens: the longest answer.
        options: of the engine.
    """

    target: str
    drafter: str
    windowing: Windowing
    seconds: int = 8
    questions: tuple[str, ...] = ()
    max_new_tokens: int = 96
    options: Options = field(default_factory=Options)

    @property
    def asked(self) -> tuple[str, ...]:
        """The questions."""
        scene = scenes.make_scene(scenes.split_seeds("test")[0])
        return self.questions or tuple(scenes.ask(scene, kind, 0, held_out=True).question for kind in scenes.KINDS)

    @property
    def runs(self) -> int:
        """Answers of both ways."""
        return len(WAYS) * len(self.asked) * self.windowing.count(self.seconds)


@dataclass(frozen=True, slots=True)
class FrameTimes:
    """Results over all windows and questions.

    Args:
        encode, answer: seconds of each answer, by way.
        identical: answers with the same tokens both ways.
        fresh, reused: frames that were encoded, and that were not, where features are reused.
    """

    encode: dict[str, list[float]]
    answer: dict[str, list[float]]
    identical: int
    fresh: int
    reused: int

    @property
    def encode_speedup(self) -> Interval:
        """Σ whole / Σ reused of the encoding."""
        return ratio(*(self.encode[way] for way in WAYS))

    @property
    def speedup(self) -> Interval:
        """Σ whole / Σ reused of whole answers."""
        return ratio(*(self.answer[way] for way in WAYS))

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "encode_ms": {way: quartiles(self.encode[way]).ms() for way in WAYS},
            "answer_ms": {way: quartiles(self.answer[way]).ms() for way in WAYS},
            "encode_speedup": self.encode_speedup.to_json(),
            "speedup": self.speedup.to_json(),
            "identical": f"{self.identical}/{len(self.answer['whole'])}",
            "frames_encoded": self.fresh,
            "frames_reused": self.reused,
        }


def time_windows(bench: FrameBench, tick: Tick = lambda way: None) -> FrameTimes:
    """Ask about every window both ways, in turn.

    Raises:
        CrossdraftError: the pair cannot be loaded, its target does not read frames one by one, or the stream is shorter
            than a window.
    """
    encode, answer = ({way: list[float]() for way in WAYS} for _ in range(2))
    identical = fresh = reused = 0
    with Engine.load(bench.target, bench.drafter, bench.options) as engine:
        windows = _windows(bench, engine.target)
        warm_ups = [_ask(engine, windows[0], bench, bench.asked[0], way) for way in WAYS]
        if warm_ups[-1].stats.frames_encoded is None:
            raise CrossdraftError(
                f"{type(engine.target.model).__name__} does not read frames one by one, or not on a CPU, so that none "
                "are reused; choose another --target, or --device cpu."
            )
        for question in bench.asked:
            engine.prefixes.clear()
            for number, window in enumerate(windows):
                found: dict[str, Answer] = {}
                for way in WAYS[:: 1 if number % 2 else -1]:
                    one = found[way] = _ask(engine, window, bench, question, way)
                    encode[way].append(one.stats.stages_s["encode"])
                    answer[way].append(one.stats.total_s)
                    tick(way)
                identical += found["whole"].tokens == found["reused"].tokens
                fresh += found["reused"].stats.frames_encoded or 0
                reused += found["reused"].stats.frames_reused or 0
    return FrameTimes(encode, answer, identical, fresh, reused)


def _ask(engine: Engine, window: StreamWindow, bench: FrameBench, question: str, way: str) -> Answer:
    """The answer; of a request without a namespace nothing is kept."""
    namespace, reuse = (None, "clip") if way == "whole" else ("", "frames")
    shown = Request(question, window.frames, window.events, bench.max_new_tokens)
    return engine.generate(replace(shown, namespace=namespace, reuse=reuse))


def _windows(bench: FrameBench, target: Target) -> list[StreamWindow]:
    """All windows of the stream, with their events in memory."""
    windowing = replace(bench.windowing, frames=frames_per_window(target, bench.windowing.length_s))
    found: list[StreamWindow] = []
    with TemporaryDirectory(prefix="crossdraft-") as folder:
        video, events = stream_files(bench.seconds, Path(folder))
        windows = SlidingWindows(windowing, RecordedEvents(Excerpt(events, 0)))
        with closing(iter_frames(video)) as frames:
            replay(frames, windows, found.append, ReplayClock(wait=lambda _: False))
        return [replace(one, events=_read(one.events)) for one in found]


def _read(events: object) -> object:
    return events.read() if isinstance(events, Excerpt) else events


def lines(bench: FrameBench, found: FrameTimes) -> list[str]:
    """For people."""
    names = {"whole": "each window whole", "reused": "known frames reused"}
    windows, questions = bench.windowing.count(bench.seconds), len(bench.asked)
    each = f"{bench.windowing.length_s:g} s each {1e3 * bench.windowing.every_s:g} ms"
    rows = [
        f"{names[way]:<22}encode {_shown(quartiles(found.encode[way]))}   answer {_shown(quartiles(found.answer[way]))}"
        for way in WAYS
    ]
    counted = f"{found.fresh} frames encoded, {found.reused} reused"
    return [
        f"{bench.target}, {bench.drafter}: {windows} windows of {each}, {questions} questions; medians and quartiles",
        *rows,
        f"encoding {found.encode_speedup} times as fast, answers {found.speedup} times; {counted}",
        f"{found.identical} of {windows * questions} answers identical",
    ]


@dataclass(frozen=True, slots=True)
class ShiftTimes:
    """Seconds that an encoder takes for a clip of `frames` frames, `new` of which were not shown before.

    Args:
        whole: for the clip encoded whole.
        reused: with the others' features reused, their digests included.
        same_bits: whether both give the same features to the last bit.
    """

    frames: int
    new: int
    whole: Quartiles
    reused: Quartiles
    same_bits: bool

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "frames": self.frames,
            "new": self.new,
            "whole_ms": self.whole.ms(),
            "reused_ms": self.reused.ms(),
            "speedup": round(self.whole.median / self.reused.median, 3),
            "same_bits": self.same_bits,
        }

    def __str__(self) -> str:
        same = "the same bits" if self.same_bits else "bits differ"
        return (
            f"{self.new} of {self.frames} frames new: {_shown(self.reused)}, whole {_shown(self.whole)}, "
            f"{self.whole.median / self.reused.median:.2f} times as fast, {same}"
        )


def time_shifts(bench: EncodeBench, new: tuple[int, ...], tick: Tick = lambda way: None) -> list[ShiftTimes]:
    """Encode a clip of noise that moves on by so many frames each time, whole and with features reused, in turn.

    Raises:
        CrossdraftError: the target does not read frames one by one, or clips have fewer frames.
    """
    if max(new) > bench.frames:
        raise CrossdraftError(f"--new has {max(new)}, and a clip has {bench.frames} frames; give at most those.")
    with one_thread():
        target, prompt = encode_target(bench)
    return [_time_shift(target, prompt, bench, one, tick) for one in new]


def _time_shift(target: Target, prompt: Prompt, bench: EncodeBench, new: int, tick: Tick) -> ShiftTimes:
    clip, prefixes = prompt.features["pixel_values_videos"], PrefixCache(PLENTY)
    draws = torch.Generator().manual_seed(0)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    same = True
    for turn in range(WARM_UPS + bench.repeats):
        fresh = torch.randn(clip[:, :new].shape, generator=draws).to(clip.dtype)
        clip = torch.cat([clip[:, new:], fresh], 1)
        shown = replace(prompt, features={"pixel_values_videos": clip})
        features: list[torch.Tensor] = []
        for way in WAYS:
            asked = replace(shown, by_frame=way == "reused")
            request = Request("?", reuse="frames")
            start = target.clock.mark().wait()
            encoded = prefixes.lookup(target, asked, request).encode()
            seconds = target.clock.mark().wait() - start
            found = target.visual_features(encoded)
            features += [] if found is None else [found]
            times[way] += [seconds] if turn >= WARM_UPS else []
            tick(way)
        same = same and torch.equal(*features)
    if not prefixes.nbytes:
        raise CrossdraftError(
            f"{type(target.model).__name__} does not read frames one by one; choose another --target."
        )
    return ShiftTimes(bench.frames, new, quartiles(times["whole"]), quartiles(times["reused"]), same)


def _shown(times: Quartiles) -> str:
    return f"{times.median * 1e3:.1f} ms [{times.q1 * 1e3:.1f}, {times.q3 * 1e3:.1f}]"
