"""Acceptance rules: which path of a draft tree the target keeps, and the token it adds behind it. One file each.

Lossless rules give the target's own answer, in distribution when sampling. Lossy ones are opt-in, and whatever shows
their answers says so.
"""

from collections.abc import Mapping
from types import MappingProxyType

from crossdraft.checks import text
from crossdraft.engine.accept import Rule
from crossdraft.engine.rules import block, greedy, kseq, specinfer, speculative
from crossdraft.engine.rules.ensemble import Ensemble
from crossdraft.engine.rules.fuzzy import Fuzzy
from crossdraft.engine.rules.relaxed import Relaxed
from crossdraft.engine.rules.spec import parse
from crossdraft.engine.rules.typical import Typical
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            Rule("greedy", lossless=True, greedy=True, judge=greedy.judge),
            Rule("speculative", lossless=True, greedy=False, judge=speculative.judge),
            Rule("specinfer", lossless=True, greedy=False, judge=specinfer.judge),
            Rule("kseq", lossless=True, greedy=False, judge=kseq.judge, chains=True),
            Rule("block", lossless=True, greedy=False, judge=block.judge, chains=True),
            Rule("typical", lossless=False, greedy=False, judge=Typical()),
            Rule("fuzzy", lossless=False, greedy=False, judge=Fuzzy()),
            Rule("ensemble", lossless=False, greedy=False, judge=Ensemble()),
            Rule("relaxed", lossless=False, greedy=True, judge=Relaxed()),
        )
    }
)


def check_rule(spec: str | None) -> Rule | None:
    """The rule of that name and settings, which may or may not fit a request; `None` of `None`.

    Raises:
        CrossdraftError: no rule or setting has the name, or a value is out of range.
    """
    return None if spec is None else parse(text("rule", spec, "typical:eps=0.05"), RULES)


def rule_for(spec: str | None, sampling: Sampling) -> Rule:
    """The rule of that name and settings, such as `typical:eps=0.05`; `None` = the exact one for the temperature.

    Raises:
        CrossdraftError: no rule or setting has the name, a value is out of range, or the rule does not fit the
            temperature.
    """
    if spec is None:
        return RULES["greedy" if sampling.greedy else "speculative"]
    rule = parse(spec, RULES)
    if rule.greedy != sampling.greedy:
        kind = "greedy answers (temperature 0)" if rule.greedy else "sampled answers (a temperature above 0)"
        raise CrossdraftError(
            f"The acceptance rule '{rule.name}' does not fit temperature {sampling.temperature or 0}: it judges "
            f"{kind}; name no rule, and the exact one is taken."
        )
    return rule
