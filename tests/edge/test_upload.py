"""`crossdraft edge --video FILE`: the clip is on the server for as long as it is asked about."""

import json

import pytest

from crossdraft.cli.main import main
from crossdraft.edge.tls import TlsFiles
from crossdraft.edge.upload import uploaded
from crossdraft.errors import CrossdraftError
from crossdraft.serve.uploads import Uploads


def address(running) -> str:
    return "ws://{}:{}".format(*running.address)


@pytest.fixture
def added(monkeypatch) -> list[str]:
    """The ids of what was uploaded."""
    found, add = [], Uploads.add

    def noted(*arguments):
        upload = add(*arguments)
        found.append(upload.id)
        return upload

    monkeypatch.setattr(Uploads, "add", noted)
    return found


@pytest.mark.parametrize(("more", "status"), [([], 0), (["--model", "nobody"], 2)])
def test_the_clip_is_deleted_there_when_the_run_ends_however_it_ends(start, media, added, capsys, more, status):
    running = start()
    given = ["--server", address(running), "--video", str(media / "clip.mp4"), "--prompt", "What is ahead?", "--json"]
    assert main(["edge", *given, "--drafter", "none", "--max-new-tokens", "4", *more]) == status
    shown = capsys.readouterr()
    assert ("nobody" in shown.err) if status else json.loads(shown.out)["text"]
    assert len(added) == 1
    assert running.service.uploads.of("") == []


def test_a_clip_that_cannot_be_deleted_is_said_to_stay_and_costs_no_answer(start, media, caplog):
    running = start()
    with uploaded(address(running), None, media / "clip.mp4") as kept:
        assert [one.id for one in running.service.uploads.of("")] == [kept]
        running.service.uploads.delete(kept, "")
    (record,) = [record for record in caplog.records if record.name == "crossdraft.edge.upload"]
    assert f"stays on the server as {kept}" in record.getMessage()
    assert "There is no such file" in record.getMessage()


def test_what_the_server_does_not_take_is_an_error(start, tmp_path):
    (tmp_path / "empty.mp4").touch()
    with pytest.raises(CrossdraftError, match=r"does not take .*empty\.mp4 \(status 400\): The file is empty"):
        uploaded(address(start()), None, tmp_path / "empty.mp4", TlsFiles()).__enter__()
