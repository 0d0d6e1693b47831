"""Images from files to a model's inputs, against `transformers`' own reader and the checkpoints' own processors."""

import base64
import io
import re
import struct
import sys
import tracemalloc
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.image_utils import load_image

from crossdraft import CrossdraftError, Request
from crossdraft.messages import rgb_pixels
from crossdraft.video import image
from crossdraft.video.clip import FrameSampling, read_clip
from crossdraft.video.image import MOST_SCANS, image_frames
from crossdraft.video.limits import DEFAULT_LIMITS, VideoLimits
from tests.video.test_tiles import PROCESSORS, check_inputs

HEIGHT, WIDTH = 61, 91  # odd, so that shared chroma runs over the edge
ORIENTATION = 0x0112  # EXIF's tag


def picture(mode: str = "RGB") -> Image.Image:
    """Soft shapes, hard edges and saturated colours, which JPEG's shared chroma shows; nothing of it symmetric."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    pixels = np.stack([127 + 120 * np.sin(x / 5 + y / 9), 2.5 * x, 255 - 4 * y], -1).clip(0, 255).astype(np.uint8)
    pixels[8:20, 30:60], pixels[30:50, 5:17] = (255, 0, 0), (0, 40, 255)
    found = Image.fromarray(pixels)
    if "A" not in mode:
        return found.convert(mode)
    found.putalpha(Image.fromarray((x * 255 // WIDTH).astype(np.uint8)))
    return found.convert(mode)


def grey16() -> Image.Image:
    return Image.fromarray((np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) * 11).astype(np.uint16))


def rgb16() -> bytes:
    """Pillow does not write it."""
    rows = (np.asarray(picture()).astype(">u2") * 257 + 128 >> 1 << 1).astype(">u2").reshape(HEIGHT, -1)
    return png(WIDTH, HEIGHT, b"".join(b"\0" + row.tobytes() for row in rows), bits=16)


def png(width: int, height: int, rows: bytes, bits: int = 8) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    into = io.BytesIO()
    image.save(into, kind, **options)
    return into.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "jpeg 4:4:4": lambda: saved(picture(), "JPEG", quality=92, subsampling=0),
    "jpeg 4:2:2": lambda: saved(picture(), "JPEG", quality=92, subsampling=1),
    "jpeg 4:2:0": lambda: saved(picture(), "JPEG", quality=92, subsampling=2),
    "jpeg progressive": lambda: saved(picture(), "JPEG", quality=80, progressive=True),
    "jpeg grey": lambda: saved(picture("L"), "JPEG"),
    "jpeg cmyk": lambda: saved(picture("CMYK"), "JPEG"),
    "jpeg of several": lambda: saved(picture(), "MPO", save_all=True, append_images=[picture()]),
    "png": lambda: saved(picture(), "PNG"),
    "png grey": lambda: saved(picture("L"), "PNG"),
    "png 1 bit": lambda: saved(picture("1"), "PNG"),
    "png palette": lambda: saved(picture().quantize(16), "PNG"),
    "png palette, a clear colour": lambda: saved(picture().quantize(16), "PNG", transparency=3),
    "png palette, alpha": lambda: saved(picture().quantize(16), "PNG", transparency=bytes(range(0, 240, 15))),
    "png a clear colour": lambda: saved(picture(), "PNG", transparency=(255, 0, 0)),
    "png alpha": lambda: saved(picture("RGBA"), "PNG"),
    "png grey, alpha": lambda: saved(picture("LA"), "PNG"),
    "png 16 bit": rgb16,
    "png 16 bit grey": lambda: saved(grey16(), "PNG"),
    "apng": lambda: saved(picture(), "PNG", save_all=True, append_images=[picture("L").convert("RGB")]),
    "webp": lambda: saved(picture(), "WEBP", quality=80),
    "webp lossless": lambda: saved(picture(), "WEBP", lossless=True),
    "webp alpha": lambda: saved(picture("RGBA"), "WEBP", lossless=True),
    "webp animated": lambda: saved(picture(), "WEBP", save_all=True, append_images=[picture("L").convert("RGB")]),
    "bmp": lambda: saved(picture(), "BMP"),
    "bmp grey": lambda: saved(picture("L"), "BMP"),
    "bmp palette": lambda: saved(picture().quantize(16), "BMP"),
}


def turned(kind: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return saved(picture(), kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))


def every_way(data: bytes, path: Path) -> list[Any]:
    """An image as a request may give it."""
    path.write_bytes(data)
    address = "data:image/png;base64," + base64.b64encode(data).decode()
    return [path, str(path), data, bytearray(data), memoryview(data), address, Image.open(io.BytesIO(data))]


@pytest.mark.filterwarnings("ignore:Palette images:UserWarning")  # of transformers' reader
@pytest.mark.parametrize("name", FILES)
def test_pixels_are_those_that_transformers_reads(name, tmp_path):
    ways = every_way(FILES[name](), tmp_path / "i")
    wanted = np.asarray(load_image(ways[1]))
    for given in ways:
        assert np.array_equal(image_frames(given).frames[0], wanted)
        assert np.array_equal(image_frames(Request("What?", image=given).visuals[0].value).frames[0], wanted)


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_an_image_is_turned_as_its_exif_says(kind, orientation, tmp_path):
    ways = every_way(turned(kind, orientation), tmp_path / "i")
    wanted = np.asarray(load_image(ways[1]))
    assert (wanted.shape == (WIDTH, HEIGHT, 3)) == (5 <= orientation <= 8)
    parts = [{"type": "image", "image": given} for given in ways]
    parts.append({"type": "image_url", "image_url": {"url": ways[5]}})
    asked = Request(messages=[{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}])
    for given in (*ways, *(part.value for part in asked.visuals)):
        assert np.array_equal(image_frames(given).frames[0], wanted)


@pytest.mark.parametrize("name", ["jpeg 4:2:0", "jpeg cmyk", "png 16 bit grey", "webp alpha", "EXIF 6"])
@pytest.mark.parametrize("kind", PROCESSORS)
def test_a_file_s_inputs_are_those_of_the_checkpoint_s_processor(kind, name, tmp_path):
    path = tmp_path / "i"
    path.write_bytes(turned("JPEG", 6) if name == "EXIF 6" else FILES[name]())
    check_inputs(kind, image_frames(path).frames, PROCESSORS[kind]().fetch_images(str(path)))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("png 16 bit grey", "grey of more than 8 bits"),
        ("webp animated", "only its first frame is shown"),
        ("apng", "only its first frame is shown"),
    ],
)
def test_a_note_says_what_is_not_shown(name, says, tmp_path):
    path = tmp_path / "i"
    path.write_bytes(FILES[name]())
    (note,) = image_frames(path).notes
    assert note.startswith(f"{path} is ")
    assert says in note


@pytest.mark.parametrize("name", ["jpeg of several", "png 16 bit", "png palette, alpha", "webp", "bmp"])
def test_what_is_shown_whole_has_no_note_and_no_warning(name, tmp_path):
    for given in every_way(FILES[name](), tmp_path / "i"):
        with warnings.catch_warnings(action="error"):
            assert image_frames(given).notes == ()


def test_pixels_that_cannot_be_written_to_are_taken_without_a_warning():
    pixels = np.asarray(picture())
    assert not pixels.flags.writeable
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(action="error"):
            for given in (pixels, picture()):
                assert np.array_equal(image_frames(given).frames[0], pixels)
            clip = np.broadcast_to(pixels, (2, *pixels.shape))
            for frames in (clip, [picture(), picture()], [pixels, pixels]):
                assert np.array_equal(read_clip(frames, FrameSampling(8)).pixels, clip)
    finally:
        torch.set_warn_always(False)


def test_a_clip_s_frames_are_turned_as_their_exif_says():
    frames = [Image.open(io.BytesIO(turned("JPEG", 6))) for _ in range(2)]
    asked = Request("What?", video=frames)
    found = read_clip(asked.visuals[0].value, FrameSampling(8)).pixels
    assert np.array_equal(found[0], np.asarray(load_image(frames[0])))


# -- what strangers send ---------------------------------------------------------------------------------------------

SCAN = re.compile(rb"\xff\xda\x00\x08.*(?=\xff\xd9$)", re.DOTALL)


def many_scans() -> bytes:
    """A few bytes a scan, each of which goes over all pixels."""
    data = saved(picture("L"), "JPEG", progressive=True)
    (last,) = SCAN.findall(data[data.rindex(b"\xff\xda") :])
    return data[:-2] + last * MOST_SCANS + data[-2:]


def with_size(data: bytes, at: int, form: str, *size: int) -> bytes:
    return data[:at] + struct.pack(form, *size) + data[at + struct.calcsize(form) :]


def huge_jpeg() -> bytes:
    data = FILES["jpeg 4:2:0"]()
    return with_size(data, data.index(b"\xff\xc0") + 5, ">HH", 65500, 65500)


def huge_webp(side: int) -> bytes:
    """A canvas in the header of an animation."""
    data = FILES["webp animated"]()
    return with_size(data, data.index(b"VP8X") + 12, "<HBHB", side - 1, 0, side - 1, 0)


BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "png": (lambda: png(60_000, 60_000, b"\0" * 1000), "limit of 67,108,864 pixels"),
    "png, one row": (lambda: png(200_000_000, 1, b"\0" * 1000), "limit of 67,108,864 pixels"),
    "png, just above": (lambda: png(8193, 8192, b"\0" * 1000), "limit of 67,108,864 pixels"),
    "jpeg": (huge_jpeg, "limit of 67,108,864 pixels"),
    "jpeg, scans": (many_scans, "more than 100 scans"),
    "bmp": (lambda: with_size(FILES["bmp"](), 18, "<ii", 50_000, 50_000), "limit of 67,108,864 pixels"),
    "webp": (lambda: huge_webp(9000), "limit of 67,108,864 pixels"),
    "webp, canvas": (lambda: huge_webp(16384), "limit of 67,108,864 pixels"),
    "lossless webp": (
        lambda: with_size(FILES["webp lossless"](), 21, "<I", 16383 | 16383 << 14),
        "limit of 67,108,864 pixels",
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_they_are_decoded(name, monkeypatch):
    make, says = BOMBS[name]
    data = make()
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda _: pytest.fail("It was decoded."))
    monkeypatch.setattr("PIL.WebPImagePlugin.WebPImageFile.load", lambda _: pytest.fail("It was decoded."))
    with warnings.catch_warnings(action="error"), pytest.raises(CrossdraftError, match=says):
        image_frames(data)


def test_the_scans_of_a_large_photo_are_fewer(monkeypatch):
    """All of them together go over as many pixels as a hundred over a frame."""
    data = saved(Image.new("RGB", (4000, 3000)), "JPEG", progressive=True)
    scans = len(image.SCAN.findall(data))
    assert image_frames(data).frames.shape == (1, 3000, 4000, 3)
    monkeypatch.setattr(image, "MOST_SCANS", scans + 1)
    with pytest.raises(CrossdraftError, match=f"more than {(scans + 1) * DEFAULT_LIMITS.pixels // 12_000_000} scans"):
        image_frames(data)


def test_a_file_is_bounded_in_bytes(tmp_path):
    path, limits = tmp_path / "i", VideoLimits(image=HEIGHT * WIDTH)
    path.write_bytes(FILES["png"]().ljust(4 * HEIGHT * WIDTH, b"\0"))
    image_frames(path, limits)
    path.write_bytes(FILES["png"]().ljust(4 * HEIGHT * WIDTH + 1, b"\0"))
    with pytest.raises(CrossdraftError, match="bytes, the limit of an image"):
        image_frames(path, limits)
    with pytest.raises(CrossdraftError, match="pixels"):
        image_frames(FILES["png"](), VideoLimits(image=HEIGHT * WIDTH - 1))


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "bmp"])
def test_photos_have_a_limit_of_their_own(kind):
    """12 million pixels, more than a frame of a clip may have, turned a quarter as phones do."""
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    photo = Image.new("RGB", (4000, 3000), (9, 99, 199))
    photo.paste((250, 0, 0), (0, 0, 2000, 1500))
    turned = kind in ("jpeg", "png", "webp")
    data = saved(photo, kind.upper(), **({"exif": exif} if turned else {}))
    pixels = image_frames(data).frames[0]
    assert pixels.shape == ((4000, 3000, 3) if turned else (3000, 4000, 3))
    corner = pixels[0, -1] if turned else pixels[0, 0]
    assert (corner.int() - torch.tensor([250, 0, 0])).abs().max() < 6
    assert (pixels[-1, -1].int() - torch.tensor([9, 99, 199])).abs().max() < 6
    with pytest.raises(CrossdraftError, match="4000x3000, above the limit of 9,437,184 pixels of an image"):
        image_frames(data, VideoLimits(image=DEFAULT_LIMITS.pixels))


def test_decoding_a_photo_takes_a_few_times_its_pixels():
    """Beside Pillow's own four bytes a pixel, and the three of the result, a band of it."""
    photo = Image.new("RGB", (4000, 3000))
    tracemalloc.start()
    try:
        assert rgb_pixels(photo, in_place=True).nbytes == 36_000_000
        assert tracemalloc.get_traced_memory()[1] < 36_000_000 * 1.3
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["gif", "tiff", "ppm", "eps", "ico", "webm", "text", "nothing"])
def test_other_formats_are_refused_whatever_pillow_reads(name, tmp_path):
    data = {"webm": b"\x1a\x45\xdf\xa3" * 9, "text": b"/etc/passwd", "nothing": b""}.get(name)
    data = saved(picture(), name.upper()) if data is None else data
    path = tmp_path / "i.png"
    path.write_bytes(data)
    for given in (path, data):
        with pytest.raises(CrossdraftError, match="not an image we read; give a PNG, JPEG, WebP or BMP file"):
            image_frames(given)


@pytest.mark.parametrize("name", ["jpeg 4:2:0", "jpeg progressive", "png", "png 16 bit grey", "webp", "bmp"])
def test_a_damaged_file_is_refused_in_a_sentence(name):
    data, generator = FILES[name](), np.random.default_rng(0)
    for length in (12, 13, 40, len(data) // 2):
        with pytest.raises(CrossdraftError, match="cut off or broken"):
            image_frames(data[:length])
    for _ in range(200):
        broken = bytearray(data)
        for at in generator.integers(12, len(data), 4):
            broken[at] = generator.integers(256)
        with suppress(CrossdraftError):  # and nothing else
            assert image_frames(bytes(broken)).frames.shape[-1] == 3


@pytest.mark.parametrize("address", ["data:image/png;base64,!", "data:image/png;base64", "data:,", "DATA:image/png,"])
def test_an_address_without_a_file_is_refused(address):
    for ask in (image_frames, lambda given: Request("What?", image=given)):
        with pytest.raises(CrossdraftError, match="holds no file"):
            ask(address)


def test_without_pillow_a_sentence_says_what_to_install(monkeypatch):
    data = FILES["png"]()
    for name in [name for name in sys.modules if name.partition(".")[0] == "PIL"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CrossdraftError, match=r"^Images are read by Pillow; install it with `pip install pillow`\.$"):
        image_frames(data)
    assert image_frames(np.zeros((4, 4, 3), np.uint8)).frames.shape == (1, 4, 4, 3)
