"""EventDrive (Lu et al., CVPR 2026, arXiv 2606.18242): questions about moments of drives, each an image with events.

    json/<task>/….json      perception (by source: dsec, m3ed, pku), understanding, prediction, planning
    data/<task>/….          what its archives hold, such as
    data/perception/dsec/train/<sequence>/{image,event}/…

The folders are those of its card, of which the first third was at hand, and no row of a file: read are conversations in
LLaVA's form, `messages` of role and content, and a question with its answer; a file is named by the first field that
begins with `image`, or with `event`. Not run on the real files. A sample is one image, so no list for `crossdraft
capture` is made of it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from crossdraft.errors import CrossdraftError
from crossdraft_lab.datasets.dsec import drive_of
from crossdraft_lab.datasets.files import inside, is_file, subfolders
from crossdraft_lab.datasets.instructions import KIND_FIELDS, turns_of
from crossdraft_lab.datasets.rows import field, json_rows
from crossdraft_lab.datasets.sample import DatasetReader, DatasetSample

TASKS = ("perception", "understanding", "prediction", "planning")
SHOWN = ("image", "event")  # folders of a sequence, and beginnings of fields that name a file in them
ROLES = {"user": "human", "assistant": "gpt"}


class EventDrive(DatasetReader):
    """All questions of the four tasks.

    Raises:
        CrossdraftError: there is no `json/<task>/….json`.
    """

    def __init__(self, root: Path) -> None:
        self._folders = [root, root / "data", *(root / "data" / task for task in TASKS)]
        super().__init__(annotations(root), f"{root} holds no json/<task>/….json of EventDrive.", "image")

    def samples(self, part: str) -> Iterator[DatasetSample]:
        for number, row in enumerate(json_rows(self.paths[part])):
            image, events = (_named(row, what) for what in SHOWN)
            sequence = sequence_of(image or events)
            kind = next((str(row[name]) for name in KIND_FIELDS if isinstance(row.get(name), str)), "")
            found = self._find(image)
            for turn, (question, answer) in enumerate(self._turns(row, part)):
                yield DatasetSample(
                    f"{part}/{number}/{turn}",
                    sequence,
                    question,
                    () if answer is None else (answer,),
                    found,
                    self._find(events),
                    kind=kind or part.partition("/")[0],
                    group=drive_of(sequence),
                    missing="" if found else image or "(no image)",
                )

    def _turns(self, row: Mapping[str, Any], part: str) -> list[tuple[str, str | None]]:
        """Questions of a row, each with its answer."""
        if isinstance(said := row.get("messages"), list):
            turns = [one for one in said if isinstance(one, dict) and one.get("role") in ROLES]
            row = {"conversations": [{"from": ROLES[one["role"]], "value": _text(one.get("content"))} for one in turns]}
        if "conversations" not in row and "question" in row:
            answer = row.get("answer")
            return [(field(row, "question", self.paths[part], numbers=False), None if answer is None else str(answer))]
        if not (found := list(turns_of(row))):
            raise CrossdraftError(
                f"{self.paths[part]}: a row has neither conversations nor messages nor a question: "
                f"{', '.join(map(str, row))}."
            )
        return found

    def _find(self, name: str) -> Path | None:
        paths = (folder / name for folder in self._folders if inside(name))
        return next((path for path in paths if is_file(path)), None)


def annotations(root: Path) -> dict[str, Path]:
    """Annotation files of the tasks by their names below `json`, without the suffix."""
    return {
        path.relative_to(root / "json").with_suffix("").as_posix(): path
        for task in TASKS
        if (root / "json" / task).is_dir()
        for folder in subfolders(root / "json" / task, 1)
        for path in sorted(folder.glob("*.json*"))
    }


def sequence_of(name: str) -> str:
    """The sequence of a file: the folder that holds its images or events.

    >>> sequence_of("perception/dsec/test/zurich_city_09_b/image/000012.png"), sequence_of("pku/a_1/0001.png")
    ('zurich_city_09_b', 'a_1')
    """
    folders = Path(name).parts[:-1]
    at = next((at for at, folder in enumerate(folders) if at and folder in SHOWN), len(folders))
    return folders[at - 1] if at else ""


def _text(content: Any) -> str:
    """The text of a message: a string, or the text among its parts."""
    parts = [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else [content]
    return " ".join(part for part in parts if isinstance(part, str))


def _named(row: Mapping[str, Any], what: str) -> str:
    """The file that a row's first field of that kind names, of several the last; empty if there is none."""
    for name, value in row.items():
        names = value if isinstance(value, list) else [value]
        if name.startswith(what) and names and isinstance(names[-1], str):
            return names[-1]
    return ""
