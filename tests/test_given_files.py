"""Files that users write or bring: whatever stands in one, a reader of it gives its value or one sentence of ours."""

import warnings
from pathlib import Path

import pytest

from crossdraft.cli.ask import ShownOptions
from crossdraft.drafters.memory.seed import SeedTarget, read_seed
from crossdraft.drafters.short_head import read_ids
from crossdraft.drafters.trees.static import RankCounts
from crossdraft.errors import CrossdraftError
from crossdraft.files import read_json
from crossdraft.models.eventgpt.processing import ProcessorOptions
from crossdraft.serve.keys import Client, read_keys
from crossdraft.serve.settings import read_settings
from crossdraft.video.spec import video_settings
from crossdraft_lab.bench.traces import read_traces
from crossdraft_lab.datasets.dsec_rgb import event_to_image_homography
from crossdraft_lab.datasets.rows import json_rows
from crossdraft_lab.datasets.video_qa import _msrvtt_sources
from crossdraft_lab.train.capture.plan import read_index
from crossdraft_lab.train.capture.sources import ListSource

DEEP = 200_000
CONTENTS = {
    "nothing": b"",
    "a zero byte": b"\0",
    "no UTF-8": b'{"a": "\xe9"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "a mark in front": b'\xef\xbb\xbf{"a": 1}',
    "half of it": b'{"a": [1, 2',
    "null": b"null",
    "a number": b"7",
    "a number of 5,000 digits": b"[" + b"9" * 5000 + b"]",
    "infinite": b'{"a": 1e999, "b": NaN}',
    "text": b'"text"',
    "a list": b"[]",
    "a list of lists": b"[[], [null]]",
    "a list of null": b"[null]",
    "an empty object": b"{}",
    "objects of the wrong kind": b'[{"a": {}}, {"videos": 3, "message": []}]',
    "another's object": b'{"videos": [{"video_id": [], "url": 1, "start time": "x"}], "format": [], "offered": {}}',
    "nested lists": b"[" * DEEP + b"]" * DEEP,
    "nested objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
}


def _keys(path: Path) -> None:
    path.chmod(0o600)
    read_keys(path, Client())


READERS = {
    "recorded answers": ("x.jsonl", read_traces),
    "conversation": ("x.json", lambda path: ShownOptions(messages=path).read(None, "reference")),
    "rows of annotations": ("x.json", lambda path: list(json_rows(path))),
    "sources of MSR-VTT": ("x.json", _msrvtt_sources),
    "seed of a memory": ("x.jsonl", lambda path: read_seed(path, SeedTarget(), len)),
    "seed from a capture": ("index.json", lambda path: read_seed(path.parent, SeedTarget(), len)),
    "ids of a short head": ("draft_ids.json", lambda path: read_ids(path.parent)),
    "measured acceptance": ("x.json", RankCounts.load),
    "calibration": ("cam_to_cam.yaml", event_to_image_homography),
    "configuration": ("config.json", read_json),
    "event processor": ("processor_config.json", ProcessorOptions.load),
    "keys": ("keys.yaml", _keys),
    "settings of a server": ("x.yaml", lambda path: read_settings(path, {})),
    "index of a capture": ("index.json", lambda path: read_index(path.parent)),
    "list of clips": ("x.jsonl", lambda path: ListSource(path, 1)),
    "frames of a checkpoint": ("video_preprocessor_config.json", lambda path: video_settings(path.parent)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("content", CONTENTS)
def test_whatever_stands_in_a_file_a_reader_raises_nothing_but_one_sentence(tmp_path, reader, content):
    name, read = READERS[reader]
    (tmp_path / name).write_bytes(CONTENTS[content])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read(tmp_path / name)
    except CrossdraftError as error:
        said = str(error)
    else:
        return
    assert "\n" not in said
    assert len(said) < 600
    # The messages of a conversation are checked as those of a request, which knows of no file.
    assert str(tmp_path) in said or reader == "conversation"
