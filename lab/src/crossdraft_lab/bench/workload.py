"""The workload: questions about held-out scenes, with all inputs in memory or in files; or a file of prompts."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from crossdraft.checks import whole
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError
from crossdraft.messages import VISUAL, Message, is_path, read_messages
from crossdraft.structure.structure import Structure
from crossdraft.video.clip import DEFAULT_FRAMES
from crossdraft_lab import scenes
from crossdraft_lab.bench.common import check_names
from crossdraft_lab.bench.structures import STRUCTURES, structure_of

LONGEST = 2
WARM_TOKENS = 32  # longest answer to a warm-up in words
ANSWERS = ("long", "any")
MOST_BYTES = 64 << 20  # of a file of prompts
SHOWN = (*VISUAL, "events")  # what a prompt may come with, by path
OF_SCENES = ("answers", "split", "frames", "questions", "trained_wordings", "held_out_wordings")


@dataclass(frozen=True, slots=True)
class Workload:
    """Questions about scenes.

    Args:
        pairs: number of (scene, question) pairs, each about a scene of its own unless `questions` says otherwise.
        answers: `any` asks every kind of question in turn (about 39 tokens); `long` asks each scene one of the two
            questions whose right answer is longest, in turn (about 56 tokens), which favours drafting.
        kinds: only these kinds of question; empty = all.
        max_new_tokens: largest number of tokens of an answer.
        temperature: sampling temperature; 0 = greedy.
        files: write each clip to this folder and hand over paths, so that reading them is part of an answer's
            time; `None` hands over decoded frames and events in memory.
        split: split of scene seeds. The test split has held-out wordings, the others those of the training.
        first: index of the first scene within the split.
        frames: number of frames of each clip that is handed over in memory.
        questions: number of successive pairs that are about one scene.
        trained_wordings: ask in wordings of the training even in the test split.
        prompts: file of JSON lines such as {"prompt": "…", "kind": "code"}, which are asked in place of questions about
            scenes, a prompt of each kind in turn; see `read_prompts`.
        structured: questions about scenes ask for the `structures.STRUCTURES` in turn.
    """

    pairs: int = 40
    answers: str = "any"
    kinds: tuple[str, ...] = ()
    max_new_tokens: int = 96
    temperature: float = 0.0
    files: Path | None = None
    split: str = "test"
    first: int = 0
    frames: int = DEFAULT_FRAMES
    questions: int = 1
    trained_wordings: bool = False
    prompts: Path | None = None
    structured: bool = False

    def __post_init__(self) -> None:
        if self.pairs < 1:
            raise CrossdraftError(f"The number of pairs is {self.pairs}; measure at least 1.")
        whole("The number of frames", self.frames)
        whole("The number of questions about a clip", self.questions)
        check_names("answers", (self.answers,), ANSWERS)
        if self.prompts is None:
            check_names("kind", self.kinds, scenes.KINDS)
        self.request("?", None, None, seed=0)  # refuses invalid settings before a scene is drawn
        if self.prompts is not None:
            self._check_prompts(self.prompts)
            return
        held = len(scenes.split_seeds(self.split))
        if not 0 <= self.first <= held - self.scenes:
            raise CrossdraftError(
                f"The {self.split} split has scenes 0 to {held - 1}, and {self.scenes} from {self.first} on are not "
                "all in it; choose another first scene, or fewer pairs."
            )

    def _check_prompts(self, path: Path) -> None:
        found = read_prompts(path, self.kinds)
        if not 0 <= self.first <= len(found) - self.pairs:
            raise CrossdraftError(
                f"{path} has {len(found)} such prompts, not {self.first + self.pairs}; ask for fewer pairs."
            )

    def request(self, question: str, video: object, events: object, seed: int) -> Request:
        """Build the request that every method gets."""
        sampling = Sampling(temperature=self.temperature, seed=seed)
        return Request(question, video, events, max_new_tokens=self.max_new_tokens, sampling=sampling)

    @property
    def scenes(self) -> int:
        """Number of scenes that are asked about."""
        return -(-self.pairs // self.questions)

    @property
    def held_out(self) -> bool:
        """True if no training has seen the wordings."""
        return self.split == "test" and not self.trained_wordings


@dataclass(frozen=True, slots=True)
class Item:
    """One pair: seed of the scene, kind of question, request that every method gets, facts asked for, right answer."""

    seed: int
    kind: str
    request: Request
    facts: Mapping[str, str] = field(default_factory=dict)
    answer: str = ""


def items(work: Workload) -> Iterator[Item]:
    """Yield the pairs one after another; a workload gives the same pairs on every machine."""
    if work.prompts is not None:
        asked = enumerate(read_prompts(work.prompts, work.kinds))
        for number, one in islice(asked, work.first, work.first + work.pairs):
            request = work.request("?", None, None, number)
            yield Item(number, one.kind, replace(request, prompt=one.text, structure=one.structure, **one.shown))
        return
    structures = cycle(STRUCTURES if work.structured else (None,))
    for scene, asked in questions(work):
        video, events = _clip(scene, work)
        for qa in asked:
            request = work.request(qa.question, video, events, scene.seed)
            yield Item(scene.seed, qa.kind, replace(request, structure=next(structures)), qa.facts, qa.answer)


class AskedPrompt(NamedTuple):
    """A line of a file of prompts; `shown` holds its request's `messages`, `image`, `video` and `events`."""

    kind: str
    text: str
    structure: Structure | None
    shown: Mapping[str, Any]

    @property
    def shows(self) -> bool:
        """True if the target is shown an image or a clip."""
        parts = [part for one in self.shown.get("messages", ()) for part in one.parts]
        return any(name in self.shown for name in VISUAL) or any(part.kind in VISUAL for part in parts)


def counting(work: Workload, count: int) -> list[Item]:
    """Requests in words that no file of prompts is likely to hold, of at most `WARM_TOKENS` tokens: warm-ups."""
    few = replace(work, max_new_tokens=min(WARM_TOKENS, work.max_new_tokens))
    asked = (few.request(f"Count from {n} to twenty.", None, None, n) for n in range(count))
    return [Item(-1, "warm-up", request) for request in asked]


def read_prompts(path: Path, kinds: Sequence[str] = ()) -> list[AskedPrompt]:
    """Read a file of JSON lines, with `kinds` only these: one prompt of each kind in turn, while there are some.

    A line holds a text under `prompt`, or a conversation under `messages`; it may hold a `kind`, a `schema`, `regex`,
    `choice` or `grammar`, and paths under `image`, `video` and `events`, which are relative to the file's folder.

    Raises:
        CrossdraftError: the file cannot be read or has no such prompt, or a line has no prompt, no right structure, or
            names a file that does not exist.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise CrossdraftError(f"The prompts {path} have more than {MOST_BYTES >> 20} MiB; give a shorter file.")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CrossdraftError(f"The prompts {path} cannot be read: {error}; give a file of JSON lines.") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            read = json.loads(line)
        except (ValueError, RecursionError):
            read = None
        found.append(_asked(read if isinstance(read, dict) else {}, path.parent, f"Line {number} of {path}"))
    found = [one for one in found if not kinds or one.kind in kinds]
    if not found:
        raise CrossdraftError(f"{path} has no prompts" + (f" of the kinds {', '.join(kinds)}." if kinds else "."))
    counts, turns = Counter[str](), list[int]()
    for one in found:
        turns.append(counts[one.kind])
        counts[one.kind] += 1
    return [found[index] for index in sorted(range(len(found)), key=turns.__getitem__)]


def _asked(entry: Mapping[str, Any], folder: Path, where: str) -> AskedPrompt:
    """Read a line: its prompt or conversation, its structure, and what it shows, with whole paths."""
    text = entry.get("prompt", "")
    shown = {name: _located(entry[name], folder, where) for name in SHOWN if entry.get(name) is not None}
    if not isinstance(text, str) or bool(text) == ("messages" in entry):
        raise CrossdraftError(f'{where} is no prompt; write a line such as {{"prompt": "…"}}.')
    if "messages" in entry:
        if any(name in shown for name in VISUAL):
            raise CrossdraftError(f"{where} has messages; name what they show among their parts.")
        try:
            shown["messages"] = tuple(_with_paths(one, folder, where) for one in read_messages(entry["messages"]))
        except CrossdraftError as error:
            raise CrossdraftError(f"{where}: {error}") from None
    return AskedPrompt(str(entry.get("kind", "any")), text, structure_of(entry, where), shown)


def _with_paths(message: Message, folder: Path, where: str) -> Message:
    """Return the message with whole paths in place of those that are relative to a folder."""
    parts = tuple(
        replace(part, value=_located(part.value, folder, where))
        if part.kind in VISUAL and is_path(part.value)
        else part
        for part in message.parts
    )
    return replace(message, parts=parts)


def _located(value: object, folder: Path, where: str) -> Any:
    """Find a file that a line names, or a list of them, relative to a folder."""
    if isinstance(value, list):
        return [_located(one, folder, where) for one in value]
    if not isinstance(value, str) or not (folder / value).exists():
        raise CrossdraftError(f"{where} names {value!r:.100}, which is no file; write its path from {folder} on.")
    return str(folder / value)


def questions(work: Workload) -> Iterator[tuple[scenes.Scene, list[scenes.QA]]]:
    """Yield the scenes with the questions about each; nothing is rendered.

    Kinds and wordings take turns over the whole split: a part of a workload continues where the part before it ended.
    """
    seeds = scenes.split_seeds(work.split)
    begin = work.first * work.questions
    for number in range(work.scenes):
        scene = scenes.make_scene(seeds[work.first + number])
        indices = range(number * work.questions, min(work.pairs, (number + 1) * work.questions))
        yield scene, [_question(scene, begin + index, work) for index in indices]


def _question(scene: scenes.Scene, index: int, work: Workload) -> scenes.QA:
    kinds = work.kinds or scenes.KINDS
    if work.answers == "any":
        kind = kinds[index % len(kinds)]
        count = len(scenes.wordings(kind, work.held_out))
        return scenes.ask(scene, kind, (index // len(kinds)) % count, work.held_out)
    candidates = (
        scenes.ask(scene, kind, wording, work.held_out)
        for kind in kinds
        for wording in range(len(scenes.wordings(kind, work.held_out)))
    )
    longest: dict[str, scenes.QA] = {}  # kind -> its wording with the longest answer
    for qa in candidates:
        if qa.kind not in longest or len(qa.answer) > len(longest[qa.kind].answer):
            longest[qa.kind] = qa
    ranked = sorted(longest.values(), key=lambda qa: -len(qa.answer))[:LONGEST]
    return ranked[index % len(ranked)]


def _clip(scene: scenes.Scene, work: Workload) -> tuple[object, object]:
    """Return video and events of a scene: paths, or uint8 [frames, H, W, 3] and an event stream."""
    if work.files is not None:
        clip = scenes.write_clip(scene, work.files)
        return str(clip.video), str(clip.events)
    total = round(scenes.DURATION_S * scenes.VIDEO_FPS)
    times = np.linspace(0, total - 1, work.frames, dtype=int) / scenes.VIDEO_FPS
    return scenes.render(scene, times, scenes.VIDEO_SIZE), scenes.simulate_events(scene)


def describe(work: Workload) -> dict[str, object]:
    """A workload in plain values, with what the clock includes."""
    found = {
        **asdict(work),
        "kinds": list(work.kinds) or "all",
        "files": work.files is not None,
        "prompts": None if work.prompts is None else work.prompts.name,
        "held_out_wordings": work.held_out,
        "timed": _timed(work),
    }
    return found if work.prompts is None else {**found, **dict.fromkeys(OF_SCENES)}


def _timed(work: Workload) -> str:
    if work.prompts is not None:
        return "from the request to the whole answer"
    if work.files is not None:
        return "from the request to the whole answer; the clip's files are read inside the clock"
    return "from the request to the whole answer; the clip's files are read and decoded beforehand, outside the clock"


def workload_in_words(work: Workload, each: Sequence[str], mean_tokens: float) -> list[str]:
    """Sentences on the questions, the length of the answers, and what the clock includes.

    Args:
        work: the workload.
        each: kinds of the pairs that were answered.
        mean_tokens: mean number of tokens of the answers.
    """
    decoding = "greedy" if work.temperature == 0 else f"sampled at temperature {work.temperature:g}"
    kinds = len(set(each))
    if work.prompts is not None:
        words = "" if any(one.shows for one in read_prompts(work.prompts, work.kinds)) else ", in words alone"
        return [
            f"Workload: {len(each)} prompts of {work.prompts.name}{words}, of {kinds} kinds; {decoding}.",
            f"Answers: {mean_tokens:.1f} tokens on average.",
            f"Time: {_timed(work)}.",
        ]
    held = "scenes and wordings that no training has seen" if work.held_out else "wordings as in training"
    questions = f"{kinds} of {len(scenes.KINDS)} kinds of question in turn"
    if work.answers == "long":
        questions = "of each scene one of the two questions with the longest answers, which favours drafting"
    return [
        f"Workload: {len(each)} questions, {held}; {questions}; {decoding}.",
        f"Answers: {mean_tokens:.1f} tokens on average.",
        f"Time: {_timed(work)}.",
    ]
