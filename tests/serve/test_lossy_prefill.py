"""A server whose target reads less of a clip: its answers say that they are lossy."""

from crossdraft.serve.service import load_engine
from tests.serve.conftest import Runner, body, settings


def test_metrics_say_that_an_answer_is_lossy(pair, media_root):
    asked = settings(
        target=str(pair.target), drafter="none", placement="inline", device="cpu", media_root=media_root,
        options={"lossy_prefill": "frames:count=2"},
    )  # fmt: skip
    with load_engine(asked) as engine:
        runner = Runner(engine, media_root)
        running, *rest = runner.start(asked)
        try:
            answer = running.post(body(model=asked.model, max_tokens=4)).json()
        finally:
            runner.stop(running, *rest)
    assert answer["metrics"]["lossless"] is False
