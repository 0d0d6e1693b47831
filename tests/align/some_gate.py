"""A speculative prefill for the tiny pair: a random adapter, and a gate that is sure of every clip by 0.5."""

from pathlib import Path

import torch

from crossdraft.heads.files import save_head
from crossdraft.load import load_target, target_fingerprint
from crossdraft_lab.align.gate import PrefillGate, save_gate
from tests.align.test_vision import some_vision
from tests.support import PairPaths


def predicted_spec(pair: PairPaths, folder: Path, network: str = "vision_linear") -> str:
    """The compression that reads what is written into the folder; of the gate's one clip all was lost."""
    target = load_target(str(pair.target), "cpu", "float64", packed=False)
    save_head(
        folder, some_vision(network, target, pair.event), network, target_fingerprint(str(pair.target)), torch.float32
    )
    gate = PrefillGate(5, 16)
    for weight in (gate.out.weight, gate.out.bias):
        torch.nn.init.zeros_(weight)
    gate.calibrate(torch.tensor([0.5]), torch.tensor([1.0]))
    save_gate(gate, folder)
    return f"predicted:dir={folder},model={pair.event}"
