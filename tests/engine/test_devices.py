"""Devices are compared as devices, not as strings."""

import pytest
import torch

from crossdraft.engine.devices import resolve, to_device, usable_device, without_cudnn_attention
from crossdraft.engine.runner.parallel import policy_for
from crossdraft.errors import CrossdraftError


@pytest.mark.parametrize(
    ("device", "draft_device", "policy"),
    [
        ("cuda", "cuda:0", "off"),
        ("cuda:0", "cuda", "off"),
        ("cuda:0", "cuda:0", "off"),
        ("cuda:1", "cuda:1", "off"),
        ("cuda", None, "off"),
        ("cuda:1", None, "off"),
        (None, None, "off"),
        ("cpu", "cpu", "off"),
        ("cuda", "cuda:1", "ssd"),
        ("cuda", "cpu", "ssd"),
        ("cpu", "cuda", "ssd"),
    ],
)
def test_a_drafter_on_the_targets_device_does_not_draft_while_it_verifies(device, draft_device, policy):
    assert policy_for(device, draft_device, own_cores=False) == policy


@pytest.mark.parametrize(("gpu", "same", "other"), [(False, "cpu", "cuda:0"), (True, "cuda:0", "cpu")])
def test_no_name_means_the_gpu_if_there_is_one_else_the_cpu(monkeypatch, gpu, same, other):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert policy_for(None, same, own_cores=False) == "off"
    assert policy_for(None, other, own_cores=False) == "ssd"


@pytest.mark.parametrize(("device", "policy"), [("cpu", "auto"), ("cuda", "off")])
def test_on_cores_of_its_own_a_cpus_costs_decide(device, policy):
    assert policy_for(device, None, own_cores=True) == policy


def test_a_name_without_a_number_is_the_current_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert resolve("cuda") == resolve("cuda:1") != resolve("cuda:0")
    assert resolve("cpu:0") == resolve("cpu")


def test_on_a_cpu_nothing_is_copied():
    values = torch.arange(3)
    assert to_device(values, torch.device("cpu")) is values


def test_a_device_that_can_be_used_is_the_one_that_is_meant():
    assert usable_device("cpu:0", "device") == usable_device(torch.device("cpu"), "device") == torch.device("cpu")


@pytest.mark.parametrize("name", ["foo", "cuda:77", "meta", "cuda:x", "mps" if torch.cuda.is_available() else "cuda"])
def test_a_device_that_cannot_be_used_is_one_sentence_that_names_the_option(name):
    with pytest.raises(
        CrossdraftError, match=rf"^draft_device is '{name}', which cannot be used here; choose cpu.*\.$"
    ):
        usable_device(name, "draft_device")


def test_on_a_gpu_no_attention_is_cudnns():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(enabled=True)
        without_cudnn_attention(torch.device("cpu"))
        assert torch.backends.cuda.cudnn_sdp_enabled()
        without_cudnn_attention(torch.device("cuda", 1))
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled=before)
