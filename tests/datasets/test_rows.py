import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft_lab.datasets import rows
from crossdraft_lab.datasets.rows import json_rows

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.dictionaries(st.text(max_size=5), VALUES, max_size=4), max_size=6),
    st.integers(1, 7),
    st.sampled_from(["list", "indented", "lines"]),
)
def test_any_list_is_read_as_json_reads_it_however_it_is_cut(tmp_path_factory, content, block, form):
    path = tmp_path_factory.mktemp("rows") / "a.json"
    texts = {
        "list": json.dumps(content, ensure_ascii=False),
        "indented": json.dumps(content, indent=2),
        "lines": "\n".join(map(json.dumps, content)),
    }
    path.write_text(texts[form], encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "BLOCK", block)
        assert list(json_rows(path)) == content


def test_a_list_is_not_held_whole(tmp_path):
    import tracemalloc

    path = tmp_path / "a.json"
    with path.open("w") as file:
        file.write("[" + ",".join(json.dumps({"question": "x" * 100, "id": i}) for i in range(60_000)) + "]")
    tracemalloc.start()
    assert sum(1 for _ in json_rows(path)) == 60_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000 < path.stat().st_size


def test_a_row_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "MOST_CHARACTERS", 1 << 17)
    (tmp_path / "a.json").write_text('[{"a": "' + "x" * 1_000_000)
    with pytest.raises(CrossdraftError, match="no whole JSON"):
        list(json_rows(tmp_path / "a.json"))


@pytest.mark.parametrize("block", [1, 5, 1 << 16])
@pytest.mark.parametrize("rest", ['{"a": 2}', "]", ",", '[{"a": 2}]', " " * 20 + "x"])
def test_whatever_follows_a_list_is_refused(tmp_path, monkeypatch, block, rest):
    monkeypatch.setattr(rows, "BLOCK", block)
    path = tmp_path / "a.json"
    path.write_text('[{"a": 1}] \r\n\t')
    assert list(json_rows(path)) == [{"a": 1}]
    path.write_text(f'[{{"a": 1}}]\n{rest}')
    with pytest.raises(CrossdraftError, match="more follows the end of its list"):
        list(json_rows(path))
