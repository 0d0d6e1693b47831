"""The server's own request, before anybody asks."""

import logging

import pytest

from crossdraft.api import Request
from crossdraft.errors import CrossdraftError
from crossdraft.load import text_folder
from crossdraft.serve.service import load_engine
from tests.serve.conftest import settings


def test_nobody_is_warned_of_the_warm_up_and_everybody_of_the_first_question(pair, clip, caplog):
    """No edge is connected to either; the warm-up must not use up the one warning."""
    asked = settings(target=str(pair.target), drafter="edge", placement="inline", device="cpu")
    with caplog.at_level(logging.WARNING), load_engine(asked) as engine:
        assert caplog.messages == []
        answer = engine.generate(Request("What is ahead?", clip.video, max_new_tokens=4))
        (warning,) = caplog.messages
    assert warning.startswith("The drafter gave up on a request; the target answers such alone: the question did not")
    assert "did not come from an edge" in str(answer.drafter_error)


def test_by_default_clips_are_drafted_for_with_their_events_and_without(media_root):
    video, events = media_root / "clip.mp4", media_root / "clip.h5"
    with load_engine(settings(drafter="auto", placement="inline", max_batch=1)) as engine:
        for recording in (events, None):
            request = Request("What is ahead?", video, recording, max_new_tokens=16)
            answer = engine.generate(request)
            assert answer.tokens == engine.alone(request).tokens
            assert answer.stats.accepted > 0


def test_a_text_model_is_warmed_up_in_words():
    with load_engine(settings(target=str(text_folder("text")), drafter="none", placement="inline")) as engine:
        assert len(engine.generate(Request("What is ahead?", max_new_tokens=4)).tokens) == 4


def test_an_unknown_option_is_named_with_the_nearest():
    with pytest.raises(CrossdraftError, match=r"^The server has no setting 'max_bach' .did you mean 'max_batch'"):
        settings(max_bach=2)
