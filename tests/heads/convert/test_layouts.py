"""Exported tensors through the papers' formulas, against our networks."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.heads.convert.convert import import_head
from crossdraft.heads.convert.converter import ForeignHead
from crossdraft.heads.files import load_head, read_config, revived
from crossdraft_lab.train.heads import foreign as written
from crossdraft_lab.train.heads.export import LONG, TOLERANCE, export_head, random_batch, write_foreign
from tests.heads.consistency import some_head
from tests.heads.convert import by_hand, publishers
from tests.heads.convert.folders import DEEP, exported, host, reworded, saved

POSITION = 9
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def spread_out(logits, ids):
    """[D] logits of a short vocabulary over the target's ids."""
    every = torch.full((host().vocab_size,), -torch.inf)
    every[ids] = logits
    return every


def eagle3_elsewhere(foreign, levels, layer="midlayer"):
    """Two drafts of an exported EAGLE-3 after `POSITION`, over the target's ids, as another program computes them."""
    head_words = foreign.config.get("transformer_layer_config", foreign.config)
    t, rows = dict(foreign.tensors), host().shared.embeddings
    batch = random_batch(exported("eagle3", "eagle")[0])
    text, ids = batch.tokens[0], torch.arange(len(t["d2t"])) + t["d2t"]
    g = torch.cat([batch.hidden[level][0, : POSITION + 1] for level in levels], -1) @ t["fc.weight"].T
    outputs = []
    for _ in range(2):
        a = by_hand.eagle3(rows[text[1 : len(g) + 1]], g, t, head_words, layer)
        logits = by_hand.rms(a[-1], t["norm.weight"], head_words["rms_norm_eps"]) @ t["lm_head.weight"].T
        outputs.append(spread_out(logits, ids))
        g = torch.cat((g, a[-1:]))
    return outputs


def check_eagle3(layout, levels_of, layer):
    head, foreign = exported("eagle3", layout)
    ours = [spread_out(prediction.logits[0, POSITION], head.draft_ids) for prediction in head(random_batch(head))[:2]]
    theirs = eagle3_elsewhere(foreign, levels_of(foreign.config), layer)
    assert all(torch.allclose(a, b, **CLOSE) for a, b in zip(ours, theirs, strict=True))


KEY = "eagle_aux_hidden_state_layer_ids"
READERS = [
    pytest.param("eagle", lambda words: [2, DEEP // 2, DEEP - 3], "midlayer", id="EAGLE: fixed levels"),
    pytest.param("eagle", lambda words: words[KEY], "midlayer", id="vLLM: what enters a layer"),
    pytest.param("eagle", lambda words: [k + 1 for k in words["eagle_config"][KEY]], "midlayer", id="SGLang: outputs"),
    pytest.param("speculators", lambda words: words[KEY], "layers.0", id="speculators"),
]


@torch.inference_mode()
@pytest.mark.parametrize(("layout", "levels_of", "layer"), READERS)
def test_eagle3_through_the_papers_formulas(layout, levels_of, layer):
    check_eagle3(layout, levels_of, layer)


@torch.inference_mode()
@pytest.mark.parametrize(("layout", "levels_of", "layer"), READERS)
def test_ids_where_offsets_belong_would_be_noticed(layout, levels_of, layer, monkeypatch):
    """The planted bug: `d2t` as absolute ids."""
    maps = written.draft_maps
    monkeypatch.setattr(written, "draft_maps", lambda ids, size: maps(ids, size) | {"d2t": torch.tensor(ids)})
    with pytest.raises((AssertionError, IndexError)):
        check_eagle3(layout, levels_of, layer)


@torch.inference_mode()
@pytest.mark.parametrize(("layout", "levels_of", "layer"), READERS[1:])
def test_layers_numbered_by_output_would_be_noticed(layout, levels_of, layer):
    """The planted bug: each number one too low."""
    with pytest.raises(AssertionError):
        check_eagle3(layout, lambda words: [level - 1 for level in levels_of(words)], layer)


@torch.inference_mode()
def test_eagle1_through_the_papers_formulas():
    head, foreign = exported("eagle", "eagle")
    batch, t = random_batch(head), dict(foreign.tensors)
    features, text = batch.hidden[DEEP][0, : POSITION + 1], batch.tokens[0]
    for prediction in head(batch)[:2]:
        f = by_hand.eagle(t["embed_tokens.weight"][text[1 : len(features) + 1]], features, t, dict(foreign.config))
        every = f[-1] @ host().shared.lm_head.T
        error = (prediction.logits[0, POSITION] - every[head.draft_ids]).abs().max()
        assert error <= 1e-5 * prediction.logits[0, POSITION].abs().max()  # logits of this random head reach 70
        features = torch.cat((features, f[-1:]))


@torch.inference_mode()
def test_medusa_through_the_papers_formulas():
    head, foreign = exported("medusa", "medusa", layers=2)
    batch, t = random_batch(head), foreign.tensors
    for number, prediction in enumerate(head(batch)):
        x = batch.hidden[DEEP][0]
        for layer in range(2):
            w = x @ t[f"{number}.{layer}.linear.weight"].T + t[f"{number}.{layer}.linear.bias"]
            x = x + w * torch.sigmoid(w)
        rows = t[f"{number}.2.weight"]
        assert torch.allclose((x @ rows.T)[:, head.draft_ids], prediction.logits[0], **CLOSE)
        untrained = torch.ones(len(rows), dtype=torch.bool)
        untrained[head.draft_ids] = False
        assert torch.equal(rows[untrained], host().shared.lm_head[untrained])


@torch.inference_mode()
def test_dflash_through_the_papers_formulas():
    head, foreign = exported("dflash", "dflash")
    words, batch, rows = dict(foreign.config), random_batch(head), host().shared.embeddings
    block = words["dflash_config"]
    states = torch.cat([batch.hidden[k + 1][0] for k in block["target_layer_ids"]], -1)  # `hidden_states[id + 1]`
    compared = 0
    for prediction in head(batch):
        for position in prediction.valid[0].nonzero().flatten().tolist():
            ids = [int(batch.tokens[0, position + 1]), *[block["mask_token_id"]] * (words["block_size"] - 1)]
            out = by_hand.dflash(rows[ids], states[: position + 1], dict(foreign.tensors), words)
            every = out[prediction.offset] @ host().shared.lm_head.T
            assert torch.allclose(every[head.draft_ids], prediction.logits[0, position], **CLOSE)
            compared += 1
    assert compared > 20


PUBLISHED = {  # the keys and the words of z-lab/Qwen3.6-27B-DFlash's config.json, in small numbers
    "architectures": ["DFlashDraftModel"], "attention_bias": False, "attention_dropout": 0.0,
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "block_size": 5, "bos_token_id": None,
    "dflash_config": {"mask_token_id": 2, "target_layer_ids": [0, 2, 4]}, "dtype": "bfloat16", "eos_token_id": 1,
    "head_dim": 8, "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 48,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "max_position_embeddings": 512,
    "max_window_layers": 3, "model_type": "qwen3", "num_attention_heads": 4, "num_hidden_layers": 3,
    "num_key_value_heads": 2, "num_target_layers": DEEP, "pad_token_id": 1, "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"}, "sliding_window": 4,
    "tie_word_embeddings": False, "transformers_version": "5.15.0", "use_cache": True, "use_sliding_window": True,
    "vocab_size": 60,
}  # fmt: skip


@torch.inference_mode()
@pytest.mark.parametrize("more", [{}, {"is_causal": False}, {"is_causal": True}, {"sliding_window": 2}])
def test_sliding_dflash_is_imported_as_published(more, tmp_path):
    """Two layers that slide: the file's whole config, its tensors, and the logits of z-lab's forward pass on them."""
    generator = torch.Generator().manual_seed(3)
    shapes = {
        name: x.shape for name, x in exported("dflash", "dflash", layers=3, read_layers=(1, 3, 5))[1].tensors.items()
    }
    tensors = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    foreign = ForeignHead(PUBLISHED | more, tensors)
    (tmp_path / "theirs").mkdir(parents=True)
    write_foreign(tmp_path / "theirs", foreign, "model.safetensors")
    import_head(tmp_path / "theirs", tmp_path / "ours", host())
    head = load_head(tmp_path / "ours", host().shared)
    head = revived("dflash", replace(head.config, anchors=LONG), host().shared, head.stored())
    batch = random_batch(head)
    ours = torch.stack([one.logits[0, publishers.POSITION] for one in head(batch)[:2]])
    for words, equal in ((foreign.config, True), (foreign.config | {"sliding_window": 9}, False)):
        theirs = publishers.dflash(words, tensors, batch)
        assert torch.allclose(ours, theirs, **CLOSE) is equal
    again = export_head(tmp_path / "ours", tmp_path / "again", "dflash", host())
    assert again.difference <= TOLERANCE


LAYERS = {
    **{key: PUBLISHED[key] for key in ("attention_bias", "attention_dropout", "head_dim", "hidden_act", "hidden_size",
       "initializer_range", "intermediate_size", "max_position_embeddings", "num_attention_heads",
       "num_key_value_heads", "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "use_cache", "vocab_size")},
    "num_hidden_layers": 2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
QWEN3 = {
    **LAYERS, "model_type": "qwen3", "layer_types": ["full_attention"] * 2, "max_window_layers": 28,
    "sliding_window": None, "use_sliding_window": False,
}  # fmt: skip
MARKOV = {
    "markov_rank": 6, "markov_head_type": "vanilla", "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}  # fmt: skip
OUTPUTS = [0, 2, 4]


def of_speculators(algorithm, name, layer, **own):
    """The keys that speculators 0.9 writes."""
    return {
        "architectures": [name], "auto_map": {"": f"config.{name}"}, "draft_vocab_size": 60, "dtype": "float32",
        "speculators_model_type": algorithm, "speculators_version": "0.9.0", "target_hidden_size": None,
        "tie_word_embeddings": False, "transformers_version": "5.19.0", "transformer_layer_config": layer, **own,
        "speculators_config": {
            "algorithm": algorithm, "default_proposal_method": "greedy",
            "proposal_methods": [{"accept_tolerance": 0.0, "proposal_type": "greedy", "speculative_tokens": 4,
                                  "verifier_accept_k": 1}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "t"},
        },
    }  # fmt: skip


SPECULATED = {
    "aux_hidden_state_layer_ids": [k + 1 for k in OUTPUTS], "block_size": 5, "mask_token_id": 2,
    "sliding_window_non_causal": False,
}  # fmt: skip
THREE = {
    "eagle_aux_hidden_state_layer_ids": [1, 2, 4, 6], "embed_requires_grad": True, "fc_norm": True,
    "mask_token_id": 2, "norm_before_fc": False, "norm_before_residual": True, "norm_output": False,
}  # fmt: skip
BLOCKS = {
    "DeepSpec": {**QWEN3, **MARKOV, "architectures": ["Qwen3DSparkModel"], "block_size": 5, "mask_token_id": 2,
                 "target_layer_ids": OUTPUTS, "num_anchors": 512, "num_target_layers": DEEP},
    "DeepSpec's DFlash": {**QWEN3, "architectures": ["Qwen3DSparkModel"], "block_size": 5, "mask_token_id": 2,
                          "target_layer_ids": OUTPUTS, "num_anchors": 512, "num_target_layers": DEEP,
                          "enable_confidence_head": False, "markov_rank": 0},
    "SpecForge": {**QWEN3, "architectures": ["DSparkDraftModel"], "auto_map": {"AutoModel": "dspark.DSparkDraftModel"},
                  "block_size": 5, "num_target_layers": DEEP, "dflash_config": {
                      **MARKOV, "mask_token_id": 2, "target_layer_ids": OUTPUTS, "projector_type": "dspark",
                      "confidence_head_alpha": 1.0}},
    "speculators": of_speculators("dspark", "DSparkDraftModel", QWEN3, **SPECULATED, **MARKOV, sample_from_anchor=True),
    "speculators, root": of_speculators(
        "dspark", "DSparkDraftModel", QWEN3, **SPECULATED, **MARKOV, sample_from_anchor=False),
    "speculators' DFlash": of_speculators(
        "dflash", "DFlashDraftModel", QWEN3, **SPECULATED, sample_from_anchor=False),
}  # fmt: skip
LLAMA = {**LAYERS, "model_type": "llama", "mlp_bias": False, "pretraining_tp": 1}
PARALLEL = {
    "speculators": of_speculators("peagle", "PEagleDraftModel", LLAMA, **THREE),
    "SpecForge": {**LLAMA, "architectures": ["PEagleDraftModel"], "draft_vocab_size": 60, "mask_token_id": 2,
                  "max_window_layers": 36, "sliding_window": None, "use_sliding_window": False},
    "vLLM": {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 60, "ptd_token_id": 2,
             "eagle_aux_hidden_state_layer_ids": [1, 2, 4], "parallel_drafting": True},
}  # fmt: skip


def drawn(shapes):
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


def block_tensors(config, drafts=60):
    shapes = {
        name: x.shape for name, x in exported("dflash", "dflash", layers=2, read_layers=(1, 3, 5))[1].tensors.items()
    }
    words = {**config, **config.get("dflash_config", {})}
    if words.get("markov_rank"):
        shapes |= {"markov_head.markov_w1.weight": (60, 6), "markov_head.markov_w2.weight": (drafts, 6),
                   "confidence_head.proj.weight": (1, 38), "confidence_head.proj.bias": (1,)}  # fmt: skip
    return drawn(shapes)


def parallel_tensors(config):
    """The tensors of a P-EAGLE of two layers; speculators' and SpecForge's train its embeddings."""
    shapes = {
        name.replace("midlayer.", "layers.0."): x.shape
        for name, x in exported("eagle3", "eagle", draft_ids=tuple(range(60)))[1].tensors.items()
        if name not in ("d2t", "t2d")
    }
    levels = 4 if "fc_norm" in config else 3
    shapes |= {
        name.replace(".0.", ".1."): x for name, x in shapes.items() if ".0." in name and "hidden_norm" not in name
    }
    shapes |= {
        f"layers.1.self_attn.{one}_proj.weight": (8 * heads, 32) for one, heads in (("q", 4), ("k", 2), ("v", 2))
    }
    shapes |= {"fc.weight": (32, levels * 32), "mask_hidden": (1, 1, levels * 32)}
    if "fc_norm" in config:
        shapes |= {f"fc_norm.{level}.weight": (32,) for level in range(levels)}
    if "ptd_token_id" not in config:
        shapes["embed_tokens.weight"] = (60, 32)
    return drawn(shapes)


def flat(config):
    """A file's settings as one table, as vLLM's readers make it."""
    found = {**config, **config.get("transformer_layer_config", {}), "architectures": config["architectures"]}
    if "aux_hidden_state_layer_ids" in found:
        found["target_layer_ids"] = [k - 1 for k in found["aux_hidden_state_layer_ids"]]
    return {key: value for key, value in found.items() if not key.startswith(("speculators", "transformer_layer"))}


def brought_in(tmp_path, config, tensors, target=None):
    (tmp_path / "theirs").mkdir(parents=True)
    write_foreign(tmp_path / "theirs", ForeignHead(config, tensors), "model.safetensors")
    done = import_head(tmp_path / "theirs", tmp_path / "ours", target or host())
    return done.network, load_head(tmp_path / "ours", (target or host()).shared)


def two_drafts(head, network):
    settings = replace(head.config, anchors=LONG) if network != "peagle" else head.config
    head = revived(network, settings, host().shared, head.stored())
    batch = random_batch(head)
    return torch.stack([one.logits[0, publishers.POSITION] for one in head(batch)[:2]]), batch


@torch.inference_mode()
@pytest.mark.parametrize("name", BLOCKS)
def test_dspark_drafts_as_its_publishers_code(name, tmp_path):
    config = BLOCKS[name]
    tensors = block_tensors(config)
    stored = {**tensors, "embed_tokens.weight": host().shared.embeddings, "lm_head.weight": host().shared.lm_head}
    network, head = brought_in(tmp_path, config, stored if "DeepSpec" in name else tensors)
    assert network == ("dflash" if "DFlash" in name else "dspark")
    assert head.config.steps == (4 if name in ("speculators, root", "speculators' DFlash") else 5)
    assert not head.config.own_head
    ours, batch = two_drafts(head, network)
    wanted = publishers.dflash(flat(config), tensors, batch)
    assert torch.allclose(ours, wanted, **CLOSE)
    shifted = {**flat(config), "sample_from_anchor": head.config.root_predicts is False}  # planted: the root's row
    assert not torch.allclose(ours, publishers.dflash(shifted, tensors, batch), atol=0.1)
    if network == "dspark":  # planted: a Markov head that reads another token
        moved = {**tensors, "markov_head.markov_w1.weight": tensors["markov_head.markov_w1.weight"].roll(1, 0)}
        assert not torch.allclose(ours, publishers.dflash(flat(config), moved, batch), atol=0.1)


@torch.inference_mode()
def test_dspark_of_a_draft_vocabulary_and_an_lm_head_of_its_own(tmp_path):
    """Ids 2, 5 and 61, of which the target has two; speculators' LM head is the target's rows, another's is kept."""
    drafted = torch.zeros(64, dtype=torch.bool)
    drafted[[2, 5, 61]] = True
    config = {**BLOCKS["speculators"], "draft_vocab_size": 3, "transformer_layer_config": {**QWEN3, "vocab_size": 64}}
    tensors = block_tensors(config, 3) | {"lm_head.weight": drawn({"rows": (3, 32)})["rows"], "t2d": drafted,
                                          "d2t": torch.tensor([2, 5, 61]) - torch.arange(3)}  # fmt: skip
    tensors["markov_head.markov_w1.weight"] = drawn({"rows": (64, 6)})["rows"]
    _, head = brought_in(tmp_path, config, tensors)
    assert (head.config.draft_ids, head.config.own_head) == ((2, 5), True)
    ours, batch = two_drafts(head, "dspark")
    assert torch.allclose(ours, publishers.dflash(flat(config), tensors, batch)[:, :2], **CLOSE)
    short = tensors | {"markov_head.markov_w2.weight": torch.ones(2, 6)}
    with pytest.raises(CrossdraftError, match=r"'markov_w2\.weight' has 2 rows, and 3 ids are drafted"):
        brought_in(tmp_path / "short", config, short)


@torch.inference_mode()
@pytest.mark.parametrize("name", PARALLEL)
def test_peagle_drafts_as_its_publishers_code(name, tmp_path):
    config = PARALLEL[name]
    tensors = parallel_tensors(config)
    network, head = brought_in(tmp_path, config, tensors)
    assert network == "peagle"
    assert (head.config.layers, head.config.mask_token, head.config.steps) == (2, 2, 4 if name == "speculators" else 7)
    assert head.config.own_embeddings is (name != "vLLM")
    ours, batch = two_drafts(head, network)
    assert torch.allclose(ours, publishers.peagle(flat(config), tensors, batch), **CLOSE)
    moved = {**tensors, "mask_hidden": tensors["mask_hidden"].roll(1)}  # planted: another mask
    wrong = publishers.peagle(flat(config), moved, batch)
    assert torch.allclose(ours[0], wrong[0], **CLOSE)
    assert not torch.allclose(ours[1], wrong[1], atol=0.1)


@pytest.mark.parametrize(
    ("config", "words", "sentence"),
    [
        (BLOCKS["DeepSpec"], {"markov_head_type": "rnn"}, "markov_head_type = 'rnn'; networks of ours"),
        (BLOCKS["DeepSpec"], {"markov_rank": 0}, r"has 'markov_head.markov_w\d.weight', which we do not know"),
        (BLOCKS["DeepSpec"], {"mask_token_id": None}, "lacks an id as 'mask_token_id'"),
        (BLOCKS["speculators"], {"aux_hidden_state_layer_ids": None}, "lacks 'target_layer_ids'"),
        (BLOCKS["speculators"], {"transformer_layer_config": {**QWEN3, "layer_types": ["sliding_attention"] * 2}},
         "transformer_layer_config.layer_types"),
        (PARALLEL["vLLM"], {"ptd_token_id": None}, "names no mask: it has no id as one of mask_token_id, ptd_token_id"),
        (PARALLEL["vLLM"], {"ptd_token_id": 99}, "mask_token 99 is none of the target's 60 ids"),
        (PARALLEL["vLLM"], {"num_hidden_layers": 3}, r"lacks 'layers.2.self_attn.q_proj.weight'"),
        (PARALLEL["speculators"], {"transformer_layer_config": {**LLAMA, "model_type": "qwen3"}},
         "model_type = 'qwen3'"),
    ],
)  # fmt: skip
def test_a_block_or_parallel_file_that_does_not_fit_is_refused(config, words, sentence, tmp_path):
    tensors = parallel_tensors(config) if "block_size" not in config else block_tensors(config)
    with pytest.raises(CrossdraftError, match=sentence):
        brought_in(tmp_path, {**config, **words}, tensors)


def test_dflash_without_the_key_reads_whole_prompts_unless_it_is_an_old_file_of_ours(tmp_path):
    block = json.loads((saved_dflash(tmp_path) / "config.json").read_text())["dflash_config"]
    assert block.pop("whole_prompt") is False
    assert not imported_dflash(tmp_path, dflash_config=block).whole_prompt
    assert imported_dflash(tmp_path, dflash_config=block, mlp_bias=None).whole_prompt  # z-lab's have no such key
    assert not imported_dflash(tmp_path, dflash_config=block | {"whole_prompt": False}).whole_prompt
    with pytest.raises(CrossdraftError, match="whole_prompt = 'no'; networks of ours can only follow True or False"):
        imported_dflash(tmp_path, dflash_config=block | {"whole_prompt": "no"})


@pytest.mark.parametrize(("stated", "drafted"), [(64, 60), (57, 57)])
def test_dflash_of_a_padded_vocabulary_drafts_the_ids_that_both_have(tmp_path, stated, drafted):
    saved_dflash(tmp_path)
    padded = replace(host(), text_size=57)
    assert imported_dflash(tmp_path, padded, vocab_size=stated).draft_ids == tuple(range(drafted))
    with pytest.raises(CrossdraftError, match="knows 56 ids, and the target's text has 57"):
        imported_dflash(tmp_path, padded, vocab_size=56)


def saved_dflash(tmp_path):
    export_head(saved(tmp_path / "ours", "dflash"), tmp_path / "theirs", "dflash", host())
    return tmp_path / "theirs"


def imported_dflash(tmp_path, target=None, **words):
    """The configuration of `saved_dflash`'s head with those words in its file, imported."""
    with TemporaryDirectory(dir=tmp_path) as back:
        import_head(reworded(tmp_path / "theirs", **words), Path(back) / "back", target or host())
        return read_config(Path(back) / "back").config


def test_causal_layers_are_the_drafters_own():
    with pytest.raises(CrossdraftError, match=r"causal_layers are of 0 … 1, not \(0, 2\)"):
        some_head("dflash", layers=2, causal_layers=(0, 2))
