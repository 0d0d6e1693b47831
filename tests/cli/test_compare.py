"""`--compare` must notice a difference: answers with a planted one."""

from dataclasses import replace

import pytest

from crossdraft.api import Engine, Options, Request
from crossdraft.cli.compare import compare, find_difference


@pytest.fixture(scope="module")
def engine(pair):
    with Engine.load(str(pair.target), str(pair.event), Options(device="cpu")) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def request_(clip):
    return Request("Describe the road.", clip.video, clip.events, max_new_tokens=12)


def test_the_same_tokens_are_identical(engine, request_):
    found = compare(engine, request_, engine.generate(request_), repeats=1)
    assert found.identical
    assert found.difference is None
    assert found.alone_ms > 0 < found.drafted_ms
    assert "the tokens are identical" in found.sentence()


def test_a_planted_difference_shows(engine, request_):
    answer = engine.generate(request_)
    wrong = (answer.tokens[3] + 1) % 256
    planted = replace(answer, tokens=(*answer.tokens[:3], wrong, *answer.tokens[4:]))
    found = compare(engine, request_, planted, repeats=1)
    assert found.identical is False
    assert found.difference is not None
    assert found.difference.position == 3
    assert found.difference.gap > 0
    assert found.difference.drafted == engine.target.decode([wrong])
    assert "the tokens DIFFER from token 3 on" in found.sentence()


def test_an_answer_that_ends_early_differs_where_it_ends(engine, request_):
    tokens = engine.generate(request_).tokens
    found = find_difference(engine.target, request_, tokens, tokens[:5])
    assert (found.position, found.drafted) == (5, "")
    assert found.alone == engine.target.decode(tokens[5:6])
