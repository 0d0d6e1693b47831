"""Small random heads, the target that they belong to, and their folders."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from crossdraft.heads.convert.converter import ForeignHead, NativeHead, TargetInfo
from crossdraft.heads.files import save_head
from crossdraft.heads.networks.base import Head, SharedWeights
from crossdraft_lab.train.heads.foreign import LAYOUTS
from tests.heads.consistency import shared, some_head

DEEP = 7  # layers of a target whose three levels are three
SHA = "f" * 64
LEVELS = "eagle_aux_hidden_state_layer_ids"
MORE = {"dflash": {"mask_token": 1}}


def host(layers: int = DEEP, name: str | None = None) -> TargetInfo:
    whole = shared()
    return TargetInfo(SharedWeights(whole.embeddings.float(), whole.lm_head.float()), layers, SHA, name, ("SomeVLM",))


def some(network: str, **more: object) -> Head:
    head = some_head(network, **{"num_layers": DEEP, **MORE.get(network, {}), **more}).float()
    if not head.owns_head:  # what is borrowed is the target's to the last bit
        with torch.no_grad():
            head.lm_head.weight.copy_(host().shared.lm_head[head.draft_ids])
    return head


def exported(network: str, layout: str, **more: object) -> tuple[Head, ForeignHead]:
    """A head, and the same in another project's words."""
    head = some(network, **more)
    return head, LAYOUTS[layout].write(NativeHead(network, head.config, head.stored()), host())


def saved(folder: Path, network: str, dtype: torch.dtype = torch.float32, **more: object) -> Path:
    """A head's folder."""
    folder.mkdir(parents=True)
    save_head(folder, some(network, **more), network, SHA, dtype)
    return folder


def reworded(folder: Path, **words: object) -> Path:
    """The folder with other words in its config; `None` takes one out."""
    path = folder / "config.json"
    found = json.loads(path.read_text()) | words
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))
    return folder


def rewoven(folder: Path, change) -> Path:
    """The folder with its tensors changed."""
    path = next(folder.glob("*.safetensors"))
    save_file(change(load_file(path)), path)
    return folder
