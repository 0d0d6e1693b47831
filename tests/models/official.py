"""The official EventGPT in plain code: a tiny checkpoint in its layout, and its forward from those very tensors.

Nothing of `crossdraft.models` is used, so that an error there cannot hide here.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers import models as token_models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HIDDEN, VISION, HEADS, PATCH, GRID, LAYERS = 32, 128, 2, 4, 3, 2  # 128 = 2 heads of 64, as in OpenAI's vision encoders
IMAGE = PATCH * GRID
TEXT: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
VISION_PREFIX = "model.visual_tower.visual_tower."


def byte_tokenizer(size: int, added: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Byte-level ids without merges: <unk> <s> </s>, 256 bytes, fillers up to `size`, then `added`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *alphabet])}
    vocabulary |= {f"filler{i}": i for i in range(len(vocabulary), size)}
    tokenizer = Tokenizer(token_models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    built = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<unk>"
    )
    built.add_tokens(list(added), special_tokens=True)
    return built


def official_weights(
    rows: int, dtype: torch.dtype = torch.float64, segment: str = "vision_model."
) -> dict[str, Tensor]:
    """Random tensors under the official names; `segment` as transformers 4.37 wrote it, or empty."""
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> Tensor:
        scale = 1 / shape[-1] ** 0.5 if len(shape) > 1 else 0.2
        return torch.randn(*shape, generator=generator, dtype=torch.float64).mul_(scale).to(dtype)

    clip = VISION_PREFIX + segment
    weights = {
        f"{clip}embeddings.class_embedding": draw(VISION),
        f"{clip}embeddings.patch_embedding.weight": draw(VISION, 3, PATCH, PATCH),
        f"{clip}embeddings.position_embedding.weight": draw(GRID * GRID + 1, VISION),
        "model.visual_projector.0.weight": draw(HIDDEN, VISION),
        "model.visual_projector.0.bias": draw(HIDDEN),
        "model.visual_projector.2.weight": draw(HIDDEN, HIDDEN),
        "model.visual_projector.2.bias": draw(HIDDEN),
        "model.feature_adaptor.weight": draw(HIDDEN, HIDDEN),
        "model.feature_adaptor.bias": draw(HIDDEN),
        "model.embed_tokens.weight": draw(rows, HIDDEN),
        "model.norm.weight": 1 + draw(HIDDEN),
        "lm_head.weight": draw(rows, HIDDEN),
    }
    for norm in ("pre_layrnorm", "post_layernorm"):
        weights |= {f"{clip}{norm}.weight": 1 + draw(VISION), f"{clip}{norm}.bias": draw(VISION)}
    for i in range(LAYERS):
        layer = f"{clip}encoder.layers.{i}."
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            weights[f"{layer}self_attn.{name}.weight"] = draw(VISION, VISION)
            weights[f"{layer}self_attn.{name}.bias"] = draw(VISION)
        for norm in ("layer_norm1", "layer_norm2"):
            weights |= {f"{layer}{norm}.weight": 1 + draw(VISION), f"{layer}{norm}.bias": draw(VISION)}
        weights |= {f"{layer}mlp.fc1.weight": draw(160, VISION), f"{layer}mlp.fc1.bias": draw(160)}
        weights |= {f"{layer}mlp.fc2.weight": draw(VISION, 160), f"{layer}mlp.fc2.bias": draw(VISION)}
        layer = f"model.layers.{i}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weights[f"{layer}self_attn.{name}.weight"] = draw(HIDDEN, HIDDEN)
        for name in ("gate_proj", "up_proj"):
            weights[f"{layer}mlp.{name}.weight"] = draw(48, HIDDEN)
        weights[f"{layer}mlp.down_proj.weight"] = draw(HIDDEN, 48)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{layer}{norm}.weight"] = 1 + draw(HIDDEN)
    return weights


def write_official(
    folder: Path,
    weights: Mapping[str, Tensor],
    tokenizer: PreTrainedTokenizerFast | None,
    *,
    pickled: bool = False,
    shards: int = 1,
    **config: Any,
) -> Path:
    """Write a checkpoint folder as the official code leaves it.

    `config` overrides keys of `config.json`; None drops a key.
    """
    folder.mkdir()
    raw = {
        "architectures": ["EventChatModel"],
        "model_type": "EventChat_llama",
        "mm_visual_tower": "clip-vit-large-patch14-336",
        "event_feature_adaptor": True,
        "mm_use_im_start_end": False,
        "mm_use_im_patch_token": False,
        "torch_dtype": "bfloat16",
        "vocab_size": weights["model.embed_tokens.weight"].shape[0] if "model.embed_tokens.weight" in weights else 1,
        **TEXT,
        **config,
    }
    (folder / "config.json").write_text(json.dumps({key: value for key, value in raw.items() if value is not None}))
    if tokenizer is not None:
        tokenizer.save_pretrained(str(folder))
    stem, suffix = ("pytorch_model", ".bin") if pickled else ("model", ".safetensors")
    names = [f"{stem}-{i + 1:05}-of-{shards:05}{suffix}" if shards > 1 else stem + suffix for i in range(shards)]
    file_of = {key: names[i % shards] for i, key in enumerate(weights)}
    for name in names:
        part = {key: weights[key] for key in weights if file_of[key] == name}
        if pickled:
            torch.save(part, folder / name)
        else:
            save_file(part, folder / name)
    if shards > 1:
        (folder / f"{stem}{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": file_of}))
    return folder


def clip_hidden(weights: Mapping[str, Tensor], frame: Tensor, segment: str = "vision_model.") -> Tensor:
    """[3, s, s] to the last layer's [P+1, d]: class token kept, no final norm."""
    clip = VISION_PREFIX + segment

    def affine(name: str, x: Tensor) -> Tensor:
        return F.linear(x, weights[f"{clip}{name}.weight"], weights[f"{clip}{name}.bias"])

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, (VISION,), weights[f"{clip}{name}.weight"], weights[f"{clip}{name}.bias"])

    patches = F.conv2d(frame[None], weights[f"{clip}embeddings.patch_embedding.weight"], stride=PATCH)
    x = torch.cat([weights[f"{clip}embeddings.class_embedding"][None], patches[0].flatten(1).T])
    x = norm("pre_layrnorm", x + weights[f"{clip}embeddings.position_embedding.weight"])
    for i in range(LAYERS):
        layer = f"encoder.layers.{i}."
        y = norm(f"{layer}layer_norm1", x)
        q, k, v = (
            affine(f"{layer}self_attn.{n}_proj", y).unflatten(1, (HEADS, -1)).transpose(0, 1) for n in ("q", "k", "v")
        )
        attention = (q @ k.transpose(1, 2) / (VISION // HEADS) ** 0.5).softmax(dim=-1) @ v
        x = x + affine(f"{layer}self_attn.out_proj", attention.transpose(0, 1).flatten(1))
        y = affine(f"{layer}mlp.fc1", norm(f"{layer}layer_norm2", x))
        x = x + affine(f"{layer}mlp.fc2", y * torch.sigmoid(1.702 * y))
    return x


def official_features(weights: Mapping[str, Tensor], frames: Tensor, segment: str = "vision_model.") -> Tensor:
    """[T, 3, s, s] to [T+P+1, h], frame by frame: projector, adaptor, and only then the means."""

    def affine(name: str, x: Tensor) -> Tensor:
        return F.linear(x, weights[f"model.{name}.weight"], weights[f"model.{name}.bias"])

    adapted = []
    for frame in frames:
        hidden = affine("visual_projector.0", clip_hidden(weights, frame, segment))
        adapted.append(affine("feature_adaptor", affine("visual_projector.2", F.gelu(hidden))))
    temporal = torch.stack([frame.mean(dim=0) for frame in adapted])
    spatial = torch.stack(adapted).mean(dim=0)
    return torch.cat([temporal, spatial])


def official_logits(weights: Mapping[str, Tensor], ids: Sequence[int], features: Tensor) -> Tensor:
    """Logits [L, V] of a prompt in which -200 stands where the features go."""
    names = [
        name for name in weights if name.startswith(("model.layers.", "model.norm.", "model.embed_tokens.", "lm_head."))
    ]
    rows = len(weights["lm_head.weight"])
    llama: Any = LlamaForCausalLM(LlamaConfig(**TEXT, vocab_size=rows))
    llama.to(features.dtype).eval()
    llama.load_state_dict({name: weights[name] for name in names}, strict=True)
    position = list(ids).index(-200)
    embed = weights["model.embed_tokens.weight"]
    embeds = torch.cat([embed[list(ids[:position])], features, embed[list(ids[position + 1 :])]])
    with torch.inference_mode():
        return llama(inputs_embeds=embeds[None]).logits[0]
