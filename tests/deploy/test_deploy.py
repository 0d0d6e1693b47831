"""What deploys the server fits the server, and itself: settings, ports, probes, mounts, times. Nothing here runs it."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from crossdraft.cli.serve import app
from crossdraft.errors import CrossdraftError
from crossdraft.serve.app import ROUTERS
from crossdraft.serve.keys import Client, new_key, read_keys
from crossdraft.serve.settings import ServerSettings, read_settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "crossdraft.service").read_text(encoding="utf-8")
CONTAINER = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
SECRET, DEPLOYMENT, SERVICE = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))
POD = DEPLOYMENT["spec"]["template"]["spec"]
(IN_POD,) = POD["containers"]
PREFIX = "CROSSDRAFT_"


def unit_values(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)


def of_unit() -> dict[str, str]:
    return dict(word.split("=", 1) for line in unit_values("Environment") for word in shlex.split(line))


def of_container() -> dict[str, str]:
    (block,) = re.findall(r"^ENV ((?:.*\\\n)*.*)$", CONTAINER, re.MULTILINE)
    return dict(word.split("=", 1) for word in shlex.split(block.replace("\\\n", " ")))


def of_pod() -> dict[str, str]:
    return {one["name"]: one["value"] for one in IN_POD["env"]}


def settings_of(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> ServerSettings:
    """The server's settings in such an environment; a setting that it does not know is an error here."""
    given = {name: value for name, value in environment.items() if name.startswith(PREFIX)}
    for name, value in given.items():
        if name.removeprefix(PREFIX).lower() not in ServerSettings.model_fields:
            raise CrossdraftError(f"There is no setting {name}.")
        monkeypatch.setenv(name, value)
    return read_settings(None, {})


@pytest.mark.parametrize("environment", [of_unit(), of_container(), of_pod()], ids=["unit", "container", "pod"])
def test_every_variable_is_a_setting_and_every_value_one_of_it(environment, monkeypatch):
    found = settings_of({"CROSSDRAFT_KEYS_FILE": "/keys.yaml"} | environment, monkeypatch)
    assert found.port == 8000
    assert found.log_format == "json"


def test_the_image_alone_asks_for_keys_or_a_word(monkeypatch):
    with pytest.raises(CrossdraftError, match="--open-to-all"):
        settings_of(of_container(), monkeypatch)
    (said,) = re.findall(r"-e (CROSSDRAFT_OPEN_TO_ALL=\w+)", (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8"))
    assert settings_of(of_container() | dict([said.split("=")]), monkeypatch).open_to_all


@pytest.mark.parametrize("wrong", [{"CROSSDRAFT_PROT": "1"}, {"CROSSDRAFT_PORT": "eighty"}])
def test_a_variable_that_is_wrong_would_be_found(wrong, monkeypatch):
    with pytest.raises(CrossdraftError):
        settings_of(wrong, monkeypatch)


def test_other_variables_in_comments_are_settings_too():
    for path in [*DEPLOY.iterdir(), ROOT / "docs" / "deploy.md"]:
        for name in re.findall(r"CROSSDRAFT_([A-Z_]+)\b", path.read_text(encoding="utf-8")):
            assert name.lower() in ServerSettings.model_fields, (path.name, name)


def test_the_unit_calls_the_server_as_it_may_be_called():
    (line,) = unit_values("ExecStart")
    program, command, *arguments = shlex.split(line)
    assert (Path(program).name, command) == ("crossdraft", "serve")
    get_command(app).make_context("serve", arguments)


def test_what_kills_the_server_waits_for_its_drain(monkeypatch):
    (stop,) = unit_values("TimeoutStopSec")
    assert float(stop) > settings_of(of_unit(), monkeypatch).drain_seconds
    before = float(IN_POD["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert POD["terminationGracePeriodSeconds"] > before + settings_of(of_pod(), monkeypatch).drain_seconds


def test_probes_ask_for_routes_on_the_port_that_is_served(monkeypatch):
    (port,) = IN_POD["ports"]
    assert port["containerPort"] == settings_of(of_pod(), monkeypatch).port
    routes = {route.path for router in ROUTERS for route in router.routes}
    asked = {kind: IN_POD[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: one["path"] for kind, one in asked.items()} == {
        "startup": "/health", "liveness": "/health", "readiness": "/ready"
    }  # fmt: skip
    assert {one["path"] for one in asked.values()} <= routes
    assert {one["port"] for one in asked.values()} == {port["name"]}
    assert [one["targetPort"] for one in SERVICE["spec"]["ports"]] == [port["name"]]
    assert f"EXPOSE {port['containerPort']}\n" in CONTAINER


def test_the_service_lends_the_pods_no_variables():
    """Kubernetes would set CROSSDRAFT_SERVICE_HOST and others, named after the service, which are no settings."""
    assert SERVICE["metadata"]["name"].upper() + "_" == PREFIX
    assert POD["enableServiceLinks"] is False


def test_the_service_finds_the_pods():
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert SERVICE["spec"]["selector"] == DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels


def test_the_pod_writes_to_its_volumes_alone():
    secured = IN_POD["securityContext"]
    assert secured["readOnlyRootFilesystem"]
    assert not secured["allowPrivilegeEscalation"]
    assert secured["capabilities"] == {"drop": ["ALL"]}
    assert POD["securityContext"]["runAsNonRoot"]
    assert f"USER {POD['securityContext']['runAsUser']}:{POD['securityContext']['runAsGroup']}\n" in CONTAINER
    mounts = {one["name"]: one for one in IN_POD["volumeMounts"]}
    volumes = {one["name"]: one for one in POD["volumes"]}
    assert mounts.keys() == volumes.keys()
    writable = [Path(one["mountPath"]) for one in mounts.values() if not one.get("readOnly")]
    for path in (Path(of_pod()["CROSSDRAFT_UPLOAD_FOLDER"]), Path(of_container()["HOME"])):
        assert any(path.is_relative_to(one) for one in writable)
    assert IN_POD["resources"]["requests"] == IN_POD["resources"]["limits"]


def test_the_keys_are_where_the_server_looks_and_nobody_s(tmp_path):
    (mount,) = [one for one in IN_POD["volumeMounts"] if one["name"] == "keys"]
    (volume,) = [one["secret"] for one in POD["volumes"] if one["name"] == "keys"]
    (name,) = SECRET["stringData"]
    assert of_pod()["CROSSDRAFT_KEYS_FILE"] == f"{mount['mountPath']}/{name}"
    assert volume["secretName"] == SECRET["metadata"]["name"]
    keys = tmp_path / name
    keys.write_text(SECRET["stringData"][name])
    keys.chmod(volume["defaultMode"])
    found = read_keys(keys, Client("x"))
    assert found.client(new_key()) is None
    (credential,) = unit_values("LoadCredential")
    assert of_unit()["CROSSDRAFT_KEYS_FILE"] == f"%d/{credential.split(':')[0]}"


def test_the_image_copies_what_there_is_and_ships_what_is_installed():
    copied = [
        word for line in re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINER, re.MULTILINE) for word in line.split()
    ]
    assert {"pyproject.toml", "constraints.txt", "src"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)
    assert re.search(r"^ENTRYPOINT \[\"crossdraft\", \"serve\"\]$", CONTAINER, re.MULTILINE)
    assert "torch==" in (ROOT / "constraints.txt").read_text(encoding="utf-8")


needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


@needs_systemd
@pytest.mark.parametrize(("broken", "passes"), [("", True), ("ProtectSytem=strict\n", False)])
def test_systemd_reads_the_unit(broken, passes, tmp_path):
    unit = tmp_path / "crossdraft.service"  # its program is not installed here; another stands for it
    unit.write_text(
        UNIT.replace("/opt/crossdraft/bin/crossdraft", "/bin/true").replace("[Service]\n", f"[Service]\n{broken}")
    )
    ran = subprocess.run(["systemd-analyze", "verify", unit], check=False, capture_output=True, text=True, timeout=60)
    assert (ran.returncode == 0 and unit.name not in ran.stderr) is passes, ran.stderr


@needs_systemd
def test_the_unit_is_hardened():
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(DEPLOY / "crossdraft.service")]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout[-300:] + ran.stderr
