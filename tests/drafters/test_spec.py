"""Names of drafters as users write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.drafters.spec import Spec, parse
from crossdraft.errors import CrossdraftError

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
    ],
)
def test_specs(text, spec):
    assert parse(text) == spec


@pytest.mark.parametrize(
    "text", ["", "union:", ":event", "union:event,", "union:(event", "event)", "memory:a=1,a=2", "()"]
)
def test_nonsense_is_refused(text):
    with pytest.raises(CrossdraftError):
        parse(text)


names = st.sampled_from(["event", "memory", "union"])
specs = st.recursive(
    st.builds(Spec, names, settings=st.dictionaries(st.sampled_from("abc"), st.sampled_from(["1", "x/y"]))),
    lambda inner: st.builds(
        lambda name, parts: Spec(name, tuple(parts)), names, st.lists(inner, min_size=1, max_size=3)
    ),
)


@given(specs)
def test_what_is_written_reads_back(spec):
    assert parse(str(spec)) == spec
