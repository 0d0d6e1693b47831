"""Drafts from predictions and hints: where the answer is in its texts, by hand; and answers that stay the target's."""

from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import crossdraft as cd
from crossdraft.drafters.ngram.drafter import NgramDrafter
from crossdraft.engine import opening
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.drafter import Draft
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.predictions import GAP, TextDrafts, drafts_from_texts
from crossdraft.engine.processors import for_drafter
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import MOST_TEXT, Request
from crossdraft.engine.request_state import Job, RequestState
from crossdraft.engine.rules import rule_for
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target
from crossdraft.structure.structure import Structure
from crossdraft.text_model import text_model
from tests.engine.scripted import Scripted

END = 0


def letters(text):
    return [ord(letter) for letter in text]


def after(answer, *predictions, hints=()):
    texts = TextDrafts(letters, predictions, hints, END)
    texts.commit(letters(answer))
    return texts


def likeliest(texts, nodes=5):
    return "".join(chr(token) for token in texts.draft(nodes).tree.main_path_tokens)


def branches(texts, nodes=32):
    tree = texts.draft(nodes).tree
    leaves = [node for node in range(len(tree)) if not tree.children(node)]
    return {"".join(map(chr, tree.path_tokens(leaf))) for leaf in leaves}


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("", "the r"),
        ("the red ", "car w"),
        ("the blue c", "ar wa"),  # replaced, and longer
        ("the re c", "ar wa"),  # shorter
        ("the very red c", "ar wa"),  # inserted
        ("the car", " wait"),  # deleted
        ("The red", " car "),  # the first letter is another one
        ("What waits h", "ere\0"),  # begins elsewhere, and ends with the text
        ("the red car waits here", "\0"),
        ("the red car waits here\0", ""),
    ],
)
def test_an_answer_is_followed_from_where_it_joins_its_text(answer, found):
    assert likeliest(after(answer, "the red car waits here")) == found


def test_after_a_replaced_token_both_ways_to_go_on_are_drafted():
    """The text's own token may still come, behind what was inserted; or the one after it."""
    assert {"b", "c"} <= {found[0] for found in branches(after("one day ax", "one day abcdefgh"))}


def test_texts_that_disagree_are_branches():
    texts = after("a red ", "a red car stops", "a red bus waits")
    assert {"car s", "bus w"} <= {found[:5] for found in branches(texts)}
    texts.commit(letters("b"))
    assert likeliest(texts) == "us wa"


def test_probabilities_are_those_of_paths_and_fall():
    draft = after("a red ", "a red car stops", "a red bus waits").draft(32)
    for node, parent in enumerate(draft.tree.parents):
        assert draft.path_probs[node] <= (1.0 if parent < 0 else draft.path_probs[parent])
    assert list(draft.path_probs) == sorted(draft.path_probs, reverse=True)
    firsts = sum(draft.path_probs[node] for node in draft.tree.children(-1))
    assert 0.85 < firsts <= 1


def test_something_else_is_given_up():
    texts = TextDrafts(letters, ["an event camera reports changes of brightness"], (), END)
    drafted = []
    for letter in "two people walk to the left of the parked bus, slowly and with a dog":
        drafted.append(len(texts.draft(32).tree))
        texts.commit(letters(letter))
    assert drafted[0] == 32
    assert sum(drafted[5:28]) == 0
    assert sum(drafted) < 32 + len(drafted)  # both have "of " and a few other letters in common


def test_hints_are_quoted_and_do_not_begin():
    hint = "platform nine: the train to Harrow leaves at noon"
    assert likeliest(after("", hints=[hint])) == ""
    assert likeliest(after("It says: the train", hints=[hint])) == " to H"
    texts = after("the train to Harrow leaves at noon", hints=[hint])
    assert likeliest(texts) == ""  # a hint's end is not the answer's
    assert (texts.predicted, texts.accepted) == (0, 0)


def test_late_hints_join_when_they_come():
    late, lost, cancelled = Future(), Future(), Future()
    texts = after("It says: the train", hints=[late, lost, cancelled])
    assert likeliest(texts) == ""
    cancelled.cancel()
    late.set_result("the train to Harrow leaves at noon")
    lost.set_exception(OSError("no engine"))
    texts.draft(4)
    texts.commit(letters(" to Harr"))
    assert likeliest(texts) == "ow le"


def test_tokens_that_followed_a_prediction_are_counted():
    """All but those in place of what was replaced; the answer's end is no token of the prediction."""
    texts = after("the red car waits here\0", "the red car waits here")
    assert (texts.predicted, texts.accepted) == (22, 22)
    texts = after("the red bus waits here\0", "the red car waits here")
    assert (texts.predicted, texts.accepted) == (22, 18)  # the space behind "bus" may still be in place of something
    texts = after("nothing moves\0", "qqqq", hints=["nothing moves"])
    assert (texts.predicted, texts.accepted) == (4, 0)


# -- with a target --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target():
    return load_target("reference", "cpu", "float32")


@pytest.fixture(scope="module")
def asked(clip):
    return [Request(f"What is {where}?", str(clip.video), max_new_tokens=24) for where in ("ahead", "on the left")]


@pytest.fixture(scope="module")
def truths(target, asked):
    """HF's own answers."""
    found = []
    for request in asked:
        prompt = target.prepare(request)
        ids = prompt.input_ids[None]
        with torch.inference_mode():
            out = target.model.generate(
                ids, attention_mask=torch.ones_like(ids), **prompt.features, max_new_tokens=24, do_sample=False
            )
        found.append(tuple(out[0, ids.shape[1] :].tolist()))
    return found


def answered(target, requests, drafter=None, **options):
    runner = None if drafter is None else DraftRunner(drafter, "before")
    return DecodeLoop(target, runner, **{"adaptive": False, **options}).generate(requests)


def edited(text):
    """A text with a word replaced, one inserted and one left out."""
    words = text.split()
    return " ".join([*words[:1], "maybe", *words[1:3], *words[4:5], "zebra", *words[6:]])


def wrong_tree(truth):
    paths = [truth[:4], *([*truth[:i], (truth[i] + 5) % 250, truth[0]] for i in range(3))]
    return DraftTree.from_paths(paths)


DRAFTERS = {
    "none": lambda truth: None,
    "ngram": lambda truth: NgramDrafter(),
    "chain": lambda truth: Scripted([DraftTree.chain([*truth[:3], 7])] * 3),
    "tree": lambda truth: Scripted([wrong_tree(truth)] * 3),
}


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_answers_are_those_of_generate(target, asked, truths, drafter, adaptive):
    for request, truth in zip(asked, truths, strict=True):
        text = target.decode(truth)
        for predictions in ([text], [edited(text)], ["A dog sleeps on a sofa."], [edited(text), text]):
            given = replace(request, predictions=predictions, hints=["Nothing of it."])
            (found,) = answered(target, [given], DRAFTERS[drafter](truth), adaptive=adaptive)
            assert found.tokens == truth
            if text in predictions and drafter == "none":
                assert found.stats.rounds < len(truth) / 3
                assert found.stats.hidden_accepted > 4  # with the prompt's last pass


def test_sampled_answers_are_those_of_their_seeds(target, asked, truths):
    """Whatever is predicted, and whoever else drafts."""
    for request, truth in zip(asked, truths, strict=True):
        drawn = replace(request, sampling=Sampling(temperature=0.8, seed=11))
        (alone,) = answered(target, [drawn])
        given = replace(drawn, predictions=[alone.text, target.decode(truth)])
        for drafter in (None, NgramDrafter()):
            (found,) = answered(target, [given], drafter)
            assert found.tokens == alone.tokens
            assert found.stats.accepted > 0


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_rules_with_draws_of_their_own_keep_the_distribution(rule, monkeypatch):
    """Of the first two tokens, exactly enumerated; chains and trees of predictions, right ones and wrong ones."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=4, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        initializer_range=0.4, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).double().eval()
    small = text_model(model, lambda request: Prompt(request.inputs["input_ids"][0]), lambda tokens: "", [])
    prompt = torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        first = model(prompt).logits[0, -1].softmax(-1)
        second = torch.stack(
            [model(torch.cat([prompt, torch.tensor([[token]])], 1)).logits[0, -1] for token in range(4)]
        )
    expected = (first[:, None] * second.softmax(-1)).flatten()
    best = first.topk(2).indices.tolist()
    texts = [f"{best[0]}{token}" for token in range(2)] + [f"{best[1]}2"]
    monkeypatch.setattr(
        opening, "drafts_from_texts", lambda request, text, ends: TextDrafts(lambda one: [*map(int, one)], texts)
    )
    count = 600
    requests = [
        Request(inputs={"input_ids": prompt}, max_new_tokens=3, sampling=Sampling(temperature=1.0, seed=seed))
        for seed in range(count)
    ]
    found = answered(small, requests, rule=rule, max_batch=8)
    assert sum(one.stats.accepted for one in found) > count / 10
    seen = torch.zeros(16, dtype=torch.float64)
    for one in found:
        seen[4 * one.tokens[0] + one.tokens[1]] += 1
    likely = expected * count >= 5
    distance = ((seen - expected * count)[likely] ** 2 / (expected * count)[likely]).sum()
    assert distance < 45  # chi-square of 15 degrees of freedom: 1e-4


def test_requests_of_a_batch_keep_their_own_texts(target, asked, truths):
    requests = [
        replace(request, predictions=[target.decode(truth)]) for request, truth in zip(asked, truths, strict=True)
    ]
    requests = [
        *requests,
        asked[0],
        replace(asked[1], predictions=["A dog."], sampling=Sampling(temperature=1, seed=3)),
    ]
    (drawn,) = answered(target, [replace(requests[3], predictions=())])
    for adaptive in (False, True):
        found = answered(target, requests, max_batch=3, adaptive=adaptive)
        assert [one.tokens for one in found] == [*truths, truths[0], drawn.tokens]
        assert found[2].stats.drafted == 0


def test_a_request_without_texts_is_drafted_for_as_before(target, asked, truths):
    """Its drafts are the drafter's alone; and no drafter is sent texts."""
    tree = wrong_tree(truths[0])
    (found,) = answered(target, asked[:1], Scripted([tree] * 9))
    assert found.stats.drafted == 9 * len(tree)
    rule = rule_for(None, Sampling())
    shown = for_drafter(replace(asked[0], predictions=["a"], hints=["b"]), 9, rule)
    assert (shown.predictions, shown.hints) == ((), ())


def test_what_followed_is_in_the_statistics(target, asked, truths):
    text = target.decode(truths[0])
    count = len(drafts_from_texts(replace(asked[0], hints=[text]), target, target.eos)._tokens) - 2  # gaps
    (found,) = answered(target, [replace(asked[0], predictions=[text])])
    said = [token for token in found.tokens if token not in target.eos]
    assert found.stats.predicted == count
    assert found.stats.predicted_accepted == len(said)
    (other,) = answered(target, [replace(asked[0], predictions=["Qu'est-ce que c'est?"])])
    assert other.stats.predicted_accepted == 0


def test_the_drafter_is_not_asked_where_a_text_goes_on(target, asked, truths):
    """Its own draft would have to be waited for, and could not be longer."""
    cost = CostModel()
    for tokens in (1, 9, 17, 33):
        cost.saw_pass(1, tokens, 0.01 + 1e-5 * tokens)
    for _ in range(20):
        cost.saw_draft(8, 8, 8, 0.02)
        cost.rounds.saw_acceptance(8, 4)
    drafter = Scripted([DraftTree.chain(truths[0][:4])] * 9)
    request = replace(asked[0], predictions=[target.decode(truths[0])])
    loop = DecodeLoop(target, DraftRunner(drafter, "off"), nodes=4, hidden_nodes=4, cost=cost)
    (found,) = loop.generate([request])
    assert found.tokens == truths[0]
    assert len(drafter.trees) == 9
    assert not drafter.outputs  # nor does it read the request


def test_a_drafter_learns_of_its_own_nodes_alone(target, asked, truths):
    drafter = Scripted([DraftTree.chain([*truths[0][:3], 7])])
    request = replace(asked[0], predictions=[target.decode(truths[0])])
    (found,) = answered(target, [request], drafter)
    assert found.tokens == truths[0]
    assert drafter.outputs[0].path == (0, 1, 2)
    assert len(drafter.outputs[0].tokens) > 8


def test_predictions_of_structured_answers(target, asked):
    """Nodes that the structure forbids are not verified; what it forces stands beside what is predicted."""
    structure = Structure.regex("The [a-z]+ car turns (left|right)\\.")
    request = replace(asked[0], structure=structure)
    (truth,) = answered(target, [request])
    for prediction in (truth.text, truth.text.replace("car", "CAR"), "A dog."):
        for adaptive in (False, True):
            (found,) = answered(target, [replace(request, predictions=[prediction])], adaptive=adaptive)
            assert found.tokens == truth.tokens
    (found,) = answered(target, [replace(request, predictions=[truth.text])])
    assert found.stats.rounds < truth.stats.rounds


def test_free_drafts_are_as_long_as_they_repay(target, asked):
    job = Job(0, replace(asked[0], predictions=["one two three four five six seven eight nine ten"]))
    state = RequestState(job, rule_for(None, Sampling()))
    state.texts = drafts_from_texts(job.request, target, target.eos)
    cost = CostModel()
    for tokens in (1, 9, 17, 33):
        cost.saw_pass(1, tokens, 0.01 + 4e-3 * tokens)
    policy = DecodeLoop(target, cost=cost).policy
    (short,) = policy.free_drafts(state)
    policy.adaptive = False
    (long,) = policy.free_drafts(state)
    assert 4 < len(short.tree) < len(long.tree)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"predictions": "text"}, "predictions is 'text'; give a list"),
        ({"predictions": [1]}, "One of the predictions is 1; give a string"),
        ({"hints": [None]}, "One of the hints is None; give a string"),
        ({"predictions": [Future()]}, "One of the predictions is <Future"),
        ({"hints": ["\ud800"]}, "One of the hints has half a surrogate pair"),
        ({"predictions": ["a"] * 5, "hints": ["b"] * 4}, "has 9 predictions and hints, with 9 characters"),
        ({"predictions": ["a" * MOST_TEXT], "hints": ["b"]}, "with 131,073 characters in all"),
    ],
)
def test_bad_texts_are_refused(given, said):
    with pytest.raises(CrossdraftError, match=said):
        cd.Request("?", **given)


def test_special_tokens_of_a_text_are_not_drafted(target, asked):
    special = next(iter(target.text.special.values()))
    texts = drafts_from_texts(replace(asked[0], predictions=[f"A car{special} waits."]), target, target.eos)
    assert GAP in texts._tokens.tolist()[:-2]
    assert target.text.special.keys().isdisjoint(texts.draft(32).tree.tokens)
    assert texts.draft(0) == Draft(DraftTree.empty())


def test_a_prediction_never_drafts_what_the_target_cannot_read(target, asked, truths):
    """Not a visual placeholder that is no special token, nor an id beyond the head: an answer would fail."""
    tokenizer = AutoTokenizer.from_pretrained(target.source)
    while len(tokenizer) <= target.vocab_size:
        tokenizer.add_tokens([f"<extra_{len(tokenizer)}>"])
    beyond = tokenizer.convert_ids_to_tokens(target.vocab_size)
    (placeholder, *_) = target.traits.visual_ids
    shown = {one: spelt for one, spelt in target.text.special.items() if one != placeholder}
    spelt = target.text.special[placeholder]
    other = target.reading()
    other.text = replace(target.text, special=shown, tokenizer=tokenizer)
    for text in (beyond, spelt):
        request = replace(asked[0], predictions=[f"{text} {text}"])
        drafted = drafts_from_texts(request, other, target.eos).draft(32).tree.tokens
        assert placeholder not in drafted
        assert max(drafted, default=0) < target.vocab_size
        (found,) = answered(other, [request])
        assert found.tokens == truths[0]


def test_of_a_prediction_nothing_is_drafted_that_the_structure_forbids(target, asked):
    structure = Structure.regex("The [a-z]+ car turns (left|right)\\.")
    job = Job(0, replace(asked[0], structure=structure, predictions=["The red car turns RIGHT."]))
    state = RequestState(job, rule_for(None, Sampling()))
    state.texts = drafts_from_texts(job.request, target, target.eos)
    state.masks = structure.begin(target.text, target.vocab_size, target.defaults.eos)
    from_text = state.free_drafts(32)[0].tree
    assert 3 < len(from_text) < len(state.texts.draft(32).tree)
    assert state.masks.allowed(from_text) == [*range(len(from_text))]


def test_texts_have_a_quarter_of_a_drafter_s_pass(target, asked):
    state = RequestState(Job(0, replace(asked[0], max_new_tokens=99)), rule_for(None, Sampling()))
    own, free = Draft(DraftTree.chain(range(32))), Draft(DraftTree.chain(range(100, 132)))
    found = state.with_free(own, [free], 32).tree.tokens
    assert found == (*range(24), *range(100, 108))
    assert state.added == 8
    assert state.with_free(own, [], 32) == own
