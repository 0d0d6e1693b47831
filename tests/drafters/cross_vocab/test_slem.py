"""What a text becomes in the target's tokens, at every kind of edge."""

import pytest
import torch

from crossdraft.drafters.cross_vocab.assistant import complete_text
from crossdraft.drafters.cross_vocab.slem import StringLevelMatch, TargetToken, continuation
from crossdraft.drafters.cross_vocab.vocabulary import TokenTable, read_token_table
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.request import Request
from tests.drafters.bigram import as_drafter, bigram_model
from tests.drafters.cross_vocab.tokenizers import byte_level

TARGET = byte_level(" turning", " left", " is", "ing", "é")
END = TARGET.eos_token_id


def lexicon(tokenizer=TARGET) -> TokenTable:
    return read_token_table(tokenizer, len(tokenizer), [tokenizer.eos_token_id])


def ids(*texts: str) -> list[int]:
    """One id for each text."""
    words = lexicon()
    return [words.ids[text.encode()] for text in texts]


def drafted(committed: list[int], text: bytes, *, ended: bool = False) -> list[int]:
    return [node.token for node in continuation(lexicon(), committed, text, ended=ended)]


def test_the_last_token_waits_for_more_text():
    """The drafter wrote " is turn" so far: " turn" may become " turning"."""
    assert drafted([], b" is turn") == ids(" is")
    assert drafted([], b" is turning left") == ids(" is", " turning")
    assert drafted([], b" is") == drafted([], b"") == []


def test_behind_the_end_nothing_is_open():
    assert drafted([], b" is turn", ended=True) == [*ids(" is", " turn"), END]
    assert drafted([], b"", ended=True) == [END]


def test_a_merge_across_the_edge_leaves_the_committed_tokens_alone():
    """The target said " turn" and could have said " turning"; what follows is "ing", not a word it has half said."""
    assert drafted(ids(" is", " turn"), b"ing left is") == ids("ing", " left")


def test_a_word_is_read_behind_its_beginning():
    """ " tu" + "rni" would be read " turni", but " tu" is said; and " t" + "rx" leaves " t" as it is."""
    assert drafted(ids(" tu"), b"rni is") == ids("r", "n", "i")
    assert drafted(ids(" t"), b"rx is") == ids("r", "x")


def test_half_a_character_is_not_offered():
    text = " is é".encode()
    assert drafted([], text[:-1]) == ids(" is")[:1]
    assert drafted([], text[:-1], ended=True) == ids(" is")  # the end is not where the text ends
    assert drafted([], text, ended=True) == [*ids(" is", " ", "é"), END]
    assert complete_text(text[:-1]) == (" is ", 4)


def test_ends_count_bytes():
    assert continuation(lexicon(), [], " isé left".encode()) == [
        TargetToken(ids(" is")[0], 3),
        TargetToken(ids("é")[0], 5),
    ]


def test_what_the_tokenizer_would_say_otherwise_is_not_offered():
    """A target that reads "x" as "y": not one token of that, nor any after it."""
    words = lexicon()
    wrong = TokenTable(
        words.token_bytes, lambda text: words.encode(text.replace("x", "y")), words.ids, words.eos, words.eos_id
    )
    assert [node.token for node in continuation(wrong, [], b" isx left is")] == ids(" is")


# -- the drafter, round by round -----------------------------------------------------------------------------------

OWN = byte_level(" is", " tu", "rning", " left", "é", ".")
TEXTS = (" is turning left.",)


def drafter(texts=TEXTS) -> StringLevelMatch:
    model, own = as_drafter(bigram_model(OWN, texts, lead=":"), OWN)
    return StringLevelMatch(model, own, lexicon())


def propose(made, state, nodes=16):
    draft = made.propose([state], [Budget(nodes)])[0]
    assert len(draft.path_probs) == len(draft.tree)
    assert list(draft.path_probs) == sorted(draft.path_probs, reverse=True)
    return list(draft.tree.tokens)


def test_the_whole_answer_is_drafted_in_the_targets_tokens():
    made = drafter()
    state = made.begin([Request("What?")])[0]
    assert propose(made, state) == [*ids(" is", " turning", " left", "."), END]
    assert propose(made, state, 2) == ids(" is", " turning")


def test_ready_made_ids_are_the_targets_so_the_prompt_is_read():
    made = drafter()
    state = made.begin([Request("What?", inputs={"input_ids": torch.tensor([[len(OWN) + 7]])})])[0]
    assert propose(made, state) == [*ids(" is", " turning", " left", "."), END]


def test_what_the_target_confirms_is_kept_and_nothing_is_written_twice():
    made = drafter()
    state = made.begin([Request("What?")])[0]
    propose(made, state)
    fed = list(state.fed)
    made.commit([state], [VerifyOutput((0,), tuple(ids(" is", " turning")))])
    assert propose(made, state) == [*ids(" left", "."), END]
    assert state.fed == fed


def test_the_target_may_say_the_same_text_in_other_tokens():
    """ " turn" + "ing" for " turning": the text agrees, so does the draft after it."""
    made = drafter()
    state = made.begin([Request("What?")])[0]
    propose(made, state)
    made.commit([state], [VerifyOutput((0,), tuple(ids(" is", " turn")))])
    assert propose(made, state) == [*ids("ing", " left", "."), END]


@pytest.mark.parametrize("said", [(" left",), (" is", " left"), (" is", " t", "x", " is")])
def test_after_a_refusal_the_cache_is_that_of_a_fresh_reading(said):
    made = drafter()
    request = Request("What?")
    state = made.begin([request])[0]
    propose(made, state)
    made.commit([state], [VerifyOutput((), tuple(ids(*said)))])
    assert OWN.decode(state.own_ids).encode() == state.text == "".join(said).encode()
    propose(made, state)
    fresh = made.begin([request])[0]
    logits = made.logits_behind(fresh, state.fed)
    assert logits.allclose(state.last_logits, atol=1e-12)
    length = len(state.prompt) + len(state.fed)
    assert state.cache.lengths == fresh.cache.lengths == [length]
    for mine, other in zip(state.cache.layers, fresh.cache.layers, strict=True):
        assert mine.keys[:, :, :length].allclose(other.keys[:, :, :length], atol=1e-12)
        assert mine.values[:, :, :length].allclose(other.values[:, :, :length], atol=1e-12)


def test_inside_a_character_only_what_completes_it_is_offered():
    """The target says the first byte of an é; the drafter has the letter as one token."""
    made = drafter((" isé left.",))
    state = made.begin([Request("What?")])[0]
    words = lexicon()
    first, second = (words.ids[bytes([byte])] for byte in "é".encode())
    made.commit([state], [VerifyOutput((), (*ids(" is"), first))])
    assert state.own_bytes == 3
    assert propose(made, state) == [second, *ids(" left", "."), END]
    made.commit([state], [VerifyOutput((0,), (second, *ids(" left")))])
    assert propose(made, state) == [*ids("."), END]


def test_inside_a_character_that_the_drafter_does_not_write_it_is_silent():
    made = drafter()
    state = made.begin([Request("What?")])[0]
    first, second = (lexicon().ids[bytes([byte])] for byte in "é".encode())
    made.commit([state], [VerifyOutput((), (*ids(" is"), first))])
    assert propose(made, state) == []
    made.commit([state], [VerifyOutput((), (second,))])
    assert OWN.decode(state.own_ids).encode() == state.text == " isé".encode()


def test_the_target_begins_its_answers_as_it_does():
    """A target without a space in front: known after its first answer, and the next first draft is right."""
    made = drafter((" is turning left.",))
    state = made.begin([Request("What?")])[0]
    i, s = ids("i", "s")
    made.commit([state], [VerifyOutput((), (i, s))])
    assert propose(made, state, 1) == ids(" turning")
    state = made.begin([Request("What?")])[0]
    assert propose(made, state, 3) == [i, s, *ids(" turning")]


def test_a_chat_model_begins_without_a_space(monkeypatch):
    """Its prompt ends with a line break; the target's answer with a space in front is said without it."""
    monkeypatch.setattr(OWN, "chat_template", "{{ messages[0].content }}{{ '\\n' }}", raising=False)
    model, own = as_drafter(bigram_model(OWN, ["is turning left."], lead="\n"), OWN)
    made = StringLevelMatch(model, own, lexicon())
    state = made.begin([Request("What?")])[0]
    made.commit([state], [VerifyOutput((), tuple(ids(" is")))])
    assert (OWN.decode(state.own_ids), state.text) == ("is", b" is")
    assert propose(made, state, 2) == ids(" turning", " left")
    state = made.begin([Request("What?")])[0]
    assert propose(made, state, 2) == ids(" is", " turning")
