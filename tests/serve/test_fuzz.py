"""A few hundred mutated requests; `crossdraft bench serve --fuzz 10000` sends more."""

import random

import httpx
import pytest

from crossdraft.bench.serving.fuzz import WAYS, Seeds, mutants, mutated, outcome, run_fuzz

COUNT = 300


@pytest.fixture(scope="module")
def seeds(media_root):
    return Seeds.read("reference", media_root / "clip.mp4", media_root / "clip.h5")


def test_mutated_requests_are_answered_or_refused(server, seeds):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        found = run_fuzz(
            lambda one: client.post(one.path, content=one.content, headers=one.headers).status_code, seeds, COUNT
        )
        assert client.get("/health").status_code == 200
    assert not [name for name in found if "!" in name], found
    assert sum(found.values()) == COUNT
    for way in WAYS:
        assert sum(number for name, number in found.items() if name.startswith(f"{way}: refused")), found
    assert server.service.media.files.spooled == 0


def test_mutants_are_the_same_for_the_same_seed(seeds):
    assert list(mutants(seeds, 20, 1)) == list(mutants(seeds, 20, 1)) != list(mutants(seeds, 20, 2))
    assert mutated(b"abcdefgh", random.Random(1)) != b"abcdefgh"


def test_outcomes():
    assert [outcome(status) for status in (200, 400, 422, 503)] == ["answered", "refused", "refused", "no room"]
    assert [outcome(status) for status in (500, 502, 0)] == ["!status 500", "!status 502", "!status 0"]
