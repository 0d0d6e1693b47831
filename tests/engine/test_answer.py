"""An answer shows itself: one short line, and in a notebook the picture of its timeline."""

from base64 import b64decode
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

from crossdraft.engine.request import Answer, Finish, Origin, Piece
from crossdraft.engine.stats import Stats
from crossdraft.engine.timeline import Span, Timeline


def answer(text: str, notes: tuple[str, ...] = ()) -> Answer:
    timeline = Timeline([Span("target", "prefill", 1.0, 1.1, 40), Span("target", "verify", 1.1, 1.2, 5)])
    stats = Stats(new_tokens=3, rounds=2, total_s=0.2)
    return Answer(text, (1, 2, 3), (Piece((1, 2, 3), text, Origin.TARGET),), Finish.EOS, stats, timeline, None, notes)


def test_repr_is_one_short_line():
    assert repr(answer(" A van <&>.")) == "<Answer 'A van <&>.': 3 tokens, eos, 200 ms, tau 1.50>"
    long = repr(answer("word " * 500, ("a note",)))
    assert len(long) < 130
    assert long.endswith("…': 3 tokens, eos, 200 ms, tau 1.50, 1 notes>")


def test_a_notebook_shows_the_timeline():
    image = ET.fromstring(answer(" A van <&>.")._repr_html_())
    assert (image.tag, image.get("alt")) == ("img", "A van <&>.")
    kind, _, data = image.get("src").partition(",")
    assert kind == "data:image/svg+xml;base64"
    root = ET.fromstring(b64decode(data))
    words = "".join(root.itertext())
    assert root.tag.endswith("svg")
    assert "A van <&>." in words
    assert "prefill" in words


def test_hostile_text_stays_text_in_a_notebook():
    """An answer's text and notes are a model's and a file's: nothing of them becomes an element or an attribute."""
    text = """"><script>alert(1)</script><img src=x onerror='alert(1)'>&amp;]]>\x00\x1b"""
    found: list[tuple[str, dict[str, str]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.append((tag, dict(attributes)))
    parser.feed(answer(text, (text,))._repr_html_())
    ((tag, attributes),) = found
    assert (tag, set(attributes) <= {"alt", "src", "style"}) == ("img", True)
    assert attributes["alt"] == text
    root = ET.fromstring(b64decode(attributes["src"].partition(",")[2]))
    elements = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert not elements & {"script", "img", "image", "foreignObject", "a"}
    assert "<script>alert(1)</script>" in "".join(root.itertext())
