"""Worker process: decodes one recording with faery and writes its events to standard output.

faery's Rust core can abort the whole process on a damaged file, and prints its own backtraces, which is harmless here.
It is run by path, so that only faery is imported: `python faery_worker.py FILE TYPE WIDTH HEIGHT BYTES SECONDS`.
A packet of a hostile file may unpack to any size, so memory and time of this process are limited.

Output: width and height as two little-endian uint32, then the events as packed rows of `faery.EVENTS_DTYPE`. A
failure leaves its reason in the last line of standard error and a status other than 0.
"""

import resource
import struct
import sys


def main(path: str, file_type: str, width: str, height: str, most_bytes: str, seconds: str) -> int:
    """Decode a file; WIDTH and HEIGHT are used if the file states no sensor size."""
    resource.setrlimit(resource.RLIMIT_AS, (int(most_bytes), int(most_bytes)))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
    try:
        import faery

        stream = faery.events_stream_from_file(
            path,
            dimensions_fallback=(int(width), int(height)),
            file_type=file_type,  # pyright: ignore[reportArgumentType]
        )
        sys.stdout.buffer.write(struct.pack("<II", *stream.dimensions()))
        for rows in stream:
            sys.stdout.buffer.write(rows.tobytes())
        sys.stdout.buffer.flush()
    except BaseException as error:  # noqa: BLE001 - a Rust panic is no Exception; whatever it is, it is reported
        print("\n" + " ".join(str(error).split()), file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
