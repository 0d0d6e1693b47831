"""One schema: file, environment, flags."""

import pytest
from typer.testing import CliRunner

from crossdraft.cli.main import app
from crossdraft.errors import CrossdraftError
from crossdraft.serve.settings import ServerSettings, group_of, read_settings


def test_flags_go_before_the_environment_and_that_before_the_file(tmp_path, monkeypatch):
    file = tmp_path / "serve.yaml"
    file.write_text("port: 1\nmax_queue: 1\nmax_batch: 1\nremote_hosts: [a.test, b.test]\n")
    monkeypatch.setenv("CROSSDRAFT_PORT", "2")
    monkeypatch.setenv("CROSSDRAFT_MAX_QUEUE", "2")
    monkeypatch.setenv("CROSSDRAFT_CORS_ORIGINS", "https://a.test, https://b.test")
    found = read_settings(file, {"port": 3})
    assert (found.port, found.max_queue, found.max_batch) == (3, 2, 1)
    assert found.remote_hosts == ("a.test", "b.test")
    assert found.cors_origins == ("https://a.test", "https://b.test")
    assert read_settings(None, {}).max_batch == ServerSettings.model_fields["max_batch"].default


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot: 1", "did you mean 'port'"),
        ("port: 99999", "port is 99999"),
        ("max_batch: 0", "max_batch is 0"),
        ("log_format: xml", "log_format"),
        ("port: [", "cannot be read"),
        ("cors_origins: https://a.test/page", "is no origin; write it as"),
        ("cors_origins: '*'", r"^With cors_origins \* and no keys every web page could ask"),
        ("host: 0.0.0.0", r"^Without keys everybody who reaches 0\.0\.0\.0 could ask.*--open-to-all"),
        ("host: ''", "^Without keys everybody who reaches any address"),
        ("host: '::'", "^Without keys"),
        ("host: box.test", "^Without keys"),
        ("ray: true\nmin_replicas: 3\nmax_replicas: 2", "3 and max_replicas 2; raise --max-replicas, or lower --min"),
        ("ray: true\nupload_folder: up", "take no uploads; leave out --upload-folder"),
        ("ray: true\ndrafter: union:edge,memory", "serve no edges; choose another --drafter"),
        ("max_replicas: 2", "replicas are made by --ray alone; add it"),
    ],
)
def test_a_broken_file_is_refused_in_one_sentence(tmp_path, text, says):
    file = tmp_path / "serve.yaml"
    file.write_text(text)
    with pytest.raises(CrossdraftError, match=says):
        read_settings(file, {})


@pytest.mark.parametrize("file", [None, "serve.yaml"])
def test_a_broken_variable_is_said_to_be_one(tmp_path, monkeypatch, file):
    monkeypatch.setenv("CROSSDRAFT_OPTIONS", "x")
    (tmp_path / "serve.yaml").write_text("port: 1")
    with pytest.raises(CrossdraftError, match=r'^A variable of the environment, .*"options".* as JSON\.$'):
        read_settings(file and tmp_path / file, {})


@pytest.mark.parametrize("host", ["127.0.0.2", "::1", "localhost"])
def test_a_server_on_loopback_needs_no_keys(host):
    assert read_settings(None, {"host": host}).host == host


@pytest.mark.parametrize("more", [{"keys_file": "keys.yaml"}, {"open_to_all": True}])
def test_a_server_on_the_network_has_keys_or_says_that_it_has_none(more):
    assert read_settings(None, {"host": "0.0.0.0", **more}).host == "0.0.0.0"


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(CrossdraftError, match="no configuration file"):
        read_settings(tmp_path / "none.yaml", {})


def test_every_setting_is_a_flag_with_a_heading_and_a_sentence():
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "300"}).output
    for name, setting in ServerSettings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in shown
        assert group_of(setting)
        assert setting.description


def test_nothing_dangerous_is_on_by_default():
    found = ServerSettings()
    assert (found.host, found.media_root, found.remote_hosts, found.cors_origins) == ("127.0.0.1", None, (), ())
