"""A checkpoint of another training is not gone on from, nor are its weights taken for this one's."""

from pathlib import Path

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.train.core.identity import plain, require_same
from crossdraft.train.core.loop import optimise
from crossdraft.train.core.share import whole
from crossdraft.train.core.stage import Stage
from tests.train.core.learner import fresh, settings

OURS = {"network": "eagle", "target": "ab" * 32, "config": {"heads": 2, "ids": (3, 4)}, "seed": 0}


def run(folder: Path, identity, steps: int = 2) -> None:
    head = fresh()
    loss_of = whole(lambda step: (head.mix(torch.ones(1, 12)).square().sum(), {}))
    optimise(Stage(folder, "train", settings(steps=steps), identity), head, loss_of)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"network": "eagle3"}, "its network is eagle, not eagle3; choose another --out, or delete it."),
        ({"target": "cd" * 32}, "its target is abababababab…, not cdcdcdcdcdcd…"),
        ({"config": {"heads": 4, "ids": (3,)}, "seed": 1}, "its config.heads is 2, not 4"),
        ({"config": {"heads": 2, "ids": (3, 5)}}, r"its config.ids is \[3, 4\], not \[3, 5\]"),
        ({"config": {"heads": 2, "ids": (3, 4), "kv": 1}}, "its config.kv is left out, not 1"),
        ({"config": {"heads": 2}}, r"its config.ids is \[3, 4\], not left out"),
    ],
)
@pytest.mark.parametrize("steps", [2, 4])
def test_the_first_setting_that_differs_is_named(tmp_path, change, sentence, steps):
    run(tmp_path, OURS)
    before = (tmp_path / "train.ckpt").read_bytes()
    with pytest.raises(CrossdraftError, match=rf"train\.ckpt is of another training: {sentence}"):
        run(tmp_path, OURS | change, steps)
    assert (tmp_path / "train.ckpt").read_bytes() == before


def test_the_same_training_goes_on(tmp_path):
    run(tmp_path, OURS)
    run(tmp_path, OURS, 4)
    assert len((tmp_path / "train.log.jsonl").read_text().splitlines()) == 4


def test_a_checkpoint_without_is_believed_and_a_stage_without_asks_nothing(tmp_path):
    run(tmp_path, None)
    run(tmp_path, OURS, 4)
    with pytest.raises(CrossdraftError, match="its seed is 0, not 1"):  # from here on it is known whose it is
        run(tmp_path, OURS | {"seed": 1}, 6)
    run(tmp_path, None, 6)


def test_an_identity_is_compared_as_a_checkpoint_gives_it_back():
    assert plain(OURS)["config"] == {"heads": 2, "ids": [3, 4]}
    require_same(plain(OURS), OURS, Path("x"))
