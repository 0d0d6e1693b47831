"""Worker process: decodes clients' files. `python -m crossdraft.serve.decode_worker FD BYTES SECONDS`.

Its address space, CPU time, open files and written bytes are limited before anything is read. Jobs come as JSON over
the socket, one at a time; a reply is JSON, and arrays as raw memory.
"""

import json
import os
import resource
import socket
import struct
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crossdraft.errors import CrossdraftError

OPEN_FILES = 128
MOST_WRITTEN = 1 << 20  # bytes of a written file, such as the cache of an import
MOST_ERROR = 1 << 14  # characters of an error, which may quote a client's text
TOO_LARGE = "needs more memory than is allowed to decode; send a smaller one."


def main(descriptor: str, memory: str, seconds: str) -> int:
    """Answer jobs until the socket is closed."""
    most = int(memory)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_WRITTEN, MOST_WRITTEN))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    import av  # noqa: F401 - before memory is limited, so that a job finds it there
    import h5py  # noqa: F401

    import crossdraft.events.hdf5
    import crossdraft.video.read  # noqa: F401
    from crossdraft.messages import pillow

    pillow()
    with Path(os.devnull).open("wb") as nowhere:  # libraries' messages about a client's bytes are not read
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with socket.socket(fileno=int(descriptor)) as channel, channel.makefile("rb") as jobs:
        channel.sendall(b"!")
        while len(head := jobs.read(4)) == 4:
            used = time.process_time()
            resource.setrlimit(resource.RLIMIT_CPU, (int(used) + int(seconds) + 1, resource.RLIM_INFINITY))
            header, arrays = answer(json.loads(jobs.read(struct.unpack("<I", head)[0])))
            header["arrays"] = [{"dtype": str(array.dtype), "shape": array.shape} for array in arrays]
            sent = json.dumps(header).encode()
            channel.sendall(struct.pack("<I", len(sent)) + sent)
            for array in arrays:
                channel.sendall(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return 0


def answer(job: dict[str, Any]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Do a job; return the reply and its arrays. A fault of a file is in the reply as `error`."""
    try:
        return _done(job)
    except CrossdraftError as error:
        return {"error": str(error)[:MOST_ERROR]}, []
    except MemoryError:
        return {"error": f"{job.get('path', 'It')} {TOO_LARGE}"}, []
    except Exception:  # noqa: BLE001 - whatever a library raises on broken bytes; its text is not for strangers
        return {"error": f"{job.get('path', 'It')} cannot be decoded: it is cut off or broken; copy it again."}, []


def _done(job: dict[str, Any]) -> tuple[dict[str, Any], list[np.ndarray]]:  # noqa: PLR0911 - one a kind
    match job["kind"]:
        case "clip":
            from crossdraft.video.clip import FrameSampling, count_frames
            from crossdraft.video.read import sample_arrays

            found = sample_arrays(job["path"], count_frames(job["path"], FrameSampling(**job["sampling"])))
            more = [] if found.indices is None else [found.indices]
            return {"seconds": found.seconds, "notes": found.notes}, [found.pixels, found.times_s, *more]
        case "grid":
            from crossdraft.video.grid import WindowGrid, frames_on

            found, end_s = frames_on(job["path"], WindowGrid(**job["grid"]))
            return {"seconds": end_s}, [found.pixels, found.times_s]
        case "image":
            from crossdraft.video.image import read_pixels

            pixels, notes = read_pixels(job["path"])
            return {"notes": notes}, [pixels, np.zeros(1)]
        case "stills":
            from crossdraft.video.image import read_pixels
            from crossdraft.video.limits import DEFAULT_LIMITS

            frames = replace(DEFAULT_LIMITS, image=DEFAULT_LIMITS.pixels)
            shots, notes = zip(*(read_pixels(path, frames) for path in job["paths"]), strict=True)
            if len({shot.shape for shot in shots}) > 1:
                raise CrossdraftError("The frames of a clip have different sizes; send them at one size.")
            return {"notes": sum(notes, ())}, [np.concatenate(shots), np.arange(len(shots), dtype=np.float64)]
        case "events":
            return _events(job)
        case "strip":
            from crossdraft.serve.page.strip import event_strip

            return {}, [event_strip(Path(job["path"]), job["seconds"], job["frames"])]
        case "kind":
            return {"found": _kind(job["path"])}, []
    return {}, []


def _events(job: dict[str, Any]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Read the events of a recording as columns, unless they are too many; a part is cut to its newest events."""
    from crossdraft.events.excerpt import Excerpt
    from crossdraft.events.stream import Newest, concatenate

    sensor, most = None if job["sensor"] is None else tuple(job["sensor"]), job["most"]
    span = job["start_us"], job["end_us"]
    part = Excerpt(Path(job["path"]), *span, job["format"], sensor, time_unit=job.get("time_unit"))
    if part.start_us is not None:
        events = part.read(Newest(most=most))
    else:
        held, count = [], 0
        for chunk in part.chunks():
            if len(chunk):
                held.append(chunk)
                count += len(chunk)
            if count > most:
                return {"first_us": held[0].t0, "sensor": [chunk.width, chunk.height]}, []
        if not held:
            return {}, []
        events = concatenate(held)
    header = {"first_us": events.t0, "sensor": [events.width, events.height], "notes": events.notes}
    return header, [events.t, events.x, events.y, events.p]


def _kind(path: str) -> str:
    """The kind of a file by its content: `image`, `video` or `event`."""
    from crossdraft.video.container import sniff
    from crossdraft.video.image import HEAD, image_format

    with Path(path).open("rb") as file:
        try:
            sniff(file, Path(path))  # first, as an animation is an image, too
        except CrossdraftError:
            file.seek(0)
            return "event" if image_format(file.read(HEAD)) is None else "image"
        return "video"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
