"""Where the parts of a drafter run."""

from dataclasses import replace

import pytest

from crossdraft.builders import REGISTERED
from crossdraft.engine.cost import CostModel
from crossdraft.engine.relay import Relay
from crossdraft.engine.runner.runner import Inline
from crossdraft.methods import SHIPPED, DrafterContext
from crossdraft.placing import BESIDE, HIDDEN, WHOLE, ahead_in, needs_target, place_drafter
from crossdraft.specs import parse
from tests.engine.zoo import ZOO, as_target


@pytest.mark.parametrize(
    ("spec", "beside"),
    [
        ("eagle3", True),
        ("union:eagle2,memory", True),
        ("phased:event,eagle3", True),
        ("union:event,memory", False),
        ("union:pass,memory", True),
        ("guided", True),
        ("phased:event_medusa,fast", False),
    ],
)
def test_who_looks_into_the_target(spec, beside):
    assert needs_target(parse(spec)) is beside


def placed(spec: str, *, apart: bool = True):
    """What is built for a spec of drafters that need no files, and which factories were sent elsewhere."""
    sent = []

    def elsewhere(factory, *, role):
        sent.append((str(factory.args[0]), role))
        return Inline(factory(), CostModel())

    target = as_target(*ZOO["video_llava"]())
    context = DrafterContext(target=None)
    made = place_drafter(parse(spec), context, target, lambda d: Inline(d, CostModel()), elsewhere if apart else None)
    return made, sent


def test_a_drafter_that_needs_nothing_goes_elsewhere_whole():
    made, sent = placed("phased:ngram,memory")
    assert isinstance(made, Inline)
    assert sent == [("phased:ngram,memory", "whole")]


def test_everything_stays_here_if_there_is_no_elsewhere():
    _, sent = placed("phased:ngram,memory", apart=False)
    assert not sent


def test_only_the_hidden_half_of_a_phased_drafter_goes_elsewhere_if_the_other_looks_into_the_target(monkeypatch):
    monkeypatch.setitem(REGISTERED, "memory", replace(SHIPPED["memory"], needs_target=True))
    made, sent = placed("phased:ngram,memory")
    assert isinstance(made, Relay)
    assert sent == [("ngram", "hidden")]


def test_beside_one_that_looks_into_the_target_the_other_drafts_elsewhere_too(monkeypatch):
    monkeypatch.setitem(REGISTERED, "memory", replace(SHIPPED["memory"], needs_target=True))
    made, sent = placed("union:ngram,memory")
    assert isinstance(made, Relay)
    assert made.join is not None
    assert sent == [("ngram", "beside")]
    _, sent = placed("union:ngram,(choose:ngram,ngram),memory")
    assert sent == [("union:ngram,(choose:ngram,ngram)", "beside")]
    _, sent = placed("union:memory,memory")
    assert not sent


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("choose:ngram,memory", True),
        ("phased:memory,ngram", True),
        ("union:(choose:ngram,memory),memory", True),
        ("union:ngram,memory", False),
        ("phased:ngram,memory", False),
        ("choose:memory,memory", False),  # nothing that could run elsewhere
        ("memory", False),
    ],
)
def test_what_could_run_elsewhere_and_does_not_is_told(spec, told, monkeypatch, caplog):
    monkeypatch.setitem(REGISTERED, "memory", replace(SHIPPED["memory"], needs_target=True))
    placed(spec)
    assert [f"'{spec}' runs wholly in the target's process" in text for text in caplog.messages] == [True] * told
    caplog.clear()
    placed(spec, apart=False)  # nobody asked for it
    assert not caplog.messages


def test_what_one_does_meanwhile():
    assert [ahead_in(role, "ssd") for role in (WHOLE, HIDDEN, BESIDE)] == ["ssd", "off", "spare"]
    assert {ahead_in(role, "off") for role in (WHOLE, HIDDEN, BESIDE)} == {"off"}
