"""Text that grows: joined it is the full decode, a stop string takes nothing back, the cost is linear."""

import json
from functools import lru_cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.generation.stopping_criteria import StopStringCriteria

from crossdraft.engine.detokenize import BROKEN, LONGEST_RUN, WINDOW, AnswerText, Detokenizer, TokenText
from crossdraft.load import token_text, tokenizer_of
from crossdraft_lab.train.reference.tokenizer import train_tokenizer

WORDS = "a van is ahead of us, the purple van; café 東京 🚗 naïve \n\n  two  spaces?! <s> van."


def sentencepiece() -> PreTrainedTokenizerFast:
    """As Llama's: words begin with ▁, a character without a token is spelt in bytes, the first space is dropped."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *sorted(set("avniheduospcfrl,.;?!tw"))]
    merges = [("▁", "v"), ("▁v", "a"), ("▁va", "n"), ("a", "h"), ("▁", "a"), ("e", "a"), ("p", "u")]
    pieces += [left + right for left, right in merges]
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, merges, byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(piece, special=True) for piece in ("<s>", "</s>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


@lru_cache
def tokenizer(name: str):
    if name == "reference":
        return tokenizer_of("reference")
    return train_tokenizer([WORDS] * 4, 330) if name == "bytes" else sentencepiece()


@lru_cache
def text_of(name: str) -> TokenText:
    return token_text(tokenizer(name))


@lru_cache
def cleaned(name: str) -> dict:
    """What transformers reads of each token."""
    mode = StopStringCriteria._get_stop_string_matching_mode(tokenizer(name))
    tokens, ids = StopStringCriteria.clean_tokenizer_vocab(tokenizer(name), stop_string_matching_mode=mode)
    return dict(zip(ids, tokens, strict=True))


class SomeTokens(StopStringCriteria):
    """transformers' own, whose table holds some tokens alone: of a whole vocabulary it takes 0.1 s for each case."""

    def __init__(self, name: str, stops: list[str], tokens: set[int]):
        self.tokens = {token: cleaned(name)[token] for token in tokens}
        super().__init__(tokenizer(name), stops)

    def clean_and_embed_tokens_with_cache(self, token_list, token_indices, tokenizer):
        tokens, ids = [*self.tokens.values()], [*self.tokens]
        return self._stop_string_create_embedding_vec(tokens, ids, self._stop_strings_for_matching)


NAMES = ("reference", "bytes", "sentencepiece")


@st.composite
def token_runs(draw, name: str):
    """Random ids, encoded words, and words spelt byte by byte: whole characters and broken ones."""
    found = tokenizer(name)
    parts = st.one_of(
        st.lists(st.integers(0, len(found) - 1), max_size=8),
        st.lists(st.sampled_from(sorted(text_of(name).byte_fallback) or [0]), max_size=8),
        st.sampled_from([found.encode(word, add_special_tokens=False) for word in WORDS.split(" ")]),
    )
    return [token for part in draw(st.lists(parts, max_size=12)) for token in part]


def cuts(tokens: list[int], positions: list[int]) -> list[list[int]]:
    edges = sorted({0, len(tokens), *(position % (len(tokens) + 1) for position in positions)})
    return [tokens[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), positions=st.lists(st.integers(0, 99), max_size=30))
@settings(max_examples=150)
def test_pieces_joined_are_the_full_decode(name, data, positions):
    text, tokens = text_of(name), data.draw(token_runs(name))
    before = tokenizer(name).encode("USER: <s> is that ASSISTANT:") if data.draw(st.booleans()) else []
    detokenizer = Detokenizer(text, before)
    joined = "".join(detokenizer.push(part) for part in cuts(tokens, positions)) + detokenizer.flush()
    assert joined.lstrip(" ") == text.decode(tokens).lstrip(" ")
    answer = AnswerText(text, (), before)
    shown = "".join(answer.push(part) for part in cuts(tokens, positions)) + answer.flush()
    assert shown == text.decode(tokens).lstrip(" ").rstrip(BROKEN)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), prompt=st.sampled_from(["is a", "USER: what? ASSISTANT:", "is a v"]))
@settings(max_examples=150)
def test_stop_strings_are_found_where_transformers_finds_them(name, data, prompt):
    """Also one that begins with a space, inside a token, in the prompt, or is a special token's."""
    found, tokens = tokenizer(name), data.draw(token_runs(name))
    sensible = text_of(name).decode(tokens)
    ends = st.sampled_from([" ", "van", "n", " a", "e v", "</s>", "purple van", ", ", "東", "é "])
    if sensible and BROKEN not in sensible:
        ends |= st.integers(0, len(sensible) - 1).map(lambda at: sensible[at : at + 3])
    stops = data.draw(st.lists(ends, min_size=1, max_size=3, unique=True))
    before = found.encode(prompt)
    criteria = SomeTokens(name, stops, {*before, *tokens, *found.encode("".join(stops))})
    wanted = next(
        (
            size
            for size in range(1, len(tokens) + 1)
            if bool(criteria(torch.tensor([[*before, *tokens[:size]]]), None)[0])
        ),
        None,
    )
    answer, at, shown = AnswerText(text_of(name), stops, before, spelt=True), None, ""
    for size, token in enumerate(tokens, 1):
        shown += answer.push((token,))
        if answer.stopped:
            at = size
            break
    shown += answer.flush()
    if BROKEN in text_of(name).decode(tokens):
        return  # transformers matches bytes, which are no text here
    assert at == wanted
    if at is not None:
        whole = text_of(name).decode(tokens[:at]).lstrip(" ").rstrip(BROKEN)
        assert whole.startswith(shown)
        assert not any(stop in shown for stop in stops)


def spelt(text: str) -> tuple[TokenText, list[int]]:
    """One token per character."""
    return TokenText(lambda tokens: "".join(map(chr, tokens))), [ord(char) for char in text]


def test_what_may_become_a_stop_string_is_held_back():
    text, tokens = spelt("a purple vase, a purple van")
    answer = AnswerText(text, ("purple van",))
    shown = [answer.push((token,)) for token in tokens]
    assert shown[:11] == ["a", " ", *[""] * 9]  # "purple va" may still go on to be the stop string
    assert shown[11] == "purple vas"
    assert answer.stopped
    assert "".join(shown) + answer.flush() == "a purple vase, a "


def longest_beginning(text: str, stop: str) -> int:
    """How much of a stop string may end a text that does not hold it."""
    return next(size for size in range(len(stop) - 1, -1, -1) if text.endswith(stop[:size]))


@given(
    prompt=st.text("ab", max_size=9),
    parts=st.lists(st.text("ab", min_size=1, max_size=4), max_size=9),
    stops=st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=4),
)
@settings(max_examples=500)
def test_stop_strings_that_overlap_themselves_and_each_other(prompt, parts, stops):
    """As looking through all of the text at every token would find them; a token completes several at a time."""
    words = dict(enumerate(parts))
    text = TokenText(lambda tokens: "".join(words.get(token, chr(token)) for token in tokens))
    answer = AnswerText(text, stops, [ord(char) for char in prompt], spelt=True)
    shown, whole = "", prompt
    for token, part in words.items():
        shown += answer.push((token,))
        old, whole = len(whole), whole + part
        begins = [at for stop in stops if (at := whole.find(stop, max(0, old - len(stop) + 1))) >= 0]
        held = max(longest_beginning(whole, stop) for stop in stops)
        certain = min(begins) if begins else len(whole) - held
        assert answer.stopped == bool(begins)
        assert shown == whole[len(prompt) : certain]
        if begins:
            return
    assert shown + answer.flush() == whole[len(prompt) :]


class CountedText(str):
    """A text that counts the characters of it that are looked at."""

    looked_at = 0

    def __getitem__(self, key):
        found = super().__getitem__(key)
        CountedText.looked_at += len(found)
        return found


def test_a_long_stop_string_costs_no_more_for_a_token_than_a_short_one():
    """Also one that the end of a prompt might begin at every place of."""
    CountedText.looked_at = 0
    text, tokens = spelt("ab" * 1000)
    stops = (CountedText("ab" * 1500 + "c"), CountedText("x" * 3000))
    answer = AnswerText(text, stops, tokens, spelt=True)
    for token in tokens:
        assert answer.push((token,)) == ""
    assert answer.flush() == "ab" * 1000
    assert CountedText.looked_at < 10 * (2 * 3000 + 2 * len(tokens))


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), prompt=st.sampled_from(["a", "USER: what? ASSISTANT:", "is a v", "van \n"]))
@settings(max_examples=200)
def test_stop_strings_are_found_in_what_the_reader_sees(name, data, prompt):
    """And nowhere else: cut where the text holds one first, else whole; however many tokens come at a time."""
    found, tokens = tokenizer(name), data.draw(token_runs(name))
    text = text_of(name)
    whole = AnswerText(text, ("\0never",), found.encode(prompt))  # eager, as with any stop string
    visible = whole.push(tokens) + whole.flush()
    ends = st.sampled_from([" ", "van", "n", " a", "e v", "purple van", ", ", "東", "\n\n", ": a", "é "])
    if visible:
        ends |= st.integers(0, len(visible) - 1).map(lambda at: visible[at : at + 3])
    stops = data.draw(st.lists(ends.filter(lambda stop: BROKEN not in stop), min_size=1, max_size=3, unique=True))
    positions = data.draw(st.lists(st.integers(0, 99), max_size=30))
    answer = AnswerText(text, stops, found.encode(prompt))
    shown = ""
    for part in cuts(tokens, positions):
        shown += answer.push(part)
        assert visible.startswith(shown)  # what was shown is not taken back
    shown += answer.flush()
    first = min((visible.index(stop) + len(stop) for stop in stops if stop in visible), default=None)
    assert answer.stopped == (first is not None)
    if first is None:
        assert shown == visible
    else:
        assert not any(stop in shown for stop in stops)
        begins = [at for at in range(len(visible)) if visible.startswith(tuple(stops), at)]
        assert shown in {visible[:at].rstrip(BROKEN) for at in begins}


def test_a_special_token_within_a_stop_string_does_not_hide_it_and_the_prompt_completes_none():
    text = TokenText(lambda tokens: "".join(map(chr, tokens)), {7: "<end>", 8: "<im>"})
    cases = {
        ("ab", (97, 7, 98)): ("", True),  # the reader sees "ab"
        ("<im>", (97, 8, 98)): ("a", True),  # which is what a special token is called
        ("x<im>", (120, 8, 98)): ("xb", False),  # this is seen nowhere
        ("\n\n", (10, 98)): ("\nb", False),  # the prompt ends in "\n"
        (" a", (32, 97)): ("a", False),  # spaces in front are not shown
        ("<im>", (60, 105, 109, 62, 98)): ("", True),  # spelt out
    }
    for (stop, tokens), wanted in cases.items():
        answer = AnswerText(text, (stop,), (97, 10))
        assert (answer.push(tokens) + answer.flush(), answer.stopped) == wanted, stop


def test_what_was_held_back_is_shown_if_the_answer_ends_without_it():
    text, tokens = spelt("a purple v")
    answer = AnswerText(text, ("purple van",))
    assert "".join(answer.push((token,)) for token in tokens) == "a "
    assert answer.flush() == "purple v"
    assert answer.flush() == ""


@pytest.mark.parametrize(
    ("decoded", "shown"), [(" Two cars", "Two cars"), ("caf\ufffd", "caf"), ("a  b ", "a  b "), ("", "")]
)
def test_text_is_shown_without_leading_space_and_broken_characters(decoded, shown):
    text, tokens = spelt(decoded)
    for answer in (AnswerText(text), AnswerText(text, spelt=True), AnswerText(text, ("x",), spelt=True)):
        assert answer.push(tokens) + answer.flush() == shown


def test_a_special_token_is_not_shown_but_ends_an_answer():
    text = TokenText(lambda tokens: "".join(map(chr, tokens)), {7: "<end>"})
    answer = AnswerText(text, ("<end>",))
    assert "".join(answer.push((token,)) for token in (65, 7, 66)) == "A"
    assert answer.stopped


@pytest.mark.parametrize("name", NAMES)
def test_the_cost_is_linear(name):
    """Not one decode is longer than a few windows, and there are two for a token at most."""
    text, sizes = text_of(name), []

    def decode(tokens):
        sizes.append(len(tokens))
        return text.decode(tokens)

    watched = AnswerText(TokenText(decode, text.special, text.byte_fallback), ("never",))
    tokens = tokenizer(name).encode(WORDS, add_special_tokens=False) * 20 + [*sorted(text.byte_fallback)[128:150] * 20]
    for token in tokens:
        watched.push((token,))
    assert len(tokens) > 400
    assert len(sizes) <= 2 * len(tokens) + 2
    assert max(sizes) <= 2 * WINDOW + LONGEST_RUN


def test_special_and_byte_tokens_are_known():
    text = text_of("sentencepiece")
    assert set(text.special.values()) == {"<s>", "</s>"}
    assert len(text.byte_fallback) == 256
    assert json.loads(tokenizer("sentencepiece").backend_tokenizer.to_str())["model"]["byte_fallback"]
    assert not text_of("reference").byte_fallback
