"""PaSS: the target reads learned embeddings, and its top tokens after them are the next draft."""

import pytest
import torch

from crossdraft.drafters.combine.union import UnionDrafter
from crossdraft.drafters.ngram.drafter import NgramDrafter
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.drafter import Budget, VerifyOutput
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import load_head, save_head
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.pass_.drafter import PassDrafter
from crossdraft.heads.pass_.network import LookaheadEmbeddings, PassConfig
from tests.engine.zoo import VOCABULARY, ZOO, as_target
from tests.heads.pass_.by_ids import LookaheadIds

REQUESTS = [Request("x" * i, max_new_tokens=8 + 6 * i) for i in range(1, 5)]


def rows_for(target, steps=3) -> LookaheadEmbeddings:
    config = PassConfig(hidden_size=64, vocab_size=VOCABULARY, num_layers=3, draft_ids=tuple(range(2, 97)), steps=steps)
    head = LookaheadEmbeddings(config, SharedWeights.of(target.model)).double()
    with torch.no_grad():
        head.ahead.add_(torch.randn(head.ahead.shape, generator=torch.Generator().manual_seed(3)))
    return head


def decoder(target, drafter, hidden="before", **options) -> DecodeLoop:
    cost = CostModel()
    return DecodeLoop(target, DraftRunner(drafter, hidden), cost=cost, **options)


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("name", ZOO)
def test_answers_are_the_targets_own(name, batch):
    target = as_target(*ZOO[name]())
    banned = sorted(target.reserved)
    alone = [answer.tokens for answer in DecodeLoop(target).generate(REQUESTS)]
    for drafter in (
        PassDrafter(rows_for(target), banned),
        UnionDrafter([NgramDrafter(), PassDrafter(rows_for(target), banned)]),
    ):
        found = decoder(target, drafter, adaptive=False, max_batch=batch).generate(REQUESTS)
        assert [answer.tokens for answer in found] == alone


def test_sampled_answers_are_the_targets_own_too():
    target = as_target(*ZOO["video_llava"]())
    requests = [Request("xx", max_new_tokens=20, sampling=Sampling(temperature=1.0, top_k=1))]
    alone = [answer.tokens for answer in DecodeLoop(target).generate(requests)]
    found = decoder(target, PassDrafter(rows_for(target)), adaptive=False).generate(requests)
    assert [answer.tokens for answer in found] == alone


def test_embeddings_of_ids_draft_what_the_ids_draft():
    """The rows of ids 60, 61, 62 as embeddings: round by round the same drafts as these ids."""
    target = as_target(*ZOO["video_llava"]())
    head = rows_for(target)
    with torch.no_grad():
        head.ahead.copy_(target.model.get_input_embeddings().weight[60:63])
    drafted: dict[str, list] = {}
    for name, drafter in (("ids", LookaheadIds((60, 61, 62))), ("rows", PassDrafter(head))):
        propose, kept = drafter.propose, drafted.setdefault(name, [])
        drafter.propose = lambda *inputs, propose=propose, kept=kept: kept.extend(found := propose(*inputs)) or found
        decoder(target, drafter, adaptive=False).generate(REQUESTS)
    assert [draft.tree for draft in drafted["ids"]] == [draft.tree for draft in drafted["rows"]]
    assert any(len(draft.tree) for draft in drafted["rows"])
    other = rows_for(target)
    assert not torch.equal(other.ahead, head.ahead)


def test_a_draft_keeps_its_budget_and_its_rows():
    target = as_target(*ZOO["video_llava"]())
    drafter = PassDrafter(rows_for(target), banned=[33])
    (state,) = drafter.begin([REQUESTS[0]])
    (draft,) = drafter.propose([state], [Budget(9)])
    assert len(draft.tree) == 0
    assert torch.equal(draft.probe_embeds, drafter.embeddings)
    drafter.commit([state], [VerifyOutput((), (5,), probe_top=((21,), (22,), (33,)))])
    (draft,) = drafter.propose([state], [Budget(1)])
    assert draft.tree.tokens == (21,)
    assert torch.equal(draft.probe_embeds, torch.cat((drafter.embeddings, drafter.embeddings)))
    assert len(draft.probes) <= drafter.needs.probes == 12
    assert drafter.propose([state], [Budget(9)])[0].tree.tokens == (21, 22)


def test_only_the_embeddings_are_stored(tmp_path):
    target = as_target(*ZOO["video_llava"]())
    head = rows_for(target)
    assert list(head.stored()) == ["ahead"]
    save_head(tmp_path, head, "pass", "of-this-target", torch.float32)
    again = load_head(tmp_path, SharedWeights.of(target.model), "of-this-target")
    assert torch.equal(again.ahead, head.ahead.float())
    with pytest.raises(CrossdraftError, match="steps is 0; it must be at least 1"):
        rows_for(target, steps=0)
    with pytest.raises(CrossdraftError, match="read by the target"):
        head(None)
