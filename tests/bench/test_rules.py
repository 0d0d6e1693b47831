"""What acceptance rules keep, and what they do to answers."""

import pytest

from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.rules import RulesBench, compare_rules, facts_figures, right_facts
from crossdraft_lab.bench.workload import Item, Workload, items


def test_the_share_of_facts_by_hand():
    """3 of 4 facts, the target alone 2 of 4; the first pair has none right, the second three of three."""
    share, against = facts_figures([0, 3], [1, 1], [1, 3])
    assert share.value == pytest.approx(0.75)
    assert against.value == pytest.approx(0.25)
    assert (share.low, share.high) == (0, 1)


class Decoding:
    """Tokens are letters."""

    def decode(self, tokens):
        return "".join(map(chr, tokens))


def test_facts_are_looked_for_in_the_decoded_answer():
    pair = Item(0, "light", Request("?"), {"light": "red", "sign": "none"})
    assert right_facts(Decoding(), pair, [*map(ord, "A red light, and no sign.")]) == 2
    assert right_facts(Decoding(), pair, [*map(ord, "A green light, and no sign.")]) == 1
    assert right_facts(Decoding(), pair, []) == 0


def test_every_pair_says_what_a_right_answer_says():
    work = Workload(pairs=9, max_new_tokens=4)
    assert all(pair.facts for pair in items(work))


def test_the_shipped_classifier_is_for_the_reference_target_alone():
    ours, theirs = (RulesBench(Models(name), Workload(2, temperature=1.0)).specs for name in ("reference", "a/folder"))
    assert set(ours) - set(theirs) == {"judge"}


@pytest.mark.parametrize(
    ("rules", "temperature", "part"),
    [
        (["greedy"], 1.0, "does not fit temperature"),
        (["ears", "ears"], 1.0, "named twice"),
        (["judy"], 1.0, "did you mean 'judi'"),
        (["rejection"], 0.0, "does not fit temperature 0"),
    ],
)
def test_what_cannot_be_compared_is_refused_first(rules, temperature, part):
    with pytest.raises(CrossdraftError, match=part):
        RulesBench(Models("nowhere"), Workload(2, temperature=temperature), rules)


def test_a_lossy_rule_keeps_more_and_is_named(pair):
    models = Models(str(pair.target), str(pair.event), str(pair.blind), device="cpu", dtype="float32")
    plan = RulesBench(models, Workload(pairs=3, max_new_tokens=24, temperature=1.0), ["rejection", "ears:tolerance=1"])
    ticks = []
    alone, exact, lossy = compare_rules(plan, models.load_target(), ticks.append)
    assert len(ticks) == plan.runs == 9
    assert (alone.rule, exact.rule, lossy.rule) == ("target", "rejection", "ears:tolerance=1.0")
    assert (alone.lossless, exact.lossless, lossy.lossless) == (True, True, False)
    assert alone.tau.value == 1 < exact.tau.value < lossy.tau.value
    assert alone.facts_gained.value == 0
    assert lossy.to_json()["lossless"] is False
