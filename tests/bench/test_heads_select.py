"""Which drafters are measured, and what is known of their weights."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from crossdraft.checkpoints.locate import shipped_at
from crossdraft.errors import CrossdraftError
from crossdraft.specs import Spec, parse
from crossdraft_lab.bench import heads_select
from crossdraft_lab.bench.heads_select import TRAINED, as_chain, is_here, select_heads, short_labels, weight_facts


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A folder for shipped heads where EAGLE's and Hydra's lie."""
    for name in ("eagle", "hydra"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    monkeypatch.setattr(heads_select, "shipped_at", lambda name: tmp_path / Path(name).name)
    return tmp_path


def weights(folder: Path, **more: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"a": torch.zeros(3, 5, dtype=torch.bfloat16), "b": torch.zeros(2)}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    if more:
        (folder / "provenance.json").write_text(json.dumps(more))
    return folder


def test_without_names_everything_that_is_here(shipped):
    drafters, (note,) = select_heads(None)
    assert list(drafters) == ["eagle1", "eagle2", "hydra"]  # two methods share EAGLE's weights
    assert "not shipped" in note
    assert all(name in note for name in TRAINED if name not in drafters)


def test_a_spec_alone_is_measured_alone_and_with_methods_together_with_them(shipped, tmp_path):
    mine = f"eagle3:dir={weights(tmp_path / 'mine')}"
    assert list(select_heads(None, (mine,))[0]) == [mine]
    assert select_heads(None, (mine,))[1] == ()
    assert list(select_heads(("hydra",), (mine, "memory"))[0]) == ["hydra", mine, "memory"]


@pytest.mark.parametrize(
    ("methods", "specs", "part"),
    [
        (("eagel3",), (), "did you mean 'eagle3'?"),
        (("eagle3",), (), "'eagle3' does not ship with this version; name yours with --drafter eagle3:dir=FOLDER"),
        (None, ("eagle3:dir=nowhere",), "nowhere holds no head for 'eagle3'"),
        (None, ("union:(eagle3:dir=nowhere),memory",), "nowhere holds no head"),
        (("hydra", "hydra"), (), "named twice"),
        (("hydra",), ("hydra",), "named twice"),
        ((), (), "No method is named"),
        (None, ("memry",), "did you mean 'memory'?"),
    ],
)
def test_what_cannot_be_measured(shipped, methods, specs, part):
    with pytest.raises(CrossdraftError) as caught:
        select_heads(methods, specs)
    assert part in str(caught.value)


def test_no_head_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(heads_select, "shipped_at", lambda name: tmp_path / Path(name).name)
    with pytest.raises(CrossdraftError, match="No trained head ships"):
        select_heads(None)
    assert not is_here(Spec("eagle3"))


def test_a_chain_is_the_heads_own_whatever_tree_was_named():
    assert as_chain(parse("eagle2:dir=x,tree=dynamic")) == parse("eagle2:dir=x,tree=chain")
    assert as_chain(parse("union:event,memory")) == parse("union:event,memory")


def test_labels_are_short_and_still_distinguish_drafters():
    texts = ("eagle2:dir=a", "union:(hydra:dir=b),memory", "medusa:dir=c,tree=dynamic", "medusa:dir=d,tree=dynamic")
    labels = short_labels({text: parse(text) for text in texts})
    assert list(labels.values()) == ["eagle2", "union:hydra,memory", *texts[2:]]


def test_a_glance_comes_with_the_heads_that_draft_its_words(shipped, tmp_path):
    mine, heads = weights(tmp_path / "mine"), weights(tmp_path / "heads")
    assert weight_facts(parse(f"glance:dir={mine},heads={heads}"))["trained_parameters"] == 2 * 17
    assert weight_facts(parse(f"glance:dir={mine},model=theirs"))["trained_parameters"] == 17
    for spec, setting in ((f"glance:dir={mine}", "glance:heads"), ("event_medusa", "event_medusa:dir")):
        with pytest.raises(CrossdraftError, match=f"name yours with --drafter {setting}=FOLDER"):
            select_heads(None, (spec,))
    weights(shipped / "event_medusa")
    assert weight_facts(parse(f"glance:dir={mine}"))["trained_parameters"] == 2 * 17
    assert weight_facts(parse(f"glance:dir={mine},model=event"))["trained_parameters"] == 2 * 17
    with pytest.raises(CrossdraftError, match="nowhere holds no head for 'event_medusa'"):
        select_heads(None, (f"glance:dir={mine},heads=nowhere",))


def test_facts_by_hand(tmp_path):
    one = weights(tmp_path / "one", figures={"wall_s": 90.0})
    size = (one / "model.safetensors").stat().st_size
    assert weight_facts(parse(f"eagle2:dir={one}")) == {
        "parameters": 17, "trained_parameters": 17, "stored_bytes": size, "training_minutes": 1.5,
    }  # fmt: skip
    two = weights(tmp_path / "two", figures={"wall_s": 30})
    both = weight_facts(parse(f"union:(eagle2:dir={one}),(hydra:dir={two})"))
    assert list(both.values()) == [34, 34, 2 * size, 2.0]
    twice = weight_facts(parse(f"union:(eagle2:dir={one}),(eagle1:dir={one})"))
    assert list(twice.values()) == [17, 17, size, 1.5]  # stored once
    assert list(weight_facts(parse("union:ngram,memory")).values()) == [0, 0, 0, None]


def stored(name, *modules):
    """Numbers of a model of the reference pair, of some of its modules or of all."""
    tensors = load_file(shipped_at(name) / "model.safetensors")
    chosen = [key for key in tensors if not modules or set(key.split(".")) & set(modules)]
    return sum(tensors[key].numel() for key in chosen)


def test_parameters_are_all_that_a_drafter_runs():
    event, heads = stored("event"), weight_facts(parse("event_medusa"))["trained_parameters"]
    glance = weight_facts(parse("glance"))
    assert weight_facts(parse("event_medusa"))["parameters"] == heads + event
    assert (
        glance["parameters"] == glance["trained_parameters"] + event
    )  # `trained` has the heads among them; the target sees for it
    assert glance["parameters"] > 4.9e6
    assert weight_facts(parse("event"))["parameters"] == event
    assert weight_facts(parse("eagle2"))["parameters"] == weight_facts(parse("eagle2"))["trained_parameters"]
    assert weight_facts(parse("union:glance,event_medusa"))["parameters"] == glance["parameters"]


def test_the_models_of_ones_own_count_too(pair, tmp_path):
    own = weights(tmp_path / "heads")
    found = weight_facts(parse(f"glance:dir={own},heads={own},model={pair.event}"), str(pair.target))
    event = sum(tensor.numel() for tensor in load_file(pair.event / "model.safetensors").values())
    assert found["parameters"] == 17 + event


@pytest.mark.parametrize("more", [{}, {"figures": {}}, {"figures": {"wall_s": "long"}}, {"figures": None}])
def test_a_training_that_was_not_written_down(tmp_path, more):
    assert weight_facts(parse(f"eagle2:dir={weights(tmp_path, **more)}"))["training_minutes"] is None


def test_weights_that_are_none(tmp_path):
    (weights(tmp_path) / "model.safetensors").write_bytes(b"no")
    with pytest.raises(CrossdraftError, match=r"model.safetensors cannot be read"):
        weight_facts(parse(f"eagle2:dir={tmp_path}"))
