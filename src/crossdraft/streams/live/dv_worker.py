"""Worker process: reads iniVation's network stream, or a camera, by dv-processing; writes events to standard output.

dv-processing holds Python's lock while it connects, so a silent sender would stop the whole program; and it parses in
C++ what comes from a network. It is run by path, without ours: `dv_worker.py tcp HOST PORT`, `unix PATH`, or `dv`.

Output: width and height as two little-endian uint32, then rows of 16 bytes: int64 µs, int16 x, int16 y, int8 polarity,
three bytes of nothing. A failure leaves its reason in the last line of standard error, and a status other than 0.
"""

import importlib
import os
import resource
import socket
import struct
import sys
import time

PAUSE_S = 0.002  # between two looks: a sender collects for 10 ms or so
MOST_BYTES = 1 << 32  # of address space, whatever is sent


def main(kind: str, *place: str) -> int:
    """Read until the sender ends, or whoever reads us is gone."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    try:
        io = importlib.import_module("dv_processing").io
        if kind == "dv":
            reader = io.camera.open()
        elif kind == "unix":
            reader = io.NetworkReader(place[0])
        else:
            reader = io.NetworkReader(socket.gethostbyname(place[0]), int(place[1]))
        size = reader.getEventResolution() if reader.isEventStreamAvailable() else None
        if size is None:
            raise RuntimeError("it sends no events")  # noqa: TRY301
        sys.stdout.buffer.write(struct.pack("<II", *size))
        sys.stdout.buffer.flush()
        parent = os.getppid()
        while reader.isRunning() and os.getppid() == parent:
            if (batch := reader.getNextEventBatch()) is None:
                time.sleep(PAUSE_S)
            elif batch.size():
                sys.stdout.buffer.write(batch.numpy().tobytes())
                sys.stdout.buffer.flush()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
        print("\n" + " ".join(str(error).split("[")[0].split()), file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
