"""The memory as a drafter: what it learns, from whom, and for whom."""

import json
import random
import shutil
import struct
import zlib

import pytest

from crossdraft.drafters.memory.drafter import Datastores, MemoryDrafter, scope_of
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.prompt import GAP, known_ids
from crossdraft.engine.request import Request

QUESTION = Request("What is ahead?", video="clip.mp4")


def neighbours(count):
    """Answers of 20 tokens, of which each keeps most of the one before."""
    rng, text, answers = random.Random(0), list(range(20)), []
    for _ in range(count):
        text = [rng.randrange(1000) if rng.random() < 0.15 else token for token in text]
        answers.append(text)
    return answers


def answer(drafter, request, tokens):
    """Let the target say these tokens; returns the first three drafted at the beginning."""
    (state,) = drafter.begin([request])
    drafted = drafter.propose([state], [Budget(8)])[0]
    drafter.commit([state], [VerifyOutput((), tuple(tokens))])
    drafter.end([state])
    return drafted.tree.tokens[:3]


def test_an_answer_is_remembered_when_it_is_over():
    drafter = MemoryDrafter()
    assert answer(drafter, QUESTION, [1, 2, 3]) == ()
    assert answer(drafter, Request("what  is AHEAD?", video="other.mp4"), [1, 2, 3]) == (1, 2, 3)


def test_the_prompt_is_searched_and_never_remembered():
    """What followed the last tokens there is drafted; with one of them replaced, too; nothing behind a gap."""
    document = (*range(100, 130), GAP, *range(130, 140), 7)
    drafter = MemoryDrafter()
    for said, drafted in (((104, 105), (106, 107, 108)), ((104, 9), (106, 107, 108)), ((128, 129), ()), ((8,), ())):
        states = drafter.begin([Request("Repeat it.", prompt_ids=known_ids(document))])
        drafter.commit(states, [VerifyOutput((), said)])
        (draft,) = drafter.propose(states, [Budget(8)])
        assert draft.tree.main_path_tokens[:3] == drafted
        assert GAP not in draft.tree.tokens
    (other,) = drafter.begin([Request("Repeat it.")])
    drafter.commit([other], [VerifyOutput((), (104, 105))])
    assert not len(drafter.propose([other], [Budget(8)])[0].tree)


def test_namespaces_do_not_leak():
    drafter = MemoryDrafter()
    answer(drafter, Request("What is ahead?", namespace="one"), [1, 2, 3])
    assert answer(drafter, Request("What is ahead?", namespace="two"), [4]) == ()
    assert answer(drafter, QUESTION, [4]) == ()


def test_without_a_namespace_nothing_is_known_or_learned(tmp_path):
    drafter = MemoryDrafter(Datastores(tmp_path / "memory"))
    nobody = Request("What is ahead?", namespace=None)
    answer(drafter, nobody, [1, 2, 3])
    assert not (tmp_path / "memory").exists()
    answer(drafter, QUESTION, [1, 2, 3])
    assert answer(drafter, nobody, [4]) == ()


def test_namespaces_do_not_leak_through_files_either(tmp_path):
    answer(MemoryDrafter(Datastores(tmp_path)), Request("?", namespace="one"), [1, 2, 3])
    again = MemoryDrafter(Datastores(tmp_path))
    assert answer(again, Request("?", namespace="two"), [9]) == ()
    assert answer(again, Request("?", namespace="one"), [9]) == (1, 2, 3)


def test_the_least_used_namespace_makes_room():
    drafter = MemoryDrafter(Datastores(open_at_once=2))
    for name in "abc":
        answer(drafter, Request("?", namespace=name), [1, 2, 4])
    assert answer(drafter, Request("?", namespace="c"), [3]) == (1, 2, 4)
    assert answer(drafter, Request("?", namespace="a"), [3]) == ()


def test_faint_paths_are_not_drafted():
    drafter = MemoryDrafter()
    answer(drafter, QUESTION, [1, 2])
    answer(drafter, QUESTION, [1, 3])
    (state,) = drafter.begin([QUESTION])
    whole, sure = (drafter.propose([state], [Budget(8, least)])[0] for least in (0.0, 0.6))
    assert len(whole.tree) > len(sure.tree) >= 1
    assert min(sure.path_probs) >= 0.6


def test_the_main_path_is_reported():
    drafter, seen = MemoryDrafter(), []
    answer(drafter, QUESTION, [1, 2, 3])
    drafter.propose(drafter.begin([QUESTION]), [Budget(8, on_token=seen.append)])
    assert seen[:3] == [1, 2, 3]


def test_where_an_answer_belongs():
    assert scope_of(QUESTION) == scope_of(Request(" what is  ahead? ", video="./clip.mp4"))
    assert scope_of(QUESTION).clip != scope_of(Request("What is ahead?", video="b.mp4")).clip
    assert scope_of(Request("What is ahead?")).clip == 0


@pytest.mark.parametrize("name", ["../../etc", "a/b", "Ünï ☃", "\udc80", ".", "default", "x" * 5000, "a\0b"])
def test_a_namespace_may_be_called_anything(tmp_path, name):
    drafter = MemoryDrafter(Datastores(tmp_path / "memory", capacity=256))
    answer(drafter, Request("?", namespace=name), [1, 2, 3])
    again = MemoryDrafter(Datastores(tmp_path / "memory", capacity=256))
    assert answer(again, Request("?", namespace=""), [9]) == ()
    assert answer(again, Request("?", namespace=name), [9]) == (1, 2, 3)
    assert [entry.name for entry in tmp_path.iterdir()] == ["memory"]


def test_of_many_namespaces_few_are_held(tmp_path):
    """Each finds its own again when its turn comes."""
    datastores = Datastores(tmp_path, capacity=256, open_at_once=4)
    drafter = MemoryDrafter(datastores)
    for turn in range(2):
        for tenant in range(100):
            known = answer(drafter, Request("?", namespace=f"tenant {tenant}"), [tenant, 1, 2])
            assert known == ((tenant, 1, 2) if turn else ())
    assert datastores.held == 4


def test_what_is_no_text_has_a_number_too():
    assert scope_of(Request("?", video="\udcff.mp4")).clip > 0


def test_a_file_that_is_gone_costs_no_answer(tmp_path, caplog):
    """It is deleted under a running memory, which goes on without, knowing what it knew."""
    drafter = MemoryDrafter(Datastores(tmp_path / "answers"))
    answer(drafter, QUESTION, [1, 2, 3])
    assert answer(drafter, QUESTION, [1, 2, 3]) == (1, 2, 3)
    shutil.rmtree(tmp_path / "answers")
    assert answer(drafter, QUESTION, [1, 2, 3]) == (1, 2, 3)
    other = Request("What is behind?", video="other.mp4")
    answer(drafter, other, [4, 5, 6])
    assert answer(drafter, other, [4]) == (4, 5, 6)
    (received,) = caplog.messages
    assert "Cannot read the memory" in received


def test_an_answer_that_cannot_be_written_is_kept_here(tmp_path, caplog):
    drafter = MemoryDrafter(Datastores(tmp_path / "answers"))
    (state,) = drafter.begin([QUESTION])
    drafter.propose([state], [Budget(8)])
    shutil.rmtree(tmp_path / "answers")
    drafter.commit([state], [VerifyOutput((), (1, 2, 3))])
    drafter.end([state])
    assert answer(drafter, QUESTION, [4]) == (1, 2, 3)
    (received,) = caplog.messages
    assert "Cannot write the memory" in received


def test_a_file_that_cannot_be_made_costs_no_answer(tmp_path, caplog):
    """Nor one that is none of ours; here a file stands where the folder should be."""
    (tmp_path / "answers").write_text("")
    drafter = MemoryDrafter(Datastores(tmp_path / "answers"))
    answer(drafter, QUESTION, [1, 2, 3])
    assert answer(drafter, QUESTION, [4]) == (1, 2, 3)
    (received,) = caplog.messages
    assert "Cannot use the memory" in received


def test_a_file_of_version_1_is_read_and_its_exponent_learned(tmp_path):
    """Written here byte by byte, as every version so far has: no exponent stands in it."""
    head = {"format": "crossdraft answers", "version": 1, "vocabulary": "", "edition": "e"}
    content, (scope, answers) = json.dumps(head).encode() + b"\n", (scope_of(QUESTION), neighbours(60))
    for tokens in answers:
        body = struct.pack(f"<IQQ{len(tokens)}I", len(tokens), scope.clip, scope.question, *tokens)
        content += body + struct.pack("<I", zlib.crc32(body))
    (tmp_path / "default.answers").write_bytes(content)
    store = Datastores(tmp_path).store("")
    assert store.answers == 60
    assert store.recency.exponent >= 1.0


def test_a_file_written_anew_teaches_no_answer_twice(tmp_path):
    """It held twice what a store does; whoever goes on knows what a newcomer reads, and nothing but that."""
    datastores, scope = Datastores(tmp_path, capacity=512), scope_of(QUESTION)
    editions = set()
    for tokens in neighbours(120):
        datastores.add("", scope, tokens)
        ours = datastores.store("")
        editions.add(json.loads((tmp_path / "default.answers").read_bytes().partition(b"\n")[0])["edition"])
    theirs = Datastores(tmp_path, capacity=512).store("")
    assert len(editions) > 2
    assert ours.answers == theirs.answers
    assert (ours.tokens == theirs.tokens).all()
    assert (ours.recency._scores == theirs.recency._scores).all()
    assert ours.recency.exponent >= 1.0


def begun(drafter, request, tokens):
    """The state of an answer that is being written."""
    (state,) = drafter.begin([request])
    drafter.commit([state], [VerifyOutput((), tuple(tokens))])
    return state


def drafted(drafter, state, nodes=8):
    return drafter.propose([state], [Budget(nodes)])[0].tree.main_path_tokens


def test_answers_to_the_same_prompt_draft_for_each_other_while_they_are_written():
    """As far as the other one is, and no further; after it has ended, to its end."""
    drafter = MemoryDrafter()
    ahead, behind = begun(drafter, QUESTION, range(10, 16)), begun(drafter, QUESTION, [10, 11])
    assert drafted(drafter, behind) == (12, 13, 14, 15)
    assert drafted(drafter, ahead) == ()
    drafter.commit([ahead], [VerifyOutput((), (16, 17))])
    assert drafted(drafter, behind) == (12, 13, 14, 15, 16, 17)
    drafter.end([ahead])
    assert drafted(drafter, behind) == (12, 13, 14, 15, 16, 17)


def test_running_answers_are_drafted_from_by_the_same_prompt_and_namespace_alone():
    drafter = MemoryDrafter()
    keep = [
        begun(drafter, Request("What is ahead?", video="clip.mp4", namespace="other"), [10, 11, 12]),
        begun(drafter, Request("Is it red?", video="clip.mp4"), [10, 11, 12]),
        begun(drafter, Request("What is ahead?", video="another.mp4"), [10, 11, 12]),
        begun(drafter, Request("What is ahead?", video="clip.mp4", namespace=None), [10, 11, 12]),
    ]
    own = begun(drafter, QUESTION, [10])
    assert drafted(drafter, own) == ()
    keep.append(begun(drafter, QUESTION, [10, 20]))
    assert drafted(drafter, own) == (20,)


def test_a_fork_drafts_for_nobody_and_a_dropped_answer_is_forgotten():
    drafter = MemoryDrafter()
    own = begun(drafter, QUESTION, [10])
    (fork,) = drafter.fork([own])
    drafter.commit([fork], [VerifyOutput((), (11, 12))])
    assert drafted(drafter, own) == ()
    drafter.commit([own], [VerifyOutput((), (11, 12, 13))])
    assert drafted(drafter, fork) == ()  # nor does its original for it
    own = begun(drafter, Request("Which way?"), [10])
    dropped = begun(drafter, Request("Which way?"), [10, 13])
    assert drafted(drafter, own) == (13,)
    del dropped
    assert drafted(drafter, own) == ()


def test_what_most_running_answers_say_is_drafted_first():
    """Two of three go on with 7: SRT's share of the continuations that were counted."""
    drafter = MemoryDrafter()
    others = [begun(drafter, QUESTION, [1, 2, 3, last]) for last in (7, 8, 7)]
    own = begun(drafter, QUESTION, [1, 2, 3])
    draft = drafter.propose([own], [Budget(2)])[0]
    assert draft.tree.tokens == (7, 8)
    assert draft.path_probs[0] > 0.6 > draft.path_probs[1] > 0.3
    assert len(others) == 3
