"""The placement of a pair when none is named."""

import os
from typing import Any

import pytest
from transformers.utils import logging

from crossdraft import api
from crossdraft.api import Options, decided
from crossdraft.cli.options import PairOptions
from crossdraft.cli.session import engine_options, why_not_usual, with_drafter
from crossdraft.errors import CrossdraftError
from crossdraft.methods import read_spec


def pair_of(drafter: str | None = None, **given: Any) -> PairOptions:
    return PairOptions(drafter=drafter, options=Options(**given))


def options_of(pair: PairOptions) -> Options:
    spec = None if pair.drafter in (None, "none") else read_spec(pair.drafter)
    return decided(engine_options(pair), spec)


CORES = tuple(sorted(os.sched_getaffinity(0)))


@pytest.mark.skipif(len(CORES) < 2, reason="needs two CPU cores")
def test_on_a_cpu_with_cores_to_spare_the_drafter_has_its_own():
    options = options_of(pair_of("glance", device="cpu"))
    assert options.placement == "process"
    assert (options.target_cores, options.draft_cores) == (CORES[:-1], CORES[-1:])


@pytest.mark.parametrize("drafter", ["union:memory,ngram", "eagle2", "phased:ngram,eagle3"])
def test_a_drafter_that_runs_no_network_of_its_own_leaves_all_cores_to_the_target(drafter):
    options = options_of(pair_of(drafter, device="cpu"))
    assert (options.placement, options.target_cores, options.draft_cores) == ("inline", None, None)


def test_the_default_drafter_fits_target_and_files(capsys, monkeypatch):
    monkeypatch.setattr(api.transformers, "__version__", "5.18.0")
    assert with_drafter(PairOptions(), events=True).drafter == "glance"
    with monkeypatch.context() as older:
        older.setattr(api.transformers, "__version__", "5.17.0")  # which does not encode a clip by itself
        assert with_drafter(PairOptions(), events=True).drafter == "event"
    assert with_drafter(PairOptions(), events=False).drafter == "eagle2"
    assert with_drafter(PairOptions("my/vlm"), events=True, quiet=True).drafter == "union:memory,ngram"
    assert capsys.readouterr().err == ""
    for events in (True, False):
        assert with_drafter(PairOptions("my/vlm"), events=events).drafter == "union:memory,ngram"
        assert "crossdraft drafters" in capsys.readouterr().err
    assert with_drafter(PairOptions(drafter="event"), events=True) == PairOptions(drafter="event")


def test_why_a_drafter_is_not_the_usual_one(monkeypatch):
    monkeypatch.setattr(api.transformers, "__version__", "5.18.0")
    assert why_not_usual(PairOptions(), events=True) is None
    assert why_not_usual(PairOptions(drafter="eagle2"), events=False) is None
    assert why_not_usual(PairOptions(), events=False) == "there is no event recording (--events), which glance reads"
    assert "the target is your own" in str(why_not_usual(PairOptions("my/vlm"), events=True))
    monkeypatch.setattr(api.transformers, "__version__", "5.17.0")
    assert why_not_usual(PairOptions(), events=True) == "glance needs transformers 5.18 or later"
    assert why_not_usual(PairOptions(), events=False) == "there is no event recording (--events), which event reads"


def test_the_most_nodes_of_a_round_are_an_option():
    assert engine_options(pair_of(nodes=3)).nodes == 3
    assert engine_options(PairOptions()).nodes == Options().nodes


@pytest.mark.parametrize("drafter", ["event", "glance", "union:event_medusa,memory"])
def test_a_drafter_that_reads_events_needs_some(drafter):
    """In one sentence: `transformers` gives no advice beside it."""
    logging.set_verbosity_warning()
    with pytest.raises(CrossdraftError, match="--events"):
        with_drafter(PairOptions(drafter=drafter), events=False)
    assert logging.get_verbosity() == logging.ERROR


def test_without_a_drafter_the_target_has_all_cores():
    options = options_of(pair_of("none", device="cpu"))
    assert (options.placement, options.target_cores, options.draft_cores) == ("inline", None, None)


def test_a_wish_for_hidden_drafting_inline_is_a_wish_for_inline():
    options = options_of(pair_of("event", hidden="before", device="cpu"))
    assert (options.placement, options.hidden, options.draft_cores) == ("inline", "before", None)


def test_cores_are_as_they_were_named():
    first = str(CORES[0])
    options = options_of(pair_of("event", placement="process", device="cpu", target_cores=first, draft_cores=first))
    assert options.target_cores == options.draft_cores == CORES[:1]
    inline = options_of(pair_of(placement="inline", device="cpu", target_cores=first))
    assert (inline.target_cores, inline.draft_cores) == (CORES[:1], None)


def test_a_part_in_a_process_of_its_own_may_have_cores_whatever_the_placement():
    options = options_of(pair_of("event@process", placement="inline", device="cpu", draft_cores=CORES[-1:]))
    assert (options.placement, options.draft_cores) == ("inline", CORES[-1:])
