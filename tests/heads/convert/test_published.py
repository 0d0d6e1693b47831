"""Files with the exact keys of published heads, random weights, against forwards written from their authors' code."""

import json
from dataclasses import replace
from itertools import count
from shutil import copytree
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from crossdraft.checkpoints.locate import shipped_at
from crossdraft.cli.head import target_and_host
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.errors import CrossdraftError
from crossdraft.heads.convert.convert import import_head
from crossdraft.heads.drafting.autoregressive import AutoregressiveDrafter
from crossdraft.heads.drafting.head_drafter import TREES
from crossdraft.heads.files import config_of, load_head, make, read_config, save_head
from crossdraft.heads.load import load_head_drafter
from crossdraft.heads.probe import FITS, QUESTIONS, probe
from crossdraft.load import load_target
from crossdraft_lab.train.heads.export import random_batch
from tests.heads.consistency import check_consistency
from tests.heads.convert import by_hand
from tests.heads.convert.folders import DEEP, LEVELS, SHA, host, reworded, rewoven
from tests.heads.convert.test_convert import carried

HIDDEN, HEADS, KV, WIDE, SHOWN, AT, DRAFTS = 32, 4, 2, 48, 59, 9, 3
IDS = [5, 6, SHOWN, SHOWN, SHOWN, SHOWN, 7, SHOWN, SHOWN, SHOWN]  # what is read before the text: words, two images
SIZES = {
    "hidden_size": HIDDEN, "intermediate_size": WIDE, "num_attention_heads": HEADS, "num_key_value_heads": KV,
    "num_hidden_layers": 1, "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 512,
    "vocab_size": 60, "rope_theta": 500.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
}  # fmt: skip
QWEN = {
    "bos_token_id": 1, "eos_token_id": 2, "attention_dropout": 0.0, "initializer_range": 0.02, "max_window_layers": 28,
    "sliding_window": 32768, "use_sliding_window": False, "transformers_version": "4.41.2",
}  # fmt: skip
LLAVA = {
    "freeze_mm_mlp_adapter": False, "freeze_mm_vision_resampler": False, "image_aspect_ratio": "pad",
    "max_length": 4096, "mm_hidden_size": 1024, "mm_projector_type": "mlp2x_gelu", "mm_resampler_type": None,
    "mm_use_im_patch_token": False, "mm_use_im_start_end": False, "mm_vision_select_feature": "patch",
    "mm_vision_select_layer": -2, "mm_vision_tower": "clip", "pad_token_id": 0, "pretraining_tp": 1,
    "rope_scaling": None, "tune_mm_mlp_adapter": False, "tune_mm_vision_resampler": False,
    "unfreeze_mm_vision_tower": False, "use_mm_proj": True,
}  # fmt: skip
CONFIGS = {
    "vispec": {**SIZES, **QWEN, "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl",
               "qkv_bias": True},
    "vispec-llava": {**SIZES, "architectures": ["LlavaNextForConditionalGeneration"], "model_type": "llava_next",
                     "pad_token_id": 0, "rope_scaling": None, "pretraining_tp": 1},
    "hivis": {**SIZES, **QWEN, "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl",
              "qkv_bias": True},
    "hivis-smolvlm": {**SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dropout": 0.0,
                      "bias": False},
    "msd": {**SIZES, **QWEN, "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl",
            "vision_token_id": 4, "vision_config": {"depth": 32}, "qkv_bias": True,
            "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}},
    "msd-llava": {**SIZES, **LLAVA, "architectures": ["LlavaLlamaForCausalLM"], "model_type": "llava",
                  "vocab_size": 57},
    "eagle-qwen2": {**SIZES, **QWEN, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "qkv_bias": True,
                    "vocab_size": 64},
}  # fmt: skip


def target():
    """A target of 60 ids, of which 57 are text, that is shown something at id 59."""
    return replace(host(), text_size=57, visual_ids=(SHOWN,))


def theirs(name, folder):
    """A folder with that config and its tensors, and the tensors."""
    config, draw = CONFIGS[name], torch.Generator().manual_seed(len(name))
    kind, biased, extra = name.split("-")[0], config.get("qkv_bias"), config["vocab_size"] - 60
    layer = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KV * 8, HIDDEN), "mlp.up_proj": (WIDE, HIDDEN),
             "self_attn.v_proj": (KV * 8, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
             "mlp.gate_proj": (WIDE, HIDDEN), "mlp.down_proj": (HIDDEN, WIDE),
             "post_attention_layernorm": (HIDDEN,)}  # fmt: skip
    shapes = {f"layers.0.{part}.weight": shape for part, shape in layer.items()}
    shapes |= {"fc.weight": (HIDDEN, (3 if kind == "hivis" else 2) * HIDDEN), "fc.bias": (HIDDEN,)}
    shapes |= {f"layers.0.self_attn.{one}_proj.bias": layer[f"self_attn.{one}_proj"][:1] for one in "qkv" if biased}
    if kind == "hivis":
        shapes["residual"] = (2, HIDDEN)
    if kind == "vispec":
        shapes |= {f"imadpt.{one}_proj.weight": (HIDDEN, HIDDEN) for one in "kvo"}
        shapes |= {f"imadpt.{one}_proj.bias": (HIDDEN,) for one in "kv" if biased}
        shapes |= {"imadpt.q": (3, HEADS, 8), "img_fc.weight": (HIDDEN, 2 * HIDDEN), "img_fc.bias": (HIDDEN,)}
    t = {key: torch.randn(shape, generator=draw) * 0.15 for key, shape in shapes.items()}
    own = torch.cat((host().shared.embeddings, torch.randn(max(extra, 0), HIDDEN, generator=draw)))
    folder.mkdir(parents=True)
    save_file({**t, "embed_tokens.weight": own[: config["vocab_size"]].contiguous()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder, t, {**config, "head_dim": 8}


def whole(batch):
    """Embeddings and features of a whole prompt: what is read before the text, and the text up to `AT`."""
    e = torch.cat((batch.visual[0][0], host().shared.embeddings[batch.tokens[0]]))
    return e, torch.cat((batch.visual[DEEP][0], batch.hidden[DEEP][0]))[: len(IDS) + AT + 1]


def drafted(batch, t, config, step):
    """Logits [DRAFTS, V] of a draft after `AT`; `step` maps embeddings and features of pairs to the next features."""
    e, f = whole(batch)
    found = []
    for draft in range(DRAFTS):
        f = torch.cat((f, step(e[1 : len(f) + 1], f, draft)[-1:]))
        found.append(f[-1] @ host().shared.lm_head.T)
    return torch.stack(found)


def msd(t, config):
    shown = torch.tensor([*IDS[1:], 0]) == SHOWN

    def step(e, f, draft):
        x = torch.cat((e, f), -1) @ t["fc.weight"].T + t["fc.bias"]
        x[: len(IDS)][shown] = e[: len(IDS)][shown]  # an image's row is its embedding
        return by_hand.layered(x, x, t, "layers.0", config)

    return step


def vispec(t, config):
    def adapted(rows):
        key, value = (
            (rows @ t[f"imadpt.{one}_proj.weight"].T + t.get(f"imadpt.{one}_proj.bias", 0)).reshape(-1, HEADS, 8)
            for one in "kv"
        )
        mixed = by_hand.attention(t["imadpt.q"], key, value, torch.ones(3, len(rows)).bool())
        return mixed @ t["imadpt.o_proj.weight"].T

    def step(e, f, draft):
        rows, positions, seen, at = [], [], torch.zeros(HIDDEN), 0
        shown = [token == SHOWN for token in IDS[1:]] + [False] * (len(e) - len(IDS) + 1)
        while at < len(e):
            if shown[at]:
                end = at + shown[at:].index(False)
                found = adapted(e[at:end])
                rows.append(found[:-1])
                positions += range(end - 2, end)  # the last two of its own
                seen, at = found[-1], end
                continue
            inner = torch.cat((f[at], seen)) @ t["img_fc.weight"].T + t["img_fc.bias"]
            rows.append((torch.cat((e[at], inner)) @ t["fc.weight"].T + t["fc.bias"])[None])
            positions.append(at)
            at += 1
        x = torch.cat(rows)
        return by_hand.layered(x, x, t, "layers.0", config, torch.tensor(positions))

    return step


def text_only(t, config, hides):
    """EAGLE-1, or HiViS: the text alone; `residual` of each draft's step in the rows that it adds."""

    def step(e, f, draft):
        e, f = e[len(IDS) :], f[len(IDS) :]
        if hides:
            steps = torch.zeros(len(f), dtype=torch.long)
            steps[AT + 1 :] = torch.arange(1, draft + 1)
            f = torch.cat((f, t["residual"][steps.clamp(max=1)]), -1)
        x = torch.cat((e, f), -1) @ t["fc.weight"].T + t["fc.bias"]
        return by_hand.layered(x, x, t, "layers.0", config)

    return step


def batch_for(head):
    """A random batch whose prompt shows something where `IDS` says so."""
    batch = random_batch(head)
    front = {
        layer: torch.randn(1, len(IDS), HIDDEN, generator=torch.Generator().manual_seed(layer)) for layer in (0, DEEP)
    }
    words = torch.tensor(IDS) != SHOWN
    front[0][0, words] = host().shared.embeddings[torch.tensor(IDS)[words]]
    return replace(
        batch, tokens=batch.tokens[:1], hidden={layer: rows[:1] for layer, rows in batch.hidden.items()},
        starts=batch.starts[:1], lengths=batch.lengths[:1], visual=front, visual_ids=torch.tensor([IDS]),
    )  # fmt: skip


@torch.inference_mode()
@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_file_drafts_as_its_authors_code(tmp_path, name):
    folder, t, config = theirs(name, tmp_path / "theirs")
    done = import_head(folder, tmp_path / "ours", target())
    kind = name.split("-")[0]
    assert done.network == {"msd": "eaglevlm"}.get(kind, kind)
    head = load_head(tmp_path / "ours", target().shared, SHA)
    batch = batch_for(head)
    known = min(60, config["vocab_size"])  # a padded vocabulary's further ids are not drafted
    assert head.config.draft_ids == tuple(range(known))
    step = {"msd": msd, "vispec": vispec}.get(kind, lambda *given: text_only(*given, kind == "hivis"))(t, config)
    wanted = drafted(batch, t, config, step)[:, :known]
    head.config = replace(head.config, steps=DRAFTS) if kind != "hivis" else head.config
    for found, one in zip(head(batch), wanted, strict=False):
        assert torch.allclose(found.logits[0, AT], one, atol=1e-4, rtol=1e-4), found.offset
    assert check_consistency(AutoregressiveDrafter(head.double(), TREES["chain"]), doubled(batch)) > 10


def doubled(batch):
    return replace(
        batch,
        hidden={layer: rows.double() for layer, rows in batch.hidden.items()},
        visual={layer: rows.double() for layer, rows in batch.visual.items()},
    )


def test_a_head_that_sees_needs_a_target_that_does(tmp_path):
    folder = theirs("msd", tmp_path / "theirs")[0]
    with pytest.raises(CrossdraftError, match="this target sees nothing"):
        import_head(folder, tmp_path / "ours", host())


@pytest.mark.parametrize(
    ("name", "words", "change", "sentence"),
    [
        ("eagle-qwen2", {"vocab_size": 56}, {}, "knows 56 ids, and the target's text has 57"),
        ("eagle-qwen2", {}, {"embed_tokens.weight": torch.ones(64, HIDDEN)}, "embeddings that are not this target's"),
        ("eagle-qwen2", {"qkv_bias": False}, {}, r"has 'layers.0.self_attn.[qkv]_proj.bias', which we do not know"),
        ("hivis-smolvlm", {"qkv_bias": True}, {}, r"lacks 'layers.0.self_attn.q_proj.bias'"),
        ("hivis", {}, {"residual": torch.ones(2, 5)}, r"'residual' \[steps, 32\]; here they are .* \[2, 5\]"),
        ("vispec", {}, {"imadpt.extra": torch.ones(2)}, "has 'imadpt.extra', which we do not know"),
    ],
)
def test_a_published_file_that_does_not_fit_is_refused(tmp_path, name, words, change, sentence):
    folder = reworded(theirs(name, tmp_path / "theirs")[0], **words)
    rewoven(folder, lambda tensors: tensors | change)
    with pytest.raises(CrossdraftError, match=sentence):
        import_head(folder, tmp_path / "ours", target())
    assert not (tmp_path / "ours").exists()


@torch.inference_mode()
@pytest.mark.parametrize(("stated", "drafts"), [(64, (2, 3, 59, 60, 63)), (57, (2, 3, 50, 56))])
def test_eagle3_of_a_padded_vocabulary_drafts_the_ids_that_both_have(tmp_path, stated, drafts):
    """The other vocabulary has other rows behind the text's; those are dropped, the others' logits stay."""
    folder = carried(tmp_path, draft_ids=tuple(range(2, 2 + len(drafts))))
    plain = load_head(tmp_path / "ours", host().shared, SHA)
    drafted = torch.zeros(stated, dtype=torch.bool)
    drafted[list(drafts)] = True
    maps = {"d2t": torch.tensor(drafts) - torch.arange(len(drafts)), "t2d": drafted}
    reworded(rewoven(folder, lambda tensors: tensors | maps), vocab_size=stated)
    import_head(folder, tmp_path / "back", target())
    head = load_head(tmp_path / "back", host().shared, SHA)
    assert head.config.draft_ids == tuple(one for one in drafts if one < 60)
    batch = random_batch(head)
    kept = len(head.config.draft_ids)
    assert torch.allclose(head(batch)[0].logits, plain(batch)[0].logits[..., :kept], atol=1e-5)  # sums of another width


@torch.inference_mode()
@pytest.mark.parametrize("norms", [False, True])
def test_eagle3_of_four_levels(tmp_path, norms):
    levels, named = (1, 2, 4, 6), {LEVELS: None, "eagle_config": None, "fc_norm": norms}
    folder = carried(tmp_path, levels=levels, level_scales=(1.0, 0.5, 2.0, 1.0), fc_norm=norms)
    assert read_config(import_to(folder, tmp_path / "back")).config.levels == levels
    found, plain = (load_head(tmp_path / one, host().shared, SHA) for one in ("back", "ours"))
    batch = random_batch(found)
    assert torch.allclose(found(batch)[1].logits, plain(batch)[1].logits, atol=1e-4)
    reworded(folder, **named)
    with pytest.raises(CrossdraftError, match="reads 4 hidden states of the target, and 0 are named; set levels"):
        import_to(folder, tmp_path / "again")
    import_head(folder, tmp_path / "again", host(), {"levels": levels})
    assert read_config(tmp_path / "again").config == found.config


def import_to(folder, out):
    import_head(folder, out, host())
    return out


def test_eagle3_with_biases_needs_them_all(tmp_path):
    folder = carried(tmp_path, qkv_bias=True)
    assert read_config(import_to(folder, tmp_path / "back")).config.qkv_bias
    rewoven(folder, lambda tensors: {key: value for key, value in tensors.items() if not key.endswith("k_proj.bias")})
    with pytest.raises(CrossdraftError, match=r"lacks 'midlayer.self_attn.k_proj.bias'"):
        import_to(folder, tmp_path / "again")


def test_a_probe_separates_a_head_that_fits_from_one_that_does_not(tmp_path, monkeypatch):
    """The shipped EAGLE-1; and the same with embeddings and features exchanged before its layer."""
    loaded, whole, asked = load_target("reference", "cpu", "float32", packed=False), shipped_at("heads/eagle"), []
    answers, tau = probe(loaded, "reference", whole, "eagle", asked.append)
    assert (answers, tuple(asked)) == (8, QUESTIONS)
    assert tau > 1.5
    copytree(whole, tmp_path / "wrong")
    rewoven(tmp_path / "wrong", lambda t: t | {"fc.weight": t["fc.weight"].roll(t["fc.weight"].shape[1] // 2, 1)})
    assert probe(loaded, "reference", tmp_path / "wrong", "eagle", asked.append)[1] < FITS
    monkeypatch.setattr("crossdraft.heads.probe.TOKENS", 3)  # the prompt's pass, and rounds with a draft of one token
    assert probe(loaded, "reference", whole, "eagle", asked.append)[1] > 1.5


def test_a_probe_ends_an_answer_at_its_limit_and_says_that_nothing_was_drafted(monkeypatch):
    """By a clock that goes a second each time it is read; the target never ends an answer itself."""
    loaded, whole, steps, step = (
        load_target("reference", "cpu", "float32", packed=False),
        shipped_at("heads/eagle"),
        [],
        DecodeLoop.step,
    )
    loaded.eos = frozenset()
    monkeypatch.setattr(DecodeLoop, "step", lambda self: steps.append(0) or step(self))
    monkeypatch.setattr("crossdraft.heads.probe.time", SimpleNamespace(monotonic=count().__next__))
    monkeypatch.setattr("crossdraft.heads.probe.TOKENS", 400)
    assert probe(loaded, "reference", whole, "eagle", str)[0] == 1
    assert len(steps) == 61  # the last one retires it
    monkeypatch.setattr("crossdraft.heads.probe.TOKENS", 1)
    with pytest.raises(CrossdraftError, match="the answers are too short, nothing was drafted"):
        probe(loaded, "reference", whole, "eagle", str)


@pytest.mark.parametrize("network", ["vispec", "eaglevlm"])
def test_a_head_in_its_authors_arrangement_finds_what_is_shown_and_changes_no_answer(tmp_path, network, monkeypatch):
    """ViSpec's and MSD's prefix in the engine: an untrained one, on the reference target with a picture."""
    target, host = target_and_host("reference")
    sizes = {"heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate_size": 32, "visual_ids": host.visual_ids}
    head = make(network, config_of(network, {**host.sizes, "draft_ids": (5, 6, 7), **sizes}, "here"), host.shared)
    save_head(tmp_path, head, network, host.sha256)
    drafter = load_head_drafter(network, target, "reference", tmp_path, "chain", sorted(target.reserved))
    found, prefix = [], type(drafter.head).prefix
    monkeypatch.setattr(
        type(drafter.head), "prefix", lambda self, *given: found.append(given[1]) or prefix(self, *given)
    )
    request = Request("What is shown?", image=np.zeros((56, 84, 3), np.uint8), max_new_tokens=12)
    (answer,) = DecodeLoop(target, DraftRunner(drafter, "off"), adaptive=False, nodes=4).generate([request])
    assert torch.isin(found[0], torch.tensor(host.visual_ids)).any()
    assert answer.stats.drafted > 0
    assert answer.tokens == DecodeLoop(target).generate([request])[0].tokens
