"""Exported tensors through the papers' formulas, against our networks."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.heads.convert import eagle
from crossdraft.heads.convert.convert import LONG, TOLERANCE, export_head, import_head, random_batch, write_foreign
from crossdraft.heads.convert.converter import ForeignHead
from crossdraft.heads.files import load_head, read_config, revived
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
    maps = eagle.draft_maps
    monkeypatch.setattr(eagle, "draft_maps", lambda ids, size: maps(ids, size) | {"d2t": torch.tensor(ids)})
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
    (tmp_path / "theirs").mkdir()
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
