"""The shared vocabulary: lossless on any text, specials last, `<s>` in front."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.reference.tokenizer import (
    BOS,
    SPECIALS,
    PromptCodec,
    load_tokenizer,
    token_id,
    train_tokenizer,
)

TEXTS = ["USER: \nWhat is ahead? ASSISTANT: A red car is ahead of us.", "There is no cyclist on the road."] * 20
TOKENIZER = train_tokenizer(TEXTS, 400)


@given(st.text(max_size=60))
def test_any_text_survives_the_round_trip(text: str) -> None:
    if any(special in text for special in SPECIALS):
        return
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert TOKENIZER.decode(ids) == text
    assert all(i < token_id(TOKENIZER, BOS) for i in ids)


def test_specials_take_the_last_ids_and_bos_is_added() -> None:
    assert len(TOKENIZER) == 400
    assert TOKENIZER.convert_tokens_to_ids(list(SPECIALS)) == list(range(394, 400))
    assert TOKENIZER("a car")["input_ids"][0] == TOKENIZER.bos_token_id == token_id(TOKENIZER, BOS)
    assert TOKENIZER(" cyclist", add_special_tokens=False)["input_ids"] == [TOKENIZER.convert_tokens_to_ids("Ġcyclist")]


def test_saving_keeps_everything(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    text = "USER: <video>\nWhat is ahead? ASSISTANT:"
    assert again(text)["input_ids"] == TOKENIZER(text)["input_ids"]
    assert again.padding_side == "left"


def test_prefix_question_and_answer_join_to_the_whole_prompt() -> None:
    codec = PromptCodec(TOKENIZER, "<video>")
    video = TOKENIZER.convert_tokens_to_ids("<video>")
    joined = [*codec.prefix_ids(), video, *codec.question_ids("What is ahead?"), *codec.answer_ids("A red car.")]
    assert joined == TOKENIZER("USER: <video>\nWhat is ahead? ASSISTANT: A red car.</s>")["input_ids"]
    assert codec.text(codec.answer_ids("A red car.")) == "A red car."


def test_a_vocabulary_without_room_is_refused() -> None:
    with pytest.raises(CrossdraftError, match="at least 262"):
        train_tokenizer(TEXTS, 200)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CrossdraftError, match=r"No tokenizer\.json"):
        load_tokenizer(tmp_path)
