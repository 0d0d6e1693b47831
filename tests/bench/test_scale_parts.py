"""Parts of `make gpu`, at the tiniest sizes on the CPU."""

import json
import subprocess
import sys
import time

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench import scale_models, scale_parts
from crossdraft_lab.bench.scale_parts import NETWORKS, main
from tests.gpu.pairs import TINY

SIZES = "--device=cpu --budget=0.01 --tokens=12 --answer=14 --nodes=4 --repeats=2 --sizes 1 3 --dtype=float32 --force"


@pytest.fixture
def run(tmp_path):
    config, out = tmp_path / "config.json", tmp_path / "out.json"
    config.write_text(json.dumps({**TINY, "text_config": {**TINY["text_config"], "num_hidden_layers": 4}}))

    def measured(*part: str):
        main([*part, f"--config={config}", f"--json-out={out}", *SIZES.split()])
        return json.loads(out.read_text())

    return measured


@pytest.mark.slow
def test_gaps_are_the_time_between_operators(run, monkeypatch):
    """Whoever sleeps between two passes makes a gap, and no operator."""
    timed, quick = scale_parts.timed_pass, run("gaps")["as_they_are"]
    monkeypatch.setattr(scale_parts, "timed_pass", lambda *given: time.sleep(0.02) or timed(*given))
    slower = run("gaps")["as_they_are"]
    for one, other in zip(quick.values(), slower.values(), strict=True):
        assert one["kernels"] == other["kernels"] > 20  # four layers, with more than five operators each
        assert 0 < other["busy_share"] < 1
        assert other["pass_ms"] * (1 - other["busy_share"]) > 19


def test_heads_draft_and_learn_for_a_target_of_any_size(run):
    drafts, steps = run("heads"), run("training")["heads"]
    assert drafts["drafters"].keys() == {f"{name}, {tree}" for name in NETWORKS for tree in ("dynamic", "chain")}
    assert all(0 < one["mean_nodes"] <= 4 and one["draft_ms"]["median"] > 0 for one in drafts["drafters"].values())
    assert drafts["target"]["positions"] == 2
    assert steps.keys() == set(NETWORKS)
    assert all(one["parameters"] > 0 < one["step_ms"]["median"] for one in steps.values())


def test_throughput_is_of_both_and_in_turn(run):
    sizes = run("throughput")["sizes"]
    assert [(one["requests"], one["over_hugging_face"]["n"]) for one in sizes] == [(1, 2), (3, 2)]
    for one in sizes:
        ratio = one["tokens_per_s"]["ours"] / one["tokens_per_s"]["hugging_face"]
        assert one["over_hugging_face"]["value"] == pytest.approx(ratio, rel=1e-2)


def test_attention_is_timed_with_a_drafter_where_the_part_is_a_program_of_its_own(tmp_path):
    """The drafter's process finds by name what builds it, also where the part itself runs as `__main__`."""
    config, out = tmp_path / "config.json", tmp_path / "out.json"
    config.write_text(json.dumps(TINY))
    command = [sys.executable, "-m", "crossdraft_lab.bench.scale_parts", "attention", f"--drafter={config}"]
    subprocess.run([*command, f"--config={config}", f"--json-out={out}", *SIZES.split()], check=True, timeout=120)
    found = json.loads(out.read_text())
    assert "skipped" not in found
    assert found["placement"] == "process"


def test_what_is_set_for_attention_is_set_in_the_drafters_process(monkeypatch):
    monkeypatch.setattr(scale_models, "random_drafter", lambda *_: torch.backends.cuda.enable_cudnn_sdp(False))
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        for cudnn in (False, True):
            scale_models.attending_drafter(cudnn, "small", "cpu")
            assert torch.backends.cuda.cudnn_sdp_enabled() == cudnn
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
    with pytest.raises(CrossdraftError, match="must be 1 or more"):
        main(["gaps", "--device=cpu", "--tokens=0"])
