"""The picture of an answer: well-formed, deterministic, complete, no text over text, safe against any prompt."""

from dataclasses import replace
from functools import cache
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossdraft.drawing.figures import Baseline
from crossdraft.drawing.kinds import KINDS, ORIGINS
from crossdraft.drawing.save import save_timeline
from crossdraft.drawing.shapes import PALETTE, Box, TextLine, TextRun, width_of, wrap
from crossdraft.drawing.timeline import WIDTH, timeline_drawing, timeline_svg
from crossdraft.engine.request import Answer, Finish, Origin, Piece
from crossdraft.engine.stats import Stats
from crossdraft.engine.timeline import Span, Timeline
from crossdraft.errors import CrossdraftError

SVG = "{http://www.w3.org/2000/svg}"
ft2font = pytest.importorskip("matplotlib.ft2font")


def answer(*pieces: tuple[str, Origin]) -> Answer:
    parts = tuple(Piece((i,), text, origin) for i, (text, origin) in enumerate(pieces))
    stats = Stats(new_tokens=len(parts), rounds=2, drafted=4, accepted=3, hidden_drafted=4, ttft_s=0.08, total_s=0.1)
    stats.first_provisional_s, stats.hidden_drafting_s, stats.hidden_inside_s = 0.02, 0.05, 0.05
    spans = [
        Span("target", "prefill", 5.0, 5.08, 40),
        Span("drafter", "hidden draft", 5.02, 5.07, 4),
        Span("target", "ride-along", 5.08, 5.09, 5),
        Span("target", "verify", 5.09, 5.1, 5),
    ]
    text = "".join(part.text for part in parts)
    return Answer(text, tuple(range(len(parts))), parts, Finish.EOS, stats, Timeline(spans))


ANSWER = answer((" A red", Origin.HIDDEN), (" car <&>", Origin.TARGET), (" ahead.", Origin.DRAFTED))


def alone(seconds: float = 0.3, steps: int = 20) -> Baseline:
    """The target alone: a prefill whose last piece carries nothing, then a step for each token."""
    step = seconds / (steps + 10)
    spans = [
        Span("target", "prefill", 9.0, 9.0 + 9 * step, 40),
        Span("target", "ride-along", 9.0 + 9 * step, 9.0 + 10 * step, 8),
    ]
    spans += [Span("target", "verify", 9.0 + at * step, 9.0 + (at + 1) * step, 1) for at in range(10, steps + 10)]
    stats = Stats(new_tokens=steps + 1, rounds=steps + 1, ttft_s=seconds / 3, total_s=seconds)
    own = replace(answer((" A red car", Origin.TARGET)), stats=stats, timeline=Timeline(spans))
    return Baseline(own, runs=3, cores=2)


def test_it_is_well_formed_and_shows_everything():
    root = ET.fromstring(timeline_svg('What is "ahead" & <why>?', ANSWER, alone()))
    words = "".join(root.itertext())
    shown = (
        'What is "ahead" & <why>?',
        "A red car <&> ahead.",
        "drafter",
        "target alone",
        "on 2 cores",
        "300 ms",
        "80 ms (alone 100 ms)",
        "200 ms saved",
        "3.00x, median of 3 runs each",
        "1.50 tokens per verify pass",
        *(f"{name}: {what}" for name, what in ORIGINS.items()),
    )
    for expected in shown:
        assert expected in words, expected


def boxes_of(drawing, style=None):
    return [
        shape for shape in drawing.shapes if isinstance(shape, Box) and shape.tip and style in (None, shape.style)
    ]  # fmt: skip


def test_every_span_is_a_box_as_long_as_it_lasted_and_both_begin_together():
    drawing = timeline_drawing("?", ANSWER, alone())
    assert len(boxes_of(drawing)) == 4 + 22
    assert all(box.x + box.width <= WIDTH for box in boxes_of(drawing))
    (hidden,) = boxes_of(drawing, "hidden-draft")
    (prefill, begun, _) = boxes_of(drawing, "prefill")
    assert prefill.width + 0.5 == pytest.approx((hidden.width + 0.5) * 0.08 / 0.05, abs=0.02)
    assert prefill.x == begun.x


def test_without_a_draft_a_pass_over_one_token_is_a_decode_step_and_the_last_piece_prefill():
    styles = {box.style for box in boxes_of(timeline_drawing("?", alone().answer))}
    assert styles == {"prefill", "decode"}
    assert "ride-along" in {box.style for box in boxes_of(timeline_drawing("?", ANSWER))}


@pytest.mark.parametrize("tokens", [0, 4])
def test_an_empty_hidden_draft_is_called_a_draft(tokens):
    """As of `memory` on a first question; one that came too late is still a hidden draft."""
    stats, (_, _, *rest) = replace(ANSWER.stats, hidden_drafted=0), ANSWER.timeline.spans
    timeline = Timeline(
        [Span("target", "prefill", 5.0, 5.08, 40), Span("drafter", "hidden draft", 5.02, 5.07, tokens), *rest]
    )
    styles = {box.style for box in boxes_of(timeline_drawing("?", replace(ANSWER, stats=stats, timeline=timeline)))}
    assert ("hidden-draft" in styles, "draft" in styles) == (tokens > 0, tokens == 0)


def test_kinds_of_spans_have_colours_of_their_own_and_all_are_in_the_legend():
    assert len({kind.style for kind in KINDS}) == len({PALETTE[kind.style] for kind in KINDS}) == len(KINDS)
    drawing = timeline_drawing("?", ANSWER, alone())
    legend = [shape.text for shape in drawing.shapes if isinstance(shape, TextLine) and "■" in shape.text]
    for kind in ("prefill", "hidden draft (during the prefill)", "verify", "decode step (one token)"):
        assert f"■ {kind}" in legend


def test_a_lossy_rule_is_named():
    lossy = replace(ANSWER, stats=replace(ANSWER.stats, rule="typical:eps=0.09,delta=0.3", lossless=False))
    assert "lossy: typical:eps=0.09,delta=0.3" in timeline_svg("?", lossy)
    assert "lossy" not in timeline_svg("?", ANSWER)


def test_a_slower_pair_says_what_it_lost():
    shown = timeline_svg("?", ANSWER, alone(0.05))
    assert "50 ms lost" in shown
    assert "0.50x" in shown


def test_the_same_answer_gives_the_same_bytes():
    assert timeline_svg("?", ANSWER, alone()) == timeline_svg("?", ANSWER, alone())


def test_dark_pages_have_colours_of_their_own():
    assert "prefers-color-scheme:dark" in timeline_svg("?", ANSWER)


RUNS = [TextRun("A red ", "hidden"), TextRun("car <&> ", "target"), TextRun("ahead.", "drafted")]


def test_lines_break_at_blanks_and_keep_their_styles():
    assert [[run.text for run in line] for line in wrap(RUNS, 8)] == [["A red"], ["car <&>"], ["ahead."]]
    assert [[run.text for run in line] for line in wrap(RUNS, 13)] == [["A red ", "car <&>"], ["ahead."]]
    assert [run.style for run in wrap(RUNS, 13)[0]] == ["hidden", "target"]


def test_a_word_longer_than_the_line_is_cut_and_wide_letters_count_twice():
    assert [line[0].text for line in wrap([TextRun("abcdefgh", "ink")], 3)] == ["abc", "def", "gh"]
    assert [line[0].text for line in wrap([TextRun("日本語", "ink")], 4)] == ["日本", "語"]


def test_an_empty_answer_has_no_lines():
    assert wrap([TextRun("", "ink")], 10) == []
    ET.fromstring(timeline_svg("?", answer(("", Origin.TARGET))))


# Extents by real metrics: the face that browsers and rsvg fall back to, as matplotlib ships it.
@cache
def measured(text: str, bold: bool) -> tuple[float, float, float]:
    """(width, height, descent) of a text over its size."""
    from matplotlib.font_manager import FontProperties, findfont

    face = FontProperties(family="DejaVu Sans Mono", weight="bold" if bold else "normal")
    font = ft2font.FT2Font(findfont(face, fallback_to_default=False))
    font.set_size(280, 72)  # large, so that hinting does not count
    font.set_text(text, 0)
    width, height = font.get_width_height()
    return width / 64 / 280, height / 64 / 280, font.get_descent() / 64 / 280


def extent(text: TextLine) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) of what is drawn of a text, in pixels."""
    width, height, descent = (length * text.size for length in measured(text.text, text.bold))
    left = text.x - {"start": 0, "middle": 0.5, "end": 1}[text.anchor] * width
    return left, text.y - height + descent, left + width, text.y + descent


def crossing(one, other) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def check_text(drawing) -> None:
    """No text over text, none beyond the card, labels within the boxes after them, no empty space at the bottom."""
    texts = [(shape, extent(shape)) for shape in drawing.shapes if isinstance(shape, TextLine) and shape.text.strip()]
    for (one, its), (other, others) in combinations(texts, 2):
        assert not crossing(its, others), (one.text, other.text)
    for text, (left, top, right, bottom) in texts:
        assert 0 < left < right < drawing.width, text.text
        assert 0 < top < bottom < drawing.height, text.text
    lowest = max(bottom for _, (_, _, _, bottom) in texts)
    assert drawing.height - lowest < 30


TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=0x17F, exclude_characters="\x7f\xad"), max_size=300)
SECONDS = st.floats(1e-4, 100)
LOSSY = st.sampled_from([None, "greedy", "typical:eps=0.09,delta=0.3"])


@settings(max_examples=60)
@given(
    question=TEXTS,
    texts=st.lists(st.tuples(TEXTS, st.sampled_from(list(Origin)[1:])), max_size=4),
    spans=st.lists(
        st.tuples(
            st.sampled_from(["target", "drafter"]),
            st.sampled_from([name for kind in KINDS for name in kind.names] + ["unheard of"]),
            SECONDS,
            SECONDS,
            st.integers(0, 999),
        ),
        max_size=8,
    ),
    times=st.tuples(SECONDS, SECONDS),
    counts=st.integers(0, 99_999),
    other=st.none() | st.tuples(SECONDS, st.integers(1, 60)),
    rule=LOSSY,
)
def test_no_text_lies_over_text(question, texts, spans, times, counts, other, rule):
    made = answer(*texts)
    ET.fromstring(timeline_svg(question, made))
    timeline = Timeline([Span(lane, name, at, at + long, n) for lane, name, at, long, n in spans])
    stats = replace(
        made.stats, ttft_s=times[0], total_s=times[1], drafted=counts, hidden_drafted=counts, rule=rule,
        lossless=rule in (None, "greedy"),
    )  # fmt: skip
    made = replace(made, timeline=timeline, stats=stats)
    check_text(timeline_drawing(question, made, None if other is None else alone(*other)))


def test_the_check_sees_overlaps():
    drawing = timeline_drawing("?", ANSWER, alone())
    first = next(shape for shape in drawing.shapes if isinstance(shape, TextLine))
    moved = replace(first, x=first.x + 4, y=first.y + 4)
    with pytest.raises(AssertionError):
        check_text(replace(drawing, shapes=(*drawing.shapes, moved)))


def test_layout_reckons_with_at_least_the_width_of_the_real_face():
    for text in ("mean acceptance length τ 16.33", "■ hidden: drafted during the prefill", "A van…"):
        left, _, right, _ = extent(TextLine(0, 0, (TextRun(text, "ink"),)))
        assert right - left <= width_of(text)


@pytest.mark.parametrize(("name", "begins"), [("a.svg", b"<svg"), ("a.png", b"\x89PNG")])
def test_it_is_written_by_the_ending_of_its_name(name, begins, tmp_path):
    save_timeline(tmp_path / name, "What costs $5 or $6?", ANSWER, alone())
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_it_is_written_whole_or_not_at_all(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CrossdraftError, match="Cannot write"):
        save_timeline(tmp_path / "file" / "a.svg", "?", ANSWER)
    with pytest.raises(CrossdraftError, match=r"\.svg or \.png"):
        save_timeline(tmp_path / "a.gif", "?", ANSWER)
