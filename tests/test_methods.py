"""Drafters by name: every method answers as the target alone, and what makes no sense is told."""

import asyncio
import gc
import os
import sys
from dataclasses import fields, replace

import pytest

from crossdraft.api import Engine, Options
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.methods import METHODS, build, check_spec, drafts_trees, method_in, method_of, read_spec, register
from crossdraft.records import DrafterContext
from crossdraft.specs import NoSettings
from crossdraft.video import sample_frames
from tests.heads.small import some_heads
from tests.support import encodes_clips, install

SPECS = [
    "ngram",
    "memory",
    "text",
    "text:how=omni",
    "model:dir=TARGET",
    "model:dir=TARGET,how=tli",
    "union:text,memory",
    "union:event,memory",
    "phased:event,memory",
    "fallback:event,memory",
    "fallback:ngram,memory",
    "union:memory,ngram",
    "phased:event,ngram",
    "phased:event,(union:event,memory,ngram)",
    "event:words=3",
    "event:how=slem",
    "event:how=tli",
    "union:(event:words=2),memory",
]
pytestmark = pytest.mark.usefixtures("one_target")
OPTIONS = Options(placement="inline", device="cpu", dtype="float64", max_batch=3, nodes=6)


def either(specs):
    """Each spec with fixed drafts and, but for every sixth only in the slow suite, with those that the policy allows.

    Those that look at the clip's features by themselves are marked with what they need.
    """
    found = []
    for number, spec in enumerate(specs):
        marks = [encodes_clips] if "glance" in spec else []
        slow = [pytest.mark.slow] if number % 6 else []
        found += [
            pytest.param(spec, False, marks=marks, id=f"fixed-{spec}"),
            pytest.param(spec, True, marks=[*marks, *slow], id=f"adaptive-{spec}"),
        ]
    return found


@pytest.fixture(scope="module")
def requests(clip):
    questions = ("What is ahead?", "Describe the road.", "What is ahead?", "Is it raining?", "what is ahead?")
    return [Request(text, str(clip.video), str(clip.events), 12 + 3 * i) for i, text in enumerate(questions)]


@pytest.fixture(scope="module")
def decoded(requests):
    """The same requests with their frames decoded once for all tests."""
    frames = sample_frames(requests[0].video).frames
    return [replace(request, video=frames) for request in requests]


@pytest.fixture(scope="module")
def alone(pair, requests):
    with Engine.load(str(pair.target), None, OPTIONS) as engine:
        return [answer.tokens for answer in engine.generate(requests)]


@pytest.mark.parametrize(("spec", "adaptive"), either(SPECS))
def test_every_method_gives_the_targets_own_tokens(pair, decoded, alone, spec, adaptive):
    spec = spec.replace("event", str(pair.event)).replace("TARGET", str(pair.target))
    with Engine.load(str(pair.target), spec, replace(OPTIONS, adaptive=adaptive)) as engine:
        first, again = engine.generate(decoded), engine.generate(decoded)
    assert [answer.tokens for answer in first] == alone
    assert [answer.tokens for answer in again] == alone
    assert not any(answer.other_notes for answer in (*first, *again))


# Heads that belong to one pair alone, and where they lie. What they say is nonsense; what comes of it is not.
OWN = [
    "event_medusa:dir=HEADS/event_medusa,model=EVENT",
    "event_medusa:dir=HEADS/event_medusa,model=EVENT,words=3",
    "glance:dir=HEADS/glance,model=EVENT",
    "glance:dir=HEADS/glance,heads=HEADS/event_medusa,model=EVENT,words=2",
    "union:(event_medusa:dir=HEADS/event_medusa,model=EVENT),memory",
    "phased:(event_medusa:dir=HEADS/event_medusa,model=EVENT),ngram",
]


@pytest.fixture(scope="module")
def heads(pair, tmp_path_factory):
    return some_heads(pair, tmp_path_factory.mktemp("heads"))


def owned(spec, pair, heads) -> str:
    return spec.replace("HEADS", str(heads)).replace("EVENT", str(pair.event))


@pytest.mark.parametrize(("spec", "adaptive"), either(OWN))
def test_heads_of_this_pair_give_the_targets_own_tokens(pair, heads, decoded, alone, spec, adaptive):
    with Engine.load(str(pair.target), owned(spec, pair, heads), replace(OPTIONS, adaptive=adaptive)) as engine:
        found = engine.generate(decoded)
    assert [answer.tokens for answer in found] == alone
    assert not any(answer.other_notes for answer in found)
    assert adaptive or sum(answer.stats.drafted for answer in found) > 0


@pytest.fixture(scope="module")
def remote_glance(pair, heads):
    options = replace(OPTIONS, adaptive=False, hidden_nodes=8, placement="process")
    with Engine.load(str(pair.target), owned(OWN[3], pair, heads), options) as engine:
        yield engine


@encodes_clips
def test_a_glance_in_a_process_of_its_own_drafts_what_it_drafts_inline(
    pair, heads, requests, decoded, alone, remote_glance
):
    """There it is given the target's visual features: of frames too that no path leads to."""
    options = replace(OPTIONS, adaptive=False, hidden_nodes=8)
    with Engine.load(str(pair.target), owned(OWN[3], pair, heads), options) as inline:
        for engine in (inline, remote_glance):
            found = [settled(engine, request) for request in (decoded[0], *requests[1:3])]
            assert [answer.tokens for answer in found] == alone[:3]
            assert not any(answer.other_notes for answer in found)


@encodes_clips
def test_a_glance_in_a_process_goes_on_behind_a_request_without_a_clip(remote_glance, requests):
    without_clip = Request("What is ahead?", None, requests[0].events, 4)
    found = (remote_glance.generate(without_clip).notes for _ in range(20))  # a refusal may come after a short answer
    assert any("no video" in note for notes in found for note in notes)
    assert settled(remote_glance, requests[0]).other_notes == ()


@encodes_clips
def test_a_request_that_is_over_leaves_nothing_to_the_garbage_collector(remote_glance, requests, tmp_path):
    """A full collection comes after thousands of requests: circles that lead to features would be held till then."""
    missing = replace(requests[0], video=str(tmp_path / "missing.mp4"))

    async def refuse():  # in here: asyncio's own circles hold what a task ends with
        with pytest.raises(CrossdraftError, match="missing"):
            await remote_glance.agenerate(missing)
        with pytest.raises(CrossdraftError, match="missing"):
            async for _ in remote_glance.astream(missing):
                pass

    def ask():
        settled(remote_glance, requests[0])
        list(remote_glance.stream(requests[1]))
        remote_glance.submit(requests[2]).result(60)
        with pytest.raises(CrossdraftError, match="missing"):
            remote_glance.generate(missing)
        with pytest.raises(CrossdraftError, match="missing"):
            list(remote_glance.stream(missing))
        asyncio.run(refuse())
        remote_glance._scheduler.call(lambda: None)  # the loop has done with them

    ask()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        ask()
        gc.collect()
        found = [type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith("crossdraft")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert found == []


def settled(engine, request):
    """An answer that was drafted for: what is said of a tiny target is over before another process has read much."""
    for _ in range(200):
        answer = engine.generate(request)
        if answer.stats.drafted:
            return answer
    raise AssertionError(answer.other_notes)


def test_event_medusa_drafts_what_the_event_drafter_drafts(pair, heads, requests):
    """With the same budgets the very same words are offered and taken, from the hidden draft on."""
    counts = {}
    for spec in ("EVENT", OWN[0]):
        options = replace(OPTIONS, adaptive=False, hidden="before", hidden_nodes=8, max_batch=1)
        with Engine.load(str(pair.target), owned(spec, pair, heads), options) as engine:
            found = [answer.stats for answer in engine.generate(requests)]
        counts[spec] = [(one.rounds, one.drafted, one.accepted, one.hidden_drafted) for one in found]
    assert counts["EVENT"] == counts[OWN[0]]
    assert all(hidden for *_, hidden in counts["EVENT"])


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("event_medusa:dir=HEADS/event_medusa,model=blind", "belongs to another event model than 'blind'"),
        ("eagle2:dir=HEADS/event_medusa", "network 'event_medusa', not 'eagle'"),
        ("glance:dir=HEADS/event_medusa,model=EVENT", "network 'event_medusa', not 'glance'"),
    ],
)
def test_heads_of_others_are_refused(pair, heads, spec, said):
    with pytest.raises(CrossdraftError, match=said):
        build(owned(spec, pair, heads), DrafterContext(str(pair.target)))


def test_a_memory_gets_better(pair, requests):
    with Engine.load(str(pair.target), "memory", replace(OPTIONS, adaptive=False, nodes=16)) as engine:
        first, again = engine.generate(requests[1]), engine.generate(requests[1])
    assert again.tokens == first.tokens
    assert again.stats.rounds < first.stats.rounds  # the first may have found its own words again


def test_a_memory_works_in_a_process_of_its_own(pair, requests, alone, tmp_path):
    options = replace(OPTIONS, placement="process", adaptive=False)
    spec = f"memory:folder={tmp_path}"
    with Engine.load(str(pair.target), spec, options) as engine:
        assert [answer.tokens for answer in engine.generate(requests)] == alone
    with Engine.load(str(pair.target), spec, replace(options, placement="inline")) as engine:
        assert engine.generate(requests[0]).stats.accepted > 5  # what the other process learned


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("memry", "did you mean 'memory'"),
        ("phased:view,ngram", "'view' was taken out in 0.2.*; write model:dir=TARGET,frames=2"),
        ("union:memory", "joins 2 others"),
        ("memory:event", "joins no others"),
        ("ngram:longest", "write longest=VALUE"),
        ("phased:ngram,ngram,ngram", "joins 2 others, but .* names 3; write one such as phased:event,"),
        ("memory:size=3", "no setting 'size'"),
        ("memory:capacity=many", "capacity=many; capacity must be a whole number of 1 or more"),
        ("ngram:longest=0", "longest must be a whole number of 1 or more"),
        ("model", "needs a folder"),
        ("text:how=guess", "guess"),
        ("event:how=guess", "'event' got how=guess; how must be one of slem, tli, omni"),
        ("event:how=tli,words=2", "what crosses vocabularies is a chain; leave out how"),
        ("blind:dir=nowhere", "names two models; write event:dir=nowhere"),
        ("union:ngram,(union:ngram)", "joins 2 others"),
        ("event_medusa:tree=beams", "no setting 'tree'; its settings are: dir,model=event,words"),
        ("event_medusa:dir=nowhere", "no folder nowhere"),
        ("union:event=3,memory,ngram", "'union' has no settings"),
        ("griffin:tree=chain", "'griffin' was taken out in 0.2.*; write eagle2"),
        ("specvlm", "'specvlm' was taken out in 0.2.*; write eagle2"),
        ("massv:tree=dynamic", "'massv' was taken out in 0.2.*; write eagle2"),
        ("event:words=9", "'event' got words=9; words must be a whole number from 1 to 3"),
        ("event_medusa:words=4", "words must be a whole number from 1 to 3"),
        ("glance:words=0", "words must be a whole number from 1 to 3"),
    ],
)
def test_nonsense_is_one_clear_sentence(spec, said):
    with pytest.raises(CrossdraftError, match=said):
        build(spec, DrafterContext())


def test_every_record_is_whole():
    for name, method in METHODS.items():
        assert name == method.name == name.lower()
        assert method.summary
        assert method.paper
        for example in method.examples:
            assert method_in(read_spec(example)) is method
            check_spec(read_spec(example))
        assert method.trained >= bool(method.network)
        assert set(method.weights) <= {field.name for field in fields(method.settings)}


@pytest.mark.parametrize(("spec", "said"), [("event:tree=dynamic", "no setting 'tree'")])
def test_trees_that_make_no_sense(spec, said):
    with pytest.raises(CrossdraftError, match=said):
        build(spec, DrafterContext())


TOY = """
from crossdraft.drafters.ngram.drafter import NgramDrafter
from crossdraft.drafters.ngram import NgramSettings
from crossdraft.records import Method
from tests.support import encodes_clips


def build(spec, settings, context):
    return NgramDrafter(settings.longest, settings.copied)


RECORD = Method("toy", "copies", "nobody 2026", build, settings=NgramSettings)
OTHER = Method("other", "copies", "nobody 2026", build)
"""


@pytest.fixture
def toy(tmp_path, monkeypatch, no_drafters_registered):
    """A package with a drafter of its own, as pip would install it."""
    points = {"toy": "RECORD", "gone": "GONE", "misnamed": "OTHER"}
    install(tmp_path, "toy_drafter", TOY, "crossdraft.drafters", points)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    yield tmp_path
    sys.modules.pop("toy_drafter", None)


@pytest.mark.parametrize("spec", ["toy", "union:(toy:longest=2)@process,memory", "toy@process"])
def test_a_drafter_of_another_package_goes_by_its_name(pair, requests, alone, toy, spec):
    with Engine.load(str(pair.target), spec, replace(OPTIONS, adaptive=False)) as engine:
        found = engine.generate(requests)
    assert [answer.tokens for answer in found] == alone
    assert sum(answer.stats.drafted for answer in found) > 0
    assert not any(answer.other_notes for answer in found)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("toy:size=3", "The drafter 'toy' has no setting 'size'"),
        ("gone", r"'gone' \(toy_drafter:GONE\) cannot be loaded"),
        ("misnamed", "'misnamed' of crossdraft.drafters must be the record of that drafter"),
    ],
)
def test_a_package_that_brings_no_drafter_is_reported(toy, name, said):
    with pytest.raises(CrossdraftError, match=said):
        check_spec(read_spec(name))


def test_a_drafter_that_is_registered_is_known_and_takes_no_name_of_ours(no_drafters_registered):
    mine = replace(METHODS["ngram"], name="mine", settings=NoSettings)
    register(mine)
    assert method_of("mine") is mine
    assert drafts_trees(read_spec("union:mine,mine"))
    for name in ("memory", "my:drafter", "", "a,b"):
        with pytest.raises(CrossdraftError, match="cannot be called"):
            register(replace(mine, name=name))
    with pytest.raises(CrossdraftError, match="must have either build or join"):
        replace(mine, build=None)
