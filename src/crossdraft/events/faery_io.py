"""AEDAT 4, RAW (EVT2) and DAT, written through the optional package `faery`.

From times that fall it writes a RAW file without end, so they are refused before.
"""

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.events.stream import Events, check_sorted
from crossdraft.files import atomic_path


def write_faery(path: str | Path, events: Events, kind: str) -> None:
    """Write events as "aedat4", "evt2" (a .raw) or "dat".

    EVT3 is left out: faery 0.7.1 loses time in recordings that are silent for longer than its 16.8 s clock.
    """
    if importlib.util.find_spec("faery") is None:
        raise CrossdraftError(
            "AEDAT 4, RAW and DAT files are written by the optional package faery; run: pip install faery"
        )
    faery = importlib.import_module("faery")
    check_sorted(events.t, path)
    rows: Any = np.empty(len(events), faery.EVENTS_DTYPE)  # numpy's type stubs know no field names
    for name in "txyp":
        rows[name] = getattr(events, name)
    file_type, version = {"aedat4": ("aedat", None), "evt2": ("evt", "evt2"), "dat": ("dat", "dat2")}[kind]
    with atomic_path(path) as temporary:
        stream = faery.events_stream_from_array(rows, (events.width, events.height))
        try:
            stream.to_file(temporary, version=version, file_type=file_type)
        except (RuntimeError, OSError) as error:
            raise CrossdraftError(f"Cannot write {path}: {error}.") from error
        finally:  # faery leaves its temporary file when the disk is full
            temporary.with_name(f"{temporary.name}.write").unlink(missing_ok=True)
