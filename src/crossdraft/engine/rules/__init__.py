"""Acceptance rules, one file each: a rule decides which path of a draft tree is kept, and which token follows it.

A lossless rule gives the target's own answer, when sampling in distribution. Lossy rules are opt-in, and their answers
are marked as lossy.
"""

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING

from crossdraft.checks import did_you_mean, text
from crossdraft.engine.accept import Rule, TrainedRule
from crossdraft.engine.rules import greedy, gumbel, rejection
from crossdraft.engine.rules.typical import Typical
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError
from crossdraft.plugins import Table, more_to_install
from crossdraft.specs import NoSettings, parse, read_settings

if TYPE_CHECKING:
    from crossdraft.engine.target import Target

KIND = "acceptance rule"
NO_LOGITS = (
    "The acceptance rule '{}' reads the target's own logits; leave out settings that need a logits processor for each "
    "context, such as typical_p or no_repeat_ngram_size."
)
OWN = (
    Rule("greedy", lossless=True, greedy=True, verify=greedy.verify, invariant=True, paper="Stern et al. 2018"),
    Rule(
        "gumbel", lossless=True, greedy=False, verify=gumbel.verify, invariant=True,
        paper="drafter-invariant speculative decoding, Daliri et al. 2024",
    ),
    Rule(
        "rejection", lossless=True, greedy=False, verify=rejection.verify,
        paper="Leviathan et al. 2023, Chen et al. 2023; trees: SpecInfer 2023, Sequoia 2024",
    ),
    Rule("typical", lossless=False, greedy=False, verify=Typical(), paper="Medusa, Cai et al. 2024"),
)  # fmt: skip
RULES: Mapping[str, Rule] = Table("crossdraft.rules", Rule, KIND, {rule.name: rule for rule in OWN})


def check_rule(spec: str | None) -> Rule | None:
    """Return the rule that a spec names, whether or not it fits a request's temperature; `None` gives `None`.

    Raises:
        CrossdraftError: no rule or setting has the name, a value is out of range, or trained weights cannot be read.
    """
    return None if spec is None else _rule(text("rule", spec, "typical:eps=0.05"))


def rule_for(spec: str | None, sampling: Sampling) -> Rule:
    """Return the rule that a spec such as `typical:eps=0.05` names; `None` gives the exact rule for the temperature.

    Raises:
        CrossdraftError: no rule or setting has the name, a value is out of range, or the rule does not fit the
            temperature.
    """
    if spec is None:
        return RULES["greedy" if sampling.greedy else "gumbel"]
    rule = _rule(spec)
    if rule.greedy != sampling.greedy:
        kind = "greedy answers (temperature 0)" if rule.greedy else "sampled answers (a temperature above 0)"
        raise CrossdraftError(
            f"The acceptance rule '{rule.name}' does not fit temperature {sampling.temperature or 0}: it verifies "
            f"{kind}; name no rule, and the exact one is taken."
        )
    if rule.reads_logits and sampling.contextual:
        raise CrossdraftError(NO_LOGITS.format(rule.name))
    return rule


def check_target(spec: str | None, target: "Target") -> None:
    """Refuse a rule that was trained for another target; most rules are not trained.

    Args:
        spec: as in `rule_for`.
        target: the target whose drafts the rule is to verify.

    Raises:
        CrossdraftError: as `check_rule`, or as `TrainedRule.check_target`.
    """
    rule = check_rule(spec)
    if rule is not None and isinstance(rule.verify, TrainedRule):
        rule.verify.check_target(target.source)


def _rule(text: str) -> Rule:
    """The rule that a spec names, with its settings."""
    spec = parse(text, KIND)
    if spec.name not in RULES:
        raise CrossdraftError(
            f"There is no acceptance rule '{spec.name}'{did_you_mean(spec.name, RULES)}; choose one of: "
            f"{', '.join(RULES)}.{more_to_install()}"
        )
    rule = RULES[spec.name]
    if spec.runs_in is not None:
        raise CrossdraftError(f"The acceptance rule '{rule.name}' runs in the engine; leave out '@{spec.runs_in}'.")
    if spec.parts:
        raise CrossdraftError(
            f"The acceptance rule '{rule.name}' cannot read '{spec.parts[0]}'; write its settings as in {rule.spec}."
        )
    if not is_dataclass(rule.verify):
        read_settings(NoSettings, spec, KIND)
        return rule
    verify = read_settings(type(rule.verify), spec, KIND)
    if isinstance(verify, TrainedRule):
        verify.read()  # unreadable weights are refused now, not at the first draft
    return replace(rule, verify=verify)
