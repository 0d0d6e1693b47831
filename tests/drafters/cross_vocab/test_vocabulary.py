"""Two tokenizers side by side, worked by hand and on the shipped vocabulary."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import crossdraft
from crossdraft.drafters.cross_vocab.vocabulary import TokenTable, map_vocabularies, read_token_table
from crossdraft.errors import CrossdraftError
from crossdraft.token_bytes import token_speller
from tests.drafters.cross_vocab.tokenizers import EOS, byte_level, byte_level_from, marks, sentencepiece

SHIPPED = Path(crossdraft.__file__).parent / "reference" / "target"


def lexicon(tokenizer: PreTrainedTokenizerFast, width: int | None = None, reserved: tuple[int, ...] = ()):
    end = tokenizer.convert_tokens_to_ids(EOS)
    return read_token_table(tokenizer, width or len(tokenizer), [end], reserved)


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_tokens_one_by_one_spell_what_all_of_them_do(make):
    tokenizer, text = make(" car", " cat"), "a car 🚗 ïs\n\ufffd."
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    spelt = [token_speller(tokenizer)(token) for token in tokens]
    assert b"".join(spelt).removeprefix(b" ") == text.encode()  # sentencepiece puts one in front
    assert all(bytes([byte]) in spelt for byte in "🚗".encode())


def test_what_both_spell_is_paired():
    """256 bytes; " c", " ca" and " car"; the ends."""
    own, other = byte_level(" cat", " car"), byte_level(" bus", " car")
    table = map_vocabularies(lexicon(own), lexicon(other))
    vocabulary, others = own.get_vocab(), other.get_vocab()
    assert table.shared == 256 + 3 + 1
    for token in ("a", "Ġc", "Ġca", "Ġcar", EOS):
        assert table.to_target[vocabulary[token]] == others[token]
        assert table.to_drafter[others[token]] == vocabulary[token]
    assert table.to_target[vocabulary["Ġcat"]] == table.to_drafter[others["Ġbus"]] == -1
    assert table.same_ids == 256  # there one has " c", the other " b"
    assert not table.identity


def test_space_marks_and_bytes_of_the_two_families_are_the_same_text():
    own, other = sentencepiece(" car", "car"), byte_level(" car", "ca")
    table = map_vocabularies(lexicon(own), lexicon(other))
    vocabulary, others = own.get_vocab(), other.get_vocab()
    for piece, token in (("▁car", "Ġcar"), ("▁", "Ġ"), ("<0x0A>", "Ċ"), ("<0xC3>", "Ã"), ("ca", "ca")):
        assert table.to_target[vocabulary[piece]] == others[token]
    assert table.to_target[vocabulary["car"]] == -1
    # "c" is a piece, and a byte; the piece is the one that stands for it.
    assert table.to_target[vocabulary["c"]] == others["c"]
    assert table.to_target[vocabulary["<0x63>"]] == -1


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_a_text_goes_on_where_another_ends(make):
    """No space comes in front, and the spelling is the text."""
    words = lexicon(make(" car", "car", " left"))
    for text in (" car left", "car", "s left", "\ncar", " né", ""):
        assert words.to_bytes(words.encode(text)) == text.encode()


def test_padded_heads_and_reserved_ids():
    tokenizer = byte_level(" car", " bus")
    size, reserved = len(tokenizer), tokenizer.get_vocab()["Ġbus"]
    target = lexicon(tokenizer, size + 3, (reserved,))
    table = map_vocabularies(lexicon(tokenizer, size + 7), target)
    assert (len(table.to_target), len(table.to_drafter)) == (size + 7, size + 3)
    assert set(table.to_target[size:]) | set(table.to_drafter[size:]) == {-1}
    assert table.to_target[reserved] == -1
    assert not table.identity  # the drafter could write what the target must not see
    assert map_vocabularies(lexicon(tokenizer, size + 7, (reserved,)), target).identity


def test_the_end_is_the_tokenizers_own():
    tokenizer = byte_level(" car")
    other = tokenizer.get_vocab()["a"]
    end = tokenizer.get_vocab()[EOS]
    assert read_token_table(tokenizer, len(tokenizer), [other, end]).eos_id == end
    assert read_token_table(tokenizer, len(tokenizer), [other]).eos_id == other


def test_the_shipped_vocabulary_next_to_a_small_one():
    """Every pair decodes to the same text after the same word, and no special token has a twin."""
    theirs = AutoTokenizer.from_pretrained(SHIPPED)
    corpus = [" There is a red car ahead of us, and it is keeping its distance. Ünïcode"] * 9
    own = byte_level_from(corpus, 320)
    ends = [theirs.eos_token_id]
    table = map_vocabularies(lexicon(own), read_token_table(theirs, len(theirs), ends))
    assert 256 + 1 < table.shared < len(own)
    assert table.to_target[own.convert_tokens_to_ids(EOS)] == ends[0]
    prefix, others = own.encode("a"), theirs.encode("a", add_special_tokens=False)
    for i, twin in enumerate(table.to_target):
        if twin >= 0 and twin not in ends:
            assert own.decode([*prefix, i]) == theirs.decode([*others, twin])
            assert twin not in theirs.all_special_ids


def test_what_decoding_does_not_confirm_is_left_out():
    """A byte-level vocabulary after a decoder that swallows a letter: those tokens spell nothing."""
    from tokenizers import decoders

    tokenizer = byte_level(" car", " cat")
    parts = [decoders.Replace("Ġcat", "Ġcow"), decoders.ByteLevel()]
    tokenizer.backend_tokenizer.decoder = decoders.Sequence(parts)
    spelling = lexicon(tokenizer).token_bytes
    vocabulary = tokenizer.get_vocab()
    assert spelling[vocabulary[marks(" car")]] == b" car"
    assert spelling[vocabulary[marks(" cat")]] is None


def test_vocabularies_without_a_common_token_are_refused():
    one = TokenTable((b"a",), lambda text: [0], {b"a": 0})
    two = TokenTable((b"b",), lambda text: [0], {b"b": 0})
    with pytest.raises(CrossdraftError, match="shares no token"):
        map_vocabularies(one, two)
