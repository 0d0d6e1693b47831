"""What the report says of a workload in words must follow the workload."""

from pathlib import Path

from crossdraft.bench.cores import Cores
from crossdraft.bench.words import cores_in_words, describe, words_of
from crossdraft.bench.workload import Item, Workload
from crossdraft.engine.request import Request


def said(pairs, **options):
    return " ".join(words_of(Workload(len(pairs), **options), pairs, 38.66))


PAIRS = [Item(1, kind, Request("?")) for kind in ("count", "layout", "count")]


def test_all_kinds_from_files_is_told_apart_from_the_favourable_workload():
    usual = said(PAIRS, files=Path("clips"))
    assert "2 of 16 kinds of question in turn; greedy" in usual
    assert "38.7 tokens on average" in usual
    assert "files are read inside the clock" in usual
    assert "no training has seen" in usual
    favourable = said(PAIRS, answers="long", split="validation", temperature=0.5)
    assert "the longest answers, which favours drafting" in favourable
    assert "beforehand, outside the clock" in favourable
    assert "sampled at temperature 0.5" in favourable
    assert "wordings as in training" in favourable


def test_plain_values_agree():
    work = Workload(3, files=Path("clips"))
    assert describe(work)["files"] is True
    assert describe(Workload(3))["files"] is False
    assert "inside the clock" in str(describe(work)["timed"])


def test_who_has_which_cores():
    told, elastic = cores_in_words(["target", "target-all", "hf", "event"], Cores((0,), (1,)))
    assert "serve its target as well" in elastic
    assert len(cores_in_words(["target", "hf"], Cores((0,), (1,)))) == 1
    assert "0: target, hf; 0-1: target-all; 0 + 1: event" in told
    assert "not restricted" in cores_in_words(["target"], None)[0]
