"""Structures as users say them: what is refused, by which sentence, and what is bounded."""

import contextlib
import json
import time

import pytest
from transformers import AutoTokenizer

import crossdraft as cd
from crossdraft.engine.detokenize import TokenText
from crossdraft.errors import CrossdraftError
from crossdraft.structure import structure as module
from crossdraft.structure.structure import MOST_OF, Structure


@pytest.fixture(scope="module")
def text(pair):
    tokenizer = AutoTokenizer.from_pretrained(pair.target)
    return TokenText(lambda ids: str(tokenizer.decode(ids)), tokenizer=tokenizer)


def begun(structure, text):
    return structure.begin(text, 316, [315])


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: Structure("xml", "<a>"), "Unknown kind 'xml'"),
        (lambda: Structure.json('{"type": '), "JSON schema cannot be read"),
        (lambda: Structure.json("[1, 2]"), "JSON schema is [1, 2]; give an object"),
        (lambda: Structure.json("null"), "JSON schema is null; give an object"),
        (lambda: Structure.json(5), "JSON schema is 5; give an object"),
        (lambda: Structure.json(False), "JSON schema is false; give an object"),
        (lambda: Structure.json({"type": object}), "JSON schema cannot be read"),
        (lambda: Structure.choice([]), "choice is []"),
        (lambda: Structure.choice("yes"), "give a list of texts"),
        (lambda: Structure.choice(["a", ""]), "none of them empty"),
        (lambda: Structure.choice(["a"] * 1025), "1,025 texts"),
        (lambda: Structure.regex("a" * (MOST_OF["regex"] + 1)), "16,385 characters"),
        (lambda: Structure.regex(5), "regex is 5; give a string"),
        (lambda: Structure.grammar(None), "grammar is None; give a string"),
        (lambda: Structure.grammar("a" * 4097), "4,097 characters"),
        (lambda: cd.Request("what?", structure={"type": "object"}), "give a crossdraft.Structure"),
        (lambda: cd.Request("what?", structure=Structure.json(), ignore_eos=True), "leave out ignore_eos"),
    ],
)
def test_what_is_no_structure_is_refused_at_once(make, part):
    with pytest.raises(CrossdraftError) as caught:
        make()
    assert part in str(caught.value)


def test_true_is_the_schema_of_any_value():
    assert Structure.json("true") == Structure.json(True) == Structure.json({})


@pytest.mark.parametrize(
    ("structure", "part"),
    [
        (Structure.json({"type": "nonsense"}), "json cannot be used: Invalid type: nonsense."),
        (Structure.json({"if": {}, "then": {}}), 'Unimplemented keys: ["if", "then"]'),
        (Structure.json({"allOf": [{"type": "string"}, {"type": "integer"}]}), "Unsatisfiable schema"),
        (Structure.json({"items": [{"multipleOf": 123456789}]}), "multipleOf is 123456789"),
        (Structure.json({"multipleOf": 1e-9}), "multipleOf is 1e-09"),
        (Structure.json({"multipleOf": 999.999}), "multipleOf is 999.999"),
        (Structure.json({"pattern": "a?" * 9000}), "a text in it has 18,000 characters, and 16,384 are the limit"),
        (Structure.json({"patternProperties": {"a?" * 9000: {}}}), "a text in it has 18,000 characters"),
        (Structure.grammar('start: "a" %json {"items": {"multipleOf": 123456789}}'), "multipleOf is 123456789"),
        (Structure.grammar('start: %json {"multiple\\u004ff" : 99999989}'), "multipleOf is 99999989"),
        (Structure.grammar('{"grammars": [{"json_schema": {"multipleOf": 99999989}}]}'), "multipleOf is 99999989"),
        (Structure.json({"$ref": "http://localhost/a.json"}), "does not fetch resources"),
        (Structure.regex("(a"), "regex cannot be used: unclosed group."),
        (Structure.regex("(?=a)b"), "look-around"),
        (Structure.grammar("start: unknown"), "grammar cannot be used"),
        (Structure.grammar('root ::= "a" nothing'), "grammar cannot be used"),
    ],
)
def test_what_the_library_cannot_compile_is_refused_with_its_words(structure, part, text):
    with pytest.raises(CrossdraftError) as caught:
        begun(structure, text)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_grammar_may_be_llama_cpps(text):
    masks = begun(Structure.grammar('root ::= "yes" | "no"'), text)
    assert {masks.tokenizer.decode_str([token]) for token in masks.mask().nonzero()[:, 0].tolist()} <= {
        "y", "n", "ye", "yes", "no",
    }  # fmt: skip


def _empty():
    return cd.DraftTree.empty()


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


@pytest.mark.parametrize(
    "structure",
    [
        Structure.json({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2200)}}),
        Structure.json({"anyOf": [{"enum": [f"{i}-{j}" for j in range(60)]} for i in range(100)]}),
        Structure.regex("((a{1,1000}){1,1000}){1,1000}"),
        Structure.regex("(.*a.{200}b.*){5}"),
        Structure.regex("a?" * 5400 + "a" * 5400),
        Structure.json({"pattern": "^" + "(a|b)?" * 5000 + "a" * 5000 + "$"}),
        Structure.json(nested(400)),
        Structure.grammar("start: a\n" + "\n".join(f"a{i}: a{i + 1} a{i + 1}" for i in range(250))),
        Structure.grammar("start: a0\n" + "\n".join(f"a{i}: a{i + 1}" for i in range(330)) + '\na330: "x"'),
        Structure.grammar('start: s\ns: s s | "a" | "b" |'),
        Structure.json({"const": list(range(4000))}),
    ],
)
def test_bombs_end_in_seconds(structure, text):
    """Compiled or refused, and then a mask: 10 s of a core, several times what the slowest takes."""
    start = time.process_time()
    with contextlib.suppress(CrossdraftError):
        masks = begun(structure, text)
        masks.mask()
        masks.forced(32)
    assert time.process_time() - start < 10


def test_a_structure_is_compiled_once_and_a_refusal_is_remembered(text, monkeypatch):
    good, bad = Structure.regex("a+b"), Structure.regex("a(")
    begun(good, text)
    with pytest.raises(CrossdraftError) as first:
        begun(bad, text)
    monkeypatch.setattr(module, "_grammars", lambda *_: pytest.fail("compiled again"))
    one, other = begun(good, text), begun(good, text)
    with pytest.raises(CrossdraftError, match=str(first.value).replace("(", r"\(")):
        begun(bad, text)
    a = one.tokenizer.tokenize_str("a")
    one.commit(a)
    assert other.allowed(cd.DraftTree.chain(one.tokenizer.tokenize_str("b"))) == []  # each answer has its own state
    assert one.allowed(cd.DraftTree.chain(one.tokenizer.tokenize_str("b"))) == [0]


def test_what_takes_longer_than_its_limit_is_refused(text, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_S", 0.0)
    with pytest.raises(CrossdraftError, match=r"took .* s to compile, and 0 s is the limit"):
        begun(Structure.regex("never seen before"), text)


def test_masks_that_take_longer_than_their_limit_end_the_answer(text, monkeypatch):
    masks = begun(Structure.json(), text)
    monkeypatch.setattr("crossdraft.structure.masks.ROUND_S", 0.0)
    with pytest.raises(CrossdraftError, match="masks of a structure take more than 0 s a round"):
        masks.mask()


def test_the_oldest_compiled_structures_go(text):
    compiled = module.compiled_for(text.tokenizer, 316, (315,))
    for number in range(module.KEPT + 3):
        begun(Structure.regex(f"x{number}"), text)
    assert len(compiled._kept) == module.KEPT


def test_targets_that_cannot_write_structures_are_refused(text):
    with pytest.raises(CrossdraftError, match="fast tokenizer"):
        begun(Structure.regex("a"), TokenText(str))
    with pytest.raises(CrossdraftError, match="names none"):
        Structure.regex("a").begin(text, 316, [])


def test_blanks_are_bounded(text):
    """32 between two parts: a model that writes blanks for ever must go on."""
    masks = begun(Structure.json(), text)
    blank, brace = masks.tokenizer.tokenize_str(" ")[-1], masks.tokenizer.tokenize_str("{")[-1]
    masks.commit([brace, *[blank] * 32])
    assert masks.allowed(cd.DraftTree.chain([blank])) == []


def test_a_schema_may_be_text_or_a_mapping():
    schema = {"type": "integer"}
    assert Structure.json(schema) == Structure.json(json.dumps(schema))
    assert json.loads(Structure.json().text) == {"type": "object"}


def test_no_structure_asks_for_a_special_token(text):
    """Not even by name, and the end only where the structure is fulfilled."""
    tokenizer = text.tokenizer
    special = {token: str(found) for token, found in tokenizer.added_tokens_decoder.items() if found.special}
    spelt = TokenText(text.decode, special, tokenizer=tokenizer)
    ids = " | ".join(f"<[{token}]>" for token in special if token < 316)
    masks = begun(Structure.grammar(f'start: "a" ({ids}) "b"'), spelt)
    masks.commit(masks.tokenizer.tokenize_str("a"))
    with pytest.raises(CrossdraftError, match="no token may come"):
        masks.mask()


ADDED = "<tool_call>"


@pytest.mark.parametrize(
    ("structure", "written"),
    [
        (Structure.choice([f"{ADDED}x"]), f"{ADDED}x"),
        (Structure.choice([f"a {ADDED}{ADDED}", "no"]), f"a {ADDED}{ADDED}"),
        (Structure.regex("<tool[_]call>(yes)"), f"{ADDED}yes"),
        (Structure.grammar(f'start: "{ADDED}" "b"'), f"{ADDED}b"),
        (Structure.json({"const": {ADDED: f"a{ADDED}"}}), f'{{"{ADDED}":"a{ADDED}"}}'),
    ],
)
def test_text_of_an_added_token_is_written_in_other_tokens(pair, structure, written):
    """What an added token spells is text like any other; the token itself is none."""
    tokenizer = AutoTokenizer.from_pretrained(pair.target)
    tokenizer.add_tokens([ADDED])
    added = tokenizer.convert_tokens_to_ids(ADDED)
    masks = structure.begin(TokenText(tokenizer.decode, tokenizer=tokenizer), len(tokenizer), [315])
    said = b""
    while said != written.encode():
        drafted, row = masks.forced(8), masks.mask()
        assert not row[added]
        assert added not in drafted.tokens
        ways = {token: masks.tokenizer.decode_bytes([token]) for token in row.nonzero()[:, 0].tolist() if token != 315}
        token = next(one for one, text in ways.items() if written.encode().startswith(said + text))
        masks.commit([token])
        said += ways[token]
    assert masks.mask().nonzero()[:, 0].tolist() == [315]
