"""Where old text is taken to go on."""

from crossdraft.drafters.independent import LONGEST, MOST, SHORTEST, DraftReuse

OLD = DraftReuse().rejected([1, 2, 3, 4, 5, 3, 9])


def candidate(old: DraftReuse, *written: int, most: int = 99) -> list[int]:
    return old.candidates(written, most)[1]


def test_the_last_word_was_put_at_anothers_position():
    assert candidate(OLD, 8, 7) == [2, 3, 4, 5, 3, 9]
    assert candidate(OLD, 7) == [2, 3, 4, 5, 3, 9]


def test_behind_the_nearest_position_further_on_where_the_last_two_words_stand():
    assert candidate(OLD, 3, 4) == [5, 3, 9]


def test_else_behind_any_such_position():
    moved, _ = OLD.candidates([5, 3], 99)
    assert moved.at == 6
    assert candidate(moved, 2, 3) == [4, 5, 3, 9]


def test_no_more_is_proposed_than_fits():
    assert candidate(OLD, 3, 4, most=2) == [5, 3]
    assert candidate(DraftReuse(), 3, 4) == []


def test_failures_make_drafts_short_and_success_makes_them_long():
    failed = OLD.after(offered=6, held=0)
    assert failed.length == SHORTEST
    assert candidate(failed, 3, 4) == [5, 3]
    assert failed.after(offered=2, held=2).length == 2 * SHORTEST
    assert OLD.after(offered=6, held=6).length == LONGEST
    assert OLD.after(offered=6, held=4).length == 4
    assert OLD.after(offered=0, held=0) == OLD


def test_what_held_is_behind_us():
    received = OLD.candidates([8, 7], 99)[0].after(offered=6, held=2)
    assert candidate(received, 3, 6) == [5, 3]  # after the word that was written in the place of 4


def test_older_texts_stay_behind_newer_ones_but_not_for_ever():
    older = OLD.rejected([7] * MOST)
    assert older.tokens[MOST:] == OLD.tokens
    assert len(older.rejected([8]).tokens) == 1 + MOST
