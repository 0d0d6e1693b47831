"""What every test has: one torch thread, fixed seeds, the real recordings if this checkout has them."""

import gc
import logging
import os
import random
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache, lru_cache
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import settings

from crossdraft.engine.fast.packed_linear import FEW
from crossdraft.engine.runner.child import START
from crossdraft_lab.bench.forking import fork

if TYPE_CHECKING:
    from crossdraft_lab.scenes import ClipFiles, Scene
    from tests.support import ClipPaths, PairPaths

SHARED = Path(__file__).parents[1].parent / "shared"

# Other work may run beside the tests, so hypothesis sets no deadline; the same examples are tried every time.
settings.register_profile("crossdraft", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("crossdraft")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available() or os.environ.get("CROSSDRAFT_TEST_DEVICE"):
        return
    skip = pytest.mark.skip(reason="needs a CUDA device (CROSSDRAFT_TEST_DEVICE=cpu runs it on the CPU)")
    for item in items:
        if item.get_closest_marker("gpu") is not None:  # not by keywords: these name folders, too
            item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def _forks() -> None:
    """Drafters' processes that tests start are forks of one that has imported what they need, which takes seconds.

    Their working directory, environment and standard error are those of the session: see `fresh_processes`.
    """
    if sys.platform == "linux" and not torch.cuda.is_available():
        get_context("forkserver").set_forkserver_preload(["crossdraft.api", "crossdraft.engine.runner.worker"])
        START.set(fork)


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """What was imported and collected, half a million objects, stays: no collection of garbage looks at it again."""
    if not gc.get_freeze_count():  # a bench ends that
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Notes on classes that were tried go where no other run reads them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_tls_context() -> Iterator[None]:
    """Every httpx client shares one TLS context: each would read all certificates anew, which takes 20 to 60 ms."""
    with pytest.MonkeyPatch.context() as patch:
        if (module := sys.modules.get("httpx._transports.default")) is not None:
            patch.setattr(module, "create_ssl_context", cache(module.create_ssl_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def _scenes_made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A scene's events are simulated once, which takes 0.3 s, and its clip is written once; then it is copied.

    Tests of either import it itself.
    """
    with pytest.MonkeyPatch.context() as patch:
        if (scenes := sys.modules.get("crossdraft_lab.scenes")) is not None:
            once, write = lru_cache(64)(scenes.simulate_events), scenes.write_clip
            patch.setattr(scenes, "simulate_events", once)
            patch.setattr("crossdraft_lab.scenes.clip.simulate_events", once)
            written = cache(lambda scene: write(scene, tmp_path_factory.mktemp("scene")))

            def copied(scene: "Scene", folder: Path) -> "ClipFiles":
                made = written(scene)
                try:
                    Path(folder).mkdir(parents=True, exist_ok=True)
                    return replace(
                        made, **{kind: Path(shutil.copy(file, folder)) for kind, file in asdict(made).items()}
                    )
                except OSError:  # as whoever really writes there says it
                    return write(scene, folder)

            patch.setattr(scenes, "write_clip", copied)
        yield


@pytest.fixture(scope="module")
def one_target() -> Iterator[None]:
    """Engines of a module share the target that the first one with the same arguments has loaded."""
    from crossdraft.load import load_target

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crossdraft.api.load_target", cache(load_target))
        yield


@pytest.fixture
def fresh_processes() -> Iterator[None]:
    """Drafters' processes are started afresh, as users have it."""
    token = START.set(None)
    yield
    START.reset(token)


@pytest.fixture(autouse=True)
def _no_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine takes its time; what a test looks for on stderr is no line that says so."""
    monkeypatch.setattr("crossdraft.cli.bars.FIRST_S", 1e6)


@pytest.fixture(scope="module")
def browser():
    """A real headless Chromium."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; `make setup` installs it")
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("there is no chromium; on Debian: apt-get install chromium")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(autouse=True)
def _server_logs() -> Iterator[None]:
    """What `crossdraft serve` logs to in this process is closed with the test that ran it."""
    yield
    root = logging.getLogger()
    for handler in [*root.handlers]:
        if type(handler.formatter).__module__ == "crossdraft.serve.logs":
            root.removeHandler(handler)


@pytest.fixture(autouse=True)
def _packs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are packed, whatever a busy machine's clock says of it; `times_products` marks tests of just that."""
    if request.node.get_closest_marker("times_products") is None:
        monkeypatch.setattr("crossdraft.engine.fast.packed_linear._least_rows", lambda shapes, rows: FEW)


@pytest.fixture(autouse=True)
def _short_measured_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers by which a training measures its drafter end early: of random models they would never end."""
    if find_spec("pydantic") is not None:
        monkeypatch.setattr("crossdraft_lab.train.heads.task.LONGEST", 16)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """What a test, such as one that trains, computes with is no matter of the next one: on a busy core it is slow."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _seeds() -> None:
    """Seeds are explicit everywhere; whatever forgets to be is at least the same every time."""
    seed_everything()


def pytest_collectstart(collector: pytest.Collector) -> None:
    """What a module draws when it is imported is the same, too, whatever was imported before it."""
    if isinstance(collector, pytest.Module):
        seed_everything()


def seed_everything() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the legacy global generator is exactly what is meant
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # where there is no device, the other notes for each, with a stack trace, that it is to be seeded
        torch.default_generator.manual_seed(0)


@pytest.fixture
def no_drafters_registered() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    from crossdraft.methods import METHODS

    yield
    METHODS.added.clear()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared` beside the repository: real recordings, for development and tests only."""
    if not SHARED.is_dir():
        pytest.skip("no folder 'shared' beside this checkout (real recordings)")
    return SHARED


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> "PairPaths":
    """A tiny random pair of models as checkpoint folders; see `tests.support`."""
    from tests.support import tiny_pair

    seed_everything()  # the same weights whichever test asks for them first
    return tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> "ClipPaths":
    """A tiny clip: video and events of a moving square."""
    from tests.support import tiny_clip

    seed_everything()
    return tiny_clip(tmp_path_factory.mktemp("clip"))
