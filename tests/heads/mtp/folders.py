"""Checkpoints of tiny random models that carry MTP layers under the names that publishers use."""

from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.tiny_families import IDS, TEXT, byte_tokenizer

EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2, "n_shared_experts": 1}
LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "num_key_value_heads": 4,
}  # fmt: skip
KINDS: dict[str, dict[str, object]] = {  # text models
    "glm4_moe": EXPERTS | {"n_routed_experts": 4, "first_k_dense_replace": 1, "head_dim": 16},
    "deepseek_v3": EXPERTS
    | LATENT
    | {"n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
    "mellum": EXPERTS
    | {"num_experts": 4, "head_dim": 16, "sliding_window": 6, "num_nextn_predict_layers": 1}
    | {"layer_types": ["full_attention", "sliding_attention"]},
    "qwen3": {"head_dim": 16},
}
NAMES = {"enorm": "hidden", "hnorm": "hidden", "eh_proj": "pair", "shared_head.norm": "hidden"}
ABOVE = {"pre_fc_norm_embedding": "hidden", "pre_fc_norm_hidden": "hidden", "fc": "pair", "norm": "hidden"}


def text_model(kind: str, sizes: dict[str, object] = TEXT) -> PreTrainedModel:
    config = CONFIG_MAPPING[kind](**sizes | KINDS[kind] | {"num_hidden_layers": 2})
    return transformers.AutoModelForCausalLM.from_config(config)


def save_text(kind: str, folder: Path) -> Path:
    """Save a random text model with its tokenizer."""
    save_model(text_model(kind), folder)
    byte_tokenizer(None).save_pretrained(folder)
    return folder


def save_model(model: PreTrainedModel, folder: Path) -> None:
    """Save a model with weights that are large enough for tokens to matter."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape) * 0.15)
    model.generation_config.eos_token_id = IDS["</s>"]
    model.save_pretrained(folder)


def save_kimi(model: PreTrainedModel, folder: Path) -> None:
    """Save a Kimi K2.5's text part under its published names, which transformers 5.23 does not write."""
    model.model.language_model.save_pretrained(folder)
    path = folder / "model.safetensors"
    save_file({f"language_model.model.{name}": x for name, x in load_file(path).items()}, path, {"format": "pt"})
    model.config.save_pretrained(folder)


def add_mtp(folder: Path, count: int = 1, *, above: bool = False, leave_out: str = "\n") -> Path:
    """Add MTP layers whose decoder layers have the last layer's names and shapes; `above`: the layout `mtp.*`."""
    path = folder / "model.safetensors"
    stored, generator = load_file(path), torch.Generator().manual_seed(5)
    last = max(int(name.partition("layers.")[2].partition(".")[0]) for name in stored if is_text(name))
    start = next(name for name in stored if is_text(name)).partition("layers.")[0]
    size = stored[f"{start}layers.{last}.input_layernorm.weight"].shape[0]

    def some(shape: tuple[int, ...]) -> Tensor:
        near = 1.0 if len(shape) == 1 else 0.0
        return near + torch.randn(shape, generator=generator) * 0.15

    shapes = {"hidden": (size,), "pair": (size, 2 * size)}
    extra = {f"mtp.{name}.weight": some(shapes[kind]) for name, kind in ABOVE.items()} if above else {}
    for number in range(count):
        front = f"mtp.layers.{number}." if above else f"{start}layers.{last + 1 + number}."
        old = f"{start}layers.{last}."
        extra |= {front + name[len(old) :]: some(tuple(x.shape)) for name, x in stored.items() if name.startswith(old)}
        if not above:
            extra |= {f"{front}{name}.weight": some(shapes[kind]) for name, kind in NAMES.items()}
            extra[f"{front}embed_tokens.weight"] = torch.zeros(3, size)  # a copy that is not read
    save_file(stored | {name: x for name, x in extra.items() if leave_out not in name}, path, {"format": "pt"})
    return folder


def is_text(name: str) -> bool:
    return "layers." in name and "vis" not in name
