"""Files of answers: shared, torn, foreign, full."""

import json
import subprocess
import sys

import pytest

from crossdraft.drafters.memory.journal import Journal, pack
from crossdraft.drafters.memory.store import Scope
from crossdraft.errors import CrossdraftError

HERE = Scope(1, 10)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "memory" / "default.answers"


def test_what_one_appends_the_other_reads_once(path):
    ours, theirs = Journal(path, 1000, "v"), Journal(path, 1000, "v")
    ours.append(HERE, [1, 2, 3])
    assert list(theirs.news()) == [(HERE, [1, 2, 3])]
    assert list(theirs.news()) == []
    theirs.append(Scope(2, 20), [4])
    assert list(ours.news()) == [(HERE, [1, 2, 3]), (Scope(2, 20), [4])]
    assert not ours.notes
    assert not theirs.notes


def test_half_a_record_is_dropped_and_told(path):
    Journal(path, 1000, "v").append(HERE, [1, 2, 3])
    with path.open("ab") as file:
        file.write(pack(HERE, [9, 9, 9])[:-5])
    journal = Journal(path, 1000, "v")
    assert "dropped" in journal.notes[0]
    journal.append(HERE, [4])
    assert [tokens for _, tokens in journal.news()] == [[1, 2, 3], [4]]


def test_a_flipped_bit_ends_the_file_there(path):
    journal = Journal(path, 1000, "v")
    journal.append(HERE, [1, 2, 3])
    journal.append(HERE, [4])
    content = bytearray(path.read_bytes())
    content[-9] ^= 1  # in the last record's token
    path.write_bytes(content)
    assert [tokens for _, tokens in Journal(path, 1000, "v").news()] == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("key", "value", "said"), [("vocabulary", "w", "tokenizer"), ("version", 9, "version 9")]
)
def test_of_another_tokenizer_or_version_it_is_put_aside(path, key, value, said):
    Journal(path, 1000, "v").append(HERE, [1])
    line, _, rest = path.read_bytes().partition(b"\n")
    old = json.dumps(json.loads(line) | {key: value}).encode() + b"\n" + rest
    path.write_bytes(old)
    journal = Journal(path, 1000, "v")
    assert said in journal.notes[0]
    assert list(journal.news()) == []
    assert path.with_suffix(".old").read_bytes() == old


def test_a_file_of_something_else_is_left_alone(path):
    path.parent.mkdir()
    path.write_text("precious\n")
    with pytest.raises(CrossdraftError, match="no memory of ours"):
        Journal(path, 1000, "v")
    assert path.read_text() == "precious\n"


def test_a_full_file_keeps_the_newest_and_readers_follow(path):
    ours, theirs = Journal(path, 100, "v"), Journal(path, 100, "v")
    for answer in range(60):
        ours.append(HERE, [answer] * 9)
        list(ours.news())
    fresh = [tokens[0] for _, tokens in theirs.news()]
    assert fresh[-1] == 59
    assert fresh == list(range(fresh[0], 60))  # without a gap
    assert 10 <= len(fresh) <= 21
    assert path.stat().st_size < 300 * 4 + 21 * 24 + 200


def test_processes_append_side_by_side(path):
    """Three of them, forty answers each: none is lost, none is torn."""
    program = (
        "import sys; from pathlib import Path\n"
        "from crossdraft.drafters.memory.journal import Journal\n"
        "from crossdraft.drafters.memory.store import Scope\n"
        "journal = Journal(Path(sys.argv[1]), 10**6, 'v')\n"
        "for n in range(40): journal.append(Scope(int(sys.argv[2]), n + 1), [n] * (1 + n))\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, str(path), str(who)]) for who in (1, 2, 3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    journal = Journal(path, 10**6, "v")
    found = list(journal.news())
    assert not journal.notes
    for who in (1, 2, 3):
        assert [tokens for scope, tokens in found if scope.clip == who] == [[n] * (1 + n) for n in range(40)]
