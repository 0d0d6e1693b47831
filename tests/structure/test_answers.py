"""Structured answers are the masked target's own: against `generate` with a logits processor over the same library."""

import json
import re
import time
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
import torch
from llguidance import LLMatcher, grammar_from
from llguidance.hf import from_tokenizer
from transformers import AutoTokenizer, LogitsProcessor

import crossdraft as cd
from crossdraft.engine.accept import Acceptance, Rule
from crossdraft.engine.drafter import Budget, Draft, Needs
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.noise import Noise
from crossdraft.engine.request import Finish, Request
from crossdraft.engine.request_state import Job, RequestState
from crossdraft.engine.rules import rule_for
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling, warp_tree
from crossdraft.engine.structure import masked
from crossdraft.engine.tree import DraftTree
from crossdraft.load import load_target
from crossdraft.structure.masks import GrammarMasks
from crossdraft.structure.structure import WHITESPACE, Structure

LONG = 24
SCHEMA = {
    "type": "object",
    "properties": {"cars": {"type": "integer"}, "side": {"enum": ["left", "right"]}, "red": {"type": "boolean"}},
    "required": ["cars", "side", "red"],
    "additionalProperties": False,
}
STRUCTURES = {
    "schema": Structure.json(SCHEMA),
    "json": Structure.json(),
    "array": Structure.json({"type": "array", "items": {"enum": [1, "a", None]}, "minItems": 1, "maxItems": 3}),
    "regex": Structure.regex(r"(yes|no), [a-c ]{2,9}\."),
    "choice": Structure.choice(["two cars", "two cats", "no"]),
    "grammar": Structure.grammar('start: "a" start "b" | "c"'),
}


class Library(LogitsProcessor):
    """The library's masks for `generate`: a matcher that reads the answer anew for each token."""

    def __init__(self, tokenizer, ends, structure, prompt):
        self.tokenizer, self.prompt = from_tokenizer(tokenizer, eos_token=[*ends]), prompt
        self.grammar = (
            LLMatcher.grammar_from_json_schema(structure.text, overrides={"whitespace_pattern": WHITESPACE})
            if structure.kind == "json"
            else grammar_from(structure.kind, structure.text)
        )

    def __call__(self, input_ids, scores):
        matcher = LLMatcher(self.tokenizer, self.grammar)
        assert matcher.consume_tokens(input_ids[0, self.prompt :].tolist())
        bits = matcher.compute_bitmask()
        allowed = [token for token in range(scores.shape[-1]) if bits[token // 8] >> token % 8 & 1]
        kept = torch.full_like(scores, -torch.inf)
        kept[:, allowed] = scores[:, allowed]
        return kept


@dataclass
class Teller:
    """Drafts the answer with a forbidden node at every level; as a tree, or as a chain that such a node cuts."""

    truth: tuple[int, ...]
    branching: bool
    drawn: bool = False
    needs: Needs = field(default_factory=Needs)

    def begin(self, requests):
        return [[0] for _ in requests]

    def propose(self, states, budgets: list[Budget]):
        return [Draft(self._tree(self.truth[state[0] :][:5])) for state in states]

    def _tree(self, right):
        wrong = [(token + 7) % 256 for token in right]
        if self.branching:
            return DraftTree.from_paths([right, *((*right[:i], wrong[i], right[i]) for i in range(len(right)))])
        tokens = (*right[:3], *wrong[3:4])
        return DraftTree.chain(tokens, torch.eye(316)[list(tokens)] if self.drawn and tokens else None)

    def commit(self, states, outputs):
        for state, output in zip(states, outputs, strict=True):
            state[0] += len(output.tokens)

    def fork(self, states):
        return [list(state) for state in states]

    def end(self, states):
        pass


@pytest.fixture(scope="module")
def target(pair):
    return load_target(str(pair.target), packed=False)


@pytest.fixture(scope="module")
def tokenizer(pair):
    return AutoTokenizer.from_pretrained(pair.target)


@pytest.fixture(scope="module")
def frames():
    return torch.randint(0, 255, (8, 28, 28, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(3)).numpy()


def generated(target, tokenizer, request, **kwargs):
    prompt = target.prepare(request)
    ids = prompt.input_ids[None]
    library = Library(tokenizer, target.eos, request.structure, ids.shape[1])
    with torch.inference_mode():
        out = target.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            **prompt.features,
            logits_processor=[library],
            max_new_tokens=request.max_new_tokens,
            **kwargs,
        )
    return tuple(out[0, ids.shape[1] :].tolist())


def answered(target, drafter, requests, **options):
    runner = None if drafter is None else DraftRunner(drafter, hidden="before")
    return DecodeLoop(target, runner, adaptive=False, **options).generate(requests)


@pytest.mark.parametrize("name", STRUCTURES)
def test_greedy_answers_are_those_of_generate(target, tokenizer, frames, monkeypatch, name):
    """Without a draft, with what is forced, and with a drafter whose chains and trees have forbidden nodes."""
    for question in ("what?", "where is it?"):
        request = Request(question, frames, structure=STRUCTURES[name], max_new_tokens=LONG)
        truth = generated(target, tokenizer, request)
        with monkeypatch.context() as patch:
            patch.setattr(GrammarMasks, "forced", lambda self, nodes: DraftTree.empty())
            (alone,) = answered(target, None, [request])
            assert alone.tokens == truth
            assert alone.stats.drafted == 0
        for drafter in (None, Teller(truth, branching=False), Teller(truth, branching=True)):
            (found,) = answered(target, drafter, [request])
            assert found.tokens == truth, drafter
            if drafter is not None and len(truth) > 6:
                assert found.stats.rounds < alone.stats.rounds
        check_text(name, found)


def check_text(name, answer):
    """The text fulfils the structure, or is the beginning of one that does where it ends early."""
    if answer.finish is not Finish.EOS:
        return
    if name in ("schema", "json", "array"):
        value = json.loads(answer.text)
        assert name != "schema" or (list(value) == [*SCHEMA["properties"]] and value["side"] in ("left", "right"))
    elif name == "choice":
        assert answer.text in ("two cars", "two cats", "no")
    elif name == "regex":
        assert re.fullmatch(r"(yes|no), [a-c ]{2,9}\.", answer.text)
    else:
        assert re.fullmatch("a*cb*", answer.text)


def test_forced_text_saves_passes(target, frames):
    """Of three texts that differ in their first or sixth letter, all but two tokens are forced."""
    request = Request("what?", frames, structure=STRUCTURES["choice"], max_new_tokens=LONG)
    (found,) = answered(target, None, [request])
    assert found.finish is Finish.EOS
    assert found.stats.rounds < len(found.tokens)
    assert found.stats.accepted > 0


def test_rows_of_a_batch_have_masks_of_their_own(target, tokenizer, frames):
    requests = [
        Request(f"q{i}?", frames, structure=structure, max_new_tokens=LONG)
        for i, structure in enumerate((*STRUCTURES.values(), None))
    ]
    found = answered(target, None, requests, max_batch=4)
    for request, answer in zip(requests[:-1], found, strict=False):
        assert answer.tokens == generated(target, tokenizer, request), request.structure
    plain = answered(target, None, [requests[-1]])
    assert found[-1].tokens == plain[0].tokens


@pytest.mark.parametrize("branching", [False, True])
def test_seeded_answers_do_not_depend_on_drafts(target, frames, branching):
    """The distribution of the masked target by the seed alone: the same text with any draft."""
    for name, structure in STRUCTURES.items():
        sampling = Sampling(temperature=1.0, top_p=0.95, seed=len(name))
        request = Request("what?", frames, structure=structure, max_new_tokens=LONG, sampling=sampling)
        (alone,) = answered(target, None, [request])
        (drafted,) = answered(target, Teller(alone.tokens, branching), [request])
        assert drafted.tokens == alone.tokens, name
        check_text(name, drafted)


def test_rejection_draws_from_the_masked_distribution():
    """Exactly: a drawn chain whose second token the mask forbids, with every outcome of the random decisions counted.

    4,000 rounds over five tokens, of which two are allowed after the first.
    """
    logits, mask = (
        torch.tensor([[1.0, 0.5, 0.0, -0.5, -1.0]] * 2),
        torch.tensor([[True] * 5, [False, True, False, True, False]]),
    )
    masked_probs = masked(logits, mask).softmax(-1)
    dists = torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.1]] * 2)
    rule, counts = rule_for("rejection", Sampling(temperature=1.0)), Counter()
    for seed in range(4000):
        noise = torch.Generator().manual_seed(seed)
        drawn = torch.multinomial(dists, 1, generator=noise)[:, 0].tolist()
        tree = DraftTree.chain(drawn, dists)
        warped = warp_tree(masked(logits[[0, 1, 1]], mask[[0, 1, 1]]), tree, (), Sampling(temperature=1.0))
        accepted = rule(tree, warped, Noise(seed, 0))
        tokens = (*(tree.tokens[node] for node in accepted.path), accepted.bonus)
        if len(tokens) > 1:
            assert tokens[1] in (1, 3)
        counts[tokens[0]] += 1
    found = torch.tensor([counts[token] for token in range(5)]) / 4000
    assert torch.allclose(found, masked_probs[0], atol=4 * 0.5 / 4000**0.5)


def test_forbidden_nodes_go_but_those_that_were_drawn(target, frames):
    """Whether a drawn node stays does not follow from its value; what is behind a forbidden one is never reached."""
    request = Request("what?", frames, structure=STRUCTURES["choice"], sampling=Sampling(temperature=1, seed=1))
    state = RequestState(Job(0, request), rule_for("rejection", request.sampling))
    state.masks = masks = STRUCTURES["choice"].begin(target.text, target.vocab_size, target.defaults.eos)
    t, x = (masks.tokenizer.tokenize_str(letter)[0] for letter in "tx")
    tokens, parents, dists = (
        (x, t, t, x, t),
        (-1, -1, 0, 1, 3),
        torch.full((1, target.vocab_size), 1 / target.vocab_size),
    )
    plain, drawn = DraftTree(tokens, parents), DraftTree(tokens, parents, dists, (0, 0, 0, 0, 0))
    assert masks.allowed(plain) == [1]
    assert state.permitted(Draft(plain)).tree.tokens == (t,)
    assert state.permitted(Draft(drawn)).tree == drawn.keep([0, 1, 3])


def test_settings_that_look_at_the_context_come_before_the_mask(target, tokenizer, frames):
    """`generate` puts a processor of the caller's behind its own."""
    for fields in (
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 2},
        {"exponential_decay_length_penalty": (2, 1.5)},
        {"min_new_tokens": 3},
    ):
        request = Request(
            "what?", frames, structure=STRUCTURES["json"], max_new_tokens=LONG, sampling=Sampling(**fields)
        )
        truth = generated(target, tokenizer, request, **fields)
        for drafter in (None, Teller(truth, branching=True)):
            assert answered(target, drafter, [request])[0].tokens == truth, fields


def test_settings_that_leave_no_token_are_refused(target, frames):
    """`generate` would answer with token 0, which the structure forbids."""
    sampling = Sampling(min_new_tokens=20)
    request = Request("what?", frames, structure=STRUCTURES["choice"], max_new_tokens=LONG, sampling=sampling)
    with pytest.raises(
        cd.CrossdraftError, match=r"^The request.s other settings .* forbid every token that its structure allows"
    ):
        answered(target, None, [request])


def test_a_token_that_is_suppressed_counts_as_forbidden(target, frames):
    """Where the structure leaves no other token, at the root or behind it, the request ends with the sentence."""
    masks = STRUCTURES["choice"].begin(target.text, target.vocab_size, target.defaults.eos)
    first = masks.mask().nonzero()[:, 0].tolist()
    asked = Request("what?", frames, structure=Structure.choice(["xyz"]), max_new_tokens=LONG)
    inner = masks.tokenizer.tokenize_str("xyz")[-1]
    unknown = replace(asked, sampling=Sampling(suppress_tokens=(target.vocab_size + 1,)))  # as in `transformers`
    assert answered(target, None, [unknown])[0].text == "xyz"
    for request in (
        replace(asked, structure=STRUCTURES["choice"], sampling=Sampling(suppress_tokens=tuple(first))),
        replace(asked, sampling=Sampling(suppress_tokens=(inner,))),
        replace(asked, sampling=Sampling(suppress_tokens=(inner,), temperature=1.0, seed=1)),
    ):
        with pytest.raises(
            cd.CrossdraftError, match=r"^The request.s other settings .* forbid every token that its structure allows"
        ):
            answered(target, None, [request])


def test_a_request_that_fails_leaves_its_batch(target, frames):
    bad = Request(
        "what?", frames, structure=STRUCTURES["choice"], sampling=Sampling(min_new_tokens=20), max_new_tokens=24
    )
    good = replace(bad, sampling=Sampling())
    loop = DecodeLoop(target, None, max_batch=3)
    ids = [loop.submit(request) for request in (good, bad, good)]
    while loop.busy:
        loop.step()
    assert loop.answer(ids[0]).tokens == loop.answer(ids[2]).tokens == answered(target, None, [good])[0].tokens
    with pytest.raises(cd.CrossdraftError):
        loop.answer(ids[1])


def test_logprobs_are_the_targets_raw_ones(target, frames):
    request = Request(
        "what?", frames, structure=STRUCTURES["choice"], max_new_tokens=LONG, logprobs=True, top_logprobs=2
    )
    (found,) = answered(target, None, [request])
    (teller,) = answered(target, Teller(found.tokens, branching=True), [request])
    assert len(found.logprobs) == len(found.tokens)
    assert torch.allclose(torch.tensor(teller.logprobs), torch.tensor(found.logprobs), atol=1e-4)
    assert any(tops[0][0] != token for token, tops in zip(found.tokens, found.top_logprobs, strict=True))


def test_drafters_learn_of_their_own_nodes_alone(target, frames):
    """Forced nodes stand behind a drafter's own; its path holds its own nodes, the tokens all that came."""
    outputs_seen = []

    class Recording(Teller):
        def propose(self, states, budgets):
            made = super().propose(states, budgets)
            self.sent = len(made[0].tree)
            return made

        def commit(self, states, outputs):
            outputs_seen.extend((self.sent, output.path, output.tokens) for output in outputs)
            super().commit(states, outputs)

    request = Request("what?", frames, structure=STRUCTURES["schema"], max_new_tokens=LONG)
    (alone,) = answered(target, None, [request])
    silent = Recording(tuple((token + 7) % 256 for token in alone.tokens), branching=False)
    (found,) = answered(target, silent, [request])
    assert found.tokens == alone.tokens
    assert all(node < sent for sent, path, _ in outputs_seen for node in path)
    assert any(len(tokens) > 1 + len(path) for _, path, tokens in outputs_seen)


POISONED = Structure.grammar('start: "no" | "yes" B\nB: /(a?){1000}a{1000}/')


def test_a_draft_into_a_branch_that_the_library_cannot_follow_costs_nothing(target, tokenizer, frames):
    """The lexer fails behind `yes`, and its copies share the failure: the answer is not the draft's."""
    masks = POISONED.begin(target.text, target.vocab_size, target.defaults.eos)
    yes, no = (masks.tokenizer.tokenize_str(word) for word in ("yes", "no"))
    for tree in (DraftTree.chain(yes), DraftTree.from_paths([yes, no])):
        assert masks.mask()[no[0]]
        masks.allowed(tree)
        assert not [masks.mask(yes[: 1 + at]) for at in range(len(yes))][-1].any()
        assert not masks.allows(yes, no[0])
        assert masks.mask()[no[0]]
    masks.forced(16)
    masks.commit(no)
    assert masks.mask().nonzero()[:, 0].tolist() == sorted(target.eos)


def test_one_answer_does_not_spoil_the_next(target):
    """What a lexer has learned, errors included, is its answer's own."""
    spoilt = POISONED.begin(target.text, target.vocab_size, target.defaults.eos)
    spoilt.mask(spoilt.tokenizer.tokenize_str("yes"))
    fresh = POISONED.begin(target.text, target.vocab_size, target.defaults.eos)
    assert fresh.mask().any()


# -- which masks are made -------------------------------------------------------------------------------------------


def counted(monkeypatch):
    """The paths whose masks are made from now on."""
    made, mask = [], GrammarMasks.mask
    monkeypatch.setattr(GrammarMasks, "mask", lambda self, path=(): made.append([*path]) or mask(self, path))
    return made


@pytest.mark.parametrize("branching", [False, True])
def test_masks_are_made_along_the_answer_alone(target, frames, monkeypatch, branching):
    """Of a tree's nodes those that are taken."""
    for name, structure in STRUCTURES.items():
        penalties = Sampling(frequency_penalty=1.5, presence_penalty=0.5, repetition_penalty=1.3)
        for sampling in (Sampling(), penalties, Sampling(temperature=1.0, seed=3)):
            request = Request("what?", frames, structure=structure, max_new_tokens=LONG, sampling=sampling)
            (alone,) = answered(target, None, [request])
            made = counted(monkeypatch)
            (found,) = answered(target, Teller(alone.tokens, branching), [request])
            monkeypatch.undo()
            assert found.tokens == alone.tokens
            places = found.stats.rounds + found.stats.accepted
            assert places < found.stats.rounds + found.stats.drafted, name
            assert len(made) <= places if sampling.greedy else len(made) == places, name


def test_a_greedy_answer_needs_no_mask_where_the_likeliest_token_is_allowed(target, frames, monkeypatch):
    structure, made = Structure.regex("[a-z ]{9}"), counted(monkeypatch)
    request = Request("what?", frames, structure=structure)
    state = RequestState(Job(0, request), rule_for(None, request.sampling))
    state.masks = masks = structure.begin(target.text, target.vocab_size, target.defaults.eos)
    *said, digit = masks.tokenizer.tokenize_str("two c2")
    logits = torch.zeros(1 + len(said), target.vocab_size)
    for row, token in enumerate((*said, digit)):
        logits[row, token] = 9
    accepted = state.verify(DraftTree.chain(said), logits)
    assert accepted.path == tuple(range(len(said)))
    assert made == [said]


@pytest.mark.parametrize("name", STRUCTURES)
def test_what_is_allowed_without_a_mask_is_what_the_mask_allows(target, name):
    """Every token at every place of some texts: a token may only be left to the mask."""
    draws, known = torch.Generator().manual_seed(0), 0
    for _ in range(6):
        masks, path = STRUCTURES[name].begin(target.text, target.vocab_size, target.defaults.eos), []
        while len(path) < 12:
            mask = masks.mask(path)
            allowed = [token for token in range(target.vocab_size) if masks.allows(path, token)]
            assert mask[allowed].all()
            known += len(allowed)
            path.append(int(torch.multinomial(mask.float(), 1, generator=draws)))
            if path[-1] in target.eos:
                assert mask[path[-1]]
                break
            if torch.rand((), generator=draws) < 0.3:
                masks.commit(path)
                path = []
    assert known


def test_a_draft_whose_masks_take_long_ends_no_answer(target, frames, monkeypatch):
    """The limit is the root's; behind it a round ends early."""
    request = Request("what?", frames, structure=STRUCTURES["schema"], max_new_tokens=LONG)
    drawn = replace(request, sampling=Sampling(temperature=1.0, seed=2))
    alone = [answered(target, None, [one])[0].tokens for one in (request, drawn)]
    bits = GrammarMasks._bits

    def slow(self, matcher):
        until = time.thread_time() + 0.02 * (matcher is not self.matcher)
        while time.thread_time() < until:
            pass
        return bits(self, matcher)

    monkeypatch.setattr(GrammarMasks, "_bits", slow)
    monkeypatch.setattr("crossdraft.structure.masks.ROUND_S", 0.016)
    for one, truth in zip((request, drawn), alone, strict=True):
        (found,) = answered(target, Teller(truth, branching=True), [one])
        assert found.tokens == truth


def test_rules_that_read_logits_get_the_targets_own(target, frames):
    """Not the masked ones, most of which are minus infinity."""
    seen = []

    def verify(tree, probs, generator, logits):
        seen.append((logits, probs))
        return Acceptance((), int(probs[0].argmax()))

    request = Request("what?", frames, structure=STRUCTURES["choice"], sampling=Sampling(temperature=1.0, seed=1))
    state = RequestState(Job(0, request), Rule("reads", False, False, verify, reads_logits=True))
    state.masks = STRUCTURES["choice"].begin(target.text, target.vocab_size, target.defaults.eos)
    logits = torch.randn(1, target.vocab_size)
    state.verify(DraftTree.empty(), logits)
    ((given, probs),) = seen
    assert torch.equal(given, logits)
    assert (probs == 0).any()
