"""Devices are compared as devices, not as strings."""

import pytest
import torch

from crossdraft.engine.devices import resolve, to_device, usable_device, without_cudnn_attention
from crossdraft.errors import CrossdraftError


def test_a_name_without_a_number_is_the_current_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert resolve("cuda") == resolve("cuda:1") != resolve("cuda:0")
    assert resolve("cpu:0") == resolve("cpu")
    assert resolve(None) == resolve("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve(None) == resolve("cpu")


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
