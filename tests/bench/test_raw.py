import json

import pytest

from crossdraft.cli.main import main
from crossdraft.errors import CrossdraftError
from crossdraft.events import read_events, write_events
from crossdraft_lab.bench import raw
from tests.events.helpers import made_up, same


def test_what_is_decoded_are_the_events(tmp_path):
    """Those without vectors to the µs; those with vectors cut to 64 µs, each pixel once."""
    events = made_up(3000, 640, 480, start_us=10**9, span_us=50_000)
    words = raw.encodings(events)
    sizes = {}
    for name, (encoded, _) in words.items():
        version = name[3:].split(",", maxsplit=1)[0]
        path = tmp_path / "a.raw"
        path.write_bytes(f"% evt {version}\n% geometry 640x480\n% end\n".encode() + encoded.tobytes())
        found = read_events(path)
        sizes[name] = len(found)
        if name == "EVT2":
            assert same(found, events)
        elif name == "EVT3":
            assert (found.t - found.t0).tolist() == (events.t - events.t0).tolist()  # 24 bits
            assert found.x.tolist() == events.x.tolist()
    assert sizes["EVT2.1"] == sizes["EVT3, vectors"] <= 3000


def test_rates_on_one_core(tmp_path, capsys):
    write_events(tmp_path / "a.h5", made_up(2000, 640, 480))
    options = [f"--recording={tmp_path / 'a.h5'}", "--seconds=0.1", "--repeats=2", f"--json-out={tmp_path / 'a.json'}"]
    assert main(["bench", "raw", *options]) == 0
    assert "EVT2.1: " in capsys.readouterr().out
    rows = json.loads((tmp_path / "a.json").read_text())["encodings"]
    assert len(rows) == raw.ROWS
    assert all(row["mev_s"]["q1"] > 0 for row in rows)
    assert rows[1]["faery_mev_s"] is None
    with pytest.raises(CrossdraftError, match="number of repeats is 0"):
        raw.run_raw(None, 1, 0, print)
