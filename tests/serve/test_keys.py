"""API keys and their file."""

import re

import pytest

from crossdraft.cli.main import main
from crossdraft.errors import CrossdraftError
from crossdraft.serve.keys import Client, KeyRecord, Keys, append_key, digest_of, line_of, new_key, read_keys
from crossdraft.serve.scopes import ALL

A = KeyRecord(name="a", sha256="0" * 64)  # which YAML would take for a number


def test_a_key_is_known_by_its_hash_alone(tmp_path):
    path, key = tmp_path / "keys.yaml", new_key()
    append_key(path, KeyRecord(name="anna", sha256=digest_of(key)))
    append_key(path, KeyRecord(name="ben", sha256=digest_of("other")))
    assert key not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    keys = read_keys(path, Client("", 60, 2))
    assert keys.client(key) == Client("anna", 60, 2)
    assert keys.client("other").name == "ben"
    assert keys.client("") is keys.client(key[:-1]) is keys.client(digest_of(key)) is None


def test_a_record_is_written_with_its_limits(tmp_path):
    path = tmp_path / "keys.yaml"
    limits = {"requests_per_minute": 3, "concurrent": 1, "max_new_tokens": 8}
    append_key(path, KeyRecord(name="anna", sha256=digest_of("a"), **limits))
    append_key(path, KeyRecord(name="ben", sha256=digest_of("b"), concurrent=2))
    keys = read_keys(path, Client("", 60, 20))
    assert (keys.client("a"), keys.client("b")) == (Client("anna", 3, 1, 8), Client("ben", 60, 2))


def test_every_key_is_compared_in_constant_time(monkeypatch):
    """A comparison for each record, none of them cut short: by `hmac.compare_digest`."""
    from crossdraft.serve import keys as module

    seen = []
    monkeypatch.setattr(module.hmac, "compare_digest", lambda a, b: seen.append((a, b)) or a == b)
    records = [KeyRecord(name=f"n{i}", sha256=digest_of(f"k{i}")) for i in range(3)]
    assert Keys(records, Client()).client("k0").name == "n0"
    assert seen == [(digest_of(f"k{i}"), digest_of("k0")) for i in range(3)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- {name: a, sha256: x}", "sha256"),
        ("- {name: a, key: secret}", "key"),
        ("name: a", "holds no list; write a list of keys"),
        ("- [", "no YAML"),
        (f"- {line_of(A)}\n- {line_of(A.model_copy(update={'sha256': '1' * 64}))}", "same name"),
        (f"- {line_of(A)}\n- {line_of(A.model_copy(update={'name': 'b'}))}", "same sha256"),
    ],
)
def test_a_broken_file_is_refused_in_one_sentence(tmp_path, text, says):
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(CrossdraftError, match=says):
        read_keys(path, Client())


def test_a_file_that_others_may_write_is_refused(tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text("[]")
    path.chmod(0o666)
    with pytest.raises(CrossdraftError, match="chmod"):
        read_keys(path, Client())


def test_names_are_given_once(tmp_path):
    path = tmp_path / "keys.yaml"
    append_key(path, KeyRecord(name="anna", sha256=digest_of("a")))
    with pytest.raises(CrossdraftError, match="anna"):
        append_key(path, KeyRecord(name="anna", sha256=digest_of("b")))


def test_a_key_is_added_behind_a_last_line_without_an_end(tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text(f"- {line_of(A)}")
    append_key(path, KeyRecord(name="ben", sha256=digest_of("b")))
    assert read_keys(path, Client()).client("b").name == "ben"


@pytest.mark.parametrize("text", ["", "# of the office\n"])
def test_a_file_without_keys_lets_nobody_in_and_takes_a_new_one(tmp_path, text):
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    assert read_keys(path, Client()).client("") is None
    append_key(path, KeyRecord(name="ben", sha256=digest_of("b")))
    assert read_keys(path, Client()).client("b").name == "ben"


@pytest.mark.parametrize("name", ["b b/..", "", "x" * 65, 'a"b'])
def test_a_name_that_no_record_may_have_is_one_sentence(name, tmp_path, capsys):
    assert main(["serve", "new-key", name, "--file", str(tmp_path / "keys.yaml")]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"crossdraft: A client cannot be called {name!r}; take 1 to 64 letters")
    assert shown.out == ""
    assert not (tmp_path / "keys.yaml").exists()


def test_a_new_key_has_the_scopes_that_are_named(tmp_path, capsys):
    path = tmp_path / "keys.yaml"
    for name, scopes in (("camera", ["--scopes", "edge, media"]), ("page", ["--scopes=chat"]), ("all", [])):
        assert main(["serve", "new-key", name, "--file", str(path), *scopes]) == 0
    keys = read_keys(path, Client())
    found = [keys.client(key).scopes for key in capsys.readouterr().out.split()]
    assert found == [{"edge", "media"}, {"chat"}, ALL]


@pytest.mark.parametrize("scopes", ["egde", "edge,", ",", "", "edge;media", "all"])
def test_a_scope_that_there_is_not_is_one_sentence_and_makes_no_key(scopes, tmp_path, capsys):
    assert main(["serve", "new-key", "camera", "--file", str(tmp_path / "keys.yaml"), "--scopes", scopes]) == 2
    shown = capsys.readouterr()
    assert re.fullmatch(r"crossdraft: Unknown scope '.*'; choose one of chat, edge, .*\.\n", shown.err)
    assert shown.out == ""
    assert not (tmp_path / "keys.yaml").exists()


def test_the_help_of_new_key_names_every_scope(capsys):
    assert main(["serve", "new-key", "--help"]) == 0
    assert ", ".join(sorted(ALL)) in re.sub(r"[\s│]+", " ", capsys.readouterr().out)
