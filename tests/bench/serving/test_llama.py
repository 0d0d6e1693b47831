"""llama.cpp's own server beside the engine, where `make peers` has built it: the same tokens, and nothing left."""

import os
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from crossdraft.load import load_target, text_folder
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.serving.llama import LlamaFiles
from crossdraft_lab.bench.suite import Suite, run_suite
from crossdraft_lab.bench.throughput import Throughput, run_throughput
from crossdraft_lab.bench.workload import Workload

BUILT = next(iter(sorted(Path(__file__).parents[3].glob(".venv-peers/*/llama-server"))), Path("llama-server"))
SERVER = Path(os.environ.get("CROSSDRAFT_LLAMA_SERVER", BUILT))
pytestmark = pytest.mark.skipif(not SERVER.is_file(), reason="llama.cpp's server is not built; `make peers` does it")


NAMES = {
    r"model\.layers\.(\d+)": r"blk.\1", r"model\.embed_tokens": "token_embd", r"model\.norm": "output_norm",
    "lm_head": "output", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    r"self_attn\.o_proj": "attn_output", r"self_attn\.(.)_proj": r"attn_\1", r"mlp\.(.*)_proj": r"ffn_\1",
}  # fmt: skip


def value(found: Any) -> bytes:
    """A value of a GGUF's head, its type before it; a text has type 8."""
    if isinstance(found, list):
        items = [value(one) for one in found]
        return struct.pack("<I", 9) + items[0][:4] + struct.pack("<Q", len(items)) + b"".join(one[4:] for one in items)
    if isinstance(found, str):
        return struct.pack("<IQ", 8, len(found)) + found.encode()
    return struct.pack("<II", 4, found) if isinstance(found, int) else struct.pack("<If", 6, found)


def named(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = re.sub(theirs, ours, name)
    return name


def write_gguf(model, path: Path) -> None:
    """Write a Qwen 2 in float32; its tokens are named by their numbers, for prompts are sent as ids."""
    config = model.config
    head = {
        "general.architecture": "qwen2", "general.file_type": 0, "qwen2.block_count": config.num_hidden_layers,
        "qwen2.context_length": config.max_position_embeddings, "qwen2.embedding_length": config.hidden_size,
        "qwen2.feed_forward_length": config.intermediate_size, "qwen2.attention.head_count": config.num_attention_heads,
        "qwen2.attention.head_count_kv": config.num_key_value_heads,
        "qwen2.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "qwen2.rope.freq_base": float(config.rope_parameters["rope_theta"]), "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": [f"t{one}" for one in range(config.vocab_size)],
        "tokenizer.ggml.merges": ["t 1"], "tokenizer.ggml.eos_token_id": config.eos_token_id,
    }  # fmt: skip
    tensors = {named(name): tensor.numpy() for name, tensor in model.state_dict().items()}
    parts, infos, at = [], [], 0
    for name, tensor in tensors.items():
        sizes = struct.pack(f"<{tensor.ndim}Q", *reversed(tensor.shape))
        infos.append(value(name)[4:] + struct.pack("<I", tensor.ndim) + sizes + struct.pack("<IQ", 0, at))
        data = np.ascontiguousarray(tensor, dtype=np.float32).tobytes()
        parts.append(data + bytes(-len(data) % 32))
        at += len(parts[-1])
    front = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(head))
    front += b"".join(value(name)[4:] + value(found) for name, found in head.items()) + b"".join(infos)
    path.write_bytes(front + bytes(-len(front) % 32) + b"".join(parts))


def made(folder):
    """Write a random Qwen 2 as a checkpoint and as GGUF, which drafts for itself."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(text_folder("text") / name, folder)
    torch.manual_seed(0)
    vocab = load_target(str(text_folder("text")), device="cpu").vocab_size
    config = Qwen2Config(
        vocab_size=vocab, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, initializer_range=0.4, tie_word_embeddings=False,
        eos_token_id=2, bos_token_id=1,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).eval()
    model.save_pretrained(folder)
    write_gguf(model, folder / "tiny.gguf")
    return LlamaFiles(SERVER, folder / "tiny.gguf", folder / "tiny.gguf")


def test_llama_cpp_writes_the_targets_tokens_with_drafts_and_without(tmp_path):
    llama, prompts = made(tmp_path), tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "What is ahead?"}\n{"prompt": "Is there a bus on the road?"}\n')
    work, models = Workload(2, max_new_tokens=24, prompts=prompts), Models(str(tmp_path), device="cpu", dtype="float32")
    found = run_suite(Suite(models, work, ("target",), repeats=1, warm_ups=1, memory=False, llama=llama))
    _, alone, drafted = found.methods
    assert alone["identical"] == drafted["identical"] == {"equal": 2, "total": 2}
    assert alone["tau"].value == pytest.approx(1)
    assert drafted["tau"].value > 2, "the same model drafts for itself"
    assert found.environment["servers"]["llama.cpp"]["weights"] == "all F32"
    assert found.footprints["llama.cpp"]["total_mib"] > 1


def test_llama_cpp_answers_many_requests_at_once(tmp_path):
    llama, prompts = made(tmp_path), tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "What is ahead of {one}?"}}\n' for one in ("me", "the bus", "all of us")))
    work, models = Workload(3, max_new_tokens=16, prompts=prompts), Models(str(tmp_path), device="cpu", dtype="float32")
    plan = Throughput(models, work, (1, 3), "ngram", 1, 1, baselines=("target", "llama.cpp"), llama=llama, warm_ups=0)
    report = run_throughput(plan)
    assert [row["identical"] for row in report["rows"]] == ["1/1"] * 3 + ["3/3"] * 3
    assert report["about"]["llama.cpp"]["weights"] == "all F32"
    assert all(0 < row["ttft_ms"]["median"] < row["e2e_ms"]["median"] for row in report["rows"])
