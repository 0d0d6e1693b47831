"""docs/adding_a_head.md: its network, record and recipe, and nothing else, make a head that trains and drafts."""

import re
from pathlib import Path

import pytest

import crossdraft as cd
from crossdraft import methods
from crossdraft.heads import networks
from crossdraft.heads.drafting import method_of_head
from crossdraft.heads.files import read_config
from crossdraft.heads.registry import HEADS, NETWORKS, HeadRecord
from crossdraft_lab.train.heads.recipe import load_head_recipe
from crossdraft_lab.train.heads.run import train_recipe

PAGE = (Path(__file__).parents[2] / "docs" / "adding_a_head.md").read_text(encoding="utf-8")
SMALL = ("optim.steps=2", "optim.warmup_steps=0", "optim.clips=4", "optim.checkpoint_every=2")


def block(language: str, having: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return next(code for code in found if having in code)


@pytest.fixture
def record(tmp_path, monkeypatch, no_drafters_registered) -> HeadRecord:
    """The page's record in the table, and its network in a file where the record says."""
    (tmp_path / "gated.py").write_text(block("python", "class Gated"))
    monkeypatch.setattr(networks, "__path__", [*networks.__path__, str(tmp_path)])
    names: dict[str, HeadRecord] = {}
    exec(block("python", "HeadRecord("), names)
    record = names["record"]
    monkeypatch.setitem(HEADS, "gated", record)
    monkeypatch.setitem(NETWORKS, "gated", record)
    methods.register(method_of_head("gated", record))  # what `heads.drafting` does with every record of `HEADS`
    return record


def test_one_file_one_record_and_one_recipe_make_a_head(record, pair, clip, tmp_path):
    recipe = tmp_path / "gated.yaml"
    recipe.write_text(block("yaml", "network: gated"))
    train_recipe(load_head_recipe(recipe, SMALL), tmp_path / "out", str(pair.target), "cpu", online=1)
    head = tmp_path / "out" / "head"
    assert read_config(head).network == record.network == "gated"
    request = cd.Request(video=str(clip.video), prompt="What is ahead?", max_new_tokens=12)
    with cd.Engine.load(str(pair.target), f"gated:dir={head}", cd.Options(adaptive=False)) as engine:
        answer = engine.generate(request)
    with cd.Engine.load(str(pair.target), drafter=None) as engine:
        alone = engine.generate(request)
    assert answer.tokens == alone.tokens
    assert answer.stats.drafted
    assert not answer.other_notes
