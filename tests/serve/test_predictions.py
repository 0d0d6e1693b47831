"""Predictions and hints over HTTP: OpenAI's `prediction` by its own client; the answer is the target's."""

import openai
import pytest

from crossdraft import Request
from crossdraft.errors import CrossdraftError
from crossdraft.serve.service import load_engine
from crossdraft.serve.settings import ServerSettings
from tests.serve.conftest import QUESTION, body


def content(text):
    return {"type": "content", "content": text}


@pytest.fixture(scope="module")
def truth(server):
    """The answer, and the tokens of its text: those of random words may be joined."""
    answer = server.engine.alone(Request(QUESTION, str(server.root / "clip.mp4"), max_new_tokens=24))
    tokenizer = server.engine.target.text.tokenizer
    return answer.text, len(tokenizer(answer.text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("parts", [False, True])
def test_a_predicted_answer_is_the_same_and_its_tokens_are_counted(server, truth, parts):
    text, count = truth
    given = [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}] if parts else text
    found = server.client().chat.completions.create(**body(max_tokens=24, prediction=content(given)))
    assert found.choices[0].message.content == text
    details = found.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > 0
    assert details.accepted_prediction_tokens + details.rejected_prediction_tokens == count


def test_a_stream_counts_them_too(server, truth):
    asked = body(max_tokens=24, stream=True, stream_options={"include_usage": True}, prediction=content(truth[0]))
    chunks = list(server.client().chat.completions.create(**asked))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == truth[0]
    assert chunks[-1].usage.completion_tokens_details.accepted_prediction_tokens > 0


@pytest.mark.parametrize("fields", [{"prediction": content("")}, {"prediction": None}, {}])
def test_without_a_prediction_nothing_is_counted(server, truth, fields):
    found = server.client().chat.completions.create(**body(max_tokens=24, **fields))
    assert found.choices[0].message.content == truth[0]
    assert found.usage.completion_tokens_details is None


def test_hints_are_drafted_from(server, truth):
    asked = body(max_tokens=24, extra_body={"crossdraft": {"hints": ["It said: " + truth[0]], "timeline": True}})
    found = server.client().chat.completions.create(**asked)
    assert found.choices[0].message.content == truth[0]
    assert found.usage.completion_tokens_details is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"prediction": {"type": "text", "content": "a"}}, "prediction.type"),
        ({"prediction": content([{"type": "image_url", "image_url": {"url": "a"}}])}, "prediction.content"),
        ({"prediction": content("a" * 200_000)}, "200,000 characters in all"),
        ({"extra_body": {"crossdraft": {"hints": ["a"] * 9}}}, "9 predictions and hints"),
        ({"extra_body": {"crossdraft": {"hints": "a"}}}, "crossdraft.hints"),
    ],
)
def test_bad_ones_are_refused(server, fields, part, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        server.client().chat.completions.create(**body(**fields, stream=stream))
    assert part in str(caught.value)


def test_words_in_images_are_hints_where_the_setting_says_so(server, monkeypatch):
    """An answer about an image is the same, and the engine was asked once."""
    seen = []

    class Engine:
        def added(self, request):
            seen.append([part.kind for part in request.visuals])
            return request

    monkeypatch.setattr(server.service, "ocr", Engine())
    server.client().chat.completions.create(**body(max_tokens=4))
    assert len(seen) == 1


def test_a_missing_engine_is_refused_before_anything_is_loaded():
    with pytest.raises(CrossdraftError, match="no OCR engine 'nothing-of-it' here"):
        load_engine(ServerSettings(ocr="nothing-of-it"))
