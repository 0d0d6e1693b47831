"""Open-ended questions about videos: ActivityNet-QA, MSRVTT-QA, MSVD-QA.

Questions and answers come in one file (`test_qa.json`) or in two (`test_q.json`, `test_a.json`), which are joined on
`question_id`, as neither file promises an order. The join is done on disk, so that memory does not grow with the number
of answers.
"""

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

from crossdraft.errors import CrossdraftError
from crossdraft.files import parse_json
from crossdraft_lab.datasets.files import FileFinder, one_folder_with, subfolders
from crossdraft_lab.datasets.rows import field, json_rows
from crossdraft_lab.datasets.sample import DatasetReader, DatasetSample, Problem, fault_of

# ActivityNet-QA's question types 0 to 2, and its answer types of free questions.
ACTIVITYNET_KINDS = ("motion", "spatial", "temporal", "yes/no", "colour", "object", "location", "number", "other")
QUESTION_WORDS = ("what", "who", "how", "when", "where")  # MSRVTT-QA's and MSVD-QA's kinds (Xu et al. 2017)
CACHE_KIB = 16 << 10  # KiB of memory for a table on disk


class TextsOnDisk:
    """Table from text to text, in a database without a name: SQLite removes it, however the process ends.

    Args:
        what: beginning of the error message if the disk is full, such as "The answers cannot be joined".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        # The table may be read by a generator, which a thread other than the creating one may end.
        self._db = sqlite3.connect("", check_same_thread=False)
        try:
            with self._errors():
                self._db.executescript(f"PRAGMA journal_mode = OFF; PRAGMA cache_size = -{CACHE_KIB}")
                self._db.execute("CREATE TABLE texts (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID")
        except BaseException:
            self.close()
            raise

    def put(self, rows: Iterable[tuple[str, str]]) -> None:
        """Store rows; of several rows with one key, the last one stays.

        Raises:
            CrossdraftError: the disk is full.
        """
        with self._errors():
            self._db.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?)", map(_as_ascii, rows))

    def add(self, key: str) -> bool:
        """Store a key; return true if it is new.

        Raises:
            CrossdraftError: the disk is full.
        """
        with self._errors():
            return self._db.execute("INSERT OR IGNORE INTO texts VALUES (?, ?)", _as_ascii((key, ""))).rowcount == 1

    def get(self, key: str) -> str | None:
        """Look up the text of a key.

        Raises:
            CrossdraftError: the table cannot be read.
        """
        with self._errors():
            found = self._db.execute("SELECT value FROM texts WHERE key = ?", (json.dumps(key),)).fetchone()
        return None if found is None else json.loads(found[0])

    def close(self) -> None:
        """Remove the table."""
        self._db.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise CrossdraftError(
                f"{self._what} ({error}); free some room for temporary files, or name another place for them in "
                "SQLITE_TMPDIR."
            ) from error


def _as_ascii(row: tuple[str, str]) -> tuple[str, str]:
    """Return key and value as JSON: SQLite takes no text with half a surrogate pair."""
    key, value = row
    return json.dumps(key), json.dumps(value)


class VideoQa(DatasetReader):
    """Common base of the three readers.

    Raises:
        CrossdraftError: the folder has no annotations.
    """

    def __init__(self, root: Path) -> None:
        self.folder = one_folder_with(root, "*_q*.json")
        self._videos = FileFinder(dict.fromkeys([*subfolders(root), *subfolders(self.folder, 1)]))
        together = {path.name.removesuffix("_qa.json"): path for path in self.folder.glob("*_qa.json")}
        questions = {path.name.removesuffix("_q.json"): path for path in self.folder.glob("*_q.json")}
        super().__init__(questions | together, f"{self.folder} holds no *_qa.json and no *_q.json.", "video")

    def samples(self, part: str) -> Iterator[DatasetSample]:
        path = self.paths[part]
        answered = self.folder / f"{part}_a.json"
        # ActivityNet-QA's test answers were held back at first.
        separate = path.name.endswith("_q.json") and answered.is_file()
        with closing(answers_on_disk(answered)) if separate else nullcontext() as answers:
            for number, row in enumerate(json_rows(path)):
                key = str(row.get("question_id", row.get("id", number)))
                answer = None if answers is None else answers.get(key)
                yield self._sample(part, key, row if answer is None else {**row, **json.loads(answer)}, path)

    def problems(self, part: str) -> Iterator[Problem]:
        seen: set[str] = set()
        together = f"{part}_qa.json"
        answers = together if (self.folder / together).is_file() else f"{part}_a.json"
        with closing(TextsOnDisk("The ids of the questions cannot be compared")) as ids:
            for sample in self.samples(part):
                if sample.missing and sample.missing not in seen:
                    seen.add(sample.missing)
                    yield Problem(sample.missing, "the video is missing")
                if not sample.answers:
                    yield Problem(answers, f"no answer to question {sample.id!a}")
                if (fault := fault_of(sample)) is not None:
                    yield Problem(part, fault)
                if not sample.missing and not ids.add(sample.id):  # a sample whose file is missing is not stored
                    yield Problem(part, f"two questions have the id {sample.id!a}")

    def _sample(self, part: str, key: str, row: Mapping[str, Any], path: Path) -> DatasetSample:
        name = self._name(row, path)
        question = field(row, "question", path, numbers=False)
        video = self._videos.find(*self._stems(name))
        group, start, end = self._source(name)
        answer = None if row.get("answer") is None else str(row["answer"])
        return DatasetSample(
            f"{part}/{key}",
            name,
            question,
            () if answer is None else (answer,),
            video,
            start_s=start,
            end_s=end,
            kind=self._kind(row, question),
            group=group,
            missing="" if video is not None else f"{self._stems(name)[0]}.mp4",
        )

    def _name(self, row: Mapping[str, Any], path: Path) -> str:
        return field(row, "video_name" if "video_name" in row else "video_id", path)

    def _stems(self, name: str) -> tuple[str, ...]:
        """Names that the video's file may have."""
        return (name,)

    def _source(self, name: str) -> tuple[str, float | None, float | None]:
        """Return the video from which a clip was taken, and its start and end there in seconds."""
        return name, None, None

    def _kind(self, row: Mapping[str, Any], question: str) -> str:
        first = question.split(maxsplit=1)[0].casefold() if question.strip() else ""
        return first if first in QUESTION_WORDS else "other"


def answers_on_disk(path: Path) -> TextsOnDisk:
    """Store `answer` and `type` of each question, as JSON; of several answers to one question the last.

    Args:
        path: file with a list of objects with `question_id`, `answer` and perhaps `type`.

    Raises:
        CrossdraftError: the file cannot be read, a row lacks its question, or the disk is full.
    """
    answers = TextsOnDisk(f"The answers {path} cannot be joined to their questions")
    try:
        answers.put(
            (field(row, "question_id", path), json.dumps({key: row[key] for key in ("answer", "type") if key in row}))
            for row in json_rows(path)
        )
    except BaseException:
        answers.close()
        raise
    return answers


class ActivityNetQa(VideoQa):
    """ActivityNet-QA (Yu et al., AAAI 2019): files `v_<video_name>.mp4` and of other suffixes."""

    def _stems(self, name: str) -> tuple[str, ...]:
        return f"v_{name}", name

    def _kind(self, row: Mapping[str, Any], question: str) -> str:
        kind = row.get("type")
        known = isinstance(kind, int | str) and str(kind).isdecimal() and int(kind) < len(ACTIVITYNET_KINDS)
        return ACTIVITYNET_KINDS[int(str(kind))] if known else ""


class MsrvttQa(VideoQa):
    """MSRVTT-QA (Xu et al., ACM MM 2017): files `video<id>.mp4`.

    Several clips come from one YouTube video. `*videodatainfo.json`, if it exists, names the video and the span.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._sources = {}
        for path in sorted(chain(root.glob("*videodatainfo*.json"), root.glob("*/*videodatainfo*.json"))):
            self._sources |= _msrvtt_sources(path)

    def _name(self, row: Mapping[str, Any], path: Path) -> str:
        return f"video{super()._name(row, path).removeprefix('video')}"

    def _source(self, name: str) -> tuple[str, float | None, float | None]:
        return self._sources.get(name, (name, None, None))


class MsvdQa(VideoQa):
    """MSVD-QA (Xu et al., ACM MM 2017): `youtube_mapping.txt` names the file of `vid<id>`, `<YouTube id>_<from>_<to>`.

    Clips of one YouTube video may overlap, so they form a group.

    Raises:
        CrossdraftError: the mapping is missing or damaged.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        near = [folder / "youtube_mapping.txt" for folder in (self.folder, root)]
        path = next((path for path in near if path.is_file()), near[-1])
        self._files = _mapped_files(path)

    def _name(self, row: Mapping[str, Any], path: Path) -> str:
        return f"vid{super()._name(row, path).removeprefix('vid')}"

    def _stems(self, name: str) -> tuple[str, ...]:
        return self._files.get(name, name), name

    def _source(self, name: str) -> tuple[str, float | None, float | None]:
        return cut_from(self._files.get(name, name))


def _mapped_files(path: Path) -> dict[str, str]:
    """Load the file name of each `vid<number>`."""
    files = dict[str, str]()
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if len(words := line.split()) not in (0, 2):
                    raise CrossdraftError(f"{path}, line {number}: '{line.strip()[:80]}' is no 'file vid<number>'.")
                files |= {words[1]: words[0]} if words else {}
    except (OSError, UnicodeDecodeError) as error:
        raise CrossdraftError(f"{path} cannot be read ({error}); copy it again.") from error
    return files


def cut_from(stem: str) -> tuple[str, float | None, float | None]:
    """Return the source video and the seconds stated by a name such as `<id>_<from>_<to>`.

    >>> cut_from("-4wsuPCjDBc_5_15")
    ('-4wsuPCjDBc', 5.0, 15.0)
    """
    found = re.fullmatch(r"(.+)_(\d{1,9})_(\d{1,9})", stem)
    return (stem, None, None) if found is None else (found[1], float(found[2]), float(found[3]))


def _msrvtt_sources(path: Path) -> dict[str, tuple[str, float | None, float | None]]:
    """Load the URL of each video, and the times from which and to which it was cut."""
    try:
        content: Any = parse_json(path.read_text(encoding="utf-8"))
        return {
            row["video_id"]: (str(row["url"]), float(row["start time"]), float(row["end time"]))
            for row in content["videos"]
        }
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CrossdraftError(f"{path} does not say where the videos are from ({error!r}); copy it again.") from error
