"""Lists of devices and core groups."""

import os

import pytest

from crossdraft.engine.workers.groups import DeviceGroup, read_groups
from crossdraft.errors import CrossdraftError
from crossdraft.options import Options

CORES = sorted(os.sched_getaffinity(0))
needs_two = pytest.mark.skipif(CORES[:2] != [0, 1], reason="needs the CPU cores 0 and 1")


@needs_two
def test_core_groups_as_core_lists_are_written():
    one, two = DeviceGroup("cpu", (0,)), DeviceGroup("cpu", (1,))
    assert read_groups("x", "cpu:0,cpu:1") == read_groups("x", ("cpu:0", "cpu:1")) == (one, two)
    assert read_groups("x", "cpu:0-1") == read_groups("x", "cpu:0,1") == (DeviceGroup("cpu", (0, 1)),)
    assert Options(encode_devices="cpu:0,cpu:1").encode_devices == ("cpu:0", "cpu:1")


def test_gpus():
    assert read_groups("x", "cuda:0, cuda:1") == (DeviceGroup("cuda:0"), DeviceGroup("cuda:1"))


@pytest.mark.parametrize(
    "value", ["", "0,1", "cpu", "cpu:", "cpu:a", "cuda:0,1", "cpu:0,cuda:0", "tpu:0", "cpu:1-0", 5]
)
def test_what_is_no_list_is_refused_in_one_sentence(value):
    with pytest.raises(CrossdraftError, match=r"encode_devices is '.*'; write it as cpu:0,cpu:1 or cuda:0,cuda:1"):
        Options(encode_devices=value)


def test_cores_that_are_absent_or_named_twice():
    with pytest.raises(CrossdraftError, match="names core 99999, but this process may use only"):
        read_groups("x", "cpu:0-99999")
    with pytest.raises(CrossdraftError, match="names a core twice"):
        read_groups("x", f"cpu:{CORES[0]},cpu:{CORES[0]}")
