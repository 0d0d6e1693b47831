"""Prompt lookup: the drafter copies from the prompt, as the target reads it, and from the answer."""

import pytest

import crossdraft as cd
from crossdraft.drafters.ngram.drafter import NgramDrafter
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.prompt import GAP, PromptIds, known_ids
from crossdraft.engine.request import Request
from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.load import load_target, tokenizer_of

DOCUMENT = "A red car waits at the crossing while two people walk to the left."


@pytest.fixture(scope="module")
def target():
    return load_target("reference", "cpu", "float32")


def drafted(prompt, answer=(), nodes=9, **settings):
    drafter = NgramDrafter(**settings)
    states = drafter.begin([Request("?", prompt_ids=known_ids(prompt))])
    drafter.commit(states, [VerifyOutput((), tuple(answer))])
    return drafter.propose(states, [Budget(nodes)])[0].tree.tokens


@pytest.mark.parametrize(
    ("text", "longest", "nodes", "found"),
    [
        ([1, 2, 3, 1, 2], 3, 9, (3, 1, 2)),
        ([1, 2, 3, 4, 2, 5, 1, 2], 3, 1, (3,)),  # the longer match, though the shorter is newer
        ([1, 2, 3, 4, 2, 5, 1, 2], 1, 1, (5,)),
        ([1, 2, 3], 3, 9, ()),
        ([7, 7], 3, 9, (7,)),
        ([7], 3, 9, ()),
        ([], 3, 9, ()),
    ],
)
@pytest.mark.parametrize("committed", [0, 1])
def test_the_newest_of_the_longest_matches_is_copied(text, longest, nodes, found, committed):
    count = len(text) - committed if text else 0
    assert drafted(text[:count], text[count:], nodes, longest=longest) == found


def test_a_longer_match_is_copied_further():
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    assert drafted(text, [3], longest=3, copied=2) == (4, 5)
    assert drafted(text, [2, 3], longest=3, copied=2) == (4, 5, 6, 7)
    assert drafted(text, [2, 3], longest=3, copied=2, nodes=1) == (4,)


def test_nothing_visual_is_matched_across_or_drafted():
    assert drafted([1, 2, GAP, 4, 9, 2, 5], [1, 2]) == (5, 1, 2)  # the longer match has nothing to be copied behind it
    assert drafted([1, 2, 3, GAP, 4], [2]) == (3,)
    assert drafted([3, 1, 2, 5, 3, GAP, 1], [2]) == (5, 3)


def test_the_prompt_may_become_known_later():
    prompt = PromptIds()
    drafter = NgramDrafter()
    states = drafter.begin([Request("?", prompt_ids=prompt)])
    assert not len(drafter.propose(states, [Budget(4)])[0].tree)
    drafter.commit(states, [VerifyOutput((), (6, 7))])
    (fork,) = drafter.fork(states)
    prompt.set_result((6, 7, 8, 9))
    for state in (*states, fork):
        seen = []
        (draft,) = drafter.propose([state], [Budget(9, on_token=seen.append)])
        assert draft.tree.tokens == tuple(seen) == (8, 9, 6, 7)
        assert draft.tree.is_chain


class Shown(NgramDrafter):
    """Keeps what it drafted."""

    def __init__(self):
        super().__init__()
        self.drafts = []

    def propose(self, states, budgets):
        made = super().propose(states, budgets)
        self.drafts += [draft.tree.tokens for draft in made]
        return made


@pytest.mark.parametrize("hidden", ["off", "before", "beside"])
def test_a_document_of_the_first_turn_is_copied(hidden, target, clip):
    """It stands in the conversation, and the last message does not hold it."""
    tokenizer = tokenizer_of("reference")
    words = tokenizer.encode(" " + DOCUMENT, add_special_tokens=False)
    talk = [
        {"role": "user", "content": [{"type": "video", "video": str(clip.video)}, {"type": "text", "text": DOCUMENT}]},
        {"role": "assistant", "content": "Thank you."},
        {"role": "user", "content": "Repeat the text."},
    ]
    # The answer begins with a word of the document, for all other first words are forbidden.
    bias = tuple((token, -100.0) for token in range(target.vocab_size) if token != words[1])
    drafter = Shown()
    request = Request(messages=talk, max_new_tokens=9, sampling=cd.Sampling(logit_bias=bias))
    (answer,) = DecodeLoop(target, DraftRunner(drafter, hidden), adaptive=False).generate([request])
    assert answer.tokens[0] == words[1]
    assert tuple(words[2:8]) in [draft[:6] for draft in drafter.drafts]
    assert all(target.reserved.isdisjoint(draft) for draft in drafter.drafts)


def test_in_a_process_it_drafts_the_same():
    """The ids are sent as soon as they are known, and before anything is committed."""
    texts = [(1, 2, 3, GAP, 1), (4, 5, 6, 4)]
    found = []
    for drafter in (NgramDrafter(), ProcessDrafter(NgramDrafter)):
        prompts = [PromptIds() for _ in texts]
        states = drafter.begin([Request("?", prompt_ids=prompt) for prompt in prompts])
        for prompt, text in zip(prompts, texts, strict=True):
            prompt.set_result(text)
        drafter.commit(states, [VerifyOutput((), (2,)), VerifyOutput((), (5,))])
        found.append([draft.tree.tokens for draft in drafter.propose(states, [Budget(4)] * 2)])
        drafter.end(states)
        if isinstance(drafter, ProcessDrafter):
            drafter.close()
    assert found[0] == found[1] == [(3,), (6, 4, 5)]
