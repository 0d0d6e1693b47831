"""How long a memory takes."""

import json
from itertools import islice

import pytest

from crossdraft.cli.main import main
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.memory import LENGTH, made_answers, time_memory


def test_it_is_full_before_it_is_timed():
    found = time_memory(tokens=1000, nodes=4, drafts=5)
    assert found.tokens == 1000
    assert found.draft.median > 0
    assert found.megabytes == pytest.approx((1000 * 20 + 6 * 8 * (1000 + 1024)) / 1e6)


def test_made_up_answers_share_text_and_are_the_same_every_time():
    first, again = (list(islice(made_answers(0), 50)) for _ in range(2))
    assert first == again
    assert all(len(answer) == LENGTH for _, answer in first)
    tokens = [token for _, answer in first for token in answer]
    assert len(set(tokens)) < 0.7 * len(tokens)


def test_too_few_tokens_measure_nothing():
    with pytest.raises(CrossdraftError, match="12 tokens"):
        time_memory(12)


def test_the_command(tmp_path, capsys):
    assert main(["bench", "memory", "--tokens", "2000", "--json-out", str(tmp_path / "a.json")]) == 0
    assert "2,000 tokens" in capsys.readouterr().out
    assert json.loads((tmp_path / "a.json").read_text())["tokens"] == 2000
