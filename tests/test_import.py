"""What an import may load is a promise: `crossdraft --help` stays fast, the engine stays small."""

import subprocess
import sys
from functools import cache

import pytest

import crossdraft

EXTRAS = {
    "av", "cv2", "fastapi", "faery", "h5py", "hdf5plugin", "matplotlib", "msgpack", "prometheus_client", "pydantic",
    "PIL", "lz4", "rich", "rosbags", "scipy", "typer", "uvicorn", "websockets", "yaml", "zstandard",
}  # fmt: skip


@cache
def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after `statement`."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_the_package_loads_nothing_heavy():
    assert not loaded_by("import crossdraft") & (EXTRAS | {"numpy", "torch", "transformers"})


def test_help_loads_nothing_heavy():
    loaded = loaded_by("from crossdraft.cli.main import main; assert main(['--help']) == 0")
    assert "typer" in loaded
    assert not loaded & (EXTRAS - {"typer", "rich"} | {"numpy", "torch", "transformers"})


def test_an_answer_needs_no_extra_but_what_its_files_do():
    """Of the package alone: the engine, a clip and events as arrays."""
    loaded = loaded_by("from crossdraft import Engine, Options, Request; import crossdraft.methods")
    assert not (loaded - loaded_by("import torch; from transformers import PreTrainedModel")) & EXTRAS


def test_the_engine_needs_torch_transformers_and_numpy_alone():
    """What `transformers` itself loads when it is there does not count."""
    loaded = loaded_by(
        "import crossdraft.engine, importlib, pkgutil\n"
        "for module in pkgutil.iter_modules(crossdraft.engine.__path__):\n"
        "    importlib.import_module(f'crossdraft.engine.{module.name}')"
    )
    assert {"torch", "transformers", "numpy"} <= loaded
    assert not (loaded - loaded_by("import torch; from transformers import PreTrainedModel")) & EXTRAS


def test_every_public_name_has_a_home():
    for name in crossdraft.__all__:
        assert getattr(crossdraft, name) is not None
    assert dir(crossdraft) == sorted(crossdraft.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Enigne'"):
        _ = crossdraft.Enigne  # pyright: ignore[reportAttributeAccessIssue]
