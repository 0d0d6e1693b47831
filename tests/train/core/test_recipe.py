"""The recipe refuses what it does not know, and says what was probably meant; learning rates, step by step."""

import math
import re
from pathlib import Path

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.core import recipe as recipe_module
from crossdraft_lab.train.core.recipe import Optim, learning_rate
from crossdraft_lab.train.reference.recipe import REFERENCE_RECIPE, load_recipe


def test_the_shipped_recipe_is_valid_and_overrides_reach_it() -> None:
    assert load_recipe().target.train[0].questions > 0
    changed = load_recipe(overrides=["target.train.0.questions=3", "drafter.train.0.optim.learning_rate=1.0e-4"])
    assert (changed.target.train[0].questions, changed.drafter.train[0].optim.learning_rate) == (3, 1.0e-4)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            "target.train.0.question=3",
            "unknown key 'target.train.0.question'; did you mean 'target.train.0.questions'?",
        ),
        (
            "target.train.1.freeze_tower=true",
            "freeze_tower is the earlier name of freeze_vision_encoder; give the latter alone",
        ),
        ("tresads=1", "unknown key 'tresads'; did you mean 'threads'?"),
        ("steps=9", "unknown key 'steps'; did you mean 'target.sight.optim.steps'?"),
        ("learning_rte=9", "unknown key 'learning_rte'; did you mean 'target.sight.optim.learning_rate'?"),
        ("drafter.stesp=9", "unknown key 'drafter.stesp'; did you mean 'drafter.sight.optim.steps'?"),
        ("drafter.question=9", "unknown key 'drafter.question'; did you mean 'drafter.train.0.questions'?"),
        ("optim.steps=9", "unknown key 'optim'; did you mean 'target.sight.optim'?"),
        ("xyzzy=9", "unknown key 'xyzzy'; known keys are seed, threads,"),
        ("target.train.0.optim.steps=many", "'target.train.0.optim.steps'"),
        ("target.train.0.optim.steps=0", "greater than 0"),
        ("target.sight.optim.schedule=cosin", "'wsd', 'cosine', 'linear' or 'constant'"),
        ("target.sight.optim.patience=2", "patience needs a figure to watch; set watch"),
        ("target.train.9.questions=1", "by its number, 0 to"),
        ("target.train.questions=1", "for example target.train.0.questions=…"),
        ("target.train.0=1", "for example target.train.0.questions=…"),
        ("seed=[", "The value of the override 'seed=[' is not YAML"),
        ("seed=2020-13-45", "is not YAML: month must be in 1..12"),
        ("seed.value=1", "which is no section"),
        ("seed", "must read key=value, for example target.sight.optim.steps=1200."),
    ],
)
def test_a_wrong_override_is_one_sentence(override: str, sentence: str) -> None:
    with pytest.raises(CrossdraftError, match=r"\S") as caught:
        load_recipe(overrides=[override])
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_override_that_the_schema_shows_is_accepted() -> None:
    shown = re.findall(r"`([\w.]+=\d+)`", recipe_module.__doc__ or "")
    assert len(shown) == 1
    assert load_recipe(overrides=shown).target.train[0].optim.steps == 100


def test_what_the_reference_pair_does_not_ask_for_is_off() -> None:
    """Its losses are those of a plain loop."""
    optim = load_recipe().target.sight.optim
    off = (optim.accumulate, optim.bf16, optim.ema, optim.watch, optim.patience, optim.final, optim.beta1)
    assert (optim.schedule, *off) == ("wsd", 1, False, 0.0, None, 0, 0.0, 0.9)


def test_keys_of_earlier_recipes_are_read(tmp_path: Path) -> None:
    path, now = tmp_path / "recipe.yaml", REFERENCE_RECIPE.read_text()
    earlier = now.replace("word_dropout", "question_wear").replace("freeze_vision_encoder", "freeze_tower")
    assert earlier != now
    path.write_text(earlier)
    assert load_recipe(path) == load_recipe()


def test_an_unknown_key_in_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(REFERENCE_RECIPE.read_text() + "\nevaluat: {scenes: 1, questions: 1}\n")
    with pytest.raises(CrossdraftError, match="did you mean 'evaluate'"):
        load_recipe(path)


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CrossdraftError, match="Cannot read the recipe"):
        load_recipe(tmp_path / "none.yaml")
    (tmp_path / "broken.yaml").write_text("a: [")
    with pytest.raises(CrossdraftError, match="is not YAML"):
        load_recipe(tmp_path / "broken.yaml")
    (tmp_path / "latin.yaml").write_bytes("seed: 0 # für alle".encode("latin-1"))
    with pytest.raises(CrossdraftError, match=r"is not UTF-8 \(byte 11\)"):
        load_recipe(tmp_path / "latin.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(CrossdraftError, match="mapping of sections"):
        load_recipe(tmp_path / "list.yaml")


def test_a_shipped_recipe_is_named_without_the_folders_of_one_machine():
    with pytest.raises(CrossdraftError, match=r"^The recipe reference\.yaml: unknown key 'target\.foo'"):
        load_recipe(REFERENCE_RECIPE, ["target.foo=3"])


def rates(*steps: int, **settings: object) -> list[float]:
    given = {"steps": 10, "warmup_steps": 2, "learning_rate": 0.5, "clips": 1}
    optim = Optim.model_validate(given | settings)
    return [learning_rate(optim, step) for step in steps]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"schedule": "wsd", "decay_steps": 4}, [0.25, 0.5, 0.5, 0.25, 0.125, 0.0]),
        ({"schedule": "wsd"}, [0.25, 0.5, 0.5, 0.5, 0.5, 0.5]),
        ({"schedule": "constant", "decay_steps": 4}, [0.25, 0.5, 0.5, 0.5, 0.5, 0.5]),
        ({"schedule": "linear"}, [0.25, 0.45, 0.25, 0.1, 0.05, 0.0]),
        ({"schedule": "linear", "final": 0.5}, [0.25, 0.475, 0.375, 0.3, 0.275, 0.25]),
        ({"schedule": "wsd", "decay_steps": 4, "final": 0.5}, [0.25, 0.5, 0.5, 0.375, 0.3125, 0.25]),
    ],
)
def test_rates_by_hand(settings, expected):
    assert rates(0, 1, 5, 8, 9, 10, **settings) == pytest.approx(expected)


def test_a_cosine_is_half_a_wave():
    expected = [0.25, 0.25 * (1 + math.cos(math.pi / 4)), 0.25, 0.0]
    assert rates(0, 2, 4, 8, schedule="cosine", steps=8) == pytest.approx([0.25, expected[1], 0.25, 0.0])
    assert rates(10, schedule="cosine", final=0.33) == pytest.approx([0.165])  # Hydra++'s end


def test_without_warm_up_the_first_step_has_the_whole_rate():
    assert rates(0, warmup_steps=0) == [0.5]
