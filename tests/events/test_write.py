import resource
import subprocess
import sys

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import read_events, write_events
from tests.events.helpers import files_of_at_most, made_up, same


@pytest.mark.parametrize("room", [0, 900, 5000])
@pytest.mark.parametrize("suffix", [".h5", ".npy", ".txt", ".zip", ".dat", ".raw", ".aedat4"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, suffix, room):
    if suffix in (".dat", ".raw", ".aedat4"):
        pytest.importorskip("faery")
    events = made_up(5000)
    write_events(tmp_path / f"warm{suffix}", events)  # imports may write caches of their own
    (tmp_path / f"warm{suffix}").unlink()
    with pytest.raises(CrossdraftError, match="File too large") as caught, files_of_at_most(room):
        write_events(tmp_path / f"a{suffix}", events)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_process_that_met_a_full_disk_in_hdf5_ends_in_peace(tmp_path):
    """HDF5's own way to write would print tracebacks and crash as the process ends."""
    write_events(tmp_path / "a.txt", made_up(20_000))
    program = "from crossdraft.cli.main import main; raise SystemExit(main())"
    command = [sys.executable, "-B", "-c", program, "events", "convert", tmp_path / "a.txt", tmp_path / "a.h5"]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),  # bytecode too: hence -B
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "File too large" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_hdf5_is_written_over_what_was_there(tmp_path):
    write_events(tmp_path / "a.h5", made_up(50_000))
    write_events(tmp_path / "a.h5", made_up(50))
    assert same(read_events(tmp_path / "a.h5"), made_up(50))
