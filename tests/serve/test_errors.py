"""Errors as clients are to see them: OpenAI's words and codes, and the body's own fields."""

import pickle

import pytest

from crossdraft.errors import ContextLengthError, CrossdraftError
from crossdraft.serve.errors import as_api_error
from tests.serve.conftest import body, messages


def test_an_answer_that_does_not_fit_is_said_as_openai_says_it(server):
    context = server.engine.target.context
    found = server.post(body(max_tokens=context))
    assert found.status_code == 400
    error = found.json()["error"]
    prompt = server.post(body()).json()["usage"]["prompt_tokens"]
    assert error == {
        "message": f"This model's maximum context length is {context} tokens. However, you requested "
        f"{prompt + context} tokens ({prompt} in the messages, {context} in the completion). "
        "Please reduce the length of the messages or completion. "
        f"At most {context - prompt} tokens fit after these messages.",
        "type": "invalid_request_error",
        "param": "max_tokens",
        "code": "context_length_exceeded",
    }


@pytest.mark.parametrize("words", [600, 10_000])  # too many tokens, and too many letters to be read at all
def test_a_prompt_that_does_not_fit_is_the_messages_fault(server, words):
    found = server.post(body(messages=messages("is it " * words)))
    error = found.json()["error"]
    assert (found.status_code, error["param"], error["code"]) == (400, "messages", "context_length_exceeded")
    assert error["message"].startswith(f"This model's maximum context length is {server.engine.target.context} tokens.")
    assert ("your messages resulted in" in error["message"]) == (words == 600)


def test_frames_that_do_not_fit_name_the_bodys_field(server):
    part = {"type": "video_url", "video_url": {"url": "file:clip.mp4", "num_frames": 700}}
    asked = [{"role": "user", "content": [part, {"type": "text", "text": "What is ahead?"}]}]
    error = server.post(body(messages=asked)).json()["error"]
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert "set num_frames, or" in error["message"]


@pytest.mark.parametrize(
    ("sentence", "wanted"),
    [
        ("say so (sensor=…, format=…), else", "say so (sensor, format), else"),
        ("give num_frames=… in place of fps=….", "give num_frames in place of fps."),
        ("take a part (start_us=…, end_us=…)", "take a part (start_s, end_s)"),
        ("or clock=own if", "or clock own if"),
        ("the prompt alone has 9 tokens; say max_new_tokens.", "the prompt alone has 9 tokens; say max_tokens."),
        ("name it my_max_new_tokens=3", "name it my_max_new_tokens=3"),
    ],
)
def test_remedies_are_the_bodys_fields(sentence, wanted):
    found = as_api_error(CrossdraftError(sentence))
    assert (found.status, found.message) == (400, wanted)


def test_the_figures_of_a_length_go_with_the_error_to_another_process():
    found = pickle.loads(pickle.dumps(ContextLengthError("It is too long.", 512, 500, 20)))
    assert (str(found), found.context, found.prompt, found.answer) == ("It is too long.", 512, 500, 20)
