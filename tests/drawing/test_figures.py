"""The figures below an answer: why there is no hidden draft, as far as the timeline tells."""

from dataclasses import replace

import pytest

from crossdraft.drawing.figures import figures
from crossdraft.engine.timeline import Span, Timeline
from tests.drawing.test_timeline import answer

TARGET = Span("target", "prefill", 5.0, 5.5, 40)


@pytest.mark.parametrize(
    ("drafter", "reason"),
    [
        ([("read", 5.44, 5.7)], "none: the drafter began 440 ms late (its core was busy) and was still reading"),
        ([("read", 5.01, 5.7)], "none: the drafter was still reading when the prefill ended"),
        ([("read", 5.52, 5.6)], "none: the drafter began after the prefill"),
        ([("read", 5.01, 5.2), ("hidden draft", 5.2, 5.6)], "none: it was complete 100 ms after the prefill"),
        ([], "none"),
    ],
)
def test_an_answer_without_a_hidden_draft_says_why(drafter, reason):
    found = answer()
    found.stats.hidden_drafted = 0
    spans = [TARGET, *(Span("drafter", name, start, end) for name, start, end in drafter)]
    (shown,) = (value for what, value in figures(replace(found, timeline=Timeline(spans))) if what == "hidden draft")
    assert shown.startswith(reason)
    assert drafter or shown == reason
