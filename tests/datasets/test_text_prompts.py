"""Instructions from templates: the parts share neither templates nor fillings, and a seed is a seed."""

import json
from pathlib import Path

import pytest
import yaml

from crossdraft.cli.main import main
from crossdraft.errors import CrossdraftError
from crossdraft.load import text_folder
from crossdraft_lab.datasets import text_prompts
from crossdraft_lab.datasets.text_prompts import SLOT, instructions


def test_parts_are_drawn_from_templates_and_fillings_of_their_own():
    read = yaml.safe_load(Path(text_prompts.__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    lists = {**read["kinds"], **read["slots"]}
    assert all(len(one) >= 5 and len(set(one)) == len(one) for one in lists.values())
    entries = [entry for one in lists.values() for entry in one]
    assert {slot[1] for entry in entries for slot in SLOT.finditer(entry)} == read["slots"].keys()
    held = {part: text_prompts._held(part) for part in text_prompts.PARTS}
    drawn = {part: {line["prompt"] for line in instructions(part, 60)} for part in held}
    for part, other in (("train", "test"), ("train", "validation"), ("test", "validation")):
        assert not drawn[part] & drawn[other]
        for mine, theirs in zip(held[part], held[other], strict=True):
            assert not any(set(mine[name]) & set(theirs[name]) for name in mine)


def test_a_seed_a_share_and_what_is_to_be_avoided(monkeypatch):
    first, again = (instructions("train", 60, seed=3, sampled=0.5, temperature=0.6) for _ in range(2))
    prompts = {one["prompt"] for one in first}
    assert (again, len(prompts), len({one["kind"] for one in first[:9]})) == (first, 60, 9)
    assert 15 < sum(one.get("temperature") == 0.6 for one in first) < 45
    assert {one["prompt"] for one in instructions("train", 60, seed=4)} != prompts
    others = instructions("train", 60, seed=3, avoid=[prompt.upper() for prompt in prompts])
    assert not {one["prompt"] for one in others} & prompts
    for wrong in (("exam", 1), ("test", 0), ("test", 1, -1), ("test", 1, 0, 2.0), ("test", 1, 0, 0.0, 0.0)):
        with pytest.raises(CrossdraftError, match="Instructions are for"):
            instructions(*wrong)
    few = {"a": ["x {n:1} {n:2}"], "b": ["y"]}, {"n": ["1", "2"]}
    monkeypatch.setattr(text_prompts, "_held", lambda part: few)
    assert sorted(one["prompt"] for one in instructions("train", 3)) == ["x 1 2", "x 2 1", "y"]
    with pytest.raises(CrossdraftError, match="give no more than 3 train prompts"):
        instructions("train", 4)


SMALL = "optim.steps=2 optim.decay_steps=0 optim.clips=4 optim.accumulate=2 config.steps=2 measure.pairs=0 threads=1"


@pytest.mark.slow
def test_from_instructions_to_a_head_that_is_measured_on_others(tmp_path, capsys):
    """The sequence of docs/heads.md, with a text target."""
    target = ["--target", str(text_folder("text")), "--device=cpu", "--json"]
    for part, count in (("train", 8), ("validation", 3), ("test", 2)):
        listed = tmp_path / f"{part}.jsonl"
        sampled = "--sampled=0.5" if part == "train" else "--sampled=0"
        assert main(["data", "instructions", str(listed), f"--split={part}", f"--count={count}", sampled]) == 0
        sizes = [f"--list={listed}", "--max-new-tokens=8", "--dtype=float32"]
        assert part == "test" or main(["capture", str(tmp_path / part), *sizes, *target]) == 0
    assert main(["capture", str(tmp_path / "train"), "--check", *target[:3]]) == 0
    assert "8 random answers recomputed" in capsys.readouterr().out
    train = ["train", "eagle3", f"--capture={tmp_path / 'train'}", f"--out={tmp_path / 'run'}", *target]
    assert main([*train, f"--validation={tmp_path / 'train'}", *SMALL.split()]) == 2  # of one capture
    assert main([*train, f"--validation={tmp_path / 'validation'}", *SMALL.split(), "vocabulary.most=20"]) == 0
    head, out = tmp_path / "run" / "head", tmp_path / "heads.json"
    assert len(json.loads((head / "config.json").read_text())["config"]["draft_ids"]) <= 20
    asked = [f"--prompts={tmp_path / 'test.jsonl'}", f"--drafter=eagle3:dir={head}", f"--json-out={out}"]
    sizes = ["--max-new-tokens=8", "--nodes=8", "--chain=3", "--temperatures=0,0.7", "--timed=0", "--dtype=float32"]
    assert main(["bench", "heads", *asked, *target, *sizes]) == 0
    (row,) = json.loads(out.read_text())["drafters"]
    assert [one["temperature"] for one in row["accepted"]] == [0.0, 0.0, 0.7]
    assert row["identical"] == {"equal": 4, "total": 4}
