"""Random weights of any size: bytes counted by hand, and the whole program where nothing but torch is installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import CLIPVisionConfig, LlamaConfig, VideoLlavaConfig

from crossdraft.cli.main import main as crossdraft_main
from crossdraft.engine.prefill import prefill
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target
from crossdraft.models.eventgpt import EventGPTConfig
from crossdraft_lab.bench.compiled import lines
from crossdraft_lab.bench.scale import main
from crossdraft_lab.bench.scale_measure import timed_pass
from crossdraft_lab.bench.scale_models import (
    DRAFTERS,
    TARGETS,
    cache_bytes,
    check_memory,
    decode_bytes,
    random_prompt,
    random_target,
    shape_of,
)
from tests.engine.zoo import ZOO, as_target
from tests.gpu.pairs import TINY

# `python -m crossdraft_lab.bench.scale`, on a machine that has nothing but what the engine needs
BARE = """
import runpy, sys
for name in ("typer", "rich", "matplotlib", "av", "h5py", "cv2", "scipy", "pydantic"):
    sys.modules[name] = None
sys.argv[0] = "scale"
runpy.run_module("crossdraft_lab.bench.scale", run_name="__main__")
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """config.json of a micro Video-LLaVA and of a micro EventGPT."""
    folder = tmp_path_factory.mktemp("scale")
    vision, text = CLIPVisionConfig(**TINY["vision_config"]), LlamaConfig(**TINY["text_config"])
    target = VideoLlavaConfig(vision_config=vision, text_config=text, image_token_index=97, video_token_index=98)
    target.to_json_file(folder / "target.json")
    drafter = EventGPTConfig(vision_config=vision, text_config=text, event_token_id=98)
    drafter.to_json_file(folder / "drafter.json")
    return folder / "target.json", folder / "drafter.json"


def test_everything_on_a_bare_machine(files):
    target, drafter = files
    core = min(os.sched_getaffinity(0))
    options = [f"--config={target}", f"--drafter={drafter}", "--device=cpu", "--budget=0.01"]
    ran = subprocess.run(
        [sys.executable, "-c", BARE, *options, f"--target-cores={core}", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
    )
    assert ran.returncode == 0, ran.stderr
    assert "V(n)/V(1)" in ran.stderr
    found = json.loads(ran.stdout)  # and nothing else
    assert [row["n"] for row in found["verify"]] == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
    assert found["verify"][0]["over_v1"] == 1
    assert found["decode"]["bandwidth"] > 1e8
    decode = found["decode"]
    bound_s = (decode["weight_bytes"] + decode["cache_bytes"]) / decode["bandwidth"]
    assert decode["bound_ms"] == pytest.approx(bound_s * 1e3, abs=1e-3)
    assert found["workload"]["prompt_tokens"] == 8 * 5 + 36
    placements = {row["placement"]: row for row in found["drafters"][0]["placements"]}
    kept = json.loads((Path(__file__).parents[2] / "docs/results/scale/7b_h100.json").read_text())
    assert kept.keys() == found.keys()
    assert [kept[part].keys() for part in ("workload", "decode")] == [
        found[part].keys() for part in ("workload", "decode")
    ]
    assert kept["drafters"][0].keys() == found["drafters"][0].keys()
    assert kept["drafters"][0]["placements"][0].keys() == placements["before"].keys()
    assert list(placements) == ["before", "thread", "process"]
    for row in placements.values():
        assert row["reading_ms"]["median"] > 0
        assert 0 <= row["overhead_share"] <= 1
    assert placements["before"]["hidden_share"] == 0
    assert found["memory"]["peak_rss_mib"] > 100
    assert found["environment"]["torch_threads"] == 1  # as it was measured, not as it is afterwards


def test_bytes_of_a_decode_step_by_hand(files):
    target = random_target(shape_of(str(files[0]), TARGETS), torch.device("cpu"), torch.bfloat16)
    # A layer: q and o 64x64, k and v 64x32, three 64x96 of the MLP, two norms; then the last norm and the head.
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64
    assert decode_bytes(target.model) == 2 * (2 * layer + 64 + 99 * 64)
    # Keys and values, 2 layers, 2 heads of 16, 10 tokens, 2 bytes.
    assert cache_bytes(target.text_config, 10, torch.bfloat16) == 2 * 2 * 2 * 16 * 10 * 2
    assert {parameter.dtype for parameter in target.model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("name", "presets", "tokens"),
    [("video-llava-7b", TARGETS, 2056), ("0.5b", TARGETS, 2056), ("eventgpt-7b", DRAFTERS, 582)],
)
def test_presets_have_the_real_prompts(name, presets, tokens):
    config = shape_of(name, presets)
    prompt = random_prompt(config, seed=0)
    assert int((prompt.input_ids == config.video_token_id).sum()) == tokens


def test_presets_have_the_real_sizes():
    text = shape_of("video-llava-7b", TARGETS).text_config
    assert (text.hidden_size, text.num_hidden_layers, text.num_attention_heads) == (4096, 32, 32)
    assert shape_of("eventgpt-7b", DRAFTERS).vision_config.image_size == 336


def test_what_cannot_fit_is_refused(monkeypatch, files):
    monkeypatch.setattr("crossdraft_lab.bench.scale_models.free_memory", lambda device: 1000.0)
    with pytest.raises(CrossdraftError, match="GB free"):
        check_memory(shape_of(str(files[0]), TARGETS), torch.device("cpu"), torch.float32)


def test_bad_input(tmp_path):
    broken, other = tmp_path / "broken.json", tmp_path / "other.json"
    broken.write_text("{")
    other.write_text('{"model_type": "llama"}')
    for wrong, part in (("7b", "neither"), (str(broken), "no configuration"), (str(other), "'llama'")):
        with pytest.raises(CrossdraftError, match=part):
            shape_of(wrong, TARGETS)
    with pytest.raises(CrossdraftError, match="--device is 'nowhere', which cannot be used here"):
        main(["--config", "0.5b", "--device", "nowhere"])
    with pytest.raises(CrossdraftError, match="--device is 'meta', which cannot be used here"):
        main(["--config", "0.5b", "--device", "meta"])
    with pytest.raises(CrossdraftError, match="Cannot write"):
        main(["--config", "0.5b", "--device", "cpu", "--json-out", str(tmp_path)])


def test_lines_of_a_result():
    times = {"lean_ms": {"median": 30.0}, "compiled_ms": {"median": 11.0}, "compile_s": 2.0, "same_tokens": False}
    ratio = {"value": 0.366667, "ci95": [0.366667, 0.366667], "n": 3}
    first = {"lean_ms": {"median": 20.0}, "compiled_ms": {"median": 10.0}, "compile_s": 3.0, "same_tokens": True}
    bound = {"weight_bytes": 2e9, "bandwidth": 2e11, "seconds": 0.01, "share": 0.5}
    found = {
        "workload": {"config": "7b", "device": "cuda:0", "dtype": "bfloat16"},
        "passes": [{"n": 1, "ratio": ratio, **first}, {"n": 16, "ratio": ratio, **times}],
        "over_v1": {1: 1.0, 16: 1.1},
        "bound": {"lean": bound, "compiled": bound},
    }
    assert lines(found)[2:] == [
        (
            "V(16)  lean 30.000 ms, compiled 11.000 ms (0.37 [0.37, 0.37; n=3 runs]), V(16)/V(1) 1.50 lean, "
            "1.10 compiled, first run 2.0 s, NOT the same tokens"
        ),
        "lean: 2.000 GB of weights a step, at 200.0 GB/s at least 10.00 ms, 50% of the bandwidth bound",
        "compiled: 2.000 GB of weights a step, at 200.0 GB/s at least 10.00 ms, 50% of the bandwidth bound",
    ]


@pytest.mark.slow
def test_the_command_on_a_tiny_shape(tmp_path):
    config, out = tmp_path / "tiny.json", tmp_path / "out.json"
    config.write_text(json.dumps(TINY))
    command = ["bench", "compiled", "--config", str(config), "--device", "cpu", "--repeats", "3"]
    assert crossdraft_main([*command, "--json-out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert [one["n"] for one in found["passes"]] == [1, 8, 16, 32]
    assert all(one["same_tokens"] for one in found["passes"])
    kept = json.loads((Path(__file__).parents[2] / "docs/results/scale/7b_h100_passes.json").read_text())
    assert kept.keys() == found.keys()
    assert kept["passes"][0].keys() == found["passes"][0].keys()
    assert kept["bound"]["lean"].keys() == found["bound"]["lean"].keys()


def test_no_repeats_are_refused(capsys):
    assert crossdraft_main(["bench", "compiled", "--repeats", "0"]) == 2
    assert "--repeats is 0; run each pass at least once." in capsys.readouterr().err


def test_packed_layers_are_read_like_plain_ones(pair):
    plain, packed = (load_target(str(pair.target), "cpu", packed=kind).model for kind in (False, True))
    assert decode_bytes(packed) == decode_bytes(plain) > 0


@torch.inference_mode()
def test_a_timed_pass_leaves_nothing_in_the_row():
    target = as_target(*ZOO["video_llava"]())
    prompt = target.prepare(Request("xxx"))
    cache = target.new_cache(1, 200)
    prefill(target, cache, prompt, target.encode(prompt), 200)
    before = [(layer.keys[:, :, : cache.lengths[0]].clone(), cache.lengths[0]) for layer in cache.layers]
    forward, whole = timed_pass(target, cache, 8)
    assert 0 < forward < whole
    for (keys, length), layer in zip(before, cache.layers, strict=True):
        assert cache.lengths[0] == length
        assert torch.equal(layer.keys[:, :, :length], keys)
