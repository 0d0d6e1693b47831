"""A checkpoint's own settings at every node of a draft tree: against `model.generate()` and its processed logits."""

import json
import math
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, LogitsProcessor, MinLengthLogitsProcessor
from transformers.generation.logits_process import SynthIDTextWatermarkLogitsProcessor

import crossdraft.engine.sampling as sampling_module
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.processors import TreeProcessors, for_drafter
from crossdraft.engine.request import Finish, Request
from crossdraft.engine.request_state import RequestState
from crossdraft.engine.rules import rule_for
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target
from tests.engine.test_sampling import Counted

LONG = 20
QUESTIONS = ("what?", "where is the car?", "who", "is it near the light?", "a b c", "turn", "x", "why so", "go", "red?")


@dataclass
class Oracle:
    """Drafts what is right, cut by a wrong token; as a tree with wrong siblings at every level, or a chain."""

    truth: dict[str, tuple[int, ...]]
    branching: bool
    needs: Needs = field(default_factory=Needs)

    def begin(self, requests: Sequence[Request]) -> list[list[int]]:
        return [[0, QUESTIONS.index(request.prompt)] for request in requests]

    def propose(self, states: Sequence[list[int]], budgets: Sequence[Budget]) -> list[Draft]:
        return [Draft(self._tree(*state)) for state in states]

    def _tree(self, emitted: int, question: int) -> DraftTree:
        right = self.truth[QUESTIONS[question]][emitted : emitted + 5]
        wrong = [(token + 1 + emitted) % 300 for token in right]
        if not self.branching:
            return DraftTree.chain((*right[:4], *wrong[4:]))
        return DraftTree.from_paths([right, *((*right[:i], wrong[i], right[i]) for i in range(len(right)))])

    def commit(self, states: Sequence[list[int]], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            state[0] += len(output.tokens)

    def fork(self, states: Sequence[list[int]]) -> list[list[int]]:
        return [list(state) for state in states]

    def end(self, states: Sequence[list[int]]) -> None:
        pass


@pytest.fixture(scope="module")
def plain(pair):
    return load_target(str(pair.target), packed=False)


@pytest.fixture(scope="module")
def frames():
    return torch.randint(0, 255, (8, 28, 28, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(3)).numpy()


@pytest.fixture(scope="module")
def tokenizer(pair):
    return AutoTokenizer.from_pretrained(pair.target)


@pytest.fixture(scope="module")
def answers(plain, frames):
    """What the target says where nothing is asked of it."""
    requests = [Request(question, frames, max_new_tokens=LONG) for question in QUESTIONS]
    return {r.prompt: DecodeLoop(plain).generate([r])[0] for r in requests}


def loaded(pair, folder, fields):
    """A copy of the pair's target with these fields in its generation_config.json."""
    shutil.copytree(pair.target, folder)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return load_target(str(folder), packed=False)


def inputs(target, request):
    prompt = target.prepare(request)
    ids = prompt.input_ids[None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **prompt.features}


@torch.inference_mode()
def generated(target, request, tokenizer, **kwargs):
    """The tokens of `model.generate()`, which knows the checkpoint's settings and what `kwargs` say."""
    given = inputs(target, request)
    if target.defaults.stop:
        kwargs["tokenizer"] = tokenizer
    return tuple(target.model.generate(**given, **kwargs)[0, given["input_ids"].shape[1] :].tolist())


def configurations(answers, count, seed=0):
    """Random settings; ids, words and lengths are taken from real answers, so that they matter."""
    dice = random.Random(seed)
    tokens = [list(answer.tokens) for answer in answers.values()]
    for _ in range(count):
        said = dice.choice(tokens)
        at = dice.randrange(2, LONG - 3)
        menu = {
            "repetition_penalty": dice.choice([0.8, 1.1, 1.5]),
            "encoder_repetition_penalty": dice.choice([0.7, 1.3, 1.8]),
            "no_repeat_ngram_size": dice.choice([1, 2, 3]),
            "encoder_no_repeat_ngram_size": dice.choice([1, 2, 3]),
            "bad_words_ids": [said[at : at + 2], said[0:1], said[at - 2 : at + 1]],
            "suppress_tokens": said[at : at + 2],
            "begin_suppress_tokens": said[:1],
            "sequence_bias": [[said[at : at + 2], -30.0], [[said[1]], 2.0], [said[at - 2 : at + 1], 5.0]],
            "min_new_tokens": dice.choice([4, LONG]),
            "min_length": 60,
            "forced_eos_token_id": said[0],
            "exponential_decay_length_penalty": [dice.choice([2, 8]), dice.choice([1.1, 2.0])],
            "eos_token_id": [315, said[at], said[at + 1]],
            "stop_strings": [chr(97 + dice.randrange(26)) + chr(97 + dice.randrange(26)), "th", " "][at % 2 :],
            "renormalize_logits": True,
            "remove_invalid_values": True,
            "max_new_tokens": dice.choice([3, 12]),
            # one token is left to draw, so that the answer is fixed
            "top_k": 1,
        }
        fields = {name: menu[name] for name in dice.sample(sorted(menu), dice.choice([1, 2, 3, 4]))}
        if "top_k" in fields:
            fields |= {"do_sample": True, "temperature": dice.choice([0.5, 1.7])}
            fields |= dice.choice([{}, {"typical_p": 0.9}, {"eta_cutoff": 1e-3}, {"epsilon_cutoff": 1e-3}])
        yield fields


def check_against_generate(pair, folder, fields, questions, frames, tokenizer):
    target = loaded(pair, folder, fields)
    said = {} if {"max_new_tokens", "max_length"} & set(fields) else {"max_new_tokens": LONG}
    requests = [Request(question, frames, **said) for question in questions]
    truth = {r.prompt: generated(target, r, tokenizer, **said) for r in requests}
    for drafter in (None, Oracle(truth, branching=False), Oracle(truth, branching=True)):
        positioned = None if drafter is None else DraftRunner(drafter, hidden="before")
        found = DecodeLoop(target, positioned, adaptive=False).generate(requests)
        assert {r.prompt: a.tokens for r, a in zip(requests, found, strict=True)} == truth, (fields, drafter)
        assert all("".join(piece.text for piece in a.pieces) == a.text for a in found)
        if drafter is not None:
            assert sum(a.stats.accepted for a in found) > 0
    return truth


def test_answers_are_those_of_generate(pair, tmp_path, answers, frames, tokenizer):
    """A sample of the test below."""
    changed = 0
    for i, fields in enumerate(configurations(answers, 5)):
        truth = check_against_generate(pair, tmp_path / str(i), fields, QUESTIONS[:2], frames, tokenizer)
        changed += any(tokens != answers[question].tokens for question, tokens in truth.items())
    assert changed >= 3


COUNTED = [(0.5, 0.0), (0.0, -0.6), (-1.0, 0.4)]
REPEATS = {"repetition_penalty": 0.8}  # answers repeat themselves, so that a positive penalty matters


def counted(plain, frames, tokenizer, presence, frequency, others):
    """Answers of `generate` with the test's processor, and the engine's: without drafts, with chains, trees."""
    sampling = Sampling(presence_penalty=presence, frequency_penalty=frequency, **others)
    requests = [Request(question, frames, max_new_tokens=LONG, sampling=sampling) for question in QUESTIONS[:4]]
    truth = {}
    for request in requests:
        penalty = Counted(presence, frequency, len(plain.prepare(request)))
        truth[request.prompt] = generated(
            plain, request, tokenizer, max_new_tokens=LONG, logits_processor=[penalty], **others
        )
    for drafter in (None, Oracle(truth, branching=False), Oracle(truth, branching=True)):
        runner = None if drafter is None else DraftRunner(drafter, hidden="before")
        found = DecodeLoop(plain, runner, adaptive=False, max_batch=3).generate(requests)
        yield truth, {r.prompt: a.tokens for r, a in zip(requests, found, strict=True)}


@pytest.mark.parametrize("others", [REPEATS, REPEATS | {"no_repeat_ngram_size": 4}])
@pytest.mark.parametrize(("presence", "frequency"), COUNTED)
def test_penalties_by_counts_are_those_of_generate(plain, frames, tokenizer, presence, frequency, others):
    for truth, found in counted(plain, frames, tokenizer, presence, frequency, others):
        assert found == truth


@pytest.mark.parametrize(("presence", "frequency"), COUNTED)
def test_counts_without_the_drafted_path_are_seen(plain, frames, tokenizer, monkeypatch, presence, frequency):
    """The control: every node is penalised as the root is."""
    right = sampling_module._counts

    def as_the_root(tree, answer, sampling):
        ids, counts = right(tree, answer, sampling) or (torch.zeros(0, dtype=torch.long), torch.zeros(1 + len(tree), 0))
        return ids, counts[:1].expand_as(counts)

    monkeypatch.setattr(sampling_module, "_counts", as_the_root)
    monkeypatch.setattr(RequestState, "_scores_slowly", lambda *_: False)  # all rows of a tree are scored together
    (_, alone), *drafted = counted(plain, frames, tokenizer, presence, frequency, REPEATS)
    for truth, found in drafted:
        assert alone == truth
        assert found != truth


@pytest.mark.parametrize("least", [0, 5])
def test_min_new_tokens_replaces_min_length(pair, tmp_path, answers, frames, tokenizer, least):
    """Of `generate` too, and where it is 0; `min_length` alone would forbid the end of these answers."""
    said = answers[QUESTIONS[0]].tokens
    fields = {"min_length": 10_000, "min_new_tokens": least, "eos_token_id": [315, said[6 if least else 1]]}
    truth = check_against_generate(pair, tmp_path / "t", fields, QUESTIONS[:1], frames, tokenizer)
    assert least <= len(truth[QUESTIONS[0]]) < LONG


@pytest.mark.slow
def test_answers_of_thirty_configurations_are_those_of_generate(pair, tmp_path, answers, frames, tokenizer):
    changed = 0
    for i, fields in enumerate(configurations(answers, 30, seed=1)):
        truth = check_against_generate(pair, tmp_path / str(i), fields, QUESTIONS, frames, tokenizer)
        changed += any(tokens != answers[question].tokens for question, tokens in truth.items())
    assert changed >= 20


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.7, "top_k": 0, "top_p": 0.8, "min_p": 0.01},
        {"temperature": 2.0, "typical_p": 0.8, "repetition_penalty": 1.3},
        {"eta_cutoff": 0.01, "no_repeat_ngram_size": 2, "top_k": 20},
        {"epsilon_cutoff": 0.02, "encoder_repetition_penalty": 1.5, "top_p": 0.9},
        {"top_h": 0.5, "begin_suppress_tokens": [5, 40, 41], "renormalize_logits": True},
        {"temperature": 1.5},  # and generate's own 50 tokens
    ],
)
@torch.inference_mode()
def test_the_distribution_at_every_node_is_that_of_generate(pair, tmp_path, frames, fields):
    target = loaded(pair, tmp_path / "t", {"do_sample": True} | fields)
    request = target.defaults.resolve(Request("what?", frames, max_new_tokens=8))
    given = inputs(target, request)
    out = target.model.generate(
        **given,
        max_new_tokens=8,
        min_new_tokens=8,
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
    )
    start = given["input_ids"].shape[1]
    context, tokens = out.sequences[0, :start].tolist(), out.sequences[0, start:].tolist()
    sampling = replace(request.sampling, min_new_tokens=8)  # makes the fast ones take the processors too
    processors = TreeProcessors(sampling, target.model, context, target.defaults.eos, 8)
    wrong = [(token + 1) % 300 for token in tokens]
    tree = DraftTree.from_paths([tokens[:7], *((*tokens[:i], wrong[i], 9) for i in range(6))])
    main_path = tree.follow(tokens[:7])
    rows = torch.randn(1 + len(tree), target.vocab_size)
    for row, logits in zip((0, *(1 + node for node in main_path)), out.logits, strict=True):
        rows[row] = logits[0]
    warped = processors.warp_tree(rows, tree, context)
    for row, scores in zip((0, *(1 + node for node in main_path)), out.scores, strict=True):
        assert torch.equal(warped[row], scores[0].softmax(-1))


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.7, 1.4]),
        "encoder_repetition_penalty": st.sampled_from([0.7, 1.4]),
        "presence_penalty": st.sampled_from([-1.0, 2.0]),
        "frequency_penalty": st.sampled_from([-0.5, 0.3]),
        "no_repeat_ngram_size": st.integers(1, 3),
        "encoder_no_repeat_ngram_size": st.integers(1, 3),
        "bad_words_ids": st.just(((1,), (2, 3), (1, 1, 4))),
        "sequence_bias": st.just((((1,), 3.0), ((2, 2), -4.0))),
        "logit_bias": st.just(((1, -1.0), (7, 2.0))),
        "suppress_tokens": st.just((5, 99)),
        "begin_suppress_tokens": st.just((0, 6)),
        "min_new_tokens": st.integers(1, 5),
        "min_length": st.integers(1, 12),
        "forced_eos_token_id": st.just((3,)),
        "exponential_decay_length_penalty": st.just((1, 1.3)),
        "renormalize_logits": st.booleans(),
        "remove_invalid_values": st.booleans(),
        "temperature": st.sampled_from([0.0, 0.7, 2.0]),
        "top_k": st.integers(0, 5),
        "top_p": st.sampled_from([0.4, 1.0]),
        "typical_p": st.sampled_from([0.6, 1.0]),
        "eta_cutoff": st.sampled_from([0.0, 0.1]),
    },
)


@given(
    fields=FIELDS,
    context=st.lists(st.integers(0, 7), min_size=2, max_size=9),
    paths=st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=4), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
@settings(max_examples=150)
def test_each_node_is_as_if_it_were_alone(plain, fields, context, paths, seed):
    """Its row does not depend on its sibling nodes, and its context is its own path."""
    tree, sampling = DraftTree.from_paths(paths), Sampling(**fields)
    processors = TreeProcessors(sampling, plain.model, context, (2,), 6)
    logits = torch.randn(1 + len(tree), 8, generator=torch.Generator().manual_seed(seed))
    together = outcome(processors, logits, tree, context)
    for node in range(-1, len(tree)):
        text = [*context, *(tree.path_tokens(node) if node >= 0 else [])]
        alone = outcome(processors, logits[node + 1 : node + 2], DraftTree.empty(), text)
        if alone is None or together is None:  # transformers cannot go on there
            assert (alone is None) == (together is None or bool(together[node + 1].isnan().all())) or node >= 0
        else:
            assert torch.allclose(together[node + 1], alone[0], rtol=0, atol=0, equal_nan=True)


def outcome(processors, logits, tree, context):
    try:
        return processors.warp_tree(logits, tree, context)
    except CrossdraftError:
        return None


class Shout(LogitsProcessor):
    """The token after an even one is odd."""

    def __call__(self, input_ids, scores):
        even = (input_ids[:, -1] % 2 == 0)[:, None]
        odd = torch.arange(scores.shape[-1]) % 2 == 1
        return scores.masked_fill(even & ~odd, -math.inf)


def test_a_users_own_processor_is_honoured_at_every_node(plain, frames, tokenizer):
    request = Request(QUESTIONS[0], frames, max_new_tokens=LONG, sampling=Sampling(processors=(Shout(),)))
    truth = generated(plain, request, tokenizer, max_new_tokens=LONG, logits_processor=[Shout()])
    for branching in (False, True):
        oracle = DraftRunner(Oracle({QUESTIONS[0]: truth}, branching), hidden="before")
        (answer,) = DecodeLoop(plain, oracle, adaptive=False).generate([request])
        assert answer.tokens == truth
        assert answer.stats.accepted > 5


def test_a_processor_with_a_state_or_another_shape_is_refused(plain):
    water = SynthIDTextWatermarkLogitsProcessor(5, [1, 2], 64, 0, 32, torch.device("cpu"))
    with pytest.raises(CrossdraftError, match="SynthIDTextWatermarkLogitsProcessor keeps a state"):
        TreeProcessors(Sampling(processors=(water,)), plain.model, [1, 2], (2,), 5)
    cut = TreeProcessors(Sampling(processors=(lambda ids, scores: scores[:, :3],)), plain.model, [1, 2], (2,), 5)
    with pytest.raises(CrossdraftError, match="must keep the shape"):
        cut.warp_tree(torch.zeros(1, 8), DraftTree.empty(), [1, 2])


def test_a_neutral_request_takes_the_fast_path(plain, frames, monkeypatch):
    """No logits processor is made, and none is called, where the tensor operations of `sampling` suffice."""
    monkeypatch.setattr("crossdraft.engine.request_state.TreeProcessors", lambda *given: pytest.fail("not needed"))
    fast = Sampling(0.7, 5, 0.9, 0.01, 1.2, ((3, 1.0),), 1, suppress_tokens=(4,), bad_words_ids=((5,),))
    for sampling in (Sampling(), Sampling(typical_p=0.5, eta_cutoff=0.1), fast):
        assert DecodeLoop(plain).generate([Request("what?", frames, max_new_tokens=3, sampling=sampling)])[0].tokens


def test_the_request_as_a_drafter_reads_it():
    request = Request("?", sampling=Sampling(suppress_tokens=(3,), logit_bias=((3, 1.0), (4, 2.0))))
    shown = for_drafter(request, 9, rule_for(None, request.sampling))
    assert shown.token_limit == 9
    assert dict(shown.sampling.logit_bias or ()) == {3: -math.inf, 4: 2.0}
    assert not shown.sampling.contextual
    own = MinLengthLogitsProcessor(3, 2)
    for sampling in (
        Sampling(no_repeat_ngram_size=2),
        Sampling(frequency_penalty=0.5),
        Sampling(processors=(own,)),
        Sampling(sequence_bias=(((1, 2), 1.0),)),
    ):
        shown = for_drafter(replace(request, sampling=sampling), 9, rule_for(None, sampling)).sampling
        assert not shown.plain  # that the target's answer is not its likeliest tokens is shown; how, is not
        assert shown.processors != (own,)


def test_max_time_ends_an_answer(plain, frames):
    (answer,) = DecodeLoop(plain).generate([Request("what?", frames, max_new_tokens=LONG, max_time=1e-9)])
    assert answer.finish is Finish.TIME
    assert len(answer.tokens) == 1


def test_a_sampled_answer_says_its_seed(plain, frames):
    request = Request("what?", frames, max_new_tokens=LONG, sampling=Sampling(temperature=3.0))
    one, two = DecodeLoop(plain).generate([request, request])
    assert one.stats.seed != two.stats.seed
    assert one.tokens != two.tokens
    again = replace(request, sampling=replace(request.sampling, seed=one.stats.seed))
    assert DecodeLoop(plain).generate([again])[0].tokens == one.tokens
    assert one.stats.to_json()["seed"] == one.stats.seed
    assert DecodeLoop(plain).generate([replace(request, sampling=Sampling())])[0].stats.seed is None


@pytest.mark.parametrize("fields", [{"num_beams": 4}, {"eos_token_id": "x"}])
def test_a_folder_is_refused_when_it_is_loaded(pair, tmp_path, fields):
    with pytest.raises(CrossdraftError, match=next(iter(fields))):
        loaded(pair, tmp_path / "t", fields)


def test_a_folder_whose_file_is_no_json_is_refused(pair, tmp_path):
    shutil.copytree(pair.target, tmp_path / "t")
    (tmp_path / "t" / "generation_config.json").write_text("{")
    with pytest.raises(CrossdraftError, match="not valid JSON"):
        load_target(str(tmp_path / "t"))
