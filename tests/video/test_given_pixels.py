"""Arrays of every type and shape as a clip or an image: uint8 RGB is read, all else is one sentence."""

import numpy as np
import pytest
import torch
from PIL import Image

import crossdraft as cd
from crossdraft.errors import CrossdraftError
from crossdraft.messages import portable
from crossdraft.video.clip import FrameSampling, read_clip
from crossdraft.video.image import image_frames

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
READERS = {
    4: lambda pixels: read_clip(pixels, FrameSampling()).frames,
    3: lambda pixels: image_frames(pixels).frames[0],
}
DTYPES = [
    "bool",
    "i1",
    ">i2",
    "i4",
    "i8",
    "u2",
    ">u2",
    "u4",
    "u8",
    "f2",
    "f4",
    "f8",
    ">f8",
    "g",
    "c8",
    "c16",
    "O",
    "U3",
    "S4",
    "M8[us]",
    "m8[ns]",
    "V3",
]
TORCH = (torch.bool, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint16, torch.complex64)


def both(pixels):
    return [(4, pixels), (3, pixels[0])]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", DTYPES)
def test_other_types_are_refused_by_name(dtype):
    typed = np.zeros(PIXELS.shape, dtype) if dtype == "V3" else PIXELS.astype(dtype)
    for axes, given in both(typed):
        with pytest.raises(CrossdraftError, match=r"is an ndarray of .* \[.*6, 5, 3\]; give the path"):
            READERS[axes](given)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_so_are_those_of_torch(dtype):
    for axes, given in both(torch.from_numpy(PIXELS).to(dtype)):
        with pytest.raises(CrossdraftError, match=f"is a Tensor of {str(dtype).removeprefix('torch.')} "):
            READERS[axes](given)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("fill", [np.nan, np.inf, -1.0, 300])
def test_so_are_numbers_that_no_byte_holds(fill):
    for axes, given in both(np.full(PIXELS.shape, fill)):
        with pytest.raises(CrossdraftError, match=r"of (float|int)64"):
            READERS[axes](given)
        with pytest.raises(CrossdraftError, match="is a list of"):
            READERS[axes](given.tolist())


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        (lambda a: np.moveaxis(a, -1, -3), "channels last"),
        (lambda a: torch.from_numpy(a).movedim(-1, -3), "channels last"),
        (lambda a: a[..., 0], "uint8"),
        (lambda a: a[..., :1], "uint8"),
        (lambda a: np.concatenate([a, a[..., :1]], -1), "uint8"),
        (lambda a: a[None], "uint8"),
        (lambda a: a.reshape(-1), "uint8"),
        (lambda a: a[..., :0, :, :], "uint8"),
        (lambda a: a[..., :0, :], "uint8"),
        (lambda a: a[..., :0], "uint8"),
        (lambda a: a[..., 0, 0, 0].max(), "uint8"),
        (lambda a: a.view([("r", "u1"), ("g", "u1"), ("b", "u1")])[..., 0], "ndarray of"),
        (lambda a: [[1, 2], [3]], "a list"),
        (lambda a: {1}, "a set"),
        (lambda a: 3.5, "a float"),
    ],
)
def test_other_shapes_are_refused_by_name(turn, words):
    for axes, given in both(PIXELS):
        with pytest.raises(CrossdraftError, match=words):
            READERS[axes](turn(given))


@pytest.mark.filterwarnings("error")
def test_the_same_pixels_lie_in_memory_in_any_way():
    locked = PIXELS.copy()
    locked.flags.writeable = False
    turned = np.ascontiguousarray(PIXELS[:, ::-1, ::-1, ::-1])[:, ::-1, ::-1, ::-1]
    tensor = torch.from_numpy(PIXELS)
    ways = [
        PIXELS, np.asfortranarray(PIXELS), locked, turned, tensor, tensor.movedim(-1, 1).contiguous().movedim(1, -1),
        np.ma.masked_array(PIXELS),
    ]  # fmt: skip
    for way in ways:
        for axes, given in both(way):
            assert torch.equal(READERS[axes](given), tensor if axes == 4 else tensor[0])


UNSTORED = {
    "sparse": torch.zeros(2, 4, 4, 3).to_sparse(),
    "nested": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
    "meta": torch.zeros(2, 4, 4, 3, device="meta"),
    "conjugate": torch.zeros(2, 4, 4, 3, dtype=torch.complex64).conj(),
    "masked": np.ma.masked_greater(PIXELS, 100),
}


@pytest.mark.parametrize("value", UNSTORED.values(), ids=UNSTORED)
@pytest.mark.parametrize("name", ["video", "image", "events", "inputs", "messages"])
def test_tensors_that_are_more_than_their_bytes_are_refused_in_a_request(name, value):
    given = {"prompt": "What?", name: value}
    if name == "inputs":
        given[name] = {"input_ids": torch.zeros(1, 2, dtype=torch.long), "pixel_values": [value]}
    if name == "messages":
        said = {"type": "text", "text": "What?"}
        given = {name: [{"role": "user", "content": [said, {"type": "video", "video": value}]}]}
    with pytest.raises(CrossdraftError, match=f"The request's {name} has "):
        cd.Request(**given)


def test_a_list_that_holds_itself_is_looked_into_once():
    circle: list[object] = []
    circle += [circle] * 100
    cd.Request("What?", events=circle)
    with pytest.raises(CrossdraftError, match="The request's events has a tensor"):
        cd.Request("What?", events=[*circle, UNSTORED["sparse"]])


def test_a_clip_of_a_list_that_holds_itself_is_refused():
    circle: list[object] = []
    circle.append(circle)
    for given in ({"video": circle}, {"image": circle}):
        assert cd.Request("What?", **given).conversation
    for read in READERS.values():
        with pytest.raises(CrossdraftError, match="is a list"):
            read(circle)


def test_numbers_of_nested_lists_are_left_to_whoever_reads_them():
    pixels = [[[0, 1, 2]]]
    assert portable([pixels, "a.png"])[0] is pixels


MODES = "1 L LA P PA RGBA RGBa CMYK YCbCr LAB HSV I F".split()  # noqa: SIM905


@pytest.mark.parametrize("mode", MODES)
def test_a_picture_of_every_mode_of_pillow_is_read(mode):
    assert portable(Image.new(mode, (3, 2))).shape == (2, 3, 3)


def test_a_mode_that_pillow_makes_no_rgb_of_is_refused():
    with pytest.raises(CrossdraftError, match="of the mode 'La' is no RGB"):
        portable(Image.new("La", (3, 2)))
