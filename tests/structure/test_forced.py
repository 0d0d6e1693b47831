"""Text that must come: which tokens are drafted for it, and with which blanks."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from crossdraft.engine.detokenize import TokenText
from crossdraft.structure.blanks import Blanks
from crossdraft.structure.structure import Structure

SCHEMA = {
    "type": "object",
    "properties": {"cars": {"type": "integer"}, "side": {"enum": ["left", "right"]}},
    "required": ["cars", "side"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def text(pair):
    tokenizer = AutoTokenizer.from_pretrained(pair.target)
    return TokenText(lambda ids: str(tokenizer.decode(ids)), tokenizer=tokenizer)


def after(structure, text, said):
    masks = structure.begin(text, 316, [315])
    masks.commit(masks.tokenizer.tokenize_str(said) if said else [])
    return masks


def drafted(structure, text, said, nodes=64):
    """The texts of the leaves of what is forced after `said`."""
    masks = after(structure, text, said)
    tree = masks.forced(nodes)
    leaves = [node for node in range(len(tree)) if not tree.children(node)]
    return {masks.tokenizer.decode_str(tree.path_tokens(leaf)) for leaf in leaves}


@pytest.mark.parametrize(
    ("said", "texts"),
    [
        ("", {'{"cars":', '{\n  "cars":'}),  # each style; a blank behind the colon belongs to the value's token
        ("{", {'"cars":', '\n  "cars":'}),
        ("{ ", {'"cars":'}),  # of no style: only what is left of it
        ('{"ca', {'rs":'}),
        ('{"cars": 1', set()),  # a digit may come, too
        ('{"cars": 1,', {' "side": "left"}', ' "side": "right"}'}),
        ('{"cars":1,', {'"side":"left"}', '"side":"right"}'}),
        ('{\n    "cars": 1,', {'\n    "side": "left"\n}', '\n    "side": "right"\n}'}),
        ('{"cars": 1, "side": "l', {'eft"}'}),
        ('{"cars": 1, "side": "left"}', set()),
    ],
)
def test_what_must_come_is_drafted_in_the_answers_style(text, said, texts):
    assert drafted(Structure.json(SCHEMA), text, said) == texts


def test_each_way_is_drafted_where_there_are_few(text):
    structure = Structure.choice(["two cars", "two cats", "no"])
    assert drafted(structure, text, "") == {"two cars", "two cats", "no"}
    assert drafted(structure, text, "two c") == {"ars", "ats"}
    assert drafted(Structure.regex("[a-f]x"), text, "") == set()
    assert drafted(Structure.regex("[a-d]x"), text, "") == {"ax", "bx", "cx", "dx"}


@pytest.mark.parametrize("nodes", [0, 1, 3, 8])
def test_a_draft_has_as_many_nodes_as_may_be(text, nodes):
    tree = after(Structure.choice(["two cars ahead of us", "no"]), text, "").forced(nodes)
    assert len(tree) == nodes or (nodes == 0 and not len(tree))


def test_an_endless_text_ends_with_the_nodes(text):
    tree = after(Structure.grammar('start: "ab" start'), text, "").forced(6)
    assert len(tree) <= 6


def test_other_styles_of_one_answer_do_not_mislead(text):
    """A list on one line in an object of lines: each kind of container has its own style."""
    blanks = Blanks()
    blanks.push(b'{\n  "c": ["a", "b"')
    assert blanks.spaced(b'],"x":') == [b'],\n  "x":']


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(values, st.sampled_from([None, 1, 2, 4]), st.booleans(), st.data())
def test_blanks_are_taken_out_and_put_back(value, indent, tight, data):
    """A text in any style loses its blanks alone; with the blanks of each style it says the same."""
    written = json.dumps(value, indent=indent, separators=(",", ":") if tight else None).encode()
    cut = data.draw(st.integers(0, len(written)))
    blanks = Blanks()
    dense = blanks.push(written[:cut]) + blanks.push(written[cut:])
    assert dense == json.dumps(value, separators=(",", ":")).encode()
    assert all(json.loads(one) == value for one in Blanks().spaced(dense))
