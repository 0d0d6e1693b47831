"""Side text: files of several kinds, and OCR in processes of its own, with a script as the engine."""

import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from crossdraft import ocr
from crossdraft.engine.request import MOST_TEXT, Request
from crossdraft.errors import CrossdraftError
from crossdraft.ocr import Ocr
from crossdraft.side_text import MOST_LETTERS, read_hint, read_text

SUBTITLES = """1
00:00:01,000 --> 00:00:02,500
The train to Harrow
leaves at noon.

2
00:00:03,000 --> 00:00:04,000
Mind the gap.
"""
PIXELS = np.full((40, 60, 3), 255, np.uint8)


def save_pdf(path, words):
    figure = Figure()
    if words:
        figure.text(0.1, 0.5, words)
    figure.savefig(path)


def engine(tmp_path, body):
    script = tmp_path / "engine.py"
    script.write_text(f"import subprocess, sys, time\npng = sys.stdin.buffer.read()\n{body}\n")
    return f"{sys.executable} {script}"


def words(request):
    (hint,) = request.hints
    return hint.result(10)


@pytest.mark.parametrize("suffix", [".srt", ".vtt"])
def test_subtitles_are_read_without_their_times(tmp_path, suffix):
    path = tmp_path / f"clip{suffix}"
    path.write_text("\ufeff" + ("WEBVTT\n\n" if suffix == ".vtt" else "") + SUBTITLES)
    assert read_hint(path).split("\n") == ["The train to Harrow leaves at noon.", "", "Mind the gap."]


def test_other_files_are_read_as_they_are(tmp_path):
    path = tmp_path / "note.txt"
    path.write_text(SUBTITLES)
    assert read_hint(path) == read_text(path) == SUBTITLES


def test_the_text_layer_of_a_pdf_is_read(tmp_path):
    pytest.importorskip("pypdf", reason="pypdf reads PDFs: pip install pypdf")
    path = tmp_path / "page.pdf"
    save_pdf(path, "Mind the gap.")
    assert read_hint(path) == "Mind the gap."
    save_pdf(path, "")
    with pytest.raises(CrossdraftError, match="no text layer"):
        read_hint(path)
    path.write_bytes(b"nothing")
    with pytest.raises(CrossdraftError, match="cannot be read as a PDF"):
        read_hint(path)


def test_without_pypdf_one_sentence_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pypdf", None)
    with pytest.raises(CrossdraftError, match="pip install pypdf"):
        read_hint(tmp_path / "page.pdf")


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), (b"caf\xe9", "it is no text in UTF-8")])
def test_files_that_cannot_be_read_are_refused(tmp_path, content, said):
    path = tmp_path / "note.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CrossdraftError, match=said):
        read_hint(path)


def test_no_more_is_read_of_a_file_than_is_used():
    assert len(read_text(Path("/dev/zero"))) == MOST_LETTERS


def test_the_words_of_all_images_become_one_late_hint(tmp_path):
    reads = Ocr(engine(tmp_path, "print(png[:4], len(png) > 60, 'Mind\\nthe gap.')"))
    request = reads.added(Request("?", image=[PIXELS, PIXELS], hints=["Given."]))
    given, late = request.hints
    assert given == "Given."
    assert isinstance(late, Future)
    line = "b'\\x89PNG' True Mind the gap.\n"
    assert late.result(10) == 2 * line


def test_an_engine_gets_no_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("CROSSDRAFT_KEY", "secret")
    request = Ocr(engine(tmp_path, "import os; print(sorted(os.environ))")).added(Request("?", image=PIXELS))
    found = words(request)
    assert "PATH" in found
    assert "CROSSDRAFT" not in found


def test_without_images_or_room_nothing_is_read(tmp_path):
    reads = Ocr(engine(tmp_path, "print(1)"))
    for request in (Request("?", "clip.mp4"), Request("?", image=PIXELS, predictions=["a"] * 8)):
        assert reads.added(request) is request


def test_an_engine_is_bounded_in_time_with_what_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(ocr, "OCR_S", 0.5)
    body = "subprocess.Popen(['sleep', '60']); print('Mind', flush=True); time.sleep(60)"
    began = time.monotonic()
    assert words(Ocr(engine(tmp_path, body)).added(Request("?", image=[PIXELS] * 3))).split() == ["Mind"]
    assert time.monotonic() - began < 9


ENDING = """
import pathlib, sys, time
import numpy as np
from crossdraft.engine.request import Request
from crossdraft.ocr import Ocr
Ocr(sys.argv[1]).added(Request("?", image=np.zeros((9, 9, 3), np.uint8)))
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.05)
"""


def test_an_engine_ends_with_the_program(tmp_path):
    started = tmp_path / "started"
    write = "import os, pathlib; there = pathlib.Path(__file__).with_name('started'); there.with_suffix('.new')"
    command = engine(tmp_path, f"{write}.write_text(str(os.getpid())); there.with_suffix('.new').replace(there)")
    with (tmp_path / "engine.py").open("a") as script:
        script.write("time.sleep(60)\n")
    subprocess.run([sys.executable, "-c", ENDING, command, str(started)], check=True, timeout=60)
    state = Path(f"/proc/{started.read_text()}/stat")  # a zombie may be left to whoever is to reap it
    until = time.monotonic() + 5
    while state.exists() and state.read_text().split()[2] != "Z" and time.monotonic() < until:
        time.sleep(0.05)
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_an_engine_is_bounded_in_what_it_writes(tmp_path):
    request = Ocr(engine(tmp_path, "while True: print('x' * 65536)")).added(Request("?", image=PIXELS))
    assert len(words(request)) <= 4 * MOST_TEXT + 1


def test_no_more_than_eight_requests_are_read_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(ocr, "OCR_S", 1.0)
    reads = Ocr(engine(tmp_path, "time.sleep(60)"))
    requests = [reads.added(Request("?", image=PIXELS)) for _ in range(9)]
    assert [len(request.hints) for request in requests] == [1] * 8 + [0]
    assert all(words(request).strip() == "" for request in requests[:8])
    assert len(reads.added(Request("?", image=PIXELS)).hints) == 1


@pytest.mark.parametrize(
    ("name", "said"), [("no-such-engine", "no OCR engine 'no-such-engine' here; name tesseract"), ("", "no OCR engine")]
)
def test_a_missing_engine_is_one_sentence(name, said):
    with pytest.raises(CrossdraftError, match=said):
        Ocr(name)


@pytest.mark.parametrize("name", ocr.COMMANDS)
def test_an_installed_engine_reads_a_page(name):
    from PIL import Image, ImageDraw, ImageFont

    try:
        reads = Ocr(name)
    except CrossdraftError as missing:
        pytest.skip(str(missing))
    page = Image.new("RGB", (900, 120), "white")
    ImageDraw.Draw(page).text((20, 30), "The train leaves at noon.", fill="black", font=ImageFont.load_default(36))
    assert "leaves at noon" in words(reads.added(Request("?", image=page)))
