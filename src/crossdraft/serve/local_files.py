"""Files below `--media-root` that a request names as `file:…`; no path leads out of the folder."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from crossdraft.data_url import MOST_URL
from crossdraft.serve.errors import ApiError, bad_request

MOST_LISTED = 1000
MOST_LOOKED = 20_000  # entries of folders
VIDEOS = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg")
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
EVENTS = (".h5", ".hdf5", ".npy", ".npz", ".txt", ".csv", ".zip", ".aedat", ".aedat4", ".raw", ".dat", ".bin")


class LocalFiles:
    """Finds the files below a folder.

    Every part of a path is opened without following links, one within the other, so neither `..` nor a link leads out.
    The error is the same for every reason, so that it does not tell which files exist. The path is opened again to be
    read: a user who may write into the folder can put a link there in between.

    Args:
        root: the folder, resolved; `None` = no folder.
    """

    def __init__(self, root: Path | None) -> None:
        self.root, self._folder = root, PurePosixPath("/" if root is None else root)

    def find(self, url: str, param: str) -> Path:
        """Find the path of `file:clip.mp4` (below the folder) or `file:///folder/clip.mp4`.

        Raises:
            ApiError: there is no folder, or no such file in it.
        """
        if self.root is None:
            raise bad_request("This server reads no files of its own; upload the file, or send it as data:.", param)
        path = self._inside(url)
        if path is None:
            raise _absent(param)
        with _opened(self.root, path) as found:
            if found is None:
                raise _absent(param)
        return self.root / path

    def _inside(self, url: str) -> PurePosixPath | None:
        """Return the part of a URL below the folder."""
        if len(url) > MOST_URL:  # before it is decoded
            return None
        with suppress(ValueError):
            parts = urlsplit(url)
            path = unquote(parts.path, errors="strict")
            plain = parts.netloc in ("", "localhost") and not parts.query and not parts.fragment
            if not plain or "\0" in path or not path or self.root is None:
                return None
            given = PurePosixPath(path)
            inner = given.relative_to(self._folder) if given.is_absolute() else given
            return None if ".." in inner.parts or not inner.parts else inner
        return None

    def listed(self) -> list[dict[str, object]]:
        """List clips, images and recordings below the folder, for a page to choose from; of many, only some."""
        found: list[dict[str, object]] = []
        left, folders = MOST_LOOKED, [] if self.root is None else [self.root]
        while folders and left:
            looked = _entries(folders.pop(), left)
            left -= len(looked)
            entries = [entry for entry in looked if _is_shown(entry.name)]
            inner = [Path(entry) for entry in entries if _is_folder(entry)]
            folders += reversed(inner)  # `pop` takes the first one next
            for entry in entries:
                kind, size = kind_by_name(entry.name), _size(entry)
                if kind is None or size is None:
                    continue
                name = Path(entry).relative_to(self._folder).as_posix()
                found.append({"url": f"file:{name}", "name": name, "kind": kind, "bytes": size})
                if len(found) == MOST_LISTED:
                    return found
        return found


def _entries(folder: Path, most: int) -> list[os.DirEntry[str]]:
    """Return the first `most` entries of a folder, sorted by name; empty if the folder is gone."""
    with suppress(OSError), os.scandir(folder) as found:
        return sorted(islice(found, most), key=lambda entry: entry.name)
    return []


def _is_shown(name: str) -> bool:
    """True if a name is Unicode and not hidden: a list with a name that is not Unicode cannot be sent."""
    with suppress(UnicodeEncodeError):
        name.encode()
        return not name.startswith(".")
    return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return entry.is_dir(follow_symlinks=False)
    return False


def _size(entry: os.DirEntry[str]) -> int | None:
    """Bytes of a regular file; `None` for anything else, and for a missing file."""
    with suppress(OSError):
        return entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else None
    return None


def kind_by_name(name: str) -> str | None:
    """Return `video`, `image` or `event`, by the suffix of a file's name."""
    suffix = PurePosixPath(name).suffix.lower()
    kinds = (("video", VIDEOS), ("image", IMAGES), ("event", EVENTS))
    return next((kind for kind, suffixes in kinds if suffix in suffixes), None)


@contextmanager
def _opened(root: Path, path: PurePosixPath) -> Iterator[int | None]:
    """Open a regular file below a folder; yield its descriptor, or `None` if there is no such file."""
    held: list[int] = []
    try:
        held.append(os.open(root, os.O_RDONLY | os.O_DIRECTORY))
        for name in path.parts[:-1]:
            held.append(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=held[-1]))
        held.append(os.open(path.parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=held[-1]))
        found = held[-1] if stat.S_ISREG(os.fstat(held[-1]).st_mode) else None
    except OSError:
        found = None
    try:
        yield found
    finally:
        for descriptor in held:
            os.close(descriptor)


def _absent(param: str) -> ApiError:
    return bad_request("There is no such file in the server's media folder; check the address.", param, "no_such_file")


class OwnFiles(LocalFiles):
    """Finds any file of the user who runs the program, for programs that take no requests from others."""

    def __init__(self) -> None:
        super().__init__(None)

    def find(self, url: str, param: str) -> Path:
        """Find the path of `file:clip.mp4` (in the working folder) or `file:///folder/clip.mp4`.

        Raises:
            ApiError: there is no such file.
        """
        path = Path(unquote(urlsplit(url).path)) if len(url) <= MOST_URL else Path()
        with suppress(OSError, ValueError):
            if path.is_file():
                return path
        raise bad_request("There is no such file; check the address.", param, "no_such_file")
