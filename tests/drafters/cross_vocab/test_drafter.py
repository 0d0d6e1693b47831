"""A text model of another vocabulary drafts for video models: the answer stays theirs, in batches too."""

import functools

import pytest
import torch

from crossdraft.drafters.cross_vocab.assistant import HELD, ByNamespace, CrossVocabDrafter
from crossdraft.drafters.cross_vocab.drafter import CROSS_VOCAB_METHODS, cross_vocab_drafter
from crossdraft.drafters.cross_vocab.vocabulary import TokenTable
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Answer, Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from tests.drafters.bigram import as_drafter, bigram_model
from tests.drafters.cross_vocab.tokenizers import byte_level_from
from tests.engine.zoo import EOS, ZOO, as_target

QUESTIONS = ("What is that?", "Who goes there, and why?", "Is it?")
KINDS = ("video_llava", "qwen2_5_vl")


def letters(target: Target) -> TokenTable:
    """The zoo's vocabulary: one letter a token, some of them two bytes long."""
    spelling = [None if i in target.reserved | {EOS} else chr(48 + i).encode() for i in range(99)]
    ids = {text: i for i, text in enumerate(spelling) if text is not None}

    def encode(text: str) -> list[int]:
        return [ids[letter.encode()] for letter in text if letter.encode() in ids]

    return TokenTable(tuple(spelling), encode, ids, frozenset([EOS]), EOS)


@functools.cache
def target_of(kind: str) -> Target:
    return as_target(*ZOO[kind]())


def requests(sampling: Sampling) -> list[Request]:
    return [Request(question, max_new_tokens=24, sampling=sampling) for question in QUESTIONS]


@functools.cache
def alone(kind: str) -> list[Answer]:
    return DecodeLoop(target_of(kind)).generate(requests(Sampling()))


@functools.cache
def reader(kind: str) -> tuple[Target, TokenTable]:
    """Its words are pieces of what the target says; it knows half of what follows what, and is refused at times."""
    texts = [answer.text[:16] for answer in alone(kind)]
    tokenizer = byte_level_from(texts * 3, 276)
    return as_drafter(bigram_model(tokenizer, texts, lead=":"), tokenizer)


def drafter(kind: str, how: str) -> CrossVocabDrafter:
    model, own = reader(kind)
    return cross_vocab_drafter(model, own, letters(target_of(kind)), how)


def drafted(kind: str, how: str, sampling: Sampling, batch: int, hidden: str = "before") -> list[Answer]:
    runner = DraftRunner(drafter(kind, how), hidden)
    decoder = DecodeLoop(target_of(kind), runner, max_batch=batch, nodes=5, hidden_nodes=9, adaptive=False)
    try:
        return decoder.generate(requests(sampling))
    finally:
        runner.close()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("how", CROSS_VOCAB_METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_is_the_targets_own(kind, how, batch):
    own, found = alone(kind), drafted(kind, how, Sampling(), batch)
    assert [answer.tokens for answer in found] == [answer.tokens for answer in own]
    assert [answer.text for answer in found] == [answer.text for answer in own]
    rounds = sum(answer.stats.rounds for answer in found)
    assert rounds < 0.8 * sum(len(answer.tokens) for answer in found)  # much of it was drafted


@pytest.mark.parametrize(("how", "hidden"), [("slem", "beside"), ("tli", "beside"), ("omni", "off")])
def test_sampling_runs_with_penalties_and_biases(how, hidden):
    """Exactness is shown by enumeration; here, that nothing breaks, during the prefill and after it."""
    sampling = Sampling(temperature=0.8, top_k=40, repetition_penalty=1.2, logit_bias=((20, -5.0), (EOS, -9.0)), seed=4)
    for answer in drafted("video_llava", how, sampling, 2, hidden):
        assert 0 < len(answer.tokens) <= 24
        assert not answer.other_notes


@pytest.mark.parametrize("namespace", ["anna", None])
def test_what_the_target_says_in_one_token_is_learned_for_its_namespace(namespace):
    """A letter of two bytes is one token of the target's, and two of the drafter's."""
    made = drafter("video_llava", "omni")
    state = made.begin([Request("What is that?", namespace=namespace)])[0]
    pairs = [(i, made.own.encode(chr(48 + i))) for i in range(80, 96)]
    letter, halves = next((i, ids) for i, ids in pairs if len(ids) == 2)
    assert made.table.to_drafter[letter] == -1
    made.commit([state], [VerifyOutput((), (20, letter, 21))])
    assert made.grams.get("") is None
    learned = made.grams.get(namespace)
    if namespace is None:
        assert learned is None
    else:
        assert learned.find(halves) == letter
        assert len(learned) == 1


def test_how_answers_begin_is_learned_for_each_namespace_and_for_what_is_not_drawn():
    made = drafter("video_llava", "slem")

    def begun(namespace, sampling):
        return made.begin([Request("What is that?", namespace=namespace, sampling=sampling)])[0]

    for namespace in ("anna", None):
        made.commit([begun(namespace, Sampling())], [VerifyOutput((), (20,))])
    known = [begun(namespace, Sampling()).target_prefix for namespace in ("anna", "otto", "", None)]
    assert known == [b"", None, None, None]
    assert begun("anna", Sampling(temperature=1.0, seed=1)).target_prefix is None


def test_so_many_namespaces_are_held_and_the_one_not_asked_for_longest_goes():
    known = ByNamespace[int]()
    for number in range(HELD):
        known.set(str(number), number)
    known.get("0")
    known.set("one more", 99)
    assert [known.get(name) for name in ("0", "1", "2", "one more")] == [0, None, 2, 99]


@torch.inference_mode()
@pytest.mark.parametrize("how", CROSS_VOCAB_METHODS)
def test_after_a_refusal_the_drafter_has_read_what_was_said(how):
    """Its cache is that of a drafter which has read the committed text, and nothing else, from the start."""
    made = drafter("video_llava", how)
    request = Request("What is that?")
    state = made.begin([request])[0]
    first = made.propose([state], [Budget(6)])[0].tree.tokens
    other = next(i for i in range(10, 40) if i != first[2])
    made.commit([state], [VerifyOutput((0, 1), (*first[:2], other))])
    made.propose([state], [Budget(6)])
    fresh = made.begin([request])[0]
    logits = made.logits_behind(fresh, state.fed)
    length = len(state.prompt) + len(state.fed)
    assert state.cache.lengths == [length]
    assert logits.allclose(state.last_logits, atol=1e-12)
    for mine, theirs in zip(state.cache.layers, fresh.cache.layers, strict=True):
        assert mine.keys[:, :, :length].allclose(theirs.keys[:, :, :length], atol=1e-12)
    emitted = made.own.to_bytes(state.written)
    assert emitted.startswith(b" " + state.text)  # after "ASSISTANT:" the drafter begins with a space


def test_a_question_beyond_the_drafters_context_is_refused():
    made = drafter("video_llava", "slem")
    with pytest.raises(CrossdraftError, match="its context has 512; ask a shorter question"):
        made.begin([Request("what? " * 600)])


def test_an_answer_beyond_the_drafters_context_is_left_to_the_target():
    made = drafter("video_llava", "slem")
    state = made.begin([Request("w" * 470, max_new_tokens=64)])[0]
    assert state.cache.capacity <= 512
    for _ in range(40):
        made.commit([state], [VerifyOutput((), (20, 30, 40))])
        assert len(made.propose([state], [Budget(5)])[0].tree) <= 5


def test_an_unknown_method_is_refused():
    target = target_of("video_llava")
    with pytest.raises(CrossdraftError, match="choose one of slem, tli, omni"):
        cross_vocab_drafter(target, letters(target), letters(target), "slam")
