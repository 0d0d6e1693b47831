"""An EventGPT with placeholders of its own drafts for a target of the same text vocabulary, as the real pair does.

Video-LLaVA-7B and EventGPT-7B share 32,000 tokens; behind them stand `<image>`, `<video>` and `<pad>` in one,
`<event>` in the other, at the same ids.
"""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import crossdraft as cd
from crossdraft.load import load_drafter, load_target, vocabulary_of
from crossdraft.train.tokenizer import EVENT, IMAGE, PAD, VIDEO
from tests.support import ClipPaths, PairPaths


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
    with cd.Engine.load(str(pair.target), str(stranger), cd.Options(device="cpu", adaptive=False)) as engine:
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
    first, second = list(vocabulary)[40], list(vocabulary)[41]
    swapped = vocabulary | {first: vocabulary[second], second: vocabulary[first]}
    with pytest.raises(cd.CrossdraftError, match=r"2 of its .* tokens differ"):
        load_drafter(str(stranger), "cpu", vocabulary=swapped)
