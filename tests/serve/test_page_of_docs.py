"""docs/serve.md: its Python runs against a server, its metrics are those that there are, and the dashboard's, too."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from crossdraft.serve.app import ROUTERS
from crossdraft.serve.errors import GONE, TYPES
from tests.serve.conftest import body

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "serve.md").read_text(encoding="utf-8")
ENDPOINTS = (DOCS / "endpoints.md").read_text(encoding="utf-8")


def names(server) -> set[str]:
    """Every metric of a server, without what Prometheus adds for histograms."""
    text = httpx.get(f"{server.url}/metrics").text
    found = set(re.findall(r"^# TYPE crossdraft:(\w+) (?:gauge|counter|histogram)$", text, re.MULTILINE))
    return {name for name in found if not name.endswith("_created")}


def test_its_python_runs(server, capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    code = code.replace("http://127.0.0.1:8000", server.url).replace("scene-2000000", "clip")
    exec(compile(code, "serve.md", "exec"), {"__name__": "page"})
    assert "num_spec_steps" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_its_curl_runs(server, tmp_path):
    (code,) = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "demo").symlink_to(server.root)
    code = "set -e\n" + code.replace("http://127.0.0.1:8000", server.url).replace("scene-2000000", "clip")
    found = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    answer, _, upload = found.stdout.partition("data: [DONE]")
    assert answer.count('"content"') > 1
    assert "error" not in answer
    server.client().files.delete(json.loads(upload)["id"])


def test_its_metrics_are_those_of_the_server(server):
    part = PAGE[PAGE.index("## Metrics") : PAGE.index("Mean acceptance length = ")]
    named = {name.partition("{")[0] for name in re.findall(r"`(\w+(?:{\w+})?)`", part) if "_" in name}
    known = names(server)
    assert len(known) > 20
    budgeted = {name for name in named if name.startswith("speculative_prefill")}  # of a server with a quality budget
    assert budgeted
    assert named - budgeted == known


def order_of(stream: str) -> list[str]:
    """What comes in a stream, in the order in which it first comes."""
    found = re.findall(r'"(provisional|timeline)":|"(role)":|"delta":{"(content)"|("finish_reason":"|DONE)', stream)
    return list(dict.fromkeys("".join(one) for one in found))


@pytest.mark.usefixtures("drafted_for")
def test_its_stream_comes_in_the_order_of_the_servers(server):
    (example,) = re.findall(r"^```\n(: crossdraft .*?|data: .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    fresh = {"media_io_kwargs": {"video": {"num_frames": 6}}}  # nothing is known of it, so the target reads
    asked = {"provisional": True, "origins": True, "timeline": True}
    found = order_of(server.post(body(stream=True, crossdraft=asked, **fresh)).text)
    assert order_of(example) == found == ["role", "provisional", "content", '"finish_reason":"', "timeline", "DONE"]


def test_its_statuses_are_those_of_the_server():
    (part,) = re.findall(r"^Errors are OpenAI's: .*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert {int(status) for status in re.findall(r"\b\d{3}\b", part)} == TYPES.keys() - {GONE}


def test_its_routes_are_those_of_the_server():
    for router in ROUTERS:
        for route in router.routes:
            shown = re.sub(r"{name:path}", "NAME", route.path).replace("{found}", "ID")
            assert shown in PAGE + ENDPOINTS or shown.startswith("/page/"), route.path  # those are the page's own files


def test_the_dashboard_asks_for_metrics_that_there_are(server):
    board = json.loads((DOCS / "grafana.json").read_text(encoding="utf-8"))
    asked = set(re.findall(r"crossdraft:(\w+)", json.dumps(board)))
    known = names(server)
    histograms = {f"{name}_{part}" for name in known for part in ("bucket", "sum", "count")}
    assert len(asked) > 10
    assert asked <= known | {f"{name}_total" for name in known} | histograms
