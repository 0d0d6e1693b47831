"""The loop is lossless: whatever drafts, wherever it runs, however many share a pass."""

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from itertools import count

import pytest
import torch

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.accept import Acceptance, Rule
from crossdraft.engine.drafter import Budget, Needs
from crossdraft.engine.fast import heap
from crossdraft.engine.fast.heap import GROWTH
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Finish, Origin, Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError, RequestError
from tests.engine.scripted import Scripted
from tests.engine.zoo import ZOO, as_target, noisy
from tests.support import failing

REQUESTS = [Request("x" * i, max_new_tokens=6 + 5 * i) for i in range(1, 6)]


@pytest.fixture(scope="module")
def stranger():
    """A drafter of the same vocabulary that thinks otherwise."""
    model, prompt = ZOO["video_llava"]()
    return IndependentDrafter(as_target(noisy(model, 0.05), prompt))


@pytest.fixture(scope="module")
def alone(target):
    return [answer.tokens for answer in DecodeLoop(target).generate(REQUESTS)]


def decoder(target, drafter, hidden="before", **options):
    return DecodeLoop(target, DraftRunner(drafter, hidden), **options)


def test_the_target_alone_is_transformers_greedy(target, alone):
    for request, tokens in zip(REQUESTS, alone, strict=True):
        prompt = target.prepare(request)
        pixels = prompt.features["pixel_values_videos"].double()
        out = target.model.generate(
            input_ids=prompt.input_ids[None],
            pixel_values_videos=pixels,
            max_new_tokens=request.max_new_tokens,
            do_sample=False,
        )
        assert tuple(out[0, len(prompt) :].tolist()) == tokens


@pytest.mark.parametrize(  # each way with each batch, and either with and without adapting
    ("hidden", "batch", "adaptive"),
    [
        (hidden, batch, (way + number) % 2 == 0)
        for way, hidden in enumerate(("auto", "before", "beside", "off"))
        for number, batch in enumerate((1, 2, 4))
    ],
)
def test_greedy_answers_are_the_targets_own(target, kin, alone, hidden, batch, adaptive):
    found = decoder(target, kin, hidden, max_batch=batch, adaptive=adaptive).generate(REQUESTS)
    assert [answer.tokens for answer in found] == alone
    if not adaptive:
        assert sum(answer.stats.accepted for answer in found) > 0


@pytest.mark.parametrize("name", sorted(set(ZOO) - {"video_llava"}))
def test_greedy_answers_of_every_class(name):
    target = as_target(*ZOO[name]())
    model, prompt = ZOO[name]()
    drafter = IndependentDrafter(as_target(noisy(model, 1e-3), prompt), sorted(target.reserved))
    alone = DecodeLoop(target).generate(REQUESTS[:3])
    found = decoder(target, drafter, max_batch=2, adaptive=False).generate(REQUESTS[:3])
    assert [answer.tokens for answer in found] == [answer.tokens for answer in alone]


def test_a_planted_bug_in_the_rule_is_seen(target, kin, alone, monkeypatch):
    """The control of the test above: a rule that keeps one node too many changes the text."""

    def careless(tree, logits, generator):
        path = tuple(range(min(2, len(tree)))) if tree.is_chain else ()
        return Acceptance(path, int(logits[len(path)].argmax()))

    decoding = decoder(target, kin, adaptive=False)
    rule = Rule("careless", lossless=False, greedy=True, verify=careless)
    monkeypatch.setattr("crossdraft.engine.admission.rule_for", lambda name, sampling: rule)
    assert [answer.tokens for answer in decoding.generate(REQUESTS)] != alone


def test_a_planted_bug_in_the_compaction_is_seen(target, alone, monkeypatch):
    wrong_sibling = 3
    trees = [DraftTree((wrong_sibling, alone[4][i]), (-1, -1)) for i in range(30)]
    request = REQUESTS[4]
    assert decoder(target, Scripted(list(trees)), adaptive=False).generate([request])[0].tokens == alone[4]
    decoding = decoder(target, Scripted(list(trees)), adaptive=False)
    monkeypatch.setattr(decoding.cache, "keep", lambda row, path: decoding.cache.advance(row, len(path)))
    assert decoding.generate([request])[0].tokens != alone[4]


def test_trees_are_verified_node_by_node(target, alone):
    first, second, third = alone[4][:3]
    tree = DraftTree((first + 1, first, second + 1, second), (-1, -1, 1, 1))
    drafter = Scripted([tree])
    answer = decoder(target, drafter, adaptive=False).generate([REQUESTS[4]])[0]
    assert answer.tokens == alone[4]
    assert drafter.outputs[0].path == (1, 3)
    assert drafter.outputs[0].tokens == (first, second, third)
    assert answer.stats.hidden_accepted == 2
    assert [piece.origin for piece in answer.pieces[:3]] == [Origin.HIDDEN, Origin.TARGET, Origin.TARGET]
    assert answer.pieces[0].tokens == (first, second)


@pytest.mark.parametrize("nodes", [0, 4])
@torch.inference_mode()
def test_a_drafter_that_needs_features_gets_those_of_every_pass(target, alone, nodes):
    """The prompt's last piece, then the root and the accepted nodes of a tree whose right path is not in front."""
    needs = Needs(hidden_layers=(1, -1), visual_layers=(0, 3))
    one, two, three = alone[0][:3]
    trees = [DraftTree((one + 1, one, two, three), (-1, -1, 1, 2))] if nodes else []
    drafter = Scripted(trees, needs=needs)
    decoder(target, drafter, adaptive=False).generate([REQUESTS[0]])
    prompt, outputs = target.prepare(REQUESTS[0]), drafter.outputs
    text = prompt.input_ids.tolist() + list(alone[0])
    plain = target.model(input_ids=torch.tensor([text]), **prompt.features, output_hidden_states=True)
    states = [layer[0] for layer in plain.hidden_states]
    ids = (*outputs[0].prompt.visual_tokens, *outputs[0].prompt.tokens)
    assert ids == tuple(prompt.input_ids.tolist())
    first = len(outputs[0].prompt.visual_tokens)
    assert outputs[0].prompt.visual_tokens[-1] in target.traits.visual_ids
    for layer in (0, 3):
        assert torch.allclose(outputs[0].prompt.visual[layer], states[layer][:first], atol=1e-9)
    for layer in (1, -1):
        fed = torch.cat([output.hidden[layer] for output in outputs])
        assert torch.allclose(fed, states[layer][first : first + len(fed)], atol=1e-9)
    assert [token for output in outputs for token in output.tokens] == list(alone[0])
    assert all(output.prompt is None for output in outputs[1:])


def test_requests_join_and_leave_between_rounds(target, kin, alone):
    decoding = decoder(target, kin, max_batch=3, adaptive=False)
    request_ids, widths = [decoding.submit(REQUESTS[4])], []
    for request in REQUESTS[:4]:
        decoding.step()
        widths.append(decoding.cache.rows)
        request_ids.append(decoding.submit(request))
    while decoding.busy:
        decoding.step()
        widths.append(decoding.cache.rows)
    assert [decoding.answer(request_id).tokens for request_id in request_ids] == [alone[4], *alone[:4]]
    assert max(widths) > 1
    assert widths[-1] == 0


def test_penalties_and_bias_apply_at_every_node(target, kin):
    sampling = Sampling(repetition_penalty=1.3, logit_bias=((40, 0.05),))
    requests = [replace(request, sampling=sampling) for request in REQUESTS]
    alone = [answer.tokens for answer in DecodeLoop(target).generate(requests)]
    found = [answer.tokens for answer in decoder(target, kin, adaptive=False, max_batch=2).generate(requests)]
    assert found == alone
    plain = [answer.tokens for answer in DecodeLoop(target).generate(REQUESTS)]
    assert found != plain


def test_sampled_answers_follow_the_targets_distribution(target, stranger):
    """Three tokens over a vocabulary cut to its top 2: 8 outcomes, compared with the exact distribution."""
    assert _distance(target, stranger) < 0.1  # about 0.05 is expected of 400 draws


def test_a_planted_bug_in_sampling_is_seen(target, stranger, monkeypatch):
    """The control: accept every draft, as if the drafter were the target."""

    def careless(tree, probs, generator):
        path = tuple(range(len(tree)))
        return Acceptance(path, int(torch.multinomial(probs[len(path)], 1, generator=generator)))

    rule = Rule("careless", lossless=False, greedy=False, verify=careless)
    monkeypatch.setattr("crossdraft.engine.admission.rule_for", lambda name, sampling: rule)
    assert _distance(target, stranger, draws=150) > 0.2


def _distance(target, drafter, draws=400):
    """Total variation between what is sampled and what is exact."""
    sampling = Sampling(temperature=1.5, top_k=2)
    requests = [Request("xx", max_new_tokens=3, sampling=replace(sampling, seed=seed)) for seed in range(draws)]
    exact = _joint(target, target.prepare(requests[0]), sampling)
    found = Counter(a.tokens for a in decoder(target, drafter, nodes=2, adaptive=False, max_batch=4).generate(requests))
    outcomes = set(exact) | set(found)
    return 0.5 * sum(abs(found[tokens] / draws - exact.get(tokens, 0.0)) for tokens in outcomes)


def _joint(target, prompt, sampling):
    from crossdraft.engine.reference import full_forward
    from crossdraft.engine.sampling import warp

    joint = {(): 1.0}
    for _ in range(3):
        longer = {}
        for tokens, p in joint.items():
            q = warp(full_forward(target, prompt, list(tokens)), sampling)
            for token in q.nonzero().flatten().tolist():
                longer[*tokens, token] = p * q[token].item()
        joint = longer
    return joint


def test_a_seed_fixes_a_sampled_answer(target, kin):
    request = Request("x", max_new_tokens=20, sampling=Sampling(temperature=1.0, seed=5))
    one, two = (decoder(target, kin, adaptive=False).generate([request])[0].tokens for _ in range(2))
    other = decoder(target, kin, adaptive=False).generate([replace(request, sampling=Sampling(1.0, seed=6))])
    assert one == two != other[0].tokens


def test_a_stop_string_ends_the_answer_before_it(target, kin):
    whole = DecodeLoop(target).generate([REQUESTS[4]])[0]
    stop = whole.text[7:9]
    request = replace(REQUESTS[4], stop=(stop,))
    alone = DecodeLoop(target).generate([request])[0]
    found = decoder(target, kin, adaptive=False).generate([request])[0]
    assert found.finish is alone.finish is Finish.STOP
    assert found.tokens == alone.tokens
    assert found.text == alone.text == whole.text[: whole.text.find(stop)]


def test_eos_inside_an_accepted_path_ends_the_answer(target, alone):
    cut = as_target(target.model, target.prepare(REQUESTS[4]))
    cut.eos = frozenset({alone[4][2]})
    cut.prepare = target.prepare
    drafter = Scripted([DraftTree.chain(alone[4][:6])])
    answer = decoder(cut, drafter, adaptive=False).generate([REQUESTS[4]])[0]
    first = alone[4].index(alone[4][2])
    assert answer.tokens == alone[4][: first + 1]
    assert answer.finish is Finish.EOS


def test_logprobs_are_the_targets_raw_ones(target, kin):
    request = replace(REQUESTS[1], logprobs=True, top_logprobs=2)
    found = decoder(target, kin, adaptive=False).generate([request])[0]
    from crossdraft.engine.reference import full_forward

    prompt = target.prepare(request)
    for i, (token, logprob) in enumerate(zip(found.tokens, found.logprobs, strict=True)):
        expected = full_forward(target, prompt, found.tokens[:i]).log_softmax(-1)[token].item()
        assert logprob == pytest.approx(expected, abs=1e-5)
        most = full_forward(target, prompt, found.tokens[:i]).log_softmax(-1).topk(2)
        assert [one for one, _ in found.top_logprobs[i]] == most.indices.tolist()
        assert [value for _, value in found.top_logprobs[i]] == pytest.approx(most.values.tolist(), abs=1e-5)
    assert [value for piece in found.pieces for value in piece.logprobs or ()] == [*found.logprobs]
    assert [top for piece in found.pieces for top in piece.top_logprobs or ()] == [*found.top_logprobs]
    assert all(len(piece.logprobs or ()) == len(piece.tokens) for piece in found.pieces)


def test_cancelling_ends_a_request_between_rounds(target, kin, alone):
    decoding = decoder(target, kin, max_batch=2, adaptive=False, nodes=1)
    request_ids = [decoding.submit(REQUESTS[4]), decoding.submit(REQUESTS[3])]
    decoding.step()
    decoding.cancel(request_ids[0])
    while decoding.busy:
        decoding.step()
    cancelled, other = (decoding.answer(request_id) for request_id in request_ids)
    assert cancelled.finish is Finish.CANCELLED
    assert cancelled.tokens == alone[4][: len(cancelled.tokens)]
    assert len(cancelled.tokens) < len(alone[4])
    assert other.tokens == alone[3]
    assert decoding.cache.rows == 0


def test_dropping_cancels_those_that_wait_as_well(target):
    decoding = DecodeLoop(target)
    running, waiting = (decoding.submit(request) for request in REQUESTS[3:])
    decoding.step()
    decoding.drop()
    assert not decoding.busy
    assert decoding.answer(running).finish is Finish.CANCELLED
    with pytest.raises(CancelledError):
        decoding.answer(waiting)


@pytest.mark.parametrize("last", [False, True])
def test_an_answer_that_cannot_be_decoded_ends_alone(target, alone, last):
    """The other one of its passes goes on, also where the text that is held back cannot be had in the end."""
    at, spoilt = next((at, token) for at, token in enumerate(alone[4]) if at and token not in alone[3])

    def decode(tokens):
        if spoilt in tokens:
            raise KeyError(spoilt)
        return target.decode(tokens)

    decoding = DecodeLoop(Target(target.model, target.prepare, decode, target.eos), max_batch=2)
    wrong = decoding.submit(replace(REQUESTS[4], max_new_tokens=at + 1) if last else REQUESTS[4])
    other = decoding.submit(REQUESTS[3])
    while decoding.busy:
        decoding.step()
    with pytest.raises(RequestError, match="KeyError"):
        decoding.answer(wrong)
    assert decoding.answer(other).tokens == alone[3]
    assert decoding.cache.rows == 0


def test_a_request_that_does_not_fit_is_refused_and_leaves_nothing(target, kin):
    decoding = decoder(target, kin)
    request_id = decoding.submit(Request("x", max_new_tokens=1000))
    decoding.step()
    with pytest.raises(CrossdraftError, match="room for 466"):
        decoding.answer(request_id)
    assert not decoding.busy
    assert decoding.cache.rows == 0
    assert decoding.drafter._slots == {}


def test_a_request_that_forbids_every_token_is_refused(target):
    every = tuple(range(target.vocab_size))
    with pytest.raises(CrossdraftError, match=r"forbids all of the model's \d+ tokens"):
        DecodeLoop(target).generate([Request("x", max_new_tokens=4, sampling=Sampling(suppress_tokens=every))])
    spared = Sampling(suppress_tokens=every[:7] + every[8:])
    assert DecodeLoop(target).generate([Request("x", max_new_tokens=4, sampling=spared)])[0].tokens == (7,) * 4


@pytest.mark.parametrize("bad", [{"max_new_tokens": 0}, {"prompt": "  "}])
def test_requests_that_ask_nothing_are_refused(bad):
    with pytest.raises(CrossdraftError):
        Request(**{"prompt": "x", **bad})


def test_the_answer_says_what_happened(target, kin):
    pieces = []
    decoding = decoder(target, kin, adaptive=False, on_piece=pieces.append)
    answer = decoding.generate([REQUESTS[4]])[0]
    stats = answer.stats
    assert stats.new_tokens == len(answer.tokens) == REQUESTS[4].max_new_tokens
    assert sum(len(piece.tokens) for piece in answer.pieces) == stats.new_tokens
    assert "".join(piece.text for piece in answer.pieces) == answer.text
    assert 0 < stats.ttft_s < stats.total_s
    assert stats.tau == pytest.approx(stats.new_tokens / stats.rounds)
    assert stats.first_provisional_s is not None
    provisional = [piece for piece in pieces if piece.origin is Origin.PROVISIONAL]
    assert provisional
    assert [piece for piece in pieces if piece.origin is not Origin.PROVISIONAL] == list(answer.pieces)
    lanes = {span.lane for span in answer.timeline.spans}
    assert lanes == {"target", "drafter"}


def test_drafts_never_hold_a_banned_id(target):
    model, prompt = ZOO["video_llava"]()
    with torch.no_grad():
        model.lm_head.weight[98] = 50 * model.lm_head.weight.sign().sum(0)
    drafter = IndependentDrafter(as_target(model, prompt), banned=[7])
    states = drafter.begin(REQUESTS[:1])
    tree = drafter.propose(states, [Budget(12)])[0].tree
    assert not {7, 97, 98} & set(tree.tokens)


def test_the_outputs_of_the_passes_are_the_answer(target, alone):
    """Also what came in the last round: a memory keeps it; and no token after the end, which a draft may go beyond."""
    for request, tokens in zip(REQUESTS, alone, strict=True):
        script = Scripted([DraftTree.chain([*tokens[:2], 1]), DraftTree.chain([*tokens[3:], 5, 6])])
        (answer,) = decoder(target, script, adaptive=False, nodes=99, hidden_nodes=99).generate([request])
        assert answer.tokens == tokens
        assert sum((output.tokens for output in script.outputs), ()) == tokens
        assert all(len(output.path) <= len(output.tokens) for output in script.outputs)


GAVE_UP = "The drafter gave up (The shelf is on fire); the target went on alone."


@pytest.mark.parametrize(("method", "notes"), [("propose", (GAVE_UP,)), ("commit", (GAVE_UP,)), ("end", ())])
def test_what_a_drafter_refuses_midway_costs_no_answer(target, alone, method, notes):
    class Refusing(Scripted):
        pass

    setattr(Refusing, method, failing(CrossdraftError("The shelf is on fire.")))
    found = decoder(target, Refusing([]), "off", adaptive=False).generate(REQUESTS[:2])
    assert [answer.tokens for answer in found] == alone[:2]
    assert all(answer.other_notes == notes for answer in found)


def test_tokens_behind_an_answers_end_count_neither_as_accepted_nor_for_tau(target, alone):
    """A draft that goes on after the stop string is accepted there as well, but nothing of it is emitted."""
    whole = alone[4]
    request = replace(REQUESTS[4], stop=(target.decode(whole[5:7]),))
    assert len(whole) > 12
    script = Scripted([DraftTree.chain(whole[1:3]), DraftTree.chain(whole[4:12])])
    (answer,) = DecodeLoop(target, DraftRunner(script, "off"), adaptive=False).generate([request])
    assert answer.tokens == whole[:7]
    assert (answer.stats.rounds, answer.stats.accepted) == (3, 2 + 3)
    assert answer.stats.tau == pytest.approx(7 / 3)
    assert answer.stats.accepted_per_position == [1.0, 1.0, 1.0]


def test_the_parts_of_the_rounds_are_timed_separately(target, kin):
    (answer,) = DecodeLoop(target, DraftRunner(kin, "off"), adaptive=False).generate(REQUESTS[4:])
    times = answer.stats.stages_s
    assert 0 < times["draft"] < times["rounds"]
    assert 0 < times["communication"] < times["draft"]  # in this thread it is next to nothing
    assert times["verify"] + times["draft"] + times["communication"] < times["rounds"]


def test_a_drafter_that_reads_too_slowly_for_what_it_saves_is_left_out(target, alone):
    """In this process the target waits for it; nothing of the answer changes, and its stats say why."""
    begun = []

    class Slow(Scripted):
        def begin(self, requests: Sequence[Request]) -> list[int]:
            begun.extend(requests)
            time.sleep(0.3)
            return super().begin(requests)

    for adaptive, read in ((True, 3), (False, 6)):
        begun.clear()
        loop = decoder(target, Slow([]), adaptive=adaptive)
        found = [loop.generate([REQUESTS[0]])[0] for _ in range(6)]
        assert [answer.tokens for answer in found] == alone[:1] * 6
        assert len(begun) == read
        assert all(answer.other_notes == () for answer in found)
        assert ["did not read the request" in " ".join(answer.notes) for answer in found] == [
            number >= read for number in range(6)
        ]


def test_ctrl_c_leaves_an_answer_of_what_was_emitted(target, kin):
    """The main thread drives this loop: the interrupt passes through, and the request is over, not failed."""

    def interrupt(piece):
        if piece.origin is not Origin.PROVISIONAL:
            raise KeyboardInterrupt

    decoding = decoder(target, kin)
    request_id = decoding.submit(REQUESTS[-1], interrupt)
    with pytest.raises(KeyboardInterrupt):
        while decoding.busy:
            decoding.step()
    while decoding.busy:
        decoding.step()
    answer = decoding.answer(request_id)
    assert answer.finish is Finish.CANCELLED
    assert answer.tokens == DecodeLoop(target).generate(REQUESTS[-1:])[0].tokens[: len(answer.tokens)]
    assert decoding.cache.rows == 0
    assert decoding.drafter._slots == {}


@pytest.mark.parametrize("what", ["prepare", "encode"])
def test_ctrl_c_before_anything_is_emitted_leaves_a_cancelled_request(target, kin, monkeypatch, what):
    def interrupt(*given):
        raise KeyboardInterrupt

    decoding = decoder(target, kin)
    request_id = decoding.submit(REQUESTS[0])
    monkeypatch.setattr(target, what, interrupt)
    with pytest.raises(KeyboardInterrupt):
        decoding.step()
    assert not decoding.busy
    with pytest.raises(CancelledError):
        decoding.answer(request_id)
    assert decoding.cache.rows == 0
    assert decoding.drafter._slots == {}


def test_memory_of_ended_requests_is_given_back_behind_their_answers(target, monkeypatch):
    grown, trims = count(0, 2 * GROWTH), []
    monkeypatch.setattr(heap, "INTERVAL_S", 0.0)
    monkeypatch.setattr(heap, "resident", lambda: next(grown))
    monkeypatch.setattr(heap, "trim", lambda: trims.append(1))
    decoding = DecodeLoop(target)
    for number, request in enumerate(REQUESTS[:2]):
        decoding.generate([request])
        assert len(trims) == number
        decoding.tidy()
        assert len(trims) == number + 1
    decoding.generate(REQUESTS)
    assert len(trims) > 3  # in the next round, where nobody asks for it


@pytest.mark.parametrize(
    ("ids", "part"),
    [
        (torch.tensor(5), r"of shape \[\]"),
        (torch.empty(0, dtype=torch.long), r"of shape \[0\]"),
        (torch.tensor([[1, 5]]), r"of shape \[1, 2\]"),
        (torch.tensor([1.0, 5.0]), "are torch.float32"),
        (torch.tensor([True, False]), "are torch.bool"),
        (torch.tensor([1, -5]), "has the token -5, and the target's are 0 to"),
        (torch.tensor([1, 10**9]), "has the token 1000000000"),
    ],
)
def test_a_prompt_that_is_none_costs_its_request_and_no_other(ids, part):
    """What the loop counts of a prompt it counts of those alone that it can read."""
    target = as_target(*ZOO["video_llava"]())
    good, prepare = Request("x", max_new_tokens=4), target.prepare
    target.prepare = lambda request: Prompt(ids) if request.question == "bad" else prepare(request)
    alone = DecodeLoop(target).generate([good])[0].tokens
    decoder = DecodeLoop(target, max_batch=2)
    asked = [decoder.submit(one) for one in (Request("bad"), good, good)]
    while decoder.busy:
        decoder.step()
    assert [decoder.answer(asked[i]).tokens for i in (1, 2)] == [alone, alone]
    with pytest.raises(CrossdraftError, match=part):
        decoder.answer(asked[0])
