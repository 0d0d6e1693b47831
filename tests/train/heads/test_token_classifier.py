"""A judge: its labels, its fit, and that it may be read from logits."""

import pytest
import torch

from crossdraft import scenes
from crossdraft.engine.rules.classifier import FILE, Classifier
from crossdraft.errors import CrossdraftError
from crossdraft.train.heads.token_classifier import (
    ClassifierRecipe,
    Labelled,
    as_logit_row,
    auc,
    fit,
    label_tokens,
    train_classifier,
)


def test_a_row_of_logits_says_what_a_row_of_features_says():
    generator = torch.Generator().manual_seed(0)
    head, weight, features = (torch.randn(*size, generator=generator) for size in ((90, 12), (12,), (7, 12)))
    logits = features.double() @ head.double().T
    assert torch.allclose(logits @ as_logit_row(head, weight), features.double() @ weight.double(), atol=1e-10)


def test_auc_by_hand():
    """Harmless 3, 1; harmful 2, 1: of four pairs 3 > 2, 3 > 1, 1 < 2, 1 = 1: 2.5 of 4."""
    assert auc(torch.tensor([3.0, 1.0, 2.0, 1.0]), torch.tensor([True, True, False, False])) == 0.625
    assert auc(torch.tensor([1.0]), torch.tensor([True])) == 0.5


def test_a_linear_rule_is_found_and_noise_is_not():
    generator = torch.Generator().manual_seed(1)
    features = 3 + 2 * torch.randn(600, 8, generator=generator)
    clips = torch.arange(600) // 6
    labels = features[:, 2] - features[:, 5] > 0.3
    found = fit(Labelled(features, labels, clips), 80)
    assert found.figures["auc"] > 0.97
    assert (((features @ found.weight.float() + found.bias) > 0) == labels).float().mean() > 0.95
    noise = torch.rand(600, generator=generator) > 0.5
    assert 0.35 < fit(Labelled(features, noise, clips), 80).figures["auc"] < 0.65


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"clips": 4}, "from 5 to [0-9]+ scenes, a fifth of which decides"),
        ({"clips": 10**9}, "not from 1000000000"),
        ({"questions": 0}, "number of questions is 0"),
        ({"seed": -1}, "seed .--seed. is -1"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(settings, part):
    with pytest.raises(CrossdraftError, match=part):
        ClassifierRecipe(**settings)


def test_a_classifier_that_is_there_is_not_replaced(tmp_path):
    (tmp_path / FILE).write_bytes(b"mine")
    with pytest.raises(CrossdraftError, match="holds a judge already"):
        train_classifier(ClassifierRecipe(), tmp_path)
    with pytest.raises(CrossdraftError, match="is a file"):
        train_classifier(ClassifierRecipe(), tmp_path / FILE)
    assert (tmp_path / FILE).read_bytes() == b"mine"


@pytest.mark.slow
def test_one_is_trained_on_a_few_scenes(tmp_path):
    recipe = ClassifierRecipe(clips=5, questions=2, batch=3)
    found = label_tokens(recipe)
    assert len(found.features) == len(found.harmless) == len(found.clips) > 3
    assert found.features.shape[1] == 320
    assert set(found.clips.tolist()) <= set(range(5))
    again = label_tokens(recipe)
    assert torch.equal(again.harmless, found.harmless)
    train_classifier(recipe, tmp_path)
    chances = Classifier(0.5, str(tmp_path)).chances(torch.zeros(1, 4096))
    assert 0 <= chances.item() <= 1
    assert scenes.split_seeds("train")[0] == 0
