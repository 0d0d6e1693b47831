"""EventGPT's processor: the pixels of HF's image processor, the canvas presets by hand, the prompt's ids by hand."""

import json

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import CLIPImageProcessor, PreTrainedTokenizerFast

from crossdraft.checkpoints.locate import shipped_at
from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, Newest, eventgpt_frames, read_events
from crossdraft.models import EventGPTConfig, EventGPTForConditionalGeneration
from crossdraft.models.eventgpt import EventGPTProcessor, ProcessorOptions
from crossdraft.models.eventgpt.checkpoint import library_errors_as
from crossdraft.models.eventgpt.processing import Canvas
from crossdraft_lab.scenes import DURATION_S
from tests.events.helpers import made_up
from tests.models.conftest import TEXT, VISION
from tests.models.official import byte_tokenizer

BRIEF = "U: {event}\n{question} A:"
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(3, 1, 1)
WHITE, RED, BLUE = (255, 255, 255), (255, 0, 0), (0, 0, 255)


def shape(size: int, frames: int, start_end: bool = False) -> EventGPTConfig:
    return EventGPTConfig(
        vision_config=VISION | {"image_size": size},
        text_config=TEXT,
        event_token_id=299,
        num_event_frames=frames,
        add_start_end=start_end,
    )


def processor_of(
    size: int, frames: int, tokenizer: PreTrainedTokenizerFast, canvas: Canvas = "sensor"
) -> EventGPTProcessor:
    return EventGPTProcessor(shape(size, frames), tokenizer, ProcessorOptions(canvas=canvas, template=BRIEF))


def hf_pixels(frames: list[NDArray[np.uint8]], size: int) -> Tensor:
    hf = CLIPImageProcessor(size={"shortest_edge": size}, crop_size={"height": size, "width": size})
    return hf(frames, return_tensors="pt", input_data_format="channels_last")["pixel_values"]


def steps(a: Tensor, b: Tensor) -> float:
    """The largest difference, in 8-bit steps."""
    return ((a - b) * STD * 255).abs().max().item()


def canvas_of(height: int, width: int, **pixels: tuple[int, int, int]) -> NDArray[np.uint8]:
    """A white frame with `x<column>y<row>=colour`."""
    frame = np.full((height, width, 3), WHITE, np.uint8)
    for position, colour in pixels.items():
        column, row = position.removeprefix("x").split("y")
        frame[int(row), int(column)] = colour
    return frame


def events_of(*rows: tuple[int, int, int], width: int, height: int) -> Events:
    """(x, y, p) rows, at intervals of 1 µs."""
    x, y, p = zip(*rows, strict=True)
    return Events.checked(x, y, range(len(rows)), p, width, height)


def painted(seed: int, height: int, width: int) -> NDArray[np.uint8]:
    """What event frames are made of: red and blue dots, in clumps and alone, on white."""
    rng = np.random.default_rng(seed)
    frame = canvas_of(height, width)
    dense = rng.random((height, width)) < 0.25 * np.linspace(0, 1, width)
    frame[dense] = np.where(rng.random((int(dense.sum()), 1)) < 0.5, RED, BLUE)
    frame[height // 3 : height // 2, width // 4 : width // 2] = RED
    return frame


@pytest.mark.parametrize(("height", "width", "size"), [
    (480, 640, 336),  # the release: shrunk, then 12.5 % cropped on either side
    (640, 480, 336),
    (260, 346, 336),  # DAVIS, enlarged
    (112, 112, 112),  # the reference pair, left as it is
    (37, 91, 28),
])  # fmt: skip
def test_pixels_are_hf_s_within_one_step(tokenizer, height: int, width: int, size: int):
    frames = [painted(seed, height, width) for seed in range(3)]
    pixels = processor_of(size, 3, tokenizer).pixels(np.stack(frames))
    assert pixels.shape == (3, 3, size, size)
    assert pixels.dtype == torch.float32
    assert steps(pixels, hf_pixels(frames, size)) <= 1 + 1e-3
    shifted = [np.roll(frame, 1, axis=1) for frame in frames]
    assert steps(pixels, hf_pixels(shifted, size)) > 20


def test_torch_frames_and_numpy_frames_are_one(tokenizer):
    frames = np.stack([painted(seed, 20, 30) for seed in range(3)])
    processor = processor_of(8, 3, tokenizer)
    assert torch.equal(processor.pixels(frames), processor.pixels(torch.from_numpy(frames)))


# Two slices of two events. In the second, both fall on pixel (0, 0): red first, blue last.
TWO_SLICES = ((3, 3, 1), (0, 1, 0), (0, 0, 1), (0, 0, 0))


def test_the_sensor_canvas_shows_the_last_event(tokenizer):
    events = events_of(*TWO_SLICES, width=8, height=8)
    expected = [canvas_of(8, 8, x3y3=RED, x0y1=BLUE), canvas_of(8, 8, x0y0=BLUE)]
    processor = processor_of(8, 2, tokenizer)
    assert torch.equal(processor.pixels(events), processor.pixels(np.stack(expected)))
    assert steps(processor.pixels(events), hf_pixels(expected, 8)) < 1e-3


def test_the_release_canvas_is_cut_to_each_slice(tokenizer):
    """Slice 1 reaches (3, 3): a 4x4 frame. Slice 2 reaches (0, 0): a single blue pixel, which fills the image."""
    events = events_of(*TWO_SLICES, width=8, height=8)
    expected = [canvas_of(4, 4, x3y3=RED, x0y1=BLUE), canvas_of(1, 1, x0y0=BLUE)]
    pixels = processor_of(8, 2, tokenizer, "release").pixels(events)
    assert steps(pixels, hf_pixels(expected, 8)) <= 1 + 1e-3
    blue = torch.tensor([0.0, 0.0, 1.0]).view(3, 1, 1)
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(3, 1, 1)
    assert torch.allclose(pixels[1] * STD + mean, blue.expand(3, 8, 8), atol=1e-6)
    assert steps(pixels, processor_of(8, 2, tokenizer).pixels(events)) > 20


def test_a_release_canvas_of_one_row_is_what_hf_makes_of_it(tokenizer):
    """Slices that reach only the first row: 1x1280 and 1x640 canvases, of which the crop keeps a few columns."""
    rows = ((1279, 0, 1), (638, 0, 0), (641, 0, 1), (639, 0, 1), (318, 0, 0), (320, 0, 0))
    events = events_of(*rows, width=1280, height=720)
    expected = [
        canvas_of(1, 1280, x1279y0=RED, x638y0=BLUE, x641y0=RED),
        canvas_of(1, 640, x639y0=RED, x318y0=BLUE, x320y0=BLUE),
    ]
    pixels = processor_of(28, 2, tokenizer, "release").pixels(events)
    assert steps(pixels, hf_pixels(expected, 28)) <= 1 + 1e-3
    assert pixels.std() > 0.1  # and not blank


def test_the_train_canvas_is_480_by_640_and_red_wins(tokenizer):
    events = events_of((639, 479, 0), (100, 100, 1), (320, 240, 1), (320, 240, 0), width=640, height=480)
    red = [canvas_of(480, 640, x639y479=BLUE, x100y100=RED), canvas_of(480, 640, x320y240=RED)]
    blue = [red[0], canvas_of(480, 640, x320y240=BLUE)]
    train, sensor = (processor_of(480, 2, tokenizer, canvas) for canvas in ("train", "sensor"))
    assert torch.equal(train.pixels(events), sensor.pixels(np.stack(red)))
    assert torch.equal(sensor.pixels(events), sensor.pixels(np.stack(blue)))
    # The same events from a small sensor: the training canvas stays 480x640, the image is its centre.
    small = events_of((0, 0, 1), (1, 1, 0), (2, 2, 1), (3, 3, 0), width=4, height=4)
    blank = sensor.pixels(np.stack([canvas_of(480, 640)] * 2))
    assert torch.equal(train.pixels(small), blank)


def test_a_canvas_of_any_size(tokenizer):
    events = events_of(*TWO_SLICES, width=8, height=8)
    expected = [canvas_of(4, 6, x3y3=RED, x0y1=BLUE), canvas_of(4, 6, x0y0=BLUE)]
    processor = processor_of(8, 2, tokenizer, (4, 6))
    assert torch.equal(processor.pixels(events), processor.pixels(np.stack(expected)))


def byte_ids(text: str) -> list[int]:
    """Ids of the byte-level tokenizer without merges, worked out from its definition."""
    return byte_tokenizer(259)(text, add_special_tokens=False)["input_ids"]


def test_the_prompt_s_ids(tokenizer):
    """5 frames of 2x2 patches: 5 + 4 + 1 = 10 placeholders between the two halves of the template."""
    ids = processor_of(8, 5, tokenizer).prompt_ids("Q?")
    assert ids == [1, *byte_ids("U: "), *[299] * 10, *byte_ids("\nQ? A:")]
    assert len(byte_ids("U: ")) == 3


def test_start_and_end_tokens_only_if_the_model_was_trained_with_them():
    tokenizer = byte_tokenizer(296, ["<ev_start>", "<ev_end>"])
    options = ProcessorOptions(template=BRIEF)
    plain = EventGPTProcessor(shape(8, 5), tokenizer, options).prompt_ids("Q?")
    wrapped = EventGPTProcessor(shape(8, 5, start_end=True), tokenizer, options).prompt_ids("Q?")
    assert wrapped == [1, *byte_ids("U: "), 296, *[299] * 10, 297, *byte_ids("\nQ? A:")]
    assert [i for i in wrapped if i not in (296, 297)] == plain


def test_start_and_end_tokens_must_be_in_the_tokenizer(tokenizer):
    with pytest.raises(CrossdraftError, match="lacks <ev_start>, <ev_end>"):
        EventGPTProcessor(shape(8, 5, start_end=True), tokenizer)


def test_the_default_prompt_is_the_official_conversation(tokenizer):
    text = tokenizer.decode(EventGPTProcessor(shape(8, 5), tokenizer).prompt_ids("Where?"))
    assert text.startswith("<s>A chat between a curious human and an artificial intelligence assistant. ")
    assert text.endswith("questions. USER: " + "<event>" * 10 + "\nWhere? ASSISTANT:")


def test_braces_and_markup_in_a_question_are_text(tokenizer):
    ids = processor_of(8, 5, tokenizer).prompt_ids("{event} {question} {0} <video>")
    assert ids[-len(byte_ids("{event} {question} {0} <video> A:")) :] == byte_ids("{event} {question} {0} <video> A:")
    assert ids.count(299) == 10


def test_the_placeholder_in_a_question_is_refused(tokenizer):
    with pytest.raises(CrossdraftError, match="question holds the event placeholder '<event>'"):
        processor_of(8, 5, tokenizer).prompt_ids("What is <event>?")


def test_a_batch_is_padded_on_the_left_and_decodes_as_its_rows_alone(tokenizer, model):
    processor = EventGPTProcessor(model.config, tokenizer, ProcessorOptions(template=BRIEF))
    questions = ["Q?", "What is this?"]
    windows = [np.stack([painted(seed + i, 8, 8) for i in range(3)]) for seed in (0, 10)]
    batch = processor(questions, windows)
    assert batch["attention_mask"].tolist()[0][:11] == [0] * 11
    assert batch["pixel_values_videos"].shape == (2, 3, 3, 8, 8)

    def answer(inputs: dict[str, Tensor]) -> list[list[int]]:
        return model.generate(**inputs, max_new_tokens=5, do_sample=False, eos_token_id=-1)[:, -5:].tolist()

    alone = [answer(processor(q, w))[0] for q, w in zip(questions, windows, strict=True)]
    assert answer(batch) == alone
    assert alone[0] != alone[1]


def test_saved_with_the_model_and_read_back(tokenizer, model: EventGPTForConditionalGeneration, tmp_path):
    processor = EventGPTProcessor(model.config, tokenizer, ProcessorOptions(canvas=(6, 7), template=BRIEF))
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    loaded = EventGPTProcessor.from_pretrained(tmp_path)
    assert loaded.options == processor.options
    assert loaded.frame_spec == processor.frame_spec
    assert loaded.prompt_ids("Why?") == processor.prompt_ids("Why?")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "processor_config.json"])
def test_a_folder_that_lacks_a_file_says_which(tokenizer, model, tmp_path, name: str):
    model.save_pretrained(tmp_path)
    EventGPTProcessor(model.config, tokenizer).save_pretrained(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CrossdraftError, match=f"lacks {name}"):
        EventGPTProcessor.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "3",
        '{"mean": [1, 2]}',
        '{"std": ["a", "b", "c"]}',
        '{"canvas": "round"}',
        '{"canvas": [0, 4]}',
        '{"colour": 1}',
        '{"template": "{event}"}',
    ],
)
def test_a_damaged_processor_file_is_one_sentence(tmp_path, text: str):
    path = tmp_path / "processor_config.json"
    path.write_text(text)
    with pytest.raises(CrossdraftError, match=r"is not an EventGPT processor|must be|must hold"):
        ProcessorOptions.load(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"text_config": 3}, "text_config of an EventGPT must hold the fields of a LlamaConfig."),
        ({"vision_config": "x"}, "vision_config of an EventGPT must hold the fields of a CLIPVisionConfig."),
        ({"event_token_id": "x"}, "The event placeholder 'x' is outside the vocabulary"),
        ({"event_token_id": 999}, "The event placeholder 999 is outside the vocabulary of 300 ids"),
        ({"num_event_frames": 2.5}, "An event window needs at least one frame, not 2.5."),
        ({"vision_config": VISION | {"patch_size": 0}}, "not 8 pixels in patches of 0."),
        ({"vision_config": VISION | {"image_size": [8, 8]}}, "not [8, 8] pixels in patches of 4."),
        ({"vision_config": VISION | {"image_size": "a"}}, "{folder}/config.json is damaged (Validation error"),
        ({"dtype": "nope"}, "{folder}/config.json is damaged (module 'torch' has no attribute 'nope')"),
    ],
)
def test_a_damaged_model_config_is_one_sentence(tokenizer, config, tmp_path, change, says: str):
    """Our own sentences come as they are; a library's words come in ours."""
    config.save_pretrained(tmp_path)
    EventGPTProcessor(config, tokenizer).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CrossdraftError) as caught:
        EventGPTProcessor.from_pretrained(tmp_path)
    sentence, expected = str(caught.value), says.replace("{folder}", str(tmp_path))
    assert expected in sentence
    assert sentence.startswith(expected) or not says.startswith(("{", "The", "text", "An event"))
    assert "\n" not in sentence


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff\xfe"])
def test_a_file_that_is_no_json_object_is_named(tokenizer, config, tmp_path, name: str, content: bytes):
    config.save_pretrained(tmp_path)
    EventGPTProcessor(config, tokenizer).save_pretrained(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CrossdraftError, match=r"config\.json (is not|must hold)|The tokenizer in .* is damaged"):
        EventGPTProcessor.from_pretrained(tmp_path)


@pytest.mark.parametrize("error", [OSError("gone"), KeyError("gone"), Exception("gone"), ValueError("go\nne")])
def test_what_a_library_raises_is_one_sentence(error: Exception):
    with pytest.raises(CrossdraftError, match=r"^The file is damaged \('?go ?ne'?\); mend it\.$"):  # noqa: SIM117
        with library_errors_as("The file is damaged", "mend it"):
            raise error


@pytest.mark.parametrize("error", [CrossdraftError("one sentence"), NameError("a bug"), AssertionError("a bug")])
def test_our_own_sentences_and_bugs_pass(error: Exception):
    with pytest.raises(type(error)) as caught, library_errors_as("The file is damaged", "mend it"):
        raise error
    assert caught.value is error


def test_windows_that_do_not_fit_are_refused(tokenizer):
    processor = processor_of(8, 5, tokenizer)
    frames = np.stack([painted(seed, 8, 8) for seed in range(4)])
    with pytest.raises(CrossdraftError, match="has 4 event frames, but the model reads 5"):
        processor.pixels(frames)
    with pytest.raises(CrossdraftError, match="4 events cannot fill 5 frames"):
        processor.pixels(events_of(*TWO_SLICES, width=8, height=8))
    with pytest.raises(CrossdraftError, match=r"give frames \(uint8 RGB"):
        processor.pixels(torch.from_numpy(frames).float())
    with pytest.raises(CrossdraftError, match="2 question"):
        processor(["a", "b"], [frames])


def test_the_release_canvas_on_a_real_recording(tokenizer, shared):
    """Against the release's own rule, event by event: equal counts, a canvas per slice, the last event shows."""
    events = read_events(shared / "data/events/eventgpt_sample1.npy")
    share, frames = len(events) // 5, []
    for i in range(5):
        part = events.take(slice(share * i, share * (i + 1) if i < 4 else len(events)))
        frame = canvas_of(int(part.y.max()) + 1, int(part.x.max()) + 1)
        for x, y, p in zip(part.x, part.y, part.p, strict=True):
            frame[y, x] = BLUE if p == 0 else RED
        frames.append(frame)
    pixels = processor_of(336, 5, tokenizer, "release").pixels(events)
    assert steps(pixels, hf_pixels(frames, 336)) <= 1 + 1e-3


def test_several_stretches_share_the_model_s_frames(tokenizer):
    processor = processor_of(8, 5, tokenizer)
    parts = tuple(made_up(40, 8, 8, start_us=i * 10**6, seed=i) for i in range(2))
    drawn = [*eventgpt_frames(parts[0], 2), *eventgpt_frames(parts[1], 3)]
    assert torch.equal(processor.pixels(parts), processor.pixels(np.stack(drawn)))
    assert torch.equal(processor.pixels((parts[0],)), processor.pixels(parts[0]))
    assert torch.equal(processor("Why?", parts)["pixel_values_videos"][0], processor.pixels(parts))
    for wrong in ((), (parts[0],) * 6):
        with pytest.raises(CrossdraftError, match="cannot share the model's 5 frames"):
            processor.pixels(wrong)


def test_how_much_of_a_recording_a_model_reads_is_kept_with_it(tokenizer, tmp_path):
    official = EventGPTProcessor(shape(8, 5), tokenizer)
    assert official.window == Newest(50_000, 5, 1_000_000)
    options = ProcessorOptions(window_us=None, window_events=3)
    EventGPTProcessor(shape(8, 5), tokenizer, options).save_pretrained(tmp_path)
    loaded = ProcessorOptions.load(tmp_path / "processor_config.json")
    assert EventGPTProcessor(shape(8, 5), tokenizer, loaded).window == Newest(None, 5, 5)
    for wrong in ({"window_us": 0}, {"window_events": 1.5}, {"window_us": True}):
        with pytest.raises(CrossdraftError, match="must be a whole number above 0"):
            ProcessorOptions(**wrong)
    for name in ("event", "blind"):  # trained on whole clips of a second
        shipped = ProcessorOptions.load(shipped_at(name) / "processor_config.json")
        assert shipped.window_us == round(DURATION_S * 1e6)
