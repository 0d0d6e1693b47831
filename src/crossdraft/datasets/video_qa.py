"""Open-ended questions about videos: ActivityNet-QA, MSRVTT-QA, MSVD-QA.

Questions and answers come in one file (`test_qa.json`) or in two (`test_q.json`, `test_a.json`), which are joined on
`question_id`: neither file promises an order. The join is on disk, so that millions of answers take no more memory than
a thousand.
"""

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

from crossdraft.datasets.files import FileFinder, one_folder_with, subfolders
from crossdraft.datasets.rows import field, json_rows
from crossdraft.datasets.sample import DatasetSample, Problem
from crossdraft.errors import CrossdraftError

# ActivityNet-QA's question types 0 to 2, and its answer types of free questions.
ACTIVITYNET_KINDS = ("motion", "spatial", "temporal", "yes/no", "colour", "object", "location", "number", "other")
QUESTION_WORDS = ("what", "who", "how", "when", "where")  # MSRVTT-QA's and MSVD-QA's kinds (Xu et al. 2017)
CACHE_KIB = 16 << 10  # of the answers that are joined, as much is in memory


class VideoQa:
    """What the three have in common.

    Raises:
        CrossdraftError: no annotations in the folder.
    """

    def __init__(self, root: Path) -> None:
        self.folder = one_folder_with(root, "*_q*.json")
        self._videos = FileFinder(dict.fromkeys([*subfolders(root), *subfolders(self.folder, 1)]))

    def parts(self) -> list[str]:
        names = sorted(path.name for path in chain(self.folder.glob("*_qa.json"), self.folder.glob("*_q.json")))
        return list(dict.fromkeys(re.sub(r"_qa?\.json$", "", name) for name in names))

    def samples(self, part: str) -> Iterator[DatasetSample]:
        together, questions = self.folder / f"{part}_qa.json", self.folder / f"{part}_q.json"
        path = together if together.is_file() else questions
        answered = self.folder / f"{part}_a.json"
        # ActivityNet-QA's test answers were held back at first.
        separate = path == questions and answered.is_file()
        with closing(AnswersOnDisk(answered)) if separate else nullcontext() as answers:
            for number, row in enumerate(json_rows(path)):
                key = str(row.get("question_id", row.get("id", number)))
                answer = {} if answers is None else answers.to(key)
                yield self._sample(part, key, {**row, **answer}, path)

    def problems(self, part: str) -> Iterator[Problem]:
        seen: set[str] = set()
        together = f"{part}_qa.json"
        answers = together if (self.folder / together).is_file() else f"{part}_a.json"
        for sample in self.samples(part):
            if sample.missing and sample.missing not in seen:
                seen.add(sample.missing)
                yield Problem(sample.missing, "the video is missing")
            if not sample.answers:
                yield Problem(answers, f"no answer to question {sample.id}")

    def _sample(self, part: str, key: str, row: Mapping[str, Any], path: Path) -> DatasetSample:
        name = self._name(row, path)
        question = field(row, "question", path)
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
        """The video that the clip was taken from, and which seconds of it."""
        return name, None, None

    def _kind(self, row: Mapping[str, Any], question: str) -> str:
        first = question.split(maxsplit=1)[0].casefold() if question.strip() else ""
        return first if first in QUESTION_WORDS else "other"


class AnswersOnDisk:
    """The answers of a file by question, of several to one question the last.

    They are in a database without a name, which SQLite removes with its connection, however the process ends.

    Args:
        path: of a list of objects with `question_id`, `answer` and perhaps `type`.

    Raises:
        CrossdraftError: the file cannot be read, a row lacks its question, or there is no room for the database.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # The samples of a part are a generator, which another thread may end than the one that began it.
        self._db = sqlite3.connect("", check_same_thread=False)
        try:
            with self._errors():
                self._db.executescript(f"PRAGMA journal_mode = OFF; PRAGMA cache_size = -{CACHE_KIB}")
                self._db.execute("CREATE TABLE answers (question TEXT PRIMARY KEY, answer TEXT) WITHOUT ROWID")
                self._db.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", self._rows())
        except BaseException:
            self.close()
            raise

    def to(self, question: str) -> Mapping[str, Any]:
        """`answer` and `type` of a question, as far as the file has them."""
        with self._errors():
            found = self._db.execute(
                "SELECT answer FROM answers WHERE question = ?", (json.dumps(question),)
            ).fetchone()
        return {} if found is None else json.loads(found[0])

    def close(self) -> None:
        """Remove the database."""
        self._db.close()

    def _rows(self) -> Iterator[tuple[str, str]]:
        """Both as JSON, which is ASCII: SQLite takes no text with half a surrogate pair."""
        for row in json_rows(self.path):
            answer = {key: row[key] for key in ("answer", "type") if key in row}
            yield json.dumps(field(row, "question_id", self.path)), json.dumps(answer)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise CrossdraftError(
                f"The answers {self.path} cannot be joined to their questions ({error}); free some room for temporary "
                "files, or name another place for them in SQLITE_TMPDIR."
            ) from error


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

    Several clips come from one YouTube video. `*videodatainfo.json`, where it is there, says from which and where.
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
        try:
            pairs = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
            self._files = {number: stem for stem, number in pairs}
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise CrossdraftError(
                f"{path} cannot be read as lines of 'file vid<number>' ({error}); copy it again."
            ) from error

    def _name(self, row: Mapping[str, Any], path: Path) -> str:
        return f"vid{super()._name(row, path).removeprefix('vid')}"

    def _stems(self, name: str) -> tuple[str, ...]:
        return self._files.get(name, name), name

    def _source(self, name: str) -> tuple[str, float | None, float | None]:
        return cut_from(self._files.get(name, name))


def cut_from(stem: str) -> tuple[str, float | None, float | None]:
    """The source video and the seconds that a name such as `<id>_<from>_<to>` says.

    >>> cut_from("-4wsuPCjDBc_5_15")
    ('-4wsuPCjDBc', 5.0, 15.0)
    """
    found = re.fullmatch(r"(.+)_(\d{1,9})_(\d{1,9})", stem)
    return (stem, None, None) if found is None else (found[1], float(found[2]), float(found[3]))


def _msrvtt_sources(path: Path) -> dict[str, tuple[str, float | None, float | None]]:
    """Of each video: its URL, and from where to where it was cut."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        return {
            row["video_id"]: (str(row["url"]), float(row["start time"]), float(row["end time"]))
            for row in content["videos"]
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CrossdraftError(f"{path} does not say where the videos are from ({error!r}); copy it again.") from error
