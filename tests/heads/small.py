"""Random heads for a tiny pair, as folders. What they say is nonsense; what comes of it is not."""

from pathlib import Path

import torch

from crossdraft.drafters.event.load import load_drafter
from crossdraft.files import fingerprint
from crossdraft.heads.event_medusa.drafter import shared_weights_of
from crossdraft.heads.files import config_of, make, save_head
from crossdraft.load import load_target
from tests.support import PairPaths


def some_heads(pair: PairPaths, folder: Path, noise: float = 0.1) -> Path:
    """The folder, in which each head has one of its network's name; more noise: more depends on what they read."""
    event = load_drafter(str(pair.event), "cpu", "float32", packed=False).model
    target = load_target(str(pair.target), "cpu", "float32", packed=False)
    known = {"hidden_size": 32, "vocab_size": target.vocab_size, "num_layers": 2}
    encoder = {"tower": fingerprint(pair.target), "visual_size": target.text_config.hidden_size}
    owners = {
        "event_medusa": (shared_weights_of(event), fingerprint(pair.event)),
        "glance": (shared_weights_of(event), fingerprint(pair.event)),
    }
    torch.manual_seed(1)
    for name, (tables, owner) in owners.items():
        own = {**encoder, "patches": 5, "heads": 2} if name == "glance" else {"steps": 3}
        head = make(name, config_of(name, {**known, **own, "draft_ids": tuple(range(40, 300))}, name), tables)
        with torch.no_grad():
            for weight in head.parameters():
                weight.add_(torch.randn_like(weight), alpha=noise)
        (folder / name).mkdir()
        save_head(folder / name, head, name, owner)
    return folder
