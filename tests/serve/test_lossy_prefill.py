"""A server whose target reads less of a clip: answers say that they are lossy, `/metrics` how a budget is kept."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from crossdraft.serve.service import load_engine
from tests.align.some_gate import predicted_spec
from tests.serve.conftest import Runner, body, settings


@contextmanager
def served(pair, media_root, lossy_prefill, **more):
    asked = settings(
        target=str(pair.target), drafter="none", placement="inline", device="cpu", media_root=media_root,
        lossy_prefill=lossy_prefill, **more,
    )  # fmt: skip
    with load_engine(asked) as engine:
        runner = Runner(engine, media_root)
        running, *rest = runner.start(asked)
        try:
            yield running
        finally:
            runner.stop(running, *rest)


def prefill_metrics(running):
    """By name and what else is said of them, without the prefix."""
    text, start = httpx.get(f"{running.url}/metrics", timeout=20).text, "crossdraft:speculative_prefill_"
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    ours = [sample for sample in samples if sample.name.startswith(start)]
    return {(one.name.removeprefix(start), one.labels.get("read")): one.value for one in ours}


def test_metrics_say_that_an_answer_is_lossy(pair, media_root):
    with served(pair, media_root, "frames:count=2") as running:
        answer = running.post(body(model=running.service.settings.model, max_tokens=4)).json()
        assert answer["metrics"]["lossless"] is False
        assert prefill_metrics(running) == {}


def test_clients_learn_that_an_answer_is_lossy_and_nothing_of_the_folders(pair, media_root, tmp_path):
    """The adapter and the event model are named by their paths."""
    spec = f"{predicted_spec(pair, tmp_path)},frames=1"
    with served(pair, media_root, spec) as running:
        asked = body(model=running.service.settings.model, max_tokens=4, crossdraft={"timeline": True})
        answer = running.post(asked)
        found = answer.json()["crossdraft"]["timeline"]
    assert found["stats"]["lossy_prefill"] == "predicted:frames=1"
    assert found["notes"] == ["Lossy: the target reads its clip compressed (predicted:frames=1)."]
    assert str(tmp_path) not in answer.text
    assert str(pair.event) not in answer.text


def test_a_budget_is_kept_under_load(pair, media_root, tmp_path):
    """Half of the requests are streams, from six clients at once: all are answered, each says whether it is lossy."""
    spec = f"{predicted_spec(pair, tmp_path)},budget=0.5,check=0.5,rate=1e-6,confidence=0.4"
    with served(pair, media_root, spec, max_batch=3, max_queue=9) as running:
        model = running.service.settings.model
        assert prefill_metrics(running)["requests_total", "checked"] == 0  # warming up counts as nothing

        def ask(number):
            if number % 2:
                return running.post(body(model=model, max_tokens=6)).json()["metrics"]["lossless"]
            options = {"include_usage": True}
            with running.client() as client:
                stream = client.chat.completions.create(
                    **body(model=model, max_tokens=6), stream=True, stream_options=options
                )
                return [*stream][-1].metrics["lossless"]

        with ThreadPoolExecutor(6) as pool:
            lossless = list(pool.map(ask, range(12)))
        text = [{"role": "user", "content": "What is a road?"}]
        assert running.post(body(model=model, max_tokens=4, messages=text)).json()["metrics"]["lossless"]
        found, status = prefill_metrics(running), running.engine.prefill_status
        assert running.rows() == 0
    checked = lossless.count(True)
    assert 0 < checked < 12
    assert found == {
        ("threshold", None): pytest.approx(0.4, abs=1e-4),
        ("budget", None): 0.5,
        ("requests_total", "predicted"): 12 - checked,
        ("requests_total", "checked"): checked,
        ("requests_total", "whole"): 0,
        ("requests_total", "unpredictable"): 1,
        ("check_loss_count", None): checked,
        ("check_loss_sum", None): status.loss,
    }
