"""An EventGPT with placeholders of its own drafts for a target of the same text vocabulary, as the real pair does.

Video-LLaVA-7B and EventGPT-7B share 32,000 tokens; after them stand `<image>`, `<video>` and `<pad>` in one,
`<event>` in the other, at the same ids.
"""

import json
import shlex
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import crossdraft as cd
from crossdraft.cli.main import main
from crossdraft.drafters.event.load import load_drafter
from crossdraft.load import load_target, vocabulary_of
from crossdraft_lab.train.reference.tokenizer import EVENT, IMAGE, PAD, VIDEO
from tests.models.official import byte_tokenizer, official_weights, write_official
from tests.support import ClipPaths, PairPaths, tiny_clip
from tests.test_docs import commands


@pytest.fixture(scope="module")
def stranger(pair: PairPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The event model with `<event>` where the target has `<image>`, and one token less."""
    folder = tmp_path_factory.mktemp("stranger") / "event"
    shutil.copytree(pair.event, folder)
    vocabulary = vocabulary_of(str(pair.target))
    event, image = vocabulary[EVENT], vocabulary[IMAGE]
    assert event == max(vocabulary.values())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / name).read_text()
        (folder / name).write_text(
            text.replace(IMAGE, "<was image>").replace(EVENT, IMAGE).replace("<was image>", EVENT)
        )
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["id"] != event]
    tokenizer["model"]["vocab"].pop(IMAGE, None)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "config.json").read_text())
    config["event_token_id"] = image
    config["text_config"]["vocab_size"] = event
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    for name in ("lm_head.weight", "model.language_model.embed_tokens.weight"):
        weights[name][image] = weights[name][event]
        weights[name] = weights[name][:event].contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_placeholders_of_its_own_do_not_make_it_another_vocabulary(
    stranger: Path, pair: PairPaths, clip: ClipPaths, temperature: float
) -> None:
    sampling = cd.Sampling(temperature=temperature)
    request = cd.Request("What is ahead?", clip.video, clip.events, 24, sampling=sampling)
    with cd.Engine.load(
        str(pair.target), str(stranger), cd.Options(placement="inline", device="cpu", adaptive=False)
    ) as engine:
        answer = engine.generate(request)
        assert answer.stats.accepted > 0  # it is listened to
    if temperature == 0:
        with cd.Engine.load(str(pair.target), None, cd.Options(device="cpu")) as alone:
            assert answer.tokens == alone.generate(request).tokens


def test_what_the_target_does_not_see_as_text_is_never_drafted(stranger: Path, pair: PairPaths) -> None:
    target, vocabulary = load_target(str(pair.target), "cpu"), vocabulary_of(str(pair.target))
    drafter = load_drafter(str(stranger), "cpu", None, sorted(target.reserved), vocabulary)
    banned = {i for i, bias in enumerate(drafter.banned.tolist()) if bias < 0}
    assert {vocabulary[token] for token in (IMAGE, VIDEO, PAD)} <= banned


def test_a_token_that_means_another_one_is_still_refused(stranger: Path, pair: PairPaths) -> None:
    vocabulary = vocabulary_of(str(pair.target))
    first, second = sorted(vocabulary, key=vocabulary.__getitem__)[300:302]
    swapped = vocabulary | {first: vocabulary[second], second: vocabulary[first]}
    with pytest.raises(cd.CrossdraftError, match=r"2 of its .* tokens differ"):
        load_drafter(str(stranger), "cpu", vocabulary=swapped)


PAGE = Path(__file__).parents[1] / "docs" / "your_own_models.md"
QUICK = {  # what makes a command of the page short; none of it changes what is done
    "capture": "--max-new-tokens 12 --workers 0 --device cpu",
    "train": "optim.steps=2 optim.decay_steps=0 optim.warmup_steps=1 optim.clips=2 measure.pairs=1 --device cpu",
    "ask": "--max-new-tokens 12 --device cpu --json",
}


def test_the_commands_of_the_page_run_on_small_models_of_the_same_classes(
    stranger: Path, pair: PairPaths, clip: ClipPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the page's order: convert, ask, capture, train, ask with the trained head."""
    (tmp_path / "other").mkdir()
    for name, video in (("clips", clip.video), ("validation", tiny_clip(tmp_path / "other", top=40).video)):
        asked = {"video": str(video), "prompt": ["What is ahead?", "Is it dark?"]}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(asked) + "\n")
    write_official(tmp_path / "EventGPT-7b", official_weights(300), byte_tokenizer(300))
    names = {"clip.mp4": clip.video, "clip.h5": clip.events, "video-llava-7b": pair.target, "eventgpt-7b": stranger}
    names |= {name: tmp_path / name for name in ("EventGPT-7b", "clips.jsonl", "validation.jsonl")}
    ran = []
    for line in commands(PAGE):
        arguments = shlex.split(line)[1:]
        if arguments[0] == "bench" or "--measure" in arguments:
            continue  # minutes; their own tests run them
        if arguments[0] == "convert":
            arguments[-1] = str(tmp_path / "converted")
        filled = [str(names.get(one, one)).replace("runs/", f"{tmp_path}/runs/") for one in arguments]
        out = ["--out", f"{tmp_path}/runs/heads/eagle3"] if arguments[0] == "train" else []
        assert main([*filled, *QUICK.get(arguments[0], "").split(), *out]) == 0, line
        ran.append(arguments[0])
    assert ran == ["convert", "ask", "capture", "capture", "train", "ask"]
