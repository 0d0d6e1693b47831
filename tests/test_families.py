"""Models whose clips have text between the frames, from a checkpoint folder to an answer."""

import json
from functools import cache

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import crossdraft as cd
from crossdraft.cli.main import main
from crossdraft.load import load_target
from crossdraft.video.classes import model_class
from crossdraft.video.clip_frames import UNTIMED, ClipFrames
from tests.tiny_families import CHAT, IDS, MODELS, PATCHED, PROCESSORS, save_family
from tests.video.helpers import animation, picture, timed
from tests.video.test_image import FILES, turned

pytestmark = pytest.mark.usefixtures("one_target")

PER_FRAME, LENGTH = 9, 24
DRAFTERS = ("union:memory,ngram", "model", "patched", "kin", "fewer")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("families")
    return {name: save_family(name, base / name) for name in MODELS} | {
        "kin": save_family("smolvlm", base / "kin", noise=1e-3)
    }


@pytest.fixture(scope="module")
def requests(clip):
    asked = ("what is the car doing?", "why?", "what is the car doing?")
    return [cd.Request(question, str(clip.video), max_new_tokens=LENGTH) for question in asked]


@pytest.fixture(scope="module")
def about_an_image():
    pixels = np.random.default_rng(0).integers(0, 256, (70, 40, 3), dtype=np.uint8)
    return [cd.Request(question, image=pixels, max_new_tokens=LENGTH) for question in ("what is it?", "why?")]


@pytest.fixture(scope="module")
def expected(folders, requests):
    """What the models' own `generate` answers, with their own caches."""
    return {name: [generated(folders[name], request) for request in requests] for name in MODELS}


@cache
def plain(folder):
    return load_target(str(folder), "cpu", packed=False)


def generated(folder, request):
    target = plain(folder)
    prompt = target.prepare(request)
    given = {"input_ids": prompt.input_ids[None], **prompt.features}
    out = target.model.generate(**given, max_new_tokens=LENGTH, do_sample=False)
    return tuple(out[0, len(prompt) :].tolist())


def with_drafters():
    """Each model with each drafter: in the fast suite with two or three of them."""
    found = []
    for number, name in enumerate(MODELS):
        quick = {"fewer", DRAFTERS[number % 5], {"smolvlm": "kin", "qwen3_vl": "patched"}.get(name)}
        found += [
            pytest.param(name, drafter, marks=[] if drafter in quick else pytest.mark.slow) for drafter in DRAFTERS
        ]
    return found


def test_prompts_hold_a_clip_s_true_times_or_a_note(folders, tmp_path):
    clip = timed(tmp_path / "clip.mp4", [*range(0, 1000, 100), 3000, 5000])
    gif = animation(tmp_path / "clip.gif", [100] * 9 + [2100, 2000, 60], "gif")
    given = np.stack([picture(index) for index in range(3)])
    at = ClipFrames(torch.from_numpy(given), np.array([0.0, 2.0, 8.0]))
    cases = (
        (
            "smolvlm",
            "Frame from 00:{:02d}:",
            ((clip, (0, 3, 5)), (gif, (0, 3, 5)), (at, (0, 2, 8)), (given, (0, 1, 2))),
        ),
        ("glm4v", "<|end_of_image|>{}", ((clip, (0, 3)), (gif, (0, 3)), (at, (0, 8)), (given, (0, 2)))),
    )
    for name, written, clips in cases:
        target = load_target(str(folders[name]), "cpu", num_frames=6)
        for video, seconds in clips:
            prompt = target.prepare(cd.Request("why?", video))
            text = AutoTokenizer.from_pretrained(folders[name]).decode(prompt.input_ids)
            assert all(written.format(second) in text for second in seconds), text
            assert prompt.notes == ((UNTIMED,) if video is given else ())
    assert load_target(str(folders["internvl"]), "cpu").prepare(cd.Request("why?", given)).notes == ()


@pytest.mark.parametrize(("name", "drafter"), with_drafters())
def test_answers_are_those_of_generate(name, drafter, folders, requests, expected):
    """The third question is the first again, so that the clip and the question are known."""
    dirs = {"model": "smolvlm", "kin": "kin", "patched": "qwen3_vl"}
    spec = f"model:dir={folders[dirs[drafter]]}" if drafter in dirs else drafter
    if drafter == "fewer":  # the model itself, seeing fewer frames
        spec = f"model:dir={folders[name]},frames=2"
    with cd.Engine.load(folders[name], spec, cd.Options(device="cpu", placement="inline", adaptive=False)) as engine:
        found = [engine.generate(request) for request in requests]
    assert [answer.tokens for answer in found] == expected[name]
    if (name, drafter) in (("smolvlm", "model"), ("smolvlm", "kin"), ("qwen3_vl", "patched")):
        assert sum(answer.stats.accepted for answer in found) > 0


@pytest.mark.parametrize("name", MODELS)
def test_a_second_question_reads_the_clip_from_the_cache(name, folders, requests, expected):
    with cd.Engine.load(folders[name], None, cd.Options(device="cpu")) as engine:
        found = [engine.generate(request) for request in requests]
        length = len(engine.target.prepare(requests[0]))
    assert [answer.tokens for answer in found] == expected[name]
    first, *others = (answer.stats.cached_tokens for answer in found)
    assert first == 0
    frames = 4 if name in PATCHED else 8
    assert all(frames * PER_FRAME < cached < length for cached in others)


@pytest.mark.parametrize("name", MODELS)
def test_a_second_question_about_an_image_reads_its_own_words(name, folders, about_an_image):
    expected = [generated(folders[name], request) for request in about_an_image]
    spec = f"phased:(model:dir={folders[name]},frames=2),ngram"
    with cd.Engine.load(folders[name], spec, cd.Options(device="cpu", placement="inline")) as engine:
        found = [engine.generate(request) for request in about_an_image]
        prompt = engine.target.prepare(about_an_image[1])
    assert [answer.tokens for answer in found] == expected
    visual = torch.isin(prompt.input_ids, torch.tensor(sorted(engine.target.traits.visual_ids)))
    assert found[1].stats.cached_tokens > int(visual.nonzero()[-1])
    tiles = {"internvl": 9, "smolvlm": 5, "gemma3": 1}  # 4 x 2 or 2 x 2, and the whole
    assert name in PATCHED or int(visual.sum()) == PER_FRAME * tiles[name]


@pytest.mark.parametrize("name", ["internvl", "smolvlm", "gemma3"])
def test_an_image_file_is_read_as_the_checkpoint_s_processor_reads_it(name, folders, tmp_path):
    target, path = load_target(str(folders[name]), "cpu"), tmp_path / "i.jpg"
    path.write_bytes(turned("JPEG", 6))  # with shared chroma, and turned
    processor = type(PROCESSORS[name]()).from_pretrained(folders[name])
    more = {"internvl": {"crop_to_patches": True}, "smolvlm": {"do_image_splitting": True}}.get(name, {})
    theirs = processor(processor.fetch_images(str(path)), return_tensors="pt", **more)["pixel_values"]
    prompt = target.prepare(cd.Request("What is it?", image=str(path)))
    assert prompt.notes == ()
    level = 1.01 / 255 / min(processor.image_std)
    assert (prompt.features["pixel_values"] - theirs).abs().max() < level


def test_an_answer_says_what_of_an_image_was_not_shown(folders, tmp_path):
    path = tmp_path / "i.png"
    path.write_bytes(FILES["png 16 bit grey"]())
    with cd.Engine.load(folders["gemma3"], None, cd.Options(device="cpu")) as engine:
        for given in (path, path.read_bytes(), path):  # the last is known by then
            (note,) = engine.generate(cd.Request("What is it?", image=given, max_new_tokens=1)).notes
            assert "grey of more than 8 bits" in note


@pytest.mark.parametrize("name", MODELS)
def test_a_still_and_more_frames(name, folders, requests):
    def visual(**options):
        target = load_target(str(folders[name]), "cpu", **options)
        ids = target.prepare(requests[0]).input_ids
        return int(torch.isin(ids, torch.tensor(sorted(target.traits.visual_ids))).sum())

    # The pixels of a clip are shared out: one or two frames get 48 x 48, three 40 x 40, and two are a patch.
    expected = [36, 2 * 25] if name in PATCHED else [PER_FRAME, 3 * PER_FRAME]
    assert [visual(num_frames=count) for count in (1, 3)] == expected


def test_too_many_frames_are_refused_with_the_number_that_fits(folders, requests):
    with pytest.raises(cd.CrossdraftError, match=r"give at most \d+ frames"):
        load_target(str(folders["smolvlm"]), "cpu", num_frames=40).prepare(requests[0])


@pytest.mark.parametrize("name", MODELS)
def test_ask(name, folders, clip, capsys):
    arguments = ["--target", str(folders[name]), "--drafter", f"model:dir={folders['smolvlm']}", "--device", "cpu"]
    more = ["--placement", "inline", "--max-new-tokens", "12", "--json", "--compare"]
    assert main(["ask", "--video", str(clip.video), *arguments, *more, "What is it?"]) == 0
    assert json.loads(capsys.readouterr().out)["compare"]["identical"] is True


def test_the_prompt_is_the_checkpoint_s_own(folders, requests):
    """With the template, if it knows how to show what the model sees, else as HF's processor writes it."""
    assert CHAT["smolvlm"] is None
    tokenizer = AutoTokenizer.from_pretrained(folders["gemma3"])
    target = load_target(str(folders["gemma3"]), "cpu", num_frames=2)
    ids = target.prepare(requests[1]).input_ids.tolist()
    assert ids.count(IDS["<s>"]) == 1
    picture = "\n\n<start_of_image>" + "<image_soft_token>" * PER_FRAME + "<end_of_image>\n\n"
    asked = f"<s><start_of_turn>user\n{picture * 2}why?<end_of_turn>\n<start_of_turn>model\n"
    assert tokenizer.decode(ids) == asked


@pytest.mark.parametrize(
    ("model_type", "says"),
    [
        ("llavaonevision1_5", "runs code of its own, which is never done"),
        ("minicpmv", "runs code of its own, which is never done"),
        ("internvl_chat", "name ends with -hf"),
    ],
)
def test_what_is_not_supported_says_why(model_type, says):
    with pytest.raises(cd.CrossdraftError, match=says):
        model_class(model_type)
