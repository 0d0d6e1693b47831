"""Pairs that are made on the spot, for drafters that come with a checkpoint, of which none is shipped.

Small random models of the classes: a Gemma 4 and a Muse Glimmer, each with its assistant, asked in words; and the
reference target with a layer of multi-token prediction beside its own. What random weights draft is rarely right, so a
union with `memory` has drafts accepted too.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from crossdraft.checkpoints.locate import REFERENCE
from crossdraft.checkpoints.shrunk import ORDINARY, random_model, shrunk
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.heads.assistant.load import borrowing_decoder
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.workload import Item

END = 5  # the id that ends an answer of a random model
LAYERS = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
WEIGHTS, LAST = "model.safetensors", "language_model.model.layers.6."


@dataclass(frozen=True, slots=True)
class MadePair:
    """A target, the specs of the drafters that are made for it by the names that people read, and what it is asked."""

    models: Models
    target: Target
    specs: dict[str, str]
    items: list[Item]


def made_pairs(folder: Path, models: Models, items: Sequence[Item]) -> Iterator[MadePair]:
    """Make the pairs one after another, below `folder`; they are asked what `items` ask."""
    words = [replace(item, request=replace(item.request, video=None, events=None)) for item in items]
    for name, make in (("Gemma 4", _gemma), ("Muse Glimmer", _muse)):
        target = make(below := folder / name.replace(" ", "-"))
        specs = {f"assistant of {name}": f"assistant:dir={below}"}
        specs[f"assistant of {name}, chain"] = f"assistant:dir={below},tree=chain"
        specs[f"assistant of {name} and memory"] = f"union:(assistant:dir={below}),memory"
        yield MadePair(models, target, specs, words)
    there = replace(models, target=str(_with_mtp(folder / "mtp")))
    specs = {"mtp": "mtp", "mtp, chain": "mtp:tree=chain", "mtp and memory": "union:mtp,memory"}
    yield MadePair(there, there.load_target(), specs, [*items])


def _read(request: Request) -> Prompt:
    return Prompt(torch.tensor([6 + ord(letter) % (ORDINARY - 6) for letter in request.prompt]))


def _target(kind: str, config: str) -> Target:
    made = shrunk(getattr(transformers, config)())
    for number, name in enumerate(("image_token_id", "video_token_id")):  # ids that a random model cannot say
        setattr(made, name, made.get_text_config().vocab_size + number)
    return Target(random_model(getattr(transformers, kind), made, torch.float32), _read, str, [END])


def _random(shapes: dict[str, Tensor]) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(1)
    return {name: torch.randn(own.shape, generator=draws) * 0.2 + (own.ndim == 1) for name, own in shapes.items()}


def _gemma(folder: Path) -> Target:
    target = _target("Gemma4ForConditionalGeneration", "Gemma4Config")
    text: dict[str, Any] = target.text_config.to_dict() | LAYERS | {"num_kv_shared_layers": 2, "intermediate_size": 64}
    text |= {
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "per_layer_config": {1: text.pop("per_layer_config")["1"]},
    }
    config = transformers.Gemma4AssistantConfig(text_config=text, backbone_hidden_size=target.text_config.hidden_size)
    config.save_pretrained(folder)
    sizes = config.get_text_config()
    decoder, width = borrowing_decoder(sizes), target.text_config.hidden_size
    shapes = {f"model.{name}": weight for name, weight in decoder.state_dict().items()}
    shapes["pre_projection.weight"] = torch.empty(sizes.hidden_size, 2 * width)
    shapes["post_projection.weight"] = torch.empty(width, sizes.hidden_size)
    save_file(_random(shapes), folder / WEIGHTS, {"format": "pt"})
    return target


def _muse(folder: Path) -> Target:
    target = _target("MuseGlimmerForConditionalGeneration", "MuseGlimmerConfig")
    sizes: dict[str, Any] = {"hidden_size": target.text_config.hidden_size, "intermediate_size": 64, "head_dim": 16}
    sizes |= LAYERS | {"num_attention_heads": 4, "num_key_value_heads": 2, "block_size": 6, "sliding_window": 8}
    sizes |= {"mask_token_id": 3, "target_layer_ids": [0, 1], "max_position_embeddings": 4096}
    made: Any = transformers.MuseGlimmerAssistantModel(transformers.MuseGlimmerAssistantConfig(**sizes))
    made.load_state_dict(_random(made.state_dict()))
    made.save_pretrained(folder)
    return target


def _with_mtp(folder: Path) -> Path:
    """Copy the reference target, and add a layer of multi-token prediction: its last layer's shapes, random."""
    shutil.copytree(REFERENCE / "target", folder)
    stored = load_file(folder / WEIGHTS)
    own = {name.rpartition(LAST)[2]: weight for name, weight in stored.items() if LAST in name}
    width = own["input_layernorm.weight"].shape[0]
    shapes = {f"layers.0.{name}": weight for name, weight in own.items()} | {"fc.weight": torch.empty(width, 2 * width)}
    norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    shapes |= {f"{name}.weight": torch.empty(width) for name in norms}
    extra = {f"mtp.{name}": weight.to(torch.bfloat16) for name, weight in _random(shapes).items()}
    save_file(stored | extra, folder / WEIGHTS, {"format": "pt"})
    return folder
