"""OCR of a request's images, in processes of its own, while the target reads: its words join the request's hints."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from tempfile import TemporaryFile
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from crossdraft.engine.request import MOST_TEXT, MOST_TEXTS, Request
from crossdraft.errors import CrossdraftError
from crossdraft.messages import pillow
from crossdraft.side_text import joined_lines
from crossdraft.video.image import image_frames

log = logging.getLogger(__name__)

RAPIDOCR = (
    "import sys; from rapidocr_onnxruntime import RapidOCR; lines, _ = RapidOCR()(sys.stdin.buffer.read());"
    "sys.stdout.buffer.write('\\n'.join(line[1] for line in lines or ()).encode())"
)
COMMANDS = {"tesseract": ("tesseract", "stdin", "stdout"), "rapidocr": (sys.executable, "-c", RAPIDOCR)}
INSTALL = {
    "tesseract": "install Debian's tesseract-ocr, or say rapidocr",
    "rapidocr": "pip install rapidocr-onnxruntime, or say tesseract",
}
KEPT = ("PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "PYTHONPATH", "TESSDATA_PREFIX")  # of the environment: no secrets
ONE_THREAD = {"OMP_THREAD_LIMIT": "1", "OMP_NUM_THREADS": "1"}  # the other cores are the models'
OCR_S = 20.0  # for all images of a request
MOST_IMAGES = 8
MOST_READINGS = 8  # of an engine at a time; further requests are answered without


class Ocr:
    """An OCR engine, whose processes each read one image, while the target reads; nobody waits for them.

    Args:
        engine: one of `COMMANDS`, or another command, which reads a PNG from its standard input and writes its text.

    Raises:
        CrossdraftError: the engine is not installed.
    """

    def __init__(self, engine: str) -> None:
        self._command = COMMANDS.get(engine) or tuple(engine.split())
        there = bool(self._command) and shutil.which(self._command[0]) is not None
        if not there or (engine == "rapidocr" and find_spec("rapidocr_onnxruntime") is None):
            hint = INSTALL.get(engine, "name tesseract, rapidocr, or a command that is installed")
            raise CrossdraftError(f"There is no OCR engine '{engine}' here; {hint}.")
        self._free = threading.BoundedSemaphore(MOST_READINGS)

    def added(self, request: Request) -> Request:
        """A request with the words in its images as one more hint, which joins once they are read."""
        shown = [part.value for part in request.visuals if part.kind == "image"][:MOST_IMAGES]
        images = [image_frames(image).pixels[0].numpy().copy() for image in shown]
        full = len(request.predictions) + len(request.hints) >= MOST_TEXTS
        if not images or full or not self._free.acquire(blocking=False):
            return request
        found = Future[str]()
        threading.Thread(target=self._read, args=(images, found), name="ocr", daemon=True).start()
        return replace(request, hints=(*request.hints, found))

    def _read(self, images: Sequence[NDArray[np.uint8]], found: Future[str]) -> None:
        text, until = "", time.monotonic() + OCR_S
        try:
            for image in images:
                text += self._words(image, max(0.0, until - time.monotonic())) + "\n"
        except OSError as error:
            log.warning("OCR stopped: %s", error)
        finally:
            self._free.release()
            found.set_result(text)

    def _words(self, image: NDArray[np.uint8], seconds: float) -> str:
        """The words in an image, as far as they come in time."""
        with TemporaryFile() as png:
            pillow().fromarray(image).save(png, "PNG")
            png.seek(0)
            with subprocess.Popen(
                self._command,
                stdin=png,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in KEPT if name in os.environ} | ONE_THREAD,
                start_new_session=True,  # so that what it starts ends with it
            ) as process:
                end = finalize(process, _kill, process.pid)  # at the latest when this program ends
                timer = threading.Timer(seconds, end)
                timer.start()
                try:
                    text = process.stdout.read(4 * MOST_TEXT).decode(errors="replace") if process.stdout else ""
                finally:
                    timer.cancel()
                    end()
        return joined_lines(text)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
