"""`crossdraft bench live`: a short run with real senders on loopback."""

import json

import pytest

from crossdraft.cli.main import main


@pytest.mark.slow
def test_a_short_run_says_what_was_borne(tmp_path):
    out = tmp_path / "live.json"
    assert main(["bench", "live", "--rates", "0.2", "--seconds", "2", "--fps", "10", "--json-out", str(out)]) == 0
    (run,) = json.loads(out.read_text(encoding="utf-8"))["runs"]
    assert (run["source"], run["fps"], run["events_dropped"], run["notes"]) == ("evt", 10.0, 0, [])
    assert 0 < run["frames_per_s"] <= 12
    assert run["million_events_per_s"] == 0.25  # whole rows of pixels
    assert run["memory_mib"][1] > 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--source", "usb"), "Unknown source 'usb'"),
        (("--rates", "0"), "--rates is 0"),
        (("--rates", "fast"), "--rates is 'fast'"),
    ],
)
def test_bad_values_cost_one_sentence(capsys, arguments, sentence):
    assert main(["bench", "live", *arguments]) == 2
    assert sentence in capsys.readouterr().err
