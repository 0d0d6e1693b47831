"""Clips with their questions, from two sources: scenes of the road world, rendered when they are read, and a list.

A list is a file with one JSON object a line, its paths relative to the list's folder:

    {"video": "clips/a.mp4", "prompt": "What is ahead?"}
    {"video": "clips/b.mp4", "prompt": ["What is ahead?", "Is it dark?"], "events": "clips/b.h5"}
    {"prompt": "Write a letter.", "kind": "prose", "temperature": 0.7}

A line without a video is asked in words alone; its answer is greedy without a temperature. `crossdraft data pairs` and
`crossdraft data instructions` write such lists, with further keys that are not read here.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from crossdraft.checks import did_you_mean, whole
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError
from crossdraft.files import parse_json
from crossdraft.video.clip import DEFAULT_FRAMES
from crossdraft_lab import scenes
from crossdraft_lab.datasets.sample import wording
from crossdraft_lab.train.core.provenance import sha256
from crossdraft_lab.train.reference.batches import augment_question, draw_questions, question_words
from crossdraft_lab.train.reference.clips import clip_seed, sample_times

SPLITS = ("train", "validation")
MOST_PROMPTS = 512  # questions about one scene
KEYS = {"video", "prompt", "events", "kind", "temperature"}  # keys of a line
# Further keys of a line that `crossdraft_lab.datasets.pairs` writes.
ABOUT = {"answers", "kinds", "ids", "sequence", "start_s", "end_s", "dataset", "licence"}
FROM, TO = "start_s", "end_s"  # keys of the times of a part
LATEST_S = 1e12
GREEDY = Sampling()


@dataclass(frozen=True)
class ClipRequest(Request):
    """A question about a clip of a source.

    Args:
        clip_name: name of the clip, the key of drafters with a memory.
        number: number of the request, among those that are answered together.
    """

    clip_name: str = ""
    number: int = 0


@dataclass(frozen=True)
class SequencePart:
    """Part of a longer recording that a clip shows; without times, any part."""

    sequence: str
    start_s: float = -math.inf
    end_s: float = math.inf


@dataclass(frozen=True)
class PromptedClip:
    """A clip and the questions about it.

    Args:
        name: name for people, and the key of drafters with a memory.
        video: a path, or frames uint8 [F, H, W, 3], as `Request.video`.
        part: part of a sequence, if the list names one.
        sampling: of the answers; greedy by default.
        kind: kind of its prompts; empty = each is its own wording.
    """

    name: str
    video: object
    prompts: tuple[str, ...]
    events: str | None = None
    part: SequencePart | None = None
    sampling: Sampling = GREEDY
    kind: str = ""

    def requests(self, max_new_tokens: int) -> list[ClipRequest]:
        """One request for each question."""
        length, how, name = max_new_tokens, self.sampling, self.name
        return [
            ClipRequest(prompt, self.video, self.events, max_new_tokens=length, sampling=how, clip_name=name)
            for prompt in self.prompts
        ]


class ClipSource(Protocol):
    """Clips with their questions; equal arguments give equal ones on every machine."""

    @property
    def settings(self) -> Mapping[str, object]:
        """Plain values that tell one source from another; the number of clips is not among them."""
        ...

    @property
    def heavy(self) -> bool:
        """True if `read` takes so long that another process should do it."""
        ...

    def __len__(self) -> int:
        """Number of clips."""
        ...

    @property
    def answers(self) -> int:
        """Number of questions about all clips."""
        ...

    def locate(self, answer: int) -> tuple[int, int]:
        """Return (clip, question) of the answer with that number."""
        ...

    def questions(self, index: int) -> tuple[str, ...]:
        """The questions about a clip, without reading the clip."""
        ...

    def kinds(self, index: int) -> tuple[str, ...]:
        """Kind of each of the clip's questions: as drawn for a scene, its wording for a list."""
        ...

    def read(self, index: int) -> PromptedClip:
        """A clip by its number."""
        ...


def grouped(clips: Iterable[PromptedClip], prompts: int) -> Iterator[list[PromptedClip]]:
    """Neighbouring clips in groups of at least `prompts` questions; the last group may have fewer."""
    group: list[PromptedClip] = []
    for clip in clips:
        group.append(clip)
        if sum(len(one.prompts) for one in group) >= prompts:
            yield group
            group = []
    if group:
        yield group


@dataclass(frozen=True)
class SceneSource:
    """`clips` scenes of a split, from number `first` on, each with questions of all kinds.

    Args:
        split: train or validation; the test split is held out.
        clips, first: number of scenes, and number of the first one.
        prompts: questions about each scene: kinds without repetition while there are enough, in any training wording.
        seed: seed of the questions; those about a scene depend on it and on the scene alone.
        prompt_noise: largest share of a question's words that are dropped or replaced, so that prompts are not limited
            to a hundred fixed wordings.
    """

    split: str = "train"
    clips: int = 1
    first: int = 0
    prompts: int = 8
    seed: int = 0
    prompt_noise: float = 0.0

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise CrossdraftError(
                f"There is no learning from the split '{self.split}'; capture {' or '.join(SPLITS)}, the test split is "
                "held out."
            )
        held = len(scenes.split_seeds(self.split))
        if self.clips < 1 or not 0 <= self.first <= held - self.clips:
            raise CrossdraftError(
                f"The {self.split} split has scenes 0 to {held - 1}, and {self.clips} from {self.first} on are not "
                "some of them; choose others."
            )
        whole("The seed (--seed)", self.seed, 0)
        if not 1 <= self.prompts <= MOST_PROMPTS:
            raise CrossdraftError(f"{self.prompts} prompts a clip are out of range; choose 1 to {MOST_PROMPTS}.")
        if not 0 <= self.prompt_noise < 1:
            raise CrossdraftError(
                f"The prompt noise (--prompt-noise) is {self.prompt_noise}; choose 0 (none) to less than 1."
            )

    @property
    def settings(self) -> dict[str, object]:
        own = {"split": self.split, "first": self.first, "prompts": self.prompts, "seed": self.seed}
        return {"kind": "scenes", **own, "wear": self.prompt_noise}

    @property
    def heavy(self) -> bool:
        return True

    def __len__(self) -> int:
        return self.clips

    @property
    def answers(self) -> int:
        return self.clips * self.prompts

    def locate(self, answer: int) -> tuple[int, int]:
        return divmod(answer, self.prompts)

    def questions(self, index: int) -> tuple[str, ...]:
        drawn, rng = self._drawn(index)
        questions = [qa.question for qa in drawn]
        if self.prompt_noise:
            words = question_words()
            questions = [augment_question(question, self.prompt_noise, words, rng) for question in questions]
        return tuple(questions)

    def kinds(self, index: int) -> tuple[str, ...]:
        return tuple(qa.kind for qa in self._drawn(index)[0])

    def _drawn(self, index: int) -> tuple[list[scenes.QA], np.random.Generator]:
        """Draw the questions about a clip before any noise; return the generator that draws the noise, too."""
        clip = self.first + index
        rng = np.random.default_rng([self.seed, clip])
        return draw_questions(self.split, clip, self.prompts, rng), rng

    def read(self, index: int) -> PromptedClip:
        clip = self.first + index
        scene = scenes.make_scene(clip_seed(self.split, clip))
        frames = scenes.render(scene, sample_times(DEFAULT_FRAMES), scenes.VIDEO_SIZE)
        return PromptedClip(f"{self.split}-{clip:07d}", frames, self.questions(index))


class ListSource:
    """The first `clips` lines of a list; by default all.

    Raises:
        CrossdraftError: the list is missing or empty, or a line is wrong or names a file that cannot be read.
    """

    def __init__(self, path: Path, clips: int | None = None) -> None:
        self.path = path.resolve()
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            self._sha256 = sha256(path)
        except (OSError, UnicodeDecodeError) as error:
            raise CrossdraftError(f"The list {path} cannot be read: {error}; give a file of JSON lines.") from error
        numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        self._clips = [_parse_line(path, number, line) for number, line in numbered[:clips]]
        if not self._clips:
            raise CrossdraftError(f'The list {path} is empty; write a line such as {{"video": …, "prompt": …}}.')
        if clips is not None and clips > len(self._clips):
            raise CrossdraftError(f"The list {path} has {len(self._clips)} clips, not {clips}; ask for fewer.")

    @property
    def settings(self) -> dict[str, object]:
        return {"kind": "list", "path": str(self.path), "sha256": self._sha256}

    @property
    def heavy(self) -> bool:
        return False  # the target's own `prepare` reads the files

    def __len__(self) -> int:
        return len(self._clips)

    @property
    def answers(self) -> int:
        return self._ends[-1]

    def locate(self, answer: int) -> tuple[int, int]:
        clip = bisect_right(self._ends, answer)
        return clip, answer - self._ends[clip] + len(self._clips[clip].prompts)

    def questions(self, index: int) -> tuple[str, ...]:
        return self._clips[index].prompts

    def kinds(self, index: int) -> tuple[str, ...]:
        clip = self._clips[index]
        return tuple(clip.kind or wording(question) for question in clip.prompts)

    def read(self, index: int) -> PromptedClip:
        return self._clips[index]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(len(clip.prompts) for clip in self._clips))


def source_of(settings: Mapping[str, object], clips: int) -> ClipSource:
    """Build the source that gave these settings (`ClipSource.settings`), to read a capture's clips again.

    Raises:
        CrossdraftError: the settings are not ours, or the list has changed since.
    """
    values: dict[str, Any] = dict(settings)
    kind = values.pop("kind", None)
    try:
        if kind == "scenes":
            return SceneSource(clips=clips, prompt_noise=values.pop("wear", 0.0), **values)
        if kind == "list":
            source = ListSource(Path(str(values["path"])), clips)
            if source.settings["sha256"] != values["sha256"]:
                raise CrossdraftError(f"The list {source.path} has changed since it was captured; capture anew.")
            return source
    except (KeyError, TypeError) as error:
        raise CrossdraftError(f"The capture does not describe its source ({error}); capture anew.") from error
    raise CrossdraftError(f"The capture's source is '{kind}', which is neither scenes nor a list; capture anew.")


def _parse_line(path: Path, number: int, line: str) -> PromptedClip:
    """Parse one line of a list and check that its files exist, its video can be read, and its recording begins."""
    from crossdraft.events.excerpt import Excerpt
    from crossdraft.video import probe

    where = f"Line {number} of {path}"
    try:
        entry: Any = parse_json(line)
    except ValueError as error:
        raise CrossdraftError(f"{where} is no JSON: {error}.") from error
    if not isinstance(entry, dict) or "prompt" not in entry or ("events" in entry and "video" not in entry):
        raise CrossdraftError(
            f'{where} must be an object with "prompt", with "video" if it is about a clip, and with "events" if the '
            "clip has any."
        )
    if unknown := sorted(entry.keys() - KEYS - ABOUT):
        raise CrossdraftError(f"{where} has the unknown key '{unknown[0]}'{did_you_mean(unknown[0], KEYS | ABOUT)}.")
    prompts = [entry["prompt"]] if isinstance(entry["prompt"], str) else entry["prompt"]
    if not isinstance(prompts, list) or not prompts or not all(isinstance(p, str) and p.strip() for p in prompts):
        raise CrossdraftError(f'{where}: "prompt" must be a question, or a list of questions, none of them empty.')
    files = {name: _file(where, path.parent, name, entry[name]) for name in ("video", "events") if name in entry}
    try:
        if "video" in files:
            probe(files["video"])
        empty = "events" in files and Excerpt(Path(files["events"])).first_time() is None
    except CrossdraftError as error:
        raise CrossdraftError(f"{where}: {error}") from error
    if empty:
        raise CrossdraftError(f"{where}: {files['events']} holds no events.")
    return PromptedClip(
        f"line {number}",
        files.get("video"),
        tuple(prompts),
        files.get("events"),
        _part(where, entry),
        _sampling(where, number, entry.get("temperature")),
        str(entry.get("kind", "")),
    )


def _sampling(where: str, number: int, temperature: object) -> Sampling:
    """Sampling of a line's answers, seeded by the line's number; greedy where the line has no temperature."""
    if temperature is None:
        return GREEDY
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):
        raise CrossdraftError(f'{where}: "temperature" must be a number, 0 or more.')
    try:
        return Sampling(temperature=float(temperature), seed=number)
    except CrossdraftError as error:
        raise CrossdraftError(f"{where}: {error}") from error


def _part(where: str, entry: Mapping[str, Any]) -> SequencePart | None:
    """Part of a sequence that a line's clip shows; `None` where the line names no sequence."""
    if entry.get("sequence") is None:
        return None
    start, end = entry.get(FROM), entry.get(TO)
    times = [time for time in (start, end) if time is not None]
    if not isinstance(entry["sequence"], str) or not all(map(_is_time, times)) or times != sorted(times):
        raise CrossdraftError(
            f'{where}: "sequence" must be a name, and "{FROM}" and "{TO}" the seconds at which the clip begins and '
            "ends in it, or left out."
        )
    return SequencePart(
        f"{entry.get('dataset') or ''} {entry['sequence']}".strip(),
        -math.inf if start is None else float(start),
        math.inf if end is None else float(end),
    )


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LATEST_S


def _file(where: str, folder: Path, name: str, value: object) -> str:
    if not isinstance(value, str) or not (folder / value).is_file():
        raise CrossdraftError(f"{where}: the {name} {value!r} is no file; paths are relative to the list's folder.")
    return str((folder / value).resolve())
