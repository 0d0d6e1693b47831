"""Lookup of a data set's files: folders with alternative names, and files with unknown suffixes."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from crossdraft.errors import CrossdraftError

VIDEOS = (".mp4", ".avi", ".mkv", ".webm", ".mov", ".mpeg", ".mpg")


class FileFinder:
    """Finds a file by its name without the suffix, in the first of some folders that has it."""

    def __init__(self, folders: Iterable[Path], suffixes: Sequence[str] = VIDEOS) -> None:
        self.folders = [folder for folder in folders if folder.is_dir()]
        self._suffixes = suffixes
        self.find = lru_cache(maxsize=4096)(self._find)  # successive questions are often about one video

    def _find(self, *stems: str) -> Path | None:
        """Find the first file with one of these stems; names that leave the folders are refused."""
        for stem in stems:
            if inside(stem):
                for folder in self.folders:
                    for suffix in self._suffixes:
                        path = folder / f"{stem}{suffix}"
                        if is_file(path):
                            return path
        return None


def is_file(path: Path) -> bool:
    """True if a file exists; false for a name from an annotation that is too long for the system."""
    try:
        return path.is_file()
    except OSError:
        return False


def inside(name: str) -> bool:
    """True if a name from an annotation stays below the folder that it is looked up in."""
    return bool(name) and "\0" not in name and not Path(name).is_absolute() and ".." not in Path(name).parts


def subfolders(root: Path, depth: int = 2) -> list[Path]:
    """The folder and its subfolders, to `depth` levels, sorted; hidden ones are left out."""
    found, level = [root], [root]
    for _ in range(depth):
        level = [path for folder in level for path in sorted(folder.iterdir()) if path.is_dir() and path.name[0] != "."]
        found += level
    return found


def one_folder_with(root: Path, pattern: str) -> Path:
    """Find the folder that holds files of a pattern: `root` itself, or one right below it.

    Raises:
        CrossdraftError: no folder holds such files.
    """
    for folder in subfolders(root, 1):
        if any(folder.glob(pattern)):
            return folder
    raise CrossdraftError(f"There is no {pattern} in {root} or right below it; name the data set's own folder.")
