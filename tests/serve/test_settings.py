"""One schema: file, environment, flags."""

import re

import pytest
from typer.testing import CliRunner

from crossdraft.cli.main import app, main
from crossdraft.engine.fast.cores import available_cores
from crossdraft.errors import CrossdraftError
from crossdraft.serve.settings import ServerSettings, group_of, read_settings


def test_flags_go_before_the_environment_and_that_before_the_file(tmp_path, monkeypatch):
    file = tmp_path / "serve.yaml"
    file.write_text("port: 1\nmax_queue: 1\nmax_batch: 1\nremote_hosts: [a.test, b.test]\n")
    monkeypatch.setenv("CROSSDRAFT_PORT", "2")
    monkeypatch.setenv("CROSSDRAFT_MAX_QUEUE", "2")
    monkeypatch.setenv("CROSSDRAFT_CORS_ORIGINS", "https://a.test, https://b.test")
    found = read_settings(file, {"port": 3})
    assert (found.port, found.engine.max_queue, found.engine.max_batch) == (3, 2, 1)
    assert found.remote_hosts == ("a.test", "b.test")
    assert found.cors_origins == ("https://a.test", "https://b.test")
    assert read_settings(None, {}).engine.max_batch == ServerSettings.model_fields["max_batch"].default


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot: 1", "did you mean 'port'"),
        ("port: 99999", "port is 99999"),
        ("log_format: xml", "log_format"),
        ("nodes: 0", r"^nodes is 0; it must be at least 1; change it in .*serve\.yaml\.$"),
        ("placement: edge", r"^Unknown placement 'edge'; choose one of auto, inline, process; change it in"),
        ("fps: 2\nnum_frames: 4", "^num_frames is 4 and fps is 2.0; give one of them"),
        ("port: [", "cannot be read"),
        ("cors_origins: https://a.test/page", "is no origin; write it as"),
        ("cors_origins: '*'", r"^With cors_origins \* and no keys every web page could ask"),
        ("host: 0.0.0.0", r"^Without keys everybody who reaches 0\.0\.0\.0 could ask.*--open-to-all"),
        ("host: ''", "^Without keys everybody who reaches any address"),
        ("host: '::'", "^Without keys"),
        ("host: box.test", "^Without keys"),
        ("- port\n- 1", r"serve\.yaml is no mapping of settings; write one a line, as max_queue: 8\.$"),
        ("max_batch: 0", r"change it in .*serve\.yaml\.$"),
    ],
)
def test_a_broken_file_is_refused_in_one_sentence(tmp_path, text, says):
    file = tmp_path / "serve.yaml"
    file.write_text(text)
    with pytest.raises(CrossdraftError, match=says):
        read_settings(file, {})


def test_every_option_of_the_engine_is_a_setting(tmp_path, monkeypatch):
    file = tmp_path / "serve.yaml"
    file.write_text("cache_bytes: 0\nadaptive: false\ndevice_map: {vision: cpu}\nfps: 2\n")
    monkeypatch.setenv("CROSSDRAFT_KV_BYTES", "1000000")
    monkeypatch.setenv("CROSSDRAFT_TARGET_CORES", f"{(first := available_cores()[0])}")
    found = read_settings(file, {"dtype": "bf16", "nodes": 7}).engine
    assert (found.cache_bytes, found.adaptive, found.device_map) == (0, False, {"vision": "cpu"})
    assert (found.fps, found.kv_bytes, found.target_cores) == (2.0, 1_000_000, (first,))
    assert (found.dtype, found.nodes, found.max_batch, found.max_queue) == ("bfloat16", 7, 4, 16)


def test_a_wrong_value_is_said_to_be_where_it_was_found(tmp_path, monkeypatch):
    monkeypatch.setenv("CROSSDRAFT_MAX_QUEUE", "many")
    (tmp_path / "serve.yaml").write_text("max_queue: few")
    with pytest.raises(CrossdraftError, match=r"max_queue is 'many'.*; change CROSSDRAFT_MAX_QUEUE in the env"):
        read_settings(tmp_path / "serve.yaml", {})
    with pytest.raises(CrossdraftError, match=r"max_queue is 'none'.*; change --max-queue\.$"):
        read_settings(tmp_path / "serve.yaml", {"max_queue": "none"})


@pytest.mark.parametrize(
    ("flags", "text", "says"),
    [
        (["--frames=4", "--fps=2"], "", "--frames is 4 and --fps is 2.0; give one of them"),
        (["--num-frames=4", "--fps=2"], "", "--frames is 4 and --fps is 2.0; give one of them"),
        (["--fps=2"], "num_frames: 4", "num_frames is 4 and --fps is 2.0; give one of them"),
        ([], "num_frames: 4\nfps: 2", "num_frames is 4 and fps is 2.0; give one of them"),
        ([], "device: cuda:63", "device is 'cuda:63'"),
    ],
)
def test_a_setting_is_named_as_it_was_given(tmp_path, capsys, flags, text, says):
    (tmp_path / "serve.yaml").write_text(text)
    assert main(["serve", f"--config={tmp_path / 'serve.yaml'}", *flags]) == 2
    assert capsys.readouterr().err.startswith(f"crossdraft: {says}")


def test_an_empty_variable_counts_as_not_set(tmp_path, monkeypatch):
    monkeypatch.setenv("CROSSDRAFT_MAX_QUEUE", "")
    monkeypatch.setenv("CROSSDRAFT_KEYS_FILE", "")
    (tmp_path / "serve.yaml").write_text("max_queue: 7")
    found = read_settings(tmp_path / "serve.yaml", {})
    assert (found.engine.max_queue, found.keys_file) == (7, None)


def test_variables_that_are_no_settings_are_named_at_the_start(monkeypatch):
    monkeypatch.setenv("CROSSDRAFT_MAX_QUEU", "1")
    monkeypatch.setenv("CROSSDRAFT_KEY", "cd-client")  # of `crossdraft edge`
    monkeypatch.setattr("crossdraft.cli.serve._serve", lambda settings: None)
    shown = CliRunner().invoke(app, ["serve"]).stderr
    assert shown == (
        "crossdraft: No setting is called CROSSDRAFT_MAX_QUEU (did you mean 'CROSSDRAFT_MAX_QUEUE'?); "
        "`crossdraft serve --help` lists them.\n"
    )
    monkeypatch.delenv("CROSSDRAFT_MAX_QUEU")
    monkeypatch.setenv("crossdraft_port", "1")  # as pydantic reads them
    assert CliRunner().invoke(app, ["serve"]).stderr == ""


@pytest.mark.parametrize(
    "host", ["media.test", "a_b.media.test:8443", "93.184.216.34", "93.184.216.34:8080", "2606:2800:220:1::1"]
)
def test_hosts_that_can_be_fetched_from(host):
    assert read_settings(None, {"remote_hosts": f"other.test,{host}"}).remote_hosts[1] == host


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("127.0.0.1", "is no address of the internet"), ("127.0.0.1:80", "is no address of the internet"),
        ("::1", "is no address of the internet"), ("localhost", "is no address of the internet"),
        ("10.1.2.3", "is no address of the internet"), ("2130706433", "is no address of the internet"),
        ("0x7f.1", "is no address of the internet"), ("http://a/b", "is no host"), ("a/b", "is no host"),
        ("*.media.test", "is no host"), ("media.test.", "is no host"), ("media.test:0x50", "is no host"),
        ("media.test:99999", "is no host"), ("bücher.test", "is no host"),
    ],
)  # fmt: skip
def test_hosts_that_could_never_be_fetched_from_are_refused(host, says):
    with pytest.raises(CrossdraftError, match=rf"{re.escape(host)} {says}.*; change --remote-hosts\.$"):
        read_settings(None, {"remote_hosts": host})


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
