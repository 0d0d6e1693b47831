"""A drafter that reads a tenth of the clip, where the target's question looks."""

import pytest
import torch

from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.drafter import Budget
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.errors import CrossdraftError
from crossdraft_lab.drafters.guided.drafter import GuidedDrafter, attention_scores, decoder_of, kept_positions
from tests.engine.zoo import VIDEO, ZOO, as_target, noisy
from tests.support import encodes_clips

pytestmark = encodes_clips

REQUESTS = [Request("x" * i, max_new_tokens=4 + 4 * i) for i in range(1, 4)]


@pytest.fixture(scope="module")
def target():
    return as_target(*ZOO["video_llava"]())


@pytest.fixture(scope="module")
def kin():
    model, prompt = ZOO["video_llava"]()
    return as_target(noisy(model, 1e-3), prompt)


@pytest.fixture(scope="module")
def alone(target):
    return [answer.tokens for answer in DecodeLoop(target).generate(REQUESTS)]


def answers(target, drafter, batch=1):
    cost = CostModel()
    decoder = DecodeLoop(target, DraftRunner(drafter, "off"), cost=cost, max_batch=batch, adaptive=False)
    return decoder.generate(REQUESTS)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("keep", [0.1, 0.5])
def test_greedy_answers_are_the_targets_own(target, kin, alone, keep, batch):
    found = answers(target, GuidedDrafter(kin, target, keep=keep), batch)
    assert [answer.tokens for answer in found] == alone
    assert not any(answer.other_notes for answer in found)


def test_of_a_whole_clip_the_target_itself_drafts_all(target, alone):
    """With all tokens kept the drafter is the target: all is accepted but what it may not say. A tenth is another."""
    banned = target.reserved
    whole = answers(target, GuidedDrafter(target, target, keep=1.0))
    assert [answer.tokens for answer in whole] == alone
    few = answers(target, GuidedDrafter(target, target))
    assert [answer.tokens for answer in few] == alone
    taus = [sum(answer.stats.tau for answer in found) for found in (whole, few)]
    assert taus[0] > taus[1]
    assert all(answer.stats.accepted == answer.stats.drafted for answer in whole if not banned & {*answer.tokens})


@torch.inference_mode()
def test_it_drafts_what_the_model_says_of_the_pruned_prompt(target, kin):
    """The tokens that stay are those of one plain pass of the target; the draft is plain greedy after them."""
    drafter, read = GuidedDrafter(kin, target), []
    read_on = kin.extend

    def recording(cache, rows):
        read.append(rows[0].chunk)
        return read_on(cache, rows)

    kin.extend = recording
    answers(target, drafter)
    del kin.extend
    prompt = target.prepare(REQUESTS[0])
    pixels = prompt.features["pixel_values_videos"].double()
    out = target.model(input_ids=prompt.input_ids[None], pixel_values_videos=pixels, output_hidden_states=True)
    seen = (prompt.input_ids == VIDEO).nonzero()[:, 0]
    asking = torch.arange(int(seen[-1]) + 1, len(prompt))
    entering = {layer: out.hidden_states[layer][0] for layer in range(3)}
    kept = kept_positions(attention_scores(decoder_of(target.model), entering, asking, seen))
    assert len(kept) == 4
    whole = kin.encode(prompt)["video"].pooler_output.flatten(0, -2)
    assert torch.allclose(read[0].encoded["video"].pooler_output, whole[kept])
    assert read[0].tokens.tolist() == [1, 5, 6, *[VIDEO] * 4, *prompt.input_ids[asking].tolist()]


def test_before_the_target_has_read_there_is_nothing_to_draft(target, kin):
    drafter = GuidedDrafter(kin, target)
    states = drafter.begin(REQUESTS)
    assert not any(len(draft.tree) for draft in drafter.propose(states, [Budget(5)] * 3))
    assert not drafter.needs.nothing


def test_a_fork_goes_its_own_way(target, kin):
    drafter = GuidedDrafter(kin, target)
    received = []
    commit = drafter.commit

    def recording(states, outputs):
        commit(states, outputs)
        received.append(states[0])

    drafter.commit = recording
    answers(target, drafter)
    state = received[0]
    (fork,) = drafter.fork([state])
    before = list(state.inner.pending)
    drafter.propose([fork], [Budget(9)])
    assert state.inner.pending == before


def test_what_does_not_fit_is_named(target, kin):
    with pytest.raises(CrossdraftError, match="layers 0 to 2"):
        GuidedDrafter(kin, target, layers=[3])
    with pytest.raises(CrossdraftError, match="part of a clip"):
        GuidedDrafter(as_target(*ZOO["qwen2_5_vl"]()), target)
    other = GuidedDrafter(as_target(*ZOO["llava_next_video"]()), target)
    assert "4 visual tokens, the target as 40" in answers(target, other)[0].other_notes[0]
