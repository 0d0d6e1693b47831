"""Choosing a rule by name and settings."""

import re
from pathlib import Path

import pytest

from crossdraft.engine.rules import RULES, rule_for
from crossdraft.engine.rules.typical import Typical
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError

COLD, WARM = Sampling(), Sampling(temperature=1.0)


def test_the_temperature_chooses_the_exact_rule():
    assert rule_for(None, COLD).name == "greedy"
    assert rule_for(None, WARM).name == "gumbel"
    assert rule_for(None, COLD).lossless
    assert rule_for(None, WARM).lossless


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_found_by_its_name_and_by_its_spec(name):
    rule = rule_for(name, COLD if RULES[name].greedy else WARM)
    assert rule == RULES[name]
    assert rule_for(rule.spec, COLD if rule.greedy else WARM) == rule


def test_settings():
    rule = rule_for("typical: delta = 0.5", WARM)
    assert rule.verify == Typical(eps=0.09, delta=0.5)
    assert rule.spec == "typical:eps=0.09,delta=0.5"
    assert not rule.lossless
    assert rule_for("relaxed:r=3", COLD).spec == "relaxed:r=3"
    assert RULES["typical"].spec == "typical:eps=0.09,delta=0.3"  # untouched
    assert rule_for("greedy", COLD).spec == "greedy"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("typicl", r"no acceptance rule 'typicl' \(did you mean 'typical'\?\); choose one of: greedy, gumbel"),
        ("zzz:eps=1", r"no acceptance rule 'zzz'; choose one of: greedy"),
        ("", "The acceptance rule '' lacks a name; write one such as greedy"),
        ("rejection:k=2", "'rejection' has no settings; write just 'rejection'"),
        ("typical:", "In the acceptance rule 'typical:' nothing follows the colon"),
        ("typical:0.1", "'typical' cannot read '0.1'; write its settings as in typical:eps=0.09,delta=0.3"),
        ("typical:epss=0.1", r"no setting 'epss' \(did you mean 'eps'\?\); its settings are: eps=0.09"),
        ("typical:eps=0.1,eps=0.2", "'typical:eps=0.1,eps=0.2' sets eps twice"),
        ("typical:eps=low", "got eps=low; eps must be a number"),
        ("typical:eps=2", "got eps=2.0; eps must be a number between 0 and 1"),
        ("typical:delta=nan", "got delta=nan; delta must be a number between 0 and 1"),
        ("fuzzy:threshold=0.7", "got threshold=0.7; threshold must be a number of at least 0 and below ln 2"),
        ("ears:tolerance=0", "got tolerance=0.0; tolerance must be a number above 0 and at most 1"),
        ("easd:overlap=0", "got overlap=0.0; overlap must be a number above 0 and at most 1"),
        ("easd:n=0", "got n=0; n must be a whole number of 1 or more"),
        ("judi:confidence=2", "got confidence=2.0; confidence must be a number between 0 and 1"),
        ("ensemble:w=1", "got w=1.0; w must be a number above 0 and below 1"),
        ("relaxed:r=2.5", "got r=2.5; r must be a whole number"),
        ("typical:eps=0.1@process", "'typical' runs in the engine; leave out '@process'"),
        ("relaxed:r=-1", "got r=-1; r must be a whole number of 0 or more"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_sentence(spec, message):
    with pytest.raises(CrossdraftError, match=message):
        rule_for(spec, WARM)


def test_the_page_shows_the_settings_of_every_rule():
    page = (Path(__file__).parents[3] / "docs" / "rules.md").read_text(encoding="utf-8")
    settings = {spec for spec in re.findall(r"`([a-z]+:[a-z]+=[^`]+)`", page) if "=" in spec}
    assert {rule.spec for rule in RULES.values() if ":" in rule.spec} <= settings
    for spec in settings:
        rule_for(spec, COLD if spec.startswith("relaxed") else WARM)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_does_not_fit_the_temperature_is_refused(name):
    wrong = WARM if RULES[name].greedy else COLD
    kind = "greedy" if RULES[name].greedy else "sampled"
    with pytest.raises(CrossdraftError, match=f"'{name}' does not fit temperature .*: it verifies {kind} answers"):
        rule_for(name, wrong)
