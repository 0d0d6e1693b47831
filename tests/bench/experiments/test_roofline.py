"""The roofline: peaks are measured, and a decoder's work is counted from its weights."""

import time

import torch
from torch import nn

from crossdraft.engine.fast.packed_linear import prepack
from crossdraft.load import load_target
from crossdraft_lab.bench.experiments.roofline import MachinePeak, ModelShape, PassWork, layer_widths, machine_peak


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
