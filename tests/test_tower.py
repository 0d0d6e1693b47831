"""The eyes of a target alone."""

import torch

from crossdraft.load import load_target, load_tower


def weights(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_of_a_tower_nothing_is_moved_but_the_tower(pair, monkeypatch):
    """A drafter's own, small GPU need not hold the whole target for a moment."""
    whole = weights(load_target(str(pair.target), "cpu", packed=False).model)
    moved, move = [], torch.nn.Module.to

    def noted(self, *arguments, **settings):
        moved.append(weights(self))
        return move(self, *arguments, **settings)

    monkeypatch.setattr(torch.nn.Module, "to", noted)
    tower = load_tower(str(pair.target), "cpu", packed=False)
    assert max(moved) == weights(tower.model) < whole
