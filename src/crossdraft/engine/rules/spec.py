"""Rules as users write them: a name, then settings where the rule has any.

greedy      typical      typical:eps=0.05      typical:eps=0.09,delta=0.3
"""

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass, replace
from difflib import get_close_matches

from crossdraft.engine.accept import Rule
from crossdraft.errors import CrossdraftError


def parse(spec: str, rules: Mapping[str, Rule]) -> Rule:
    """The rule that `spec` means, with its settings.

    Raises:
        CrossdraftError: no rule or setting has the name, or a value is no number or out of range.
    """
    name, colon, listed = spec.partition(":")
    name = name.strip()
    if name not in rules:
        raise CrossdraftError(
            f"There is no acceptance rule '{name}'{_nearest(name, rules)}; choose one of: {', '.join(rules)}."
        )
    return _set(rules[name], listed) if colon else rules[name]


def check(rule: str, name: str, value: float, wanted: str, *, holds: bool) -> None:
    """Refuse a setting that is out of range; rules call it when they are made."""
    if not holds:
        raise CrossdraftError(f"The acceptance rule '{rule}' got {name}={value}; {name} must be {wanted}.")


def _set(rule: Rule, listed: str) -> Rule:
    if not is_dataclass(rule.judge) or isinstance(rule.judge, type):
        raise CrossdraftError(f"The acceptance rule '{rule.name}' has no settings; write just '{rule.name}'.")
    defaults: dict[str, float] = asdict(rule.judge)
    known = ", ".join(f"{name}={value}" for name, value in defaults.items())
    values: dict[str, float] = {}
    for setting in listed.split(","):
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise CrossdraftError(
                f"The acceptance rule '{rule.name}' cannot read '{setting}'; write its settings as in {rule.spec}."
            )
        if name not in defaults:
            raise CrossdraftError(
                f"The acceptance rule '{rule.name}' has no setting '{name}'{_nearest(name, defaults)}; its settings "
                f"are: {known}."
            )
        if name in values:
            raise CrossdraftError(f"The acceptance rule '{rule.name}' is given {name} twice; give it once.")
        values[name] = _number(rule.name, name, text, defaults[name])
    return replace(rule, judge=replace(rule.judge, **values))


def _number(rule: str, name: str, text: str, default: float) -> float:
    """The text as a number of the default's kind."""
    kind = type(default)
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise CrossdraftError(f"The acceptance rule '{rule}' got {name}={text}; {name} must be {wanted}.") from None


def _nearest(name: str, known: Mapping[str, object]) -> str:
    found = get_close_matches(name, known, 1)
    return f" (did you mean '{found[0]}'?)" if found else ""
