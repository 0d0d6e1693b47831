"""Answers that must call a tool are the masked target's own; templates write tools, calls and results."""

import json
import time
from dataclasses import replace

import pytest
from transformers import AutoTokenizer

import crossdraft as cd
from crossdraft import Request, Sampling, Tools
from crossdraft.engine.detokenize import TokenText
from crossdraft.engine.request import Finish
from crossdraft.engine.tree import DraftTree
from crossdraft.load import load_target
from crossdraft.structure.call_forms import FORMS
from crossdraft.structure.call_grammar import CallGrammar, call_grammar
from crossdraft.structure.masks import GrammarMasks
from tests.structure import test_answers
from tests.structure.calls import TEMPLATE, TEMPLATES, TOOLS, WRITTEN, called
from tests.structure.test_answers import Teller, answered

frames = test_answers.frames
LONG = 160
BOUNDED = [  # each call is a finite text, so that a random model ends it
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "side": {"enum": ["left", "right"]},
                    "cars": {"type": "integer", "minimum": 0, "maximum": 99},
                    "red": {"type": "boolean"},
                },
                "required": ["side", "red"],
            },
        },
    }
    for name in ("turn", "stop")
]


@pytest.fixture(scope="module")
def target(pair):
    found = load_target(str(pair.target), packed=False)
    found.text.tokenizer.chat_template = TEMPLATE
    return found


@pytest.fixture(scope="module")
def tokenizer(pair):
    return AutoTokenizer.from_pretrained(pair.target)


def asked(frames, tools, **more):
    return Request("what?", frames, tools=tools, max_new_tokens=LONG, **more)


def truth(target, tokenizer, request, marks=None):
    """What `generate` answers with the library's processor under the grammar of the request's tools."""
    tools, form = request.tools, FORMS[request.tools.form or "hermes"]
    schemas = {name: one for name, one in tools.schemas.items() if tools.only in (None, name)}
    several = tools.parallel and tools.only is None
    grammar = CallGrammar("grammar", call_grammar(form, schemas, marks or {}, several=several))
    processor = test_answers.Library(tokenizer, target.eos, grammar, 0)
    prompt = target.prepare(request)
    ids = prompt.input_ids[None]
    processor.prompt = ids.shape[1]
    out = target.model.generate(
        ids, attention_mask=ids.new_ones(ids.shape), **prompt.features, logits_processor=[processor],
        max_new_tokens=request.max_new_tokens,
    )  # fmt: skip
    return tuple(out[0, ids.shape[1] :].tolist())


@pytest.mark.parametrize("form", FORMS)
def test_answers_that_must_call_are_those_of_generate(target, tokenizer, frames, monkeypatch, form):
    """Without a draft, with forced text, and with chains and trees that have forbidden nodes."""
    request = asked(frames, Tools(BOUNDED, "required", parallel=False, form=form))
    wanted = truth(target, tokenizer, request)
    with monkeypatch.context() as patch:
        patch.setattr(GrammarMasks, "forced", lambda self, nodes: DraftTree.empty())
        (alone,) = answered(target, None, [request])
    assert alone.tokens == wanted
    for drafter in (None, Teller(wanted, branching=False), Teller(wanted, branching=True)):
        (found,) = answered(target, drafter, [request])
        assert found.tokens == wanted, drafter
        assert found.stats.rounds < alone.stats.rounds
    assert found.finish is Finish.EOS
    check_call(found)


def check_call(answer, names=("turn", "stop")):
    (call,) = answer.tool_calls
    arguments = json.loads(call.arguments)
    assert call.name in names
    assert {"side", "red"} <= arguments.keys() <= {"side", "red", "cars"}
    assert arguments["side"] in ("left", "right")
    assert isinstance(arguments["red"], bool)
    assert answer.text == ""


def test_a_named_tool_is_called_once(target, tokenizer, frames):
    for name in ("turn", "stop"):
        request = asked(frames, Tools(BOUNDED, only=name))
        (found,) = answered(target, None, [request])
        assert found.tokens == truth(target, tokenizer, request)
        check_call(found, (name,))


@pytest.mark.parametrize("seed", range(3))
def test_seeded_calls_do_not_depend_on_drafts(target, frames, seed):
    sampling = Sampling(temperature=1.0, seed=seed)
    request = asked(frames, Tools(BOUNDED, "required", parallel=False), sampling=sampling)
    (alone,) = answered(target, None, [request])
    (drafted,) = answered(target, Teller(alone.tokens, branching=True), [request])
    assert drafted.tokens == alone.tokens
    check_call(drafted)


def test_several_calls_may_follow_each_other(target, frames):
    """The grammar takes a second call, and a random model that is biased towards none ends after the first."""
    for parallel, most in ((True, 4), (False, 1)):
        tools = Tools(BOUNDED, "required", parallel=parallel)
        bias = tuple((token, -100.0) for token in target.eos)
        request = asked(frames, tools, sampling=Sampling(logit_bias=bias))
        (found,) = answered(target, None, [replace(request, max_new_tokens=300)])
        assert (len(found.tool_calls) > 1) == (most > 1)


def test_marks_that_are_special_tokens_are_forced_drafted_and_read(target, tokenizer, frames, monkeypatch):
    """A form whose first mark is a special token of the checkpoint, which no structure and no text has."""
    mark = "<event>"
    form = replace(FORMS["hermes"], begin=(mark,), head=mark + '{"name": "NAME", "arguments": ')
    monkeypatch.setitem(FORMS, "hermes", form)
    token = tokenizer.convert_tokens_to_ids(mark)
    assert token in target.text.special
    request = asked(frames, Tools(BOUNDED, "required", parallel=False, form="hermes"))
    wanted = truth(target, tokenizer, request, {mark: token})
    (found,) = answered(target, None, [request])
    assert found.tokens == wanted
    assert wanted[0] == token
    check_call(found)
    masks = request.tools.begin(target.text, target.vocab_size, target.defaults.eos)
    assert masks.forced(8).tokens[0] == token


@pytest.mark.parametrize("form", FORMS)
def test_a_grammar_takes_the_published_text(target, tokenizer, form):
    """Each token of it, up to an end; and not after one letter is another."""
    masks = Tools(TOOLS, "required", form=form).begin(target.text, target.vocab_size, target.defaults.eos)
    tokens = tokenizer(WRITTEN[form], add_special_tokens=False)["input_ids"]
    for at, token in enumerate(tokens):
        row = masks.mask()
        assert row[token], tokenizer.decode(tokens[: at + 1])
        masks.commit([token])
    row = masks.mask()
    assert all(row[end] for end in target.defaults.eos)
    reader, _ = Tools(TOOLS, form=form).reader(target.text)
    assert reader.push(tokenizer.decode(tokens), last=True) == ""
    assert [(one.name, json.loads(one.arguments)) for one in reader.taken()] == called(form)


def test_the_schema_holds_in_each_form(target, tokenizer):
    """A unit that is not enumerated, a tool that is not there, and an argument that is not known."""
    wrong = ("celsius", "fahrenheit"), ("get_weather", "get_whether"), ("days", "hours")
    for form, text in WRITTEN.items():
        for old, new in wrong:
            masks = Tools(TOOLS, "required", form=form).begin(target.text, target.vocab_size, target.defaults.eos)
            ids = tokenizer(text.replace(old, new), add_special_tokens=False)["input_ids"]
            assert not all(masks.mask()[one] and masks.commit([one]) is None for one in ids), form


@pytest.mark.parametrize(
    ("form", "schema", "words"),
    [
        ("hermes", {"if": {}}, "Unimplemented keys"),
        ("hermes", {"type": "nonsense"}, "Invalid type"),
        ("hermes", {"type": "integer", "multipleOf": 100_000_007}, "multipleOf"),
        ("hermes", 1, "cannot be used"),
        ("qwen3_coder", {"type": "integer", "if": {}}, "Unimplemented keys"),
        ("gemma4", {"type": "integer", "multipleOf": 100_000_007}, "multipleOf"),
    ],
)
def test_schemas_that_cannot_be_compiled_are_refused_with_their_words(target, frames, form, schema, words):
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}}
    tools = Tools([{"type": "function", "function": function}], "required", form=form)
    with pytest.raises(cd.CrossdraftError, match=words):
        answered(target, None, [asked(frames, tools)])


@pytest.mark.parametrize(
    ("form", "kind", "more"),
    [("gemma4", "string", {}), ("glm45", "integer", {"$defs": {"a": {"type": "string", "pattern": "x" * 9000}}})],
)
def test_many_arguments_are_refused_before_a_huge_grammar_is_written(target, form, kind, more):
    """Each argument stands in the grammar as often as there are others, or brings all definitions along."""
    properties = {f"a{at}": {"type": kind} for at in range(1000)}
    function = {"name": "f", "parameters": {"type": "object", "properties": properties, **more}}
    tools, start = Tools([{"type": "function", "function": function}], "required", form=form), time.thread_time()
    with pytest.raises(cd.CrossdraftError, match="too many arguments for their length"):
        tools.begin(target.text, target.vocab_size, target.defaults.eos)
    assert time.thread_time() - start < 1


# -- templates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "template"), TEMPLATES)
def test_the_form_is_known_from_the_template(tokenizer, form, template):
    tokenizer.chat_template = template
    reader, _ = Tools(TOOLS).reader(TokenText(str, tokenizer=tokenizer))
    assert reader._form is FORMS[form]


@pytest.mark.parametrize(
    ("template", "part"),
    [
        ("{{ messages[0].content }}", "The chat template of target does not write tools"),
        (None, "The chat template of target does not write tools"),
        ("{{ tools }}{{ '<|tool_calls_section_begin|>' }}", "in a form that is not known here"),
    ],
)
def test_other_templates_are_refused_by_name(tokenizer, template, part):
    tokenizer.chat_template = template
    with pytest.raises(cd.CrossdraftError, match=part):
        Tools(TOOLS).reader(TokenText(str, tokenizer=tokenizer))


def test_tools_and_a_structure_are_refused(frames):
    with pytest.raises(cd.CrossdraftError, match="has tools, and a structure"):
        Request("what?", frames, tools=Tools(TOOLS), structure=cd.Structure.json())
    with pytest.raises(cd.CrossdraftError, match="tools is a list"):
        Request("what?", frames, tools=TOOLS)


def test_free_answers_are_the_targets_own(target, frames):
    """Tools change the prompt alone: the answer is that to the prompt's ids, and a call in it is no text of it."""
    request = asked(frames, Tools(TOOLS))
    (found,) = answered(target, None, [request])
    prompt = target.prepare(request)
    assert "get_weather" in target.text.tokenizer.decode(prompt.input_ids)
    inputs = {"input_ids": prompt.input_ids[None], **prompt.features}
    (plain,) = answered(target, None, [Request(inputs=inputs, max_new_tokens=LONG)])
    assert found.tokens == plain.tokens
    assert found.text.strip() == plain.text.strip()
    assert found.tool_calls == ()


def test_a_stream_has_the_calls_of_the_whole_answer(target, frames):
    request = asked(frames, Tools(BOUNDED, "required", parallel=False))
    (found,) = answered(target, None, [request])
    assert "".join(piece.text for piece in found.pieces) == found.text == ""
    assert [len(piece.calls) for piece in found.pieces].count(1) == 1
    assert sum(len(piece.tokens) for piece in found.pieces) == len(found.tokens)
