"""The stage `foreign` at micro size: captions alone are learned, by a drafter whose vision encoder was there before."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from crossdraft.checkpoints.locate import shipped_at
from crossdraft.errors import CrossdraftError
from crossdraft.models.eventgpt import EventGPTForConditionalGeneration
from crossdraft_lab.scenes import KINDS, ask, make_scene, wordings
from crossdraft_lab.scenes.captions import CAPTIONS
from crossdraft_lab.train.core.provenance import sha256
from crossdraft_lab.train.reference import batches, losses
from crossdraft_lab.train.reference.answers import ClipAnswer
from crossdraft_lab.train.reference.batches import QAPair
from crossdraft_lab.train.reference.clips import clip_seed
from crossdraft_lab.train.reference.foreign import hidden_draft
from crossdraft_lab.train.reference.models import build_drafter
from crossdraft_lab.train.reference.recipe import load_recipe
from crossdraft_lab.train.reference.run import ReferenceRun, load_vision_encoder
from crossdraft_lab.train.reference.stages import run_stages
from crossdraft_lab.train.reference.tokenizer import EVENT, PromptCodec, load_tokenizer

MICRO = Path(__file__).parent / "micro.yaml"
BEFORE = ("tokenizer", "cache", "target-sight", "target", "event-sight")


@pytest.fixture(scope="module")
def learned() -> list[QAPair]:
    """Everything that the stage's steps learned from."""
    return []


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, learned: list[QAPair]) -> ReferenceRun:
    run = ReferenceRun(load_recipe(MICRO), tmp_path_factory.mktemp("run"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crossdraft_lab.train.reference.clips.CHUNK", 2)  # a micro run renders no more than it looks at
        run_stages(run, BEFORE)
        packed = batches.pack_pairs
        patch.setattr(losses, "pack_pairs", lambda codec, pairs: learned.extend(pairs) or packed(codec, pairs))
        run_stages(run, ["foreign"])
    return run


def test_the_stage_leaves_a_folder_that_can_ship(finished: ReferenceRun) -> None:
    folder = finished.out / "foreign" / "model"
    model, tokenizer = EventGPTForConditionalGeneration.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert len(tokenizer) == 512
    record = json.loads((folder / "provenance.json").read_text())
    data, measured = record["data"], record["figures"]["evaluation"]
    assert data["weights_sha256"] == sha256(folder / "model.safetensors")
    assert data["vision_encoder"] == "the stage event-sight's"
    assert data["vision_encoder_sha256"] == sha256(finished.out / "event" / "sight.ckpt")
    assert data["measured_against_target"] == finished.weights_sha256("target")
    assert data["clips"] == 4
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlicense: apache-2.0")
    for wordings_of in ("train_wordings", "held_out_wordings"):
        assert f"{measured[wordings_of]['first_token']:.1%}" in card
        assert f"{measured[wordings_of]['hidden_prefix']:.2f} tokens" in card
        found = measured[wordings_of]  # a round ends at a wrong token: there are as many as those, or more
        assert 1 <= found["tau_8"] <= found["tau_16"] <= 1 / (1 - found["top1"]) + 1e-3


def test_it_sees_as_the_event_drafter_and_speaks_from_weights_of_its_own(finished: ReferenceRun) -> None:
    model = EventGPTForConditionalGeneration.from_pretrained(finished.out / "foreign" / "model")
    ours, fresh = model.state_dict(), build_drafter(finished.recipe, finished.tokenizer)
    load_vision_encoder(fresh.model.vision_tower, finished.sight("event"))
    for name, value in fresh.state_dict().items():
        same = torch.equal(value.to(torch.bfloat16), ours[name])
        drawn = not name.endswith((".bias", "norm.weight", "layernorm.weight"))
        assert same if "vision_tower" in name else not (same and drawn), name


def test_it_may_draft_what_captions_are_made_of(finished: ReferenceRun) -> None:
    folder = finished.out / "foreign" / "model"
    codec = PromptCodec(load_tokenizer(folder), EVENT)
    ids = set(json.loads((folder / "draft_ids.json").read_text()))
    assert codec.eos_id in ids
    assert len(ids) < 512
    stated = ask(make_scene(0), "count", 0, answers=CAPTIONS).answer
    assert set(codec.answer_ids(stated)) <= ids


def test_what_is_learned_are_captions_and_no_answers(finished: ReferenceRun, learned: list[QAPair]) -> None:
    scenes = [make_scene(clip_seed("train", clip)) for clip in range(4)]
    every = [(scene, kind, index) for scene in scenes for kind in KINDS for index in range(len(wordings(kind)))]
    captions = {ask(*which, answers=CAPTIONS).answer for which in every}
    assert len(learned) == 4 * 2 * 2  # steps, clips, questions
    assert {pair.answer for pair in learned} <= captions
    assert not {pair.answer for pair in learned} & {ask(*which).answer for which in every}


def test_accepted_of_a_hidden_draft_worked_by_hand() -> None:
    codec = PromptCodec(load_tokenizer(shipped_at("event")), EVENT)

    def answered(*texts: str) -> list[ClipAnswer]:
        return [ClipAnswer(0, "count", "How many?", text, True) for text in texts]

    theirs = answered("There are no people here.", "We can see a red light.")
    one, two = (len(codec.answer_ids(answer.answer)) for answer in theirs)
    assert hidden_draft(codec, theirs, theirs) == {"first_token": 1.0, "hidden_prefix": (one + two) / 2}
    other = answered("In the scene, there is nothing.", "We see a red light.")
    assert hidden_draft(codec, other, theirs) == {"first_token": 0.5, "hidden_prefix": 0.5}


def test_a_run_without_a_sight_stage_takes_the_shipped_vision_encoder(tmp_path: Path) -> None:
    run = ReferenceRun(load_recipe(), tmp_path)
    assert run.sight("foreign") == shipped_at("event") / "model.safetensors"
    with pytest.raises(CrossdraftError, match="run the stage 'event-sight' first"):
        run.sight("event")
    tower = build_drafter(run.recipe, load_tokenizer(shipped_at("event"))).model.vision_tower
    load_vision_encoder(tower, run.sight("foreign"))
    shipped = load_file(run.sight("foreign"))
    for name, value in tower.state_dict().items():
        assert np.array_equal(value.numpy(), shipped[f"model.vision_tower.{name}"].float().numpy()), name


def test_a_vision_encoder_of_another_shape_is_refused(finished: ReferenceRun) -> None:
    tower = build_drafter(finished.recipe, finished.tokenizer).model.vision_tower
    with pytest.raises(CrossdraftError, match="is of another network than the recipe's"):
        load_vision_encoder(tower, shipped_at("event") / "model.safetensors")


def test_without_a_target_of_this_vocabulary_nothing_is_trained(tmp_path: Path) -> None:
    run = ReferenceRun(load_recipe(MICRO), tmp_path)
    run_stages(run, ["tokenizer"])
    with pytest.raises(CrossdraftError, match="run the stage 'target' first"):
        run_stages(run, ["foreign"])
    assert not (tmp_path / "foreign").exists()
