"""`crossdraft bench predictions`: words that change, and its rows on the tiny pair."""

import json
import sys

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.predictions import ANOTHER, PAGES, main, page_of, with_changed_words

TEXT = " ".join(f"word{number}" for number in range(40))


@pytest.mark.parametrize("share", [0.0, 0.05, 0.2])
def test_a_share_of_the_words_is_replaced_by_others(share):
    found = with_changed_words(TEXT, share, 3).split()
    changed = [new for old, new in zip(TEXT.split(), found, strict=True) if old != new]
    assert len(changed) == round(share * 40)
    assert set(changed) <= set(TEXT.split())
    assert found == with_changed_words(TEXT, share, 3).split()


def test_pages_show_their_text():
    pages = [page_of(text) for text in PAGES]
    assert all(page.shape == (420, 1000, 3) and 0.005 < (page < 128).mean() < 0.2 for page in pages)


def test_rows_of_prompts(pair, tmp_path, capsys):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"What {n}?", "kind": "any"}) + "\n" for n in range(2)))
    given = ["--target", str(pair.target), "--prompts", str(prompts), "--repeats", "1", "--max-new-tokens", "12"]
    main([*given, "--device", "cpu", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 2 * 6
    assert [row["method"] for row in rows[::2]][-1] == ANOTHER
    assert all(row["identical"] == row["runs"] == 2 for row in rows)


def test_rows_of_pages(pair, tmp_path, capsys, monkeypatch):
    """The engine's words are those of the pages, and are there before the first draft."""
    monkeypatch.setattr("crossdraft_lab.bench.predictions.PAGES", ["No train today."])
    monkeypatch.setattr("crossdraft.ocr.Ocr._words", lambda self, image, seconds: "No train today.")
    main(["--target", str(pair.target), "--ocr", sys.executable, "--drafter", "none", "--repeats", "1", "--json"])
    target, late, early = json.loads(capsys.readouterr().out)["rows"][::2]
    assert target["identical"] == late["identical"] == early["identical"] == 1
    assert late["tau"]["value"] >= target["tau"]["value"] == 1
    assert early["tau"]["value"] > 1


def test_prompts_or_pages():
    with pytest.raises(CrossdraftError, match="one of them"):
        main(["--target", "reference"])
    with pytest.raises(CrossdraftError, match="knows its clips alone"):
        main(["--target", "reference", "--prompts", "prompts.jsonl"])
