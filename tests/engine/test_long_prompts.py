"""A prompt that no context holds is refused before anybody has read it."""

import logging

import pytest

import crossdraft as cd
from crossdraft.drafters.event.load import load_drafter
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import LETTERS_PER_TOKEN
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target

LONG = "why? " * 1000


@pytest.fixture(scope="module")
def target(pair):
    return load_target(str(pair.target), "cpu")


@pytest.fixture(scope="module")
def drafter(pair, target):
    return load_drafter(str(pair.blind), "cpu", None, sorted(target.reserved))


def unread(request):
    raise AssertionError("It was read.")


def test_text_that_cannot_fit_reaches_no_tokenizer(target, drafter, monkeypatch):
    for model in (target, drafter.model):
        monkeypatch.setattr(model, "prepare", unread)
    long = cd.Request("a" * (LETTERS_PER_TOKEN * target.context + 1))
    for runner in (None, DraftRunner(drafter, "before")):
        with pytest.raises(CrossdraftError, match=r"has 16,385 characters, and the model's context holds 512"):
            DecodeLoop(target, runner).generate([long])


def test_a_drafter_does_not_read_beyond_its_own_context(drafter, clip, monkeypatch):
    """It would take memory and seconds for nothing: there is no room for a draft after it."""
    monkeypatch.setattr(drafter.model, "encode", unread)
    monkeypatch.setattr(drafter.model, "extend", unread)
    with pytest.raises(CrossdraftError, match=r"reads the question as \d+ tokens, its context has 512"):
        drafter.begin([cd.Request(LONG, events=clip.events)])


@pytest.mark.parametrize("drafter", [None, "event", "blind"])
def test_a_refusal_is_one_sentence_and_no_warning(pair, clip, drafter, caplog):
    options = cd.Options(placement="inline", hidden="before")
    spec = drafter and str(getattr(pair, drafter))
    with (
        caplog.at_level(logging.WARNING),
        cd.Engine.load(str(pair.target), spec, options) as engine,
        pytest.raises(CrossdraftError, match=r"the model's context 512; ask a shorter question"),
    ):
        engine.generate(cd.Request(LONG, clip.video, clip.events))
    assert [record.getMessage() for record in caplog.records] == []


def test_too_many_clips_that_are_known_are_refused_as_what_they_are(pair, clip):
    with cd.Engine.load(str(pair.target), None, cd.Options(device="cpu")) as engine:
        engine.generate(cd.Request("What?", clip.video, max_new_tokens=1))
        with pytest.raises(CrossdraftError, match="ask a shorter question, or show fewer clips, images or frames"):
            engine.generate(cd.Request("What?", [clip.video] * 60, max_new_tokens=1))


def test_half_a_surrogate_pair_is_refused_in_one_sentence():
    with pytest.raises(CrossdraftError, match=r"half a surrogate pair, '\\ud800', at character 3"):
        cd.Request("hi \ud800 there")
    assert cd.Request("hi \U0001f600").prompt
