"""What an import may load is a promise: `crossdraft --help` stays fast, the engine stays small."""

import os
import subprocess
import sys

import pytest

import crossdraft

EXTRAS = {
    "av", "cv2", "fastapi", "faery", "h5py", "hdf5plugin", "matplotlib", "msgpack", "prometheus_client", "pydantic",
    "PIL", "lz4", "rich", "rosbags", "scipy", "typer", "uvicorn", "websockets", "yaml", "zstandard",
}  # fmt: skip


def loaded_by(*statements: str) -> list[set[str]]:
    """Modules that a fresh interpreter holds after each of some statements, which it runs one after another."""
    shown = "print('HOLDS', *{name for module in sys.modules for name in (module, module.partition('.')[0])})"
    code = "\n".join(("import sys", *(f"{one}\n{shown}" for one in statements)))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [set(line.split()) for line in run.stdout.splitlines() if line.startswith("HOLDS ")]


def test_the_package_and_its_help_load_nothing_heavy():
    run_help = "from crossdraft.cli.main import main; assert main(['--help']) == 0"
    package, shown = loaded_by("import crossdraft", run_help)
    assert not package & (EXTRAS | {"numpy", "torch", "transformers"})
    assert "typer" in shown
    assert not shown & (EXTRAS - {"typer", "rich"} | {"numpy", "torch", "transformers"})


def test_an_answer_needs_no_extra_but_what_its_files_do():
    """Of the package alone: networks, engine, clip and events as arrays. What `transformers` loads does not count.

    And the bench of servers needs no vLLM, and no plug-in for it.
    """
    theirs, networks, engine, answer, _ = loaded_by(
        "import torch; from transformers import PreTrainedModel",
        "import crossdraft.models",
        "import crossdraft.engine, importlib, pkgutil\n"
        "for module in pkgutil.iter_modules(crossdraft.engine.__path__):\n"
        "    importlib.import_module(f'crossdraft.engine.{module.name}')",
        "from crossdraft import Engine, Options, Request; import crossdraft.methods",
        "sys.modules['crossdraft_vllm'] = None; import crossdraft_lab.bench.serving.run",
    )
    assert "crossdraft.models.eventgpt.modeling" in networks
    assert not networks & {"av", "cv2", "h5py", "crossdraft.events", "crossdraft.video"}
    assert {"torch", "transformers", "numpy", "crossdraft.engine.loop"} <= engine
    assert not (engine - theirs) & EXTRAS
    assert not (answer - theirs) & EXTRAS


@pytest.mark.parametrize(("given", "read"), [(None, "1"), ("0", "0")])
def test_pytorch_is_asked_for_huge_pages_unless_the_environment_has_a_word_on_it(given, read):
    """The package is imported before PyTorch, which reads the environment when it first allocates."""
    name = "THP_MEM_ALLOC_ENABLE"
    settings = {key: value for key, value in os.environ.items() if key != name} | ({name: given} if given else {})
    code = f"import crossdraft, os, sys; print(os.environ['{name}'], 'torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=settings)
    assert run.stdout.split() == [read, "False"]


def test_every_public_name_has_a_home():
    for name in crossdraft.__all__:
        assert getattr(crossdraft, name) is not None
    assert dir(crossdraft) == sorted(crossdraft.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Enigne'"):
        _ = crossdraft.Enigne  # pyright: ignore[reportAttributeAccessIssue]
