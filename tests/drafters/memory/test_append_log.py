"""Files of answers: shared, torn, foreign, full."""

import fcntl
import json
import subprocess
import sys
import threading

import pytest

from crossdraft.drafters.memory.append_log import AppendLog, pack
from crossdraft.drafters.memory.datastore import Scope
from crossdraft.errors import CrossdraftError

HERE = Scope(1, 10)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "memory" / "default.answers"


def test_what_one_appends_the_other_reads_once(path, caplog):
    ours, theirs = AppendLog(path, 1000, "v"), AppendLog(path, 1000, "v")
    ours.append(HERE, [1, 2, 3])
    assert list(theirs.news()) == [(HERE, [1, 2, 3])]
    assert list(theirs.news()) == []
    theirs.append(Scope(2, 20), [4])
    assert list(ours.news()) == [(HERE, [1, 2, 3]), (Scope(2, 20), [4])]
    assert not caplog.messages


def test_half_a_record_is_dropped_and_reported(path, caplog):
    AppendLog(path, 1000, "v").append(HERE, [1, 2, 3])
    with path.open("ab") as file:
        file.write(pack(HERE, [9, 9, 9])[:-5])
    file_log = AppendLog(path, 1000, "v")
    (received,) = caplog.messages
    assert "its last 31 bytes were dropped" in received  # of 36
    file_log.append(HERE, [4])
    assert [tokens for _, tokens in file_log.news()] == [[1, 2, 3], [4]]


def test_a_flipped_bit_ends_the_file_there(path):
    file_log = AppendLog(path, 1000, "v")
    file_log.append(HERE, [1, 2, 3])
    file_log.append(HERE, [4])
    content = bytearray(path.read_bytes())
    content[-9] ^= 1  # in the last record's token
    path.write_bytes(content)
    assert [tokens for _, tokens in AppendLog(path, 1000, "v").news()] == [[1, 2, 3]]


@pytest.mark.parametrize(("key", "value", "said"), [("vocabulary", "w", "tokenizer"), ("version", 9, "version 9")])
def test_of_another_tokenizer_or_version_it_is_renamed(path, caplog, key, value, said):
    AppendLog(path, 1000, "v").append(HERE, [1])
    line, _, rest = path.read_bytes().partition(b"\n")
    old = json.dumps(json.loads(line) | {key: value}).encode() + b"\n" + rest
    path.write_bytes(old)
    file_log = AppendLog(path, 1000, "v")
    (received,) = caplog.messages
    assert said in received
    assert "begun anew, the old one is default.old" in received
    assert list(file_log.news()) == []
    assert path.with_suffix(".old").read_bytes() == old


def test_a_file_of_something_else_is_left_alone(path):
    path.parent.mkdir()
    path.write_text("precious\n")
    with pytest.raises(CrossdraftError, match="no memory of ours"):
        AppendLog(path, 1000, "v")
    assert path.read_text() == "precious\n"


def test_a_full_file_keeps_the_newest_and_readers_follow(path):
    ours, theirs = AppendLog(path, 100, "v"), AppendLog(path, 100, "v")
    for answer in range(60):
        ours.append(HERE, [answer] * 9)
        list(ours.news())
    fresh = [tokens[0] for _, tokens in theirs.news()]
    assert fresh[-1] == 59
    assert fresh == list(range(fresh[0], 60))  # without a gap
    assert 10 <= len(fresh) <= 21
    assert path.stat().st_size < 300 * 4 + 21 * 24 + 200


def test_a_reader_begins_again_when_the_file_was_written_anew(path):
    ours, theirs = AppendLog(path, 256, "v"), AppendLog(path, 256, "v")
    editions, seen = 0, []
    for answer in range(100):
        ours.append(HERE, [answer] * 9)
        found = [tokens[0] for _, tokens in theirs.news()]
        assert found[-1] == answer
        editions += len(found) > 1
        seen += found
    assert editions >= 1
    assert set(seen) == set(range(100))


def test_whoever_appends_waits_for_the_lock(path):
    file_log = AppendLog(path, 1000, "v")
    before = path.read_bytes()
    with path.with_suffix(".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        writer = threading.Thread(target=file_log.append, args=(HERE, [1]))
        writer.start()
        writer.join(0.05)
        assert writer.is_alive()
        assert path.read_bytes() == before
    writer.join()
    assert list(file_log.news()) == [(HERE, [1])]


def test_processes_append_side_by_side(path, caplog):
    """Three of them, forty answers each: none is lost, none is torn."""
    program = (
        "import sys; from pathlib import Path\n"
        "from crossdraft.drafters.memory.append_log import AppendLog\n"
        "from crossdraft.drafters.memory.datastore import Scope\n"
        "file_log = AppendLog(Path(sys.argv[1]), 10**6, 'v')\n"
        "for n in range(40): file_log.append(Scope(int(sys.argv[2]), n + 1), [n] * (1 + n))\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, str(path), str(who)]) for who in (1, 2, 3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    file_log = AppendLog(path, 10**6, "v")
    found = list(file_log.news())
    assert not caplog.messages
    for who in (1, 2, 3):
        assert [tokens for scope, tokens in found if scope.clip == who] == [[n] * (1 + n) for n in range(40)]


@pytest.mark.parametrize("left", [0, 5, 60, -1])
def test_cut_off_in_its_first_line_it_is_begun_anew(path, caplog, left):
    AppendLog(path, 1000, "v")
    path.write_bytes(path.read_bytes()[:left])
    file_log = AppendLog(path, 1000, "v")
    assert "was cut off in its first line; it was begun anew" in caplog.messages[0]
    file_log.append(HERE, [1])
    assert list(file_log.news()) == [(HERE, [1])]


def test_whoever_is_ousted_by_another_tokenizer_neither_reads_nor_adds(path, caplog):
    """Its tokens would be other words there, and those of the others may be none at all here."""
    ours = AppendLog(path, 1000, "v")
    ours.append(HERE, [1])
    theirs = AppendLog(path, 1000, "w")
    theirs.append(HERE, [2])
    assert list(ours.news()) == []
    ours.append(HERE, [3])
    assert list(theirs.news()) == [(HERE, [2])]
    assert len(caplog.messages) == 2  # told once by each
    assert "nothing more is read from it or added" in caplog.messages[1]


def test_what_is_only_added_to_makes_room_too(path):
    """Nobody reads: the file's bound must not hang on that."""
    file_log = AppendLog(path, 256, "v")
    for answer in range(300):
        file_log.append(HERE, [answer] * 9)
    kept = [tokens[0] for _, tokens in file_log.news()]
    assert kept == list(range(kept[0], 300))
    assert sum(1 + 9 for _ in kept) <= 2 * 256 + 10


def test_damage_is_reported_to_whoever_uses_the_command_line(path):
    """Without any setting up of logs it stands on stderr, a sentence and nothing else, from any process."""
    AppendLog(path, 1000, "v").append(HERE, [1])
    program = (
        "import sys; from pathlib import Path\n"
        "from crossdraft.drafters.memory.drafter import Datastores\n"
        "Datastores(Path(sys.argv[1]), 1000, 'w').store('')\n"
    )
    received = subprocess.run(
        [sys.executable, "-c", program, str(path.parent)], capture_output=True, text=True, check=True
    )
    assert received.stdout == ""
    assert received.stderr == (
        f"The memory {path} was written with another tokenizer; it was begun anew, the old one is default.old.\n"
    )


def test_one_reads_while_others_add_and_evict(path):
    """Every answer that is read is whole, and after each writer's first one none is missing or out of order."""
    program = (
        "import sys; from pathlib import Path\n"
        "from crossdraft.drafters.memory.append_log import AppendLog\n"
        "from crossdraft.drafters.memory.datastore import Scope\n"
        "file_log = AppendLog(Path(sys.argv[1]), 1000, 'v')\n"
        "for n in range(300): file_log.append(Scope(int(sys.argv[2]), n), [n] * (n % 30 + 1))\n"
    )
    reader = AppendLog(path, 1000, "v")
    running = [subprocess.Popen([sys.executable, "-c", program, str(path), str(who)]) for who in (1, 2)]
    seen: dict[int, set[int]] = {1: set(), 2: set()}
    editions = set()
    while any(process.poll() is None for process in running):
        part: dict[int, list[int]] = {1: [], 2: []}
        for scope, tokens in reader.news():
            assert tokens == [scope.question] * (scope.question % 30 + 1)
            part[scope.clip].append(scope.question)
        editions.add(json.loads(path.read_bytes().partition(b"\n")[0])["edition"])
        for who, numbers in part.items():
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
            seen[who] |= set(numbers)
    assert [process.wait() for process in running] == [0, 0]
    assert len(editions) > 2
    assert [scope.question for scope, _ in AppendLog(path, 1000, "v").news()][-1] == 299
