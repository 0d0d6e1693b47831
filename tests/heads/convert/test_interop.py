"""`make interop` is not part of the suite; its own half is tested here, with every change."""

import pytest

from crossdraft.heads.files import load_head
from crossdraft_lab.train.heads.export import export_head
from tests.interop.speculators_eagle3 import VOCABULARY, make_target, write_head


@pytest.mark.parametrize("drafted", [50, VOCABULARY])
def test_the_head_that_the_real_package_is_given_can_be_made_and_exported(tmp_path, drafted):
    host = make_target(tmp_path / "target")
    write_head(tmp_path / "own", host, drafted)
    assert len(load_head(tmp_path / "own", host.shared).draft_ids) == drafted
    done = export_head(tmp_path / "own", tmp_path / "foreign", "speculators", host)
    assert done.layout == "speculators"
    assert (tmp_path / "foreign" / "config.json").is_file()
