"""What the experiment `utilisation` says of planted runs: busy shares with their intervals, and what GPUs were read."""

import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from crossdraft.engine.fast.packed_linear import prepack
from crossdraft.load import load_target
from crossdraft_lab.bench.experiments import utilisation
from crossdraft_lab.bench.experiments.roofline import MachinePeak, ModelShape, PassWork, layer_widths, machine_peak
from crossdraft_lab.bench.experiments.utilisation import (
    UtilisationConfig,
    busy_shares,
    machine_peaks,
    reached,
    summarise,
)
from crossdraft_lab.bench.statistics import Interval
from crossdraft_lab.bench.study import pooled
from tests.bench.experiments.planted import block, run

PEAK = {"gflops": 100.0, "copy_gbs": 10.0, "cached_gbs": 20.0}
MORE = {
    "shape": {"decoder": 10**6, "head": 10**5, "layers": 2, "width": 64, "keys": 64, "encoder": 10**5},
    "peaks": {"target": PEAK, "target-all": PEAK},
    "timelines": {"event": [["target", "prefill", 0.0, 1.0, 100], ["drafter", "draft", 0.0, 0.5, 4]]},
    "gpu": [],
    "no_gpu": "No GPU was sampled: there is none.",
}
GPU = {"name": "H100", "samples": 12, "busy": 0.5, "memory_busy": 0.25, "most_mib": 2000.0, "watts": 300.0}


def planted(**more):
    busy = replace(run(4.0, prefill=1.0), busy_s={"target": 3.0, "drafter": 1.0})
    idle = replace(run(4.0, prefill=1.0), busy_s={"target": 1.0, "drafter": 1.0})
    plain = run(4.0, prefill=1.0)
    methods = {"target": [[plain], [plain]], "target-all": [[plain], [plain]], "event": [[busy], [idle]]}
    return block("pairs 0", methods, {**MORE, **more})


def test_busy_shares_by_hand():
    shares = busy_shares(pooled([planted()]), "event")
    assert (shares["target"].value, shares["target"].low, shares["target"].high) == (0.5, 0.25, 0.75)
    assert shares["drafter"].value == 0.25
    assert (shares["both"].value, shares["both"].n) == (pytest.approx((0.5 + 0.25) / 2), 2)
    assert busy_shares(pooled([planted()]), "target-all")["both"].value == 1.0, "one lane that has both cores"
    turns = replace(run(4.0), busy_s={"target": 3.0, "drafter": 1.0})
    here = pooled([block("pairs 0", {"target": [[run(4.0)]], "eagle2": [[turns]]})])
    assert busy_shares(here, "eagle2")["both"].value == 1.0, "each lane has both cores, one after the other"


def test_a_machine_without_a_gpu_is_said_and_one_with_a_gpu_too():
    found = summarise(UtilisationConfig(pairs=2, block=2, repeats=1), [planted()])
    assert "the target's lane is busy 50.0 % [25.0, 75.0; n=2] and the drafter's 25.0 % [" in found.found
    assert found.sure.endswith("No GPU was sampled: there is none.")
    busy, roofline = found.tables
    assert busy.rows[2][:2] == ("event", "50.0 % [25.0, 75.0; n=2]")
    assert busy.rows[0][2] == "–"
    assert [row[0] for row in roofline.rows[:2]] == ["target, prefill", "target, decode step"]
    (_, ms, flops, *_), rate = roofline.rows[0], roofline.rows[0][5]
    assert (ms, flops) == ("1000.00 [1000.00, 1000.00; n=2]", "0.203"), (
        "100 tokens: 2·100·10⁶ of layers, 2·10⁵ of the head, 4·100·50·64·2 of attention"
    )
    assert rate == "0.2 [0.2, 0.2; n=2]", "as many GFLOP a second, with the interval of the time"
    sampled = summarise(UtilisationConfig(), [planted(gpu=[GPU], no_gpu=None)])
    assert "means of 12 readings by NVML: H100 busy 50%, its memory 25%, at most 2,000 MiB, 300 W." in sampled.sure
    earlier = planted()
    del earlier.found["no_gpu"]
    assert summarise(UtilisationConfig(), [earlier]).sure.endswith("No GPU was sampled."), "a run of an earlier version"


def test_peaks_are_of_the_targets_own_weights(monkeypatch):
    """Its packed layers hold no parameters: what is left of them fits a cache."""
    asked = []

    def peak(weights, layers):
        asked.append((weights, layers))
        return MachinePeak(1, 1, 1)

    monkeypatch.setattr(utilisation, "machine_peak", peak)
    plain, packed = (load_target("reference", "cpu", "float32", packed=packed) for packed in (False, True))
    machine_peaks(packed, ModelShape.of(packed), {"target": None, "target-all": None})
    embedded = plain.model.get_input_embeddings().weight.nbytes
    held = sum(parameter.nbytes for parameter in plain.model.parameters()) - embedded
    assert asked == [(held, [(320, 320), (320, 864), (864, 320)])] * 2


def test_no_pass_reaches_more_than_the_peak():
    """The engine's kernels may be faster than what was measured for a peak: then they are it."""
    slow = {"gflops": 0.01, "copy_gbs": 0.001, "cached_gbs": 0.002}
    found = summarise(UtilisationConfig(), [planted(peaks={"target": slow, "target-all": PEAK})])
    _, roofline = found.tables
    assert max(float(row[-1].split(" %")[0]) for row in roofline.rows) == 100
    assert found.figures["decode_reached"]["value"] <= 1
    assert found.figures["peaks"]["target-all"] == PEAK


def test_what_a_pass_reaches_has_its_interval():
    work, peak = PassWork(flops=1e9, bytes=1.0), MachinePeak(10.0, 1.0, 1.0)
    assert reached(work, Interval(0.2, 0.16, 0.25, 16), peak) == Interval(0.5, 0.4, 0.625, 16), "0.1 s is the bound"
    assert reached(work, Interval(0.1, 0.05, 0.2, 16), peak) == Interval(1.0, 0.5, 1.0, 16), "no draw passes the peak"
    fast, slow = run(4.0, prefill=1.0), run(7.0, prefill=1.0)  # three decode steps of 1 s, and of 2 s
    methods = {name: [[fast], [slow]] for name in ("target", "target-all", "event")}
    far = {"gflops": 100.0, "copy_gbs": 0.01, "cached_gbs": 0.01}
    more = {**MORE, "peaks": {"target": far, "target-all": far}}
    found = summarise(UtilisationConfig(), [block("pairs 0", methods, more)])
    figure = found.figures["decode_reached"]
    assert figure["n"] == 2
    assert figure["ci95"][0] < figure["value"] < figure["ci95"][1]
    assert figure["ci95"][1] == pytest.approx(2 * figure["ci95"][0], rel=1e-3)
    share = Interval.from_json(figure).percent()
    assert f"ms, {share} of which the roofline explains" in found.found
    assert found.negative == (f"Computing and reading weights at the measured peaks are {share} of a decode step.",)
    assert found.tables[1].rows[1][-1] == share


def test_peaks_are_positive():
    peak = machine_peak(1 << 20, repeats=1)
    assert min(peak.to_json().values()) > 0


def test_the_engines_own_kernels_do_not_pass_the_peak():
    """A product of the packed layers takes half the time of plain matrices, and was "128 %" of their peak."""
    widths = layer_widths(load_target("reference", "cpu", "float32", packed=True))
    assert widths == [(320, 320), (320, 864), (864, 320)]
    peak = machine_peak(1 << 20, widths)
    packed, rows = nn.Sequential(nn.Linear(320, 864, bias=False)), torch.randn(400, 320)
    prepack(packed)
    rates = []
    with torch.inference_mode():
        for _ in range(3):
            start = time.perf_counter()
            packed(rows)
            rates.append(2 * 400 * 320 * 864 / (time.perf_counter() - start) / 1e9)
    assert sorted(rates)[1] < 1.1 * peak.gflops


def test_no_pass_is_faster_than_its_bound():
    peak, work = MachinePeak(gflops=10, copy_gbs=1, cached_gbs=2), PassWork(flops=3e10, bytes=8e9)
    raised = peak.raised(work, 2.0)
    assert raised == MachinePeak(gflops=15, copy_gbs=1, cached_gbs=4)
    assert work.least_s(raised) == 2.0
    assert peak.raised(work, 100.0) == peak


def test_the_shape_of_the_reference_target_adds_up_to_its_weights():
    target = load_target("reference", "cpu", "float32", packed=False)
    shape, model = ModelShape.of(target), target.model
    assert isinstance(model, nn.Module)
    embedded = model.get_input_embeddings().weight.numel()
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    total = sum(parameter.numel() for parameter in model.parameters())
    assert shape.decoder + shape.encoder + embedded + (0 if tied else shape.head) == total
    assert shape.nbytes == 4 * (total - embedded)
    assert shape.decoder > 0
    assert shape.encoder > 0


def test_longer_contexts_and_more_tokens_are_more_work():
    shape = ModelShape(decoder=1000, head=100, layers=2, width=8, keys=8, encoder=0)
    step, later, wide = (shape.pass_over(*size) for size in ((1, 10, 1), (1, 100, 1), (16, 10, 1)))
    assert later.flops - step.flops == 4 * 90 * 8 * 2
    assert later.bytes - step.bytes == 4 * 2 * 90 * 8 * 2
    assert wide.bytes == step.bytes
    assert wide.intensity > step.intensity


def test_packed_layers_count_as_what_they_were():
    packed, plain = (
        ModelShape.of(load_target("reference", "cpu", "float32", packed=packed)) for packed in (True, False)
    )
    assert packed == plain
