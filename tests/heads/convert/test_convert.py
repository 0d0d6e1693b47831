"""Folders there and back, and every way in which a foreign folder can be wrong."""

import json
import pickle
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from crossdraft.errors import CrossdraftError
from crossdraft.heads.convert.convert import import_head
from crossdraft.heads.files import load_head, read_config
from crossdraft_lab.train.heads.export import TOLERANCE, difference, export_head
from crossdraft_lab.train.heads.foreign import LAYOUTS
from tests.heads.convert.folders import LEVELS, SHA, host, reworded, rewoven, saved

CONVERTERS = [
    ("eagle", "eagle"),
    ("eagle3", "eagle"),
    ("eagle3", "speculators"),
    ("medusa", "medusa"),
    ("dflash", "dflash"),
]
ALL = tuple(range(host().vocab_size))


def carried(tmp_path, network="eagle3", layout="eagle", **more):
    """A foreign folder."""
    export_head(saved(tmp_path / "ours", network, **more), tmp_path / "theirs", layout, host())
    return tmp_path / "theirs"


def into(tmp_path, folder):
    import_head(folder, tmp_path / "back", host())
    return tmp_path / "back"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("network", "layout"), CONVERTERS)
def test_export_and_import_give_the_same_head(tmp_path, network, layout, dtype):
    source = saved(tmp_path / "ours", network, dtype)
    done = export_head(source, tmp_path / "theirs", layout, host())
    assert done.difference <= TOLERANCE
    back = import_head(tmp_path / "theirs", tmp_path / "back", host())
    assert (back.network, back.layout) == (network, layout)
    found = read_config(tmp_path / "back")
    assert found.target == SHA
    assert next(iter(load_file(tmp_path / "back" / "model.safetensors").values())).dtype == dtype
    first = load_head(source, host().shared, SHA)
    # These layouts know the whole vocabulary only, and EAGLE's not how long drafts were in training.
    assert found.config.draft_ids == (first.config.draft_ids if network == "eagle3" else ALL)
    reworded(tmp_path / "back", config=asdict(replace(found.config, steps=first.config.steps)))
    assert difference(first, load_head(tmp_path / "back", host().shared, SHA)) <= TOLERANCE


def test_the_number_of_anchors_is_not_exported(tmp_path):
    source = saved(tmp_path / "ours", "dflash", anchors=3)
    assert export_head(source, tmp_path / "theirs", "dflash", host()).difference <= TOLERANCE


@pytest.mark.parametrize("layout", ["eagle", "speculators"])
def test_a_whole_vocabulary_needs_no_map(tmp_path, layout):
    theirs = carried(tmp_path, layout=layout, draft_ids=ALL)
    if layout == "speculators":
        assert {"d2t", "t2d"}.isdisjoint(load_file(theirs / "model.safetensors"))
    assert read_config(into(tmp_path, theirs)).config.draft_ids == ALL


def test_either_spelling_of_the_layer_is_read(tmp_path):
    def respelled(tensors):
        return {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items()}

    theirs = rewoven(carried(tmp_path), respelled)
    assert read_config(into(tmp_path, theirs)).network == "eagle3"


@pytest.mark.parametrize("network", ["eagle", "eagle3"])
def test_pytorchs_own_files_are_read_without_running_code(tmp_path, network):
    theirs = carried(tmp_path, network)
    torch.save(load_file(theirs / "model.safetensors"), theirs / "pytorch_model.bin")
    (theirs / "model.safetensors").unlink()
    assert read_config(into(tmp_path, theirs)).network == network


class Bomb:
    def __reduce__(self):
        return (print, ("boom",))


@pytest.mark.parametrize("bad", [pickle.dumps(Bomb()), b"not a file", b""])
def test_a_pickle_that_is_more_than_tensors_is_one_sentence(tmp_path, bad, capsys):
    theirs = carried(tmp_path)
    (theirs / "model.safetensors").unlink()
    (theirs / "pytorch_model.bin").write_bytes(bad)
    with pytest.raises(CrossdraftError, match=r"pytorch_model\.bin is damaged or holds more than tensors"):
        into(tmp_path, theirs)
    assert "boom" not in capsys.readouterr().out
    assert not (tmp_path / "back").exists()


def test_eagles_own_embeddings_and_rotary_table_are_the_targets_or_refused(tmp_path):
    table = {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    theirs = rewoven(carried(tmp_path, "eagle"), lambda tensors: tensors | table)
    into(tmp_path, theirs)
    rewoven(theirs, lambda tensors: tensors | {"embed_tokens.weight": tensors["embed_tokens.weight"] + 0.1})
    with pytest.raises(CrossdraftError, match="token embeddings that are not this target's"):
        import_head(theirs, tmp_path / "again", host())


def without(name):
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def with_(name, value):
    return lambda tensors: tensors | {name: value}


@pytest.mark.parametrize(
    ("network", "layout", "change", "sentence"),
    [
        ("eagle3", "eagle", without("fc.weight"), "lacks 'fc.weight'"),
        ("eagle3", "eagle", with_("fc_norm.0.weight", torch.ones(3)), "has 'fc_norm.0.weight', which we do not know"),
        ("eagle3", "eagle", with_("layers.0.mlp.up_proj.weight", torch.ones(3)), "both 'midlayer' and 'layers.0'"),
        (
            "eagle3",
            "eagle",
            with_("fc.weight", torch.ones(3, 3)),
            "'fc.weight' is missing, left over or of another shape",
        ),
        ("eagle3", "eagle", with_("d2t", torch.arange(37)), "do not agree .*offsets"),
        ("eagle3", "speculators", without("lm_head.weight"), "lacks 'lm_head.weight'"),
        ("eagle", "eagle", without("fc.bias"), "lacks 'fc.bias'"),
        ("medusa", "medusa", without("2.0.linear.bias"), "lacks '2.0.linear.bias'"),
        ("medusa", "medusa", with_("0.1.weight", torch.ones(50, 32)), "knows 50 ids, and the target's text has 60"),
        (
            "eagle3",
            "eagle",
            with_("fc.weight", torch.ones(3, 3, dtype=torch.int8)),
            "'fc.weight' is of int8: quantized",
        ),
        ("dflash", "dflash", without("layers.1.self_attn.q_norm.weight"), "lacks 'layers.1.self_attn.q_norm.weight'"),
    ],
)
def test_tensors_that_are_missing_or_unknown_are_named(tmp_path, network, layout, change, sentence):
    theirs = rewoven(carried(tmp_path, network, layout), change)
    with pytest.raises(CrossdraftError, match=sentence):
        into(tmp_path, theirs)
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    ("network", "layout", "words", "sentence"),
    [
        ("eagle3", "eagle", {"architectures": ["Qwen3ForCausalLM"]}, "Qwen3ForCausalLM.*no head that we can read"),
        ("eagle3", "eagle", {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}, "no head that we can"),
        ("eagle3", "eagle", {"num_hidden_layers": 32}, "num_hidden_layers = 32"),
        ("eagle3", "eagle", {"hidden_size": 64}, "hidden_size is 64; this one's is 32"),
        ("eagle3", "eagle", {"vocab_size": 128}, "about 60 ids, vocab_size says 128"),
        ("eagle3", "eagle", {"draft_vocab_size": 40}, "'lm_head.weight' has 37 rows, its config.json says 40"),
        ("eagle3", "eagle", {"intermediate_size": None}, "lacks 'intermediate_size'"),
        ("eagle3", "eagle", {"rope_scaling": {"factor": 8}}, "rope_scaling"),
        ("eagle3", "eagle", {"fc_norm": True}, r"lacks 'fc_norm\.0\.weight'"),
        ("eagle3", "eagle", {"norm_before_fc": True}, r"norm_before_fc = True, but no 'input_norm\.weight'"),
        ("eagle3", "eagle", {"norm_before_residual": "no"}, "has 'no' as 'norm_before_residual', which must be true"),
        ("eagle3", "eagle", {LEVELS: [1, 2, 33], "eagle_config": None}, r"not \(1, 2, 33\); set levels"),
        ("eagle3", "eagle", {LEVELS: [1, 2, 3]}, rf"{LEVELS} = \[1, 2, 3\] and eagle_config.{LEVELS} = "),
        ("eagle3", "eagle", {LEVELS: "all"}, "has 'all' as .* must list layers' numbers"),
        ("eagle3", "eagle", {"rope_theta": 7.0}, r"says rope_theta = 7.0 and rope_parameters.rope_theta = 10000.0"),
        (
            "eagle3",
            "eagle",
            {"rms_norm_eps": "small"},
            "has 'small' as 'rms_norm_eps', which must be a positive number",
        ),
        ("eagle3", "eagle", {"rope_parameters": [3]}, "rope_parameters = .* must hold keys and values"),
        ("eagle", "eagle", {"bias": False}, "has 'fc.bias', but bias = False"),
        ("eagle3", "speculators", {"norm_before_residual": None}, "lacks 'norm_before_residual'.* take as True"),
        ("eagle3", "speculators", {"speculators_model_type": "mtp"}, "speculators_model_type = 'mtp'"),
        ("eagle3", "speculators", {"transformer_layer_config": None}, "lacks 'transformer_layer_config'"),
        ("medusa", "medusa", {"medusa_num_heads": "four"}, "has 'four' as 'medusa_num_heads'"),
        ("medusa", "medusa", {"medusa_num_heads": 3}, r"has '3\.0\.linear\.\w+', which we do not know"),
        (
            "dflash",
            "dflash",
            {"layer_types": ["sliding_attention"] * 2},
            "layer_types that slide, but no sliding_window",
        ),
        ("dflash", "dflash", {"layer_types": ["full_attention"]}, "has 1 layer_types and num_hidden_layers = 2"),
        ("dflash", "dflash", {"architectures": ["DFlash2DraftModel"]}, "architectures"),
        ("dflash", "dflash", {"dflash_config": {"mask_token_id": 1}}, "lacks 'target_layer_ids'"),
        ("dflash", "dflash", {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [9]}}, "cannot read layer 10"),
    ],
)
def test_a_config_of_another_network_or_target_is_refused(tmp_path, network, layout, words, sentence):
    theirs = reworded(carried(tmp_path, network, layout), **words)
    with pytest.raises(CrossdraftError, match=sentence):
        into(tmp_path, theirs)
    assert not (tmp_path / "back").exists()


def test_modelopts_numbers_are_outputs(tmp_path):
    """Without vLLM's numbers, those in `eagle_config` count, one higher."""
    theirs = reworded(carried(tmp_path), **{LEVELS: None})
    into(tmp_path, theirs)
    reworded(theirs, eagle_config={LEVELS: [2, 3, 4]})
    import_head(theirs, tmp_path / "again", host())
    assert read_config(tmp_path / "again").config.levels == (3, 4, 5)


def test_corrected_levels_leave_the_other_keys_of_eagle_config_checked(tmp_path):
    folder = carried(tmp_path)
    block = json.loads((folder / "config.json").read_text())["eagle_config"]
    import_head(reworded(folder, eagle_config=block), tmp_path / "back", host(), {"levels": (1, 2, 3)})
    assert read_config(tmp_path / "back").config.levels == (1, 2, 3)
    reworded(folder, eagle_config=block | {"use_last_layernorm": False})
    with pytest.raises(CrossdraftError, match=r"eagle_config\.use_last_layernorm = False"):
        import_head(folder, tmp_path / "again", host(), {"levels": (1, 2, 3)})


def test_a_head_with_numbers_that_are_not_finite_is_refused(tmp_path):
    theirs = carried(tmp_path)
    (path,) = theirs.glob("*.safetensors")
    tensors = load_file(path)
    tensors["fc.weight"][0, 0] = float("nan")
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(CrossdraftError, match=r"not finite, in fc\.weight"):
        into(tmp_path, theirs)


def test_an_export_whose_reload_differs_leaves_nothing(tmp_path, monkeypatch):
    """The planted bug: a writer that swaps two weights of one shape."""
    eagle = LAYOUTS["eagle"]
    whole = eagle.write

    def swapped(ours, target):
        foreign = whole(ours, target)
        tensors = dict(foreign.tensors)
        up, gate = "midlayer.mlp.up_proj.weight", "midlayer.mlp.gate_proj.weight"
        tensors[up], tensors[gate] = tensors[gate], tensors[up]
        return type(foreign)(foreign.config, tensors)

    object.__setattr__(eagle, "write", swapped)
    try:
        with pytest.raises(CrossdraftError, match=r"has other logits when it is read again .*so it was removed"):
            carried(tmp_path)
    finally:
        object.__setattr__(eagle, "write", whole)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_nothing_is_overwritten(tmp_path):
    theirs = carried(tmp_path)
    before = json.loads((theirs / "config.json").read_text())
    for act in (
        lambda: export_head(tmp_path / "ours", theirs, "eagle", host()),
        lambda: import_head(theirs, tmp_path, host()),
    ):
        with pytest.raises(CrossdraftError, match="is there already; name a new folder"):
            act()
    assert json.loads((theirs / "config.json").read_text()) == before


@pytest.mark.parametrize(
    ("network", "layout", "sentence"),
    [
        ("medusa", "eagle", "holds eagle and eagle3, this head is a 'medusa'; it fits into medusa"),
        ("redrafter", "medusa", "no layout for such a head is written"),
        ("eagle", "gguf", "no layout 'gguf'; there are eagle, speculators, medusa, dflash"),
    ],
)
def test_a_layout_that_cannot_hold_the_head_is_refused(tmp_path, network, layout, sentence):
    with pytest.raises(CrossdraftError, match=sentence):
        carried(tmp_path, network, layout)


def test_a_learned_mask_and_two_windows_cannot_be_exported_to_dflash(tmp_path):
    with pytest.raises(CrossdraftError, match="files hold one window"):
        carried(tmp_path / "two", "dflash", "dflash", windows=(2, 3))
    with pytest.raises(CrossdraftError, match="train it with a mask_token"):
        carried(tmp_path, "dflash", "dflash", mask_token=None)


@pytest.mark.parametrize("layout", ["eagle", "speculators"])
def test_scales_before_one_norm_of_all_levels_cannot_be_exported(tmp_path, layout):
    with pytest.raises(CrossdraftError, match=r"scales its levels by \(1.0, 0.1, 5.0\) before norm_before_fc"):
        carried(tmp_path, layout=layout, norm_before_fc=True, level_scales=(1.0, 0.1, 5.0))
    folder = carried(tmp_path / "of1", layout=layout, norm_before_fc=True)
    assert read_config(into(tmp_path, folder)).config.norm_before_fc


def test_a_head_of_another_target_or_no_folder_is_refused(tmp_path):
    source = reworded(saved(tmp_path / "ours", "eagle3"), target="0" * 64)
    with pytest.raises(CrossdraftError, match="trained for another target"):
        export_head(source, tmp_path / "theirs", "eagle", host())
    with pytest.raises(CrossdraftError, match="is no folder"):
        import_head(tmp_path / "nothing", tmp_path / "back", host())
    save_file({"fc.weight": torch.ones(2)}, tmp_path / "ours" / "model.safetensors")
    with pytest.raises(CrossdraftError, match="no head that we can read"):
        import_head(source, tmp_path / "back", host())
