"""The drawing: well-formed, deterministic, complete, safe against what a prompt may hold."""

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from crossdraft.cli.view.svg import WIDTH, Run, save_svg, timeline_svg, wrap
from crossdraft.engine.request import Answer, Finish, Origin, Piece
from crossdraft.engine.stats import Stats
from crossdraft.engine.timeline import Span, Timeline
from crossdraft.errors import CrossdraftError

SVG = "{http://www.w3.org/2000/svg}"


def answer(*pieces: tuple[str, Origin]) -> Answer:
    parts = tuple(Piece((i,), text, origin) for i, (text, origin) in enumerate(pieces))
    stats = Stats(
        new_tokens=len(parts), rounds=2, drafted=4, accepted=3, hidden_drafted=4, ttft_s=0.08, total_s=0.1
    )
    stats.first_provisional_s, stats.hidden_drafting_s, stats.hidden_inside_s = 0.02, 0.05, 0.05
    spans = [
        Span("target", "prefill", 5.0, 5.08, 40),
        Span("drafter", "hidden draft", 5.02, 5.07, 4),
        Span("target", "verify", 5.09, 5.1, 5),
    ]
    text = "".join(part.text for part in parts)
    return Answer(text, tuple(range(len(parts))), parts, Finish.EOS, stats, Timeline(spans))


ANSWER = answer((" A red", Origin.HIDDEN), (" car <&>", Origin.TARGET), (" ahead.", Origin.DRAFTED))


def test_it_is_well_formed_and_shows_everything():
    root = ET.fromstring(timeline_svg('What is "ahead" & <why>?', ANSWER))
    words = "".join(root.itertext())
    shown = (
        'What is "ahead" & <why>?',
        "A red car <&> ahead.",
        "drafter",
        "target",
        "100 ms",
        "80 ms",
        "1.50",
    )
    for expected in shown:
        assert expected in words
    boxes = [box for box in root.iter(f"{SVG}rect") if box.get("class") != "card"]
    assert len(boxes) == len(ANSWER.timeline.spans)
    for box in boxes:
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= WIDTH


def test_a_lossy_rule_stands_in_a_row_of_its_own():
    lossy = replace(ANSWER, stats=replace(ANSWER.stats, rule="typical:eps=0.09,delta=0.3", lossless=False))
    plain, drawn = (ET.fromstring(timeline_svg("?", one)) for one in (ANSWER, lossy))
    assert "lossy: typical:eps=0.09,delta=0.3" in "".join(drawn.itertext())
    assert "lossy" not in "".join(plain.itertext())
    tall, taller = (float(one.attrib["viewBox"].split()[-1]) for one in (plain, drawn))
    last = max(float(text.attrib["y"]) for text in drawn.iter(f"{SVG}text"))
    assert tall < taller
    assert last < taller


def test_boxes_are_as_long_as_their_spans():
    root = ET.fromstring(timeline_svg("?", ANSWER))
    widths = [float(box.attrib["width"]) for box in root.iter(f"{SVG}rect") if box.get("class") != "card"]
    assert widths == pytest.approx([widths[0], widths[0] * 0.08 / 0.05, widths[0] * 0.01 / 0.05], abs=0.02)


def test_the_same_answer_gives_the_same_bytes():
    assert timeline_svg("?", ANSWER) == timeline_svg("?", ANSWER)


def test_lines_break_at_blanks_and_keep_their_origins():
    assert wrap(ANSWER, 8) == [
        [Run("A red", Origin.HIDDEN)],
        [Run("car <&>", Origin.TARGET)],
        [Run("ahead.", Origin.DRAFTED)],
    ]
    assert wrap(ANSWER, 13) == [
        [Run("A red", Origin.HIDDEN), Run(" car <&>", Origin.TARGET)],
        [Run("ahead.", Origin.DRAFTED)],
    ]


def test_a_word_longer_than_the_line_is_cut():
    assert wrap(answer(("abcdefgh", Origin.TARGET)), 3) == [
        [Run("abc", Origin.TARGET)],
        [Run("def", Origin.TARGET)],
        [Run("gh", Origin.TARGET)],
    ]


def test_an_empty_answer_has_no_lines():
    assert wrap(answer(("", Origin.TARGET)), 10) == []
    ET.fromstring(timeline_svg("?", answer(("", Origin.TARGET))))


def test_it_is_written_whole_or_not_at_all(tmp_path):
    save_svg(tmp_path / "new" / "a.svg", "?", ANSWER)
    assert (tmp_path / "new" / "a.svg").read_text(encoding="utf-8") == timeline_svg("?", ANSWER)
    (tmp_path / "file").write_text("")
    with pytest.raises(CrossdraftError, match="Cannot write"):
        save_svg(tmp_path / "file" / "a.svg", "?", ANSWER)
