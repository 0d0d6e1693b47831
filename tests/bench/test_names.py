"""Lists of names from the command line."""

import pytest

from crossdraft.bench.names import check_names, listed, numbers
from crossdraft.errors import CrossdraftError


@pytest.mark.parametrize(
    ("text", "names"), [(None, ()), ("", ()), ("hf", ("hf",)), ("hf, event", ("hf", "event")), ("hf,", ("hf", ""))]
)
def test_lists(text, names):
    assert listed(text) == names


def test_known_names_pass():
    check_names("method", ("hf", "event"), ("target", "hf", "event"))


def test_an_unknown_name_is_told_with_the_nearest_known_one():
    with pytest.raises(CrossdraftError) as told:
        check_names("method", ("hf", "evnt"), ("target", "hf", "event"))
    assert str(told.value) == "Unknown method 'evnt' (did you mean 'event'?); choose among target, hf, event."


def test_a_name_that_is_near_to_none_gets_no_suggestion():
    with pytest.raises(CrossdraftError, match=r"^Unknown method 'xyz'; choose among target, hf\.$"):
        check_names("method", ("xyz",), ("target", "hf"))


def test_numbers():
    assert numbers("--temperatures", "0,0.7") == (0, 0.7)
    assert numbers("--temperatures", "") == ()


@pytest.mark.parametrize("text", ["hot", "0,", "0;1"])
def test_what_is_no_list_of_numbers(text):
    with pytest.raises(CrossdraftError, match=f"--temperatures is '{text}', no list of numbers"):
        numbers("--temperatures", text)
