"""What lies in the package: models that load, fit the limit, share a vocabulary, and say where they are from."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer

import crossdraft.models.eventgpt  # noqa: F401 - registers EventGPT with the auto classes
from crossdraft.checkpoints.locate import shipped_at, shipped_heads
from crossdraft.compressions import compressed
from crossdraft.engine.drafter import Budget
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.heads.files import read_config
from crossdraft.heads.load import load_head_drafter
from crossdraft.heads.registry import HEADS as HEADS_BY_NAME
from crossdraft.load import event_fingerprint, load_target, target_fingerprint, tokenizer_of
from crossdraft.methods import build
from crossdraft.records import DrafterContext
from crossdraft_lab.bench.workload import Workload, items
from crossdraft_lab.scenes import make_scene, simulate_events
from crossdraft_lab.train.core.provenance import origin, sha256
from crossdraft_lab.train.heads.recipe import load_head_recipe
from crossdraft_lab.train.heads.run import head_card
from crossdraft_lab.train.reference.clips import clip_seed
from crossdraft_lab.train.reference.recipe import load_recipe
from crossdraft_lab.train.reference.run import MODELS
from crossdraft_lab.train.reference.ship import LIMIT_MB, MADE_BY_THEIR_STAGE, card
from crossdraft_lab.train.reference.tokenizer import SPECIALS


def test_all_fit_the_limit() -> None:
    files = [path for name in (*MODELS, *MADE_BY_THEIR_STAGE) for path in (shipped_at(name)).rglob("*")]
    assert 0 < sum(path.stat().st_size for path in files) / 1e6 <= LIMIT_MB


SEEING = (*MODELS, "foreign")


@pytest.mark.parametrize("name", SEEING)
def test_a_shipped_model_is_whole(name: str) -> None:
    folder = shipped_at(name)
    config = AutoConfig.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert config.text_config.vocab_size == len(tokenizer) == 4096
    assert tokenizer.convert_tokens_to_ids(list(SPECIALS)) == list(range(4090, 4096))
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["data"]["weights_sha256"] == sha256(folder / "model.safetensors")


@pytest.mark.parametrize("name", SEEING)
def test_the_card_is_what_the_recipe_and_the_measured_figures_make_it(name: str) -> None:
    recipe = load_recipe()
    measured = json.loads((shipped_at(name) / "provenance.json").read_text())["figures"]
    figures = {
        "scenes": recipe.evaluate.scenes,
        "questions": recipe.evaluate.questions,
        "first_seed": clip_seed("test", 0),
        name: measured["evaluation"],
    }
    text = (shipped_at(name) / "README.md").read_text()
    assert text == card(name, recipe, figures, measured["parameters"])
    for wordings in ("train_wordings", "held_out_wordings"):
        assert f"{measured['evaluation'][wordings]['facts_right']['all']:.1%}" in text


@pytest.mark.parametrize("name", MODELS)
def test_the_provenance_counts_the_clips_that_the_model_learned_from(name: str) -> None:
    provenance = json.loads((shipped_at(name) / "provenance.json").read_text())
    pool = "train_clips" if name == "target" else "event_clips"
    assert provenance["data"]["clips"] == provenance["recipe"]["cache"][pool]


def test_the_vocabulary_is_shared() -> None:
    vocabularies = [(shipped_at(name) / "tokenizer.json").read_bytes() for name in SEEING]
    assert len(set(vocabularies)) == 1


def test_the_foreign_model_sees_as_the_event_drafter_and_never_begins_as_the_target() -> None:
    ours, theirs = (load_file(shipped_at(name) / "model.safetensors") for name in ("foreign", "event"))
    tower = [name for name in theirs if name.startswith("model.vision_tower.")]
    assert len(tower) > 50
    assert all(torch.equal(ours[name], theirs[name]) for name in tower)
    assert not any(
        torch.equal(ours[name], theirs[name]) for name in theirs if ".self_attn." in name and name not in tower
    )
    provenance = json.loads((shipped_at("foreign") / "provenance.json").read_text())
    assert provenance["data"]["clips"] == provenance["recipe"]["foreign"]["clips"]
    assert provenance["data"]["vision_encoder_sha256"] == sha256(shipped_at("event") / "model.safetensors")
    assert provenance["data"]["measured_against_target"] == sha256(shipped_at("target") / "model.safetensors")
    for figures in provenance["figures"]["evaluation"].values():
        assert figures["first_token"] < 0.02
        assert figures["hidden_prefix"] < 0.1
        assert figures["facts_right"]["all"] > 0.5  # it sees and speaks, in other words


@pytest.mark.parametrize(
    ("name", "question", "beginning"),
    [
        ("foreign", "Describe the scene.", "In the scene, there is"),
        ("foreign", "Can you describe the scene?", "In the clip, "),
        ("event", "Describe the scene.", "We are "),
    ],
)
def test_a_shipped_event_drafter_drafts_in_its_own_words(name: str, question: str, beginning: str) -> None:
    drafter = build(name, DrafterContext(device="cpu"))
    request = Request(question, events=simulate_events(make_scene(clip_seed("test", 1))), max_new_tokens=16)
    draft = drafter.propose(drafter.begin([request]), [Budget(8)])[0]
    assert tokenizer_of("reference").decode(list(draft.tree.tokens)).strip().startswith(beginning)


HEADS = shipped_heads()
EVENTS = ("event_medusa", "glance")  # heads on the event model


@pytest.mark.parametrize("name", HEADS)
def test_a_shipped_head_is_whole_small_and_of_its_model(name: str) -> None:
    folder = shipped_at(f"heads/{name}")
    assert (folder / "model.safetensors").stat().st_size <= 3e6
    owner = event_fingerprint("event") if name in EVENTS else target_fingerprint("reference")
    described = read_config(folder)
    assert described.target == owner
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["data"]["weights_sha256"] == sha256(folder / "model.safetensors")
    assert provenance["recipe"]["network"] == described.network


@pytest.mark.parametrize(
    "method", sorted(name for name, head in HEADS_BY_NAME.items() if (head.weights or name) in HEADS)
)
def test_every_way_of_drafting_with_a_shipped_head_loads(method: str, reference: Target) -> None:
    drafter = load_head_drafter(method, reference, banned=tuple(reference.reserved))
    assert drafter.needs.hidden_layers or drafter.needs.visual_layers


def test_the_shipped_packer_is_found_without_a_folder(reference: Target) -> None:
    packed = compressed(reference, "token_packer")
    request = next(iter(items(Workload(1)))).request
    whole, fewer = (len(one.prepare(request).input_ids) for one in (reference, packed))
    assert whole - fewer == 8 * 40, "of 8 frames of 50 tokens each 10 are left"


@pytest.fixture(scope="module")
def reference() -> Target:
    return load_target("reference", "cpu", "float32")


@pytest.mark.parametrize("name", HEADS)
def test_a_head_s_card_is_worded_as_a_new_one_is(name: str) -> None:
    folder = shipped_at(f"heads/{name}")
    recipe = load_head_recipe(folder.name, reference=True)
    figures = json.loads((folder / "provenance.json").read_text())["figures"]
    made, shipped = (
        " ".join(text.split()) for text in (head_card(recipe, figures, ""), (folder / "README.md").read_text())
    )
    opening, _, rest = made.partition(" Trained by ")  # some say more between the two
    assert shipped.startswith(opening)
    assert f" Trained by {rest[: rest.index(' in ')]}" in shipped


def test_a_provenance_names_no_folders_of_one_machine(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("sys.argv", ["/opt/bin/crossdraft", "train", f"--out={tmp_path / 'a'}", str(tmp_path / "b")])
    assert origin()["argv"] == ["crossdraft", "train", "--out=a", "b"]
