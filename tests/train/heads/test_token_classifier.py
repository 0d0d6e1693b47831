"""A judge: its labels, its fit, and that it may be read from logits."""

from dataclasses import replace

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.load import target_fingerprint
from crossdraft_lab import scenes
from crossdraft_lab.rules.classifier import FILE, Classifier, read_classifier
from crossdraft_lab.train.heads import token_classifier
from crossdraft_lab.train.heads.token_classifier import (
    ClassifierRecipe,
    FittedClassifier,
    Labelled,
    as_logit_row,
    auc,
    fit,
    label_tokens,
    measure,
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
    known, new = (
        Labelled(features[:480], labels[:480], clips[:480]),
        Labelled(features[480:], labels[480:], clips[480:]),
    )
    found = fit(known, 60)
    assert measure(found, new)["auc"] > 0.97
    assert ((found.scores(features) > 0) == labels).float().mean() > 0.95
    noise = torch.rand(600, generator=generator) > 0.5
    assert (
        0.35 < measure(fit(replace(known, harmless=noise[:480]), 60), replace(new, harmless=noise[480:]))["auc"] < 0.65
    )


def test_figures_by_hand():
    """Scores 2, 1, -1, -1; harmless the first and the third: of four pairs 2 > 1, 2 > -1, -1 < 1, -1 = -1."""
    fitted = FittedClassifier(torch.tensor([1.0]).double(), 0.0, {})
    left_out = Labelled(
        torch.tensor([[2.0], [1.0], [-1.0], [-1.0]]), torch.tensor([True, False, True, False]), torch.zeros(4)
    )
    assert measure(fitted, left_out) == {
        "held_out_tokens": 4.0,
        "auc": 0.625,
        "held_out_harmless": 0.5,
        "right": 0.5,
        "harmful_kept": 0.5,
        "harmless_kept": 0.5,
    }


def test_scenes_that_decide_on_the_penalty_are_not_fitted_on(monkeypatch):
    """Whatever they hold: of one penalty, neither the weights nor the scale of the features know of them."""
    generator = torch.Generator().manual_seed(2)
    features, clips = torch.randn(200, 4, generator=generator), torch.arange(200) // 10
    known = Labelled(features, features[:, 0] > 0, clips)
    decide = clips >= 16
    turned = fit(Labelled(features * torch.where(decide, 50.0, 1.0)[:, None], known.harmless ^ decide, clips), 16)
    monkeypatch.setattr(token_classifier, "STRENGTHS", (turned.figures["penalty"],))
    alone = fit(known, 16)
    assert torch.allclose(turned.weight, alone.weight, atol=1e-9)
    assert turned.bias == pytest.approx(alone.bias)


def test_no_scene_is_in_two_splits():
    recipe = ClassifierRecipe(clips=11)
    fitted, decides = range(recipe.decides), range(recipe.decides, recipe.training.count)
    assert (len(fitted), len(decides), recipe.reported.count) == (9, 2, 2)
    train, test = (scenes.split_seeds(part.split)[: part.count] for part in (recipe.training, recipe.reported))
    assert set(train).isdisjoint(test)
    assert recipe.reported.held_out
    assert not recipe.training.held_out


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
    found = label_tokens(recipe, recipe.training)
    assert len(found.features) == len(found.harmless) == len(found.clips) > 3
    assert found.features.shape[1] == 320
    assert set(found.clips.tolist()) <= set(range(5))
    again = label_tokens(recipe, recipe.training)
    assert torch.equal(again.harmless, found.harmless)
    figures = train_classifier(recipe, tmp_path)
    assert figures["tokens"] == len(found.harmless)
    new = label_tokens(recipe, recipe.reported)
    assert figures["held_out_tokens"] == len(new.harmless)
    assert not any(torch.equal(one, other) for one in new.features for other in found.features)
    assert read_classifier(str(tmp_path)).target == target_fingerprint("reference")
    chances = Classifier(0.5, str(tmp_path)).chances(torch.zeros(1, 4096))
    assert 0 <= chances.item() <= 1
    assert scenes.split_seeds("train")[0] == 0
