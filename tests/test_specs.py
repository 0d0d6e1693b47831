"""Drafters and rules as users write them, and their settings."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.compressions import COMPRESSION
from crossdraft.engine.rules import KIND
from crossdraft.errors import CrossdraftError
from crossdraft.specs import RUNS_IN, Count, Limit, Share, Spec, check_settings, parse, read_settings, settings_text

EVENT, MEMORY = Spec("event"), Spec("memory")


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("event", EVENT),
        (" ( event ) ", EVENT),
        ("memory:capacity=9,folder=a/b c", Spec("memory", (), {"capacity": "9", "folder": "a/b c"})),
        ("union:event, memory", Spec("union", (EVENT, MEMORY))),
        ("phased:event,(union:event,memory)", Spec("phased", (EVENT, Spec("union", (EVENT, MEMORY))))),
        ("union:(memory:capacity=9),event", Spec("union", (Spec("memory", (), {"capacity": "9"}), EVENT))),
        ("memory: capacity = 9", Spec("memory", (), {"capacity": "9"})),
        ("event@process", replace(EVENT, runs_in="process")),
        ("(event)@inline", replace(EVENT, runs_in="inline")),
        ("event:words=2@process", Spec("event", (), {"words": "2"}, "process")),
        ("event@process:words=2", Spec("event", (), {"words": "2"}, "process")),
        ("union:event,memory@inline", Spec("union", (EVENT, replace(MEMORY, runs_in="inline")))),
        ("union:(event:words=2)@process,memory", Spec("union", (Spec("event", (), {"words": "2"}, "process"), MEMORY))),
        ("(union:event,memory)@process", Spec("union", (EVENT, MEMORY), {}, "process")),
        ("phased:event,memory,early=2@process", Spec("phased", (EVENT, MEMORY), {"early": "2"}, "process")),
        ("a/b@home", Spec("a/b@home")),
        ("a/b@process", Spec("a/b", runs_in="process")),
        ("memory:folder=a@home", Spec("memory", (), {"folder": "a@home"})),
    ],
)
def test_specs(text, spec):
    assert parse(text) == spec


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "lacks a name; write one such as event"),
        ("union:", "nothing follows the colon"),
        (":event", "lacks a name"),
        ("union:event,", "beside a comma; name a drafter there"),
        ("union:(event", "brackets of .* do not match"),
        ("event)", "brackets of .* do not match"),
        ("(event),(memory)", "brackets of .* do not match"),
        ("memory:a=1,a=2", "sets a twice"),
        ("()", "lacks a name"),
        ("@process", "lacks a name"),
        ("event@proces", "asks for '@proces'; write @process .* or @inline"),
        ("(union:event,memory)@gpu", "asks for '@gpu'"),
        ("event@inline:words=2@process", "says twice where 'event' runs"),
    ],
)
def test_nonsense_is_refused(text, said):
    with pytest.raises(CrossdraftError, match=said):
        parse(text)


def test_a_rule_is_complained_about_as_a_rule():
    with pytest.raises(CrossdraftError, match="The acceptance rule ':eps=1' lacks a name; write one such as greedy"):
        parse(":eps=1", "acceptance rule")


def test_every_kind_of_spec_has_an_example_of_its_own():
    for what, part in (("drafter", "event"), (KIND, "greedy"), (COMPRESSION, "pool")):
        with pytest.raises(CrossdraftError, match=f"The {what} '' lacks a name; write one such as {part} or "):
            parse("", what)


names = st.sampled_from(["event", "memory", "union"])
settings = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["1", "x/y"]))
positions = st.sampled_from([None, *RUNS_IN])
specs = st.recursive(
    st.builds(Spec, names, settings=settings, runs_in=positions),
    lambda inner: st.builds(
        lambda name, parts, more, where: Spec(name, tuple(parts), more, where),
        names, st.lists(inner, min_size=1, max_size=3), settings, positions,
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    "text", ["event@process", "(event:words=2)@inline", "phased:(event:words=2)@process,(union:event,memory)@inline"]
)
def test_brackets_stand_only_where_they_must(text):
    assert str(parse(text)) == text


@given(specs)
def test_what_is_written_reads_back(spec):
    assert parse(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "leaves"),
    [("event", ["event"]), ("phased:event,(union:text,(memory:capacity=9))", ["event", "text", "memory"])],
)
def test_leaves_join_no_others(text, leaves):
    assert [leaf.name for leaf in parse(text).leaves] == leaves


EVEN = Limit("an even number", lambda value: value % 2 == 0)


@dataclass(frozen=True)
class Settings:
    """One of every type."""

    folder: Path | None = None
    capacity: Count = 5
    keep: Share | None = 0.5
    rate: float = 1.0
    how: Literal["slem", "tli"] | None = None
    layers: tuple[int, ...] | None = None
    even: Annotated[int, EVEN] = 2
    dir: str = ""


def test_settings_are_read_by_their_types():
    text = "x:folder=a/b,capacity=7,keep=1,rate=2e-4,how=tli,layers=2+4,even=8,dir=home"
    assert read_settings(Settings, parse(text)) == Settings(Path("a/b"), 7, 1.0, 2e-4, "tli", (2, 4), 8, "home")
    assert read_settings(Settings, parse("x")) == Settings()
    assert settings_text(Settings()) == "folder,capacity=5,keep=0.5,rate=1.0,how,layers,even=2,dir="


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "x:capacty=7",
            r"'x' has no setting 'capacty' \(did you mean 'capacity'\?\); its settings are: folder,capacity=5",
        ),
        ("x:capacity=many", "'x' got capacity=many; capacity must be a whole number of 1 or more"),
        ("x:capacity=0", "got capacity=0; capacity must be a whole number of 1 or more"),
        ("x:keep=nan", "got keep=nan; keep must be a share above 0, at most 1"),
        ("x:rate=quick", "got rate=quick; rate must be a number"),
        ("x:how=guess", "got how=guess; how must be one of slem, tli"),
        ("x:layers=two", r"got layers=two; layers must be whole numbers, such as 2\+4"),
        ("x:even=3", "got even=3; even must be an even number"),
    ],
)
def test_settings_that_make_no_sense(text, said):
    with pytest.raises(CrossdraftError, match=said):
        read_settings(Settings, parse(text))


def test_settings_made_in_python_are_checked_too():
    check_settings(Settings(), "x", "drafter")
    with pytest.raises(CrossdraftError, match="The drafter 'x' got even=3; even must be an even number"):
        check_settings(Settings(even=3), "x", "drafter")
