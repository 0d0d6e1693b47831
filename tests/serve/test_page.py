"""The page, in a real headless Chromium."""

import json
import re
import select
import socket
import threading
import time
from concurrent.futures import CancelledError
from contextlib import ExitStack

import cv2
import httpx
import numpy as np
import pytest

from crossdraft import Engine
from crossdraft.drawing.kinds import KINDS
from crossdraft.drawing.shapes import PALETTE
from crossdraft.engine.request import Finish
from crossdraft.engine.target import Target
from crossdraft.events import Events
from crossdraft.events.limits import DEFAULT_LIMITS
from crossdraft.events.write import write_events
from crossdraft.serve.answering import Answering
from crossdraft.serve.keys import Client, KeyRecord, append_key, digest_of, new_key
from crossdraft.serve.page.strip import event_strip
from crossdraft.serve.page_files import HEADERS
from tests.serve.conftest import QUESTION, messages
from tools.screenshot import ANSWERED, COMPARED, SHOWN, VIEW, take, until

LONG = "Describe the scene in detail."
WAIT = 60_000  # ms: a busy machine
# Keeps every class that a word of the answer ever had.
WATCHED = """() => {
    window.seen = [];
    window.mixed = 0;
    const answer = document.querySelector('#answer');
    new MutationObserver((all) => {
        const added = all.flatMap((one) => [...one.addedNodes].map((node) => node.className));
        window.seen.push(...added);
        window.mixed += added.at(-1) !== 'provisional' && answer.querySelector('.provisional') !== null;
    }).observe(answer, {childList: true});
}"""

# Of the target's reading as the timeline shows it: where it ends, its share of the track, and where the track ends.
READING = """() => {
    const bar = document.querySelector('.bar.prefill'), lanes = document.querySelector('#lanes');
    return bar && {
        end: Number(/to ([\\d.]+) ms/.exec(bar.title)[1]),
        share: bar.getBoundingClientRect().width / bar.parentElement.getBoundingClientRect().width,
        now: Number(/(\\d+) ms/.exec(lanes.getAttribute('aria-label'))[1]),
    };
}"""

# Of an element's words with its card, by WCAG 2.
CONTRAST = """(found) => {
    const rgb = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
    const linear = (value) => (value <= 10 ? value / 3294 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    const luminance = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
    const {color, opacity} = getComputedStyle(found);
    const card = rgb(getComputedStyle(found.closest('.card')).backgroundColor);
    const seen = rgb(color).map((value, at) => opacity * value + (1 - opacity) * card[at]);
    const [less, more] = [luminance(seen), luminance(card)].sort((a, b) => a - b);
    return (more + 0.05) / (less + 0.05);
}"""


@pytest.fixture
def opened(browser):
    """Opens pages; none may ask anything of others or break the policy, and no script may fail."""
    contexts, faults = [], []

    def begin(running, **more):
        context = browser.new_context(**more)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda said: faults.append(said.text) if "Content Security Policy" in said.text else None)
        page.on(
            "request", lambda asked: None if asked.url.startswith((running.url, "blob:")) else faults.append(asked.url)
        )
        page.goto(running.url)
        return page

    yield begin
    for context in contexts:
        context.close()
    assert not faults


def ready(page):
    """Wait until clip and events are shown."""
    until(page, SHOWN)
    return page


def answer_of(page):
    until(page, ANSWERED)
    return page.text_content("#answer")


def idle(server):
    """Whether nothing is answered any more, soon."""
    end = time.monotonic() + 30
    while (server.service.limits.active or server.rows()) and time.monotonic() < end:
        time.sleep(0.02)
    return not (server.service.limits.active or server.rows())


def peeked(connection) -> bytes:
    """What has arrived, left there; waits for nothing."""
    return connection.recv(4096, socket.MSG_PEEK) if select.select([connection], [], [], 0)[0] else b""


def api_answer(server, question=QUESTION):
    return (
        server.client()
        .chat.completions.create(model="reference", messages=messages(question))
        .choices[0]
        .message.content
    )


def test_it_asks_and_shows_whose_the_words_are(server, opened):
    page = ready(opened(server))
    page.evaluate(WATCHED)
    page.fill("#question", QUESTION)
    page.click("#ask")
    assert answer_of(page) == api_answer(server)
    seen = page.evaluate("window.seen")
    left = page.eval_on_selector_all("#answer span", "all => all.map(one => one.className)")
    assert set(left) <= {"hidden", "drafted", "target"}
    assert "provisional" not in left
    assert [one for one in seen if one != "provisional"] == left
    lanes = page.eval_on_selector_all(".lane:not(.axis)", "all => all.map(one => one.firstChild.textContent)")
    assert lanes[:2] == ["drafter", "target"]
    assert page.locator(".lane .bar.verify, .lane .bar.ride-along, .lane .bar.decode").count() > 0
    assert re.fullmatch(r"\d+ ms", page.text_content("#inside"))
    assert re.fullmatch(r"[1-9]\d* ms", page.text_content("#total"))
    first, total = (int(re.search(r"(\d+) ms", page.text_content(at))[1]) for at in ("#first-note", "#total"))
    assert first <= total  # by one clock
    assert page.text_content("#saved") == "–"  # nothing is claimed that was not measured

    page.click("#compare")
    until(page, COMPARED)
    said = re.fullmatch(r"target alone: (\d+) ms.*; pair: (\d+) ms\..* anew, .*", page.text_content("#saved-note"))
    assert abs(int(page.text_content("#saved").split()[0]) - (int(said[1]) - int(said[2]))) <= 1
    assert page.text_content("#status") == "The target alone says the same."


SIDES = ["left, {right}", 'a "b": c']
SCHEMA = {
    "type": "object",
    "properties": {"sides": {"type": "array", "items": {"enum": SIDES}, "minItems": 2, "maxItems": 2}},
    "required": ["sides"],
    "additionalProperties": False,
}


def test_a_structured_answer_is_laid_out_and_shows_whose_its_parts_are(server, opened):
    """This model writes many blanks, so that the answer may be cut at its longest; it is laid out as far as it goes."""
    page = ready(opened(server))
    page.click("summary")
    page.fill("#schema", json.dumps(SCHEMA))
    page.click("#ask")
    shown, whole = answer_of(page), page.text_content("#whole")
    laid_out = [json.dumps({"sides": [one, other]}, indent=2) for one in SIDES for other in SIDES]
    assert len(shown) > len('{\n  "sides": [')
    assert any(text.startswith(shown) for text in laid_out)
    assert "".join(shown.split()) == "".join(whole.split())
    classes = page.eval_on_selector_all("#answer span", "all => all.map(one => one.className)")
    assert {"target"} < set(classes) <= {"hidden", "drafted", "target"}  # what is forced is drafted
    page.click("#compare")
    until(page, COMPARED)
    assert page.text_content("#status") == "The target alone says the same."


@pytest.mark.parametrize(("schema", "reason"), [("{", "cannot be read"), ('{"type": "cat"}', "cannot be used")])
def test_a_wrong_schema_is_one_sentence(server, opened, schema, reason):
    page = ready(opened(server))
    page.click("summary")
    page.fill("#schema", schema)
    page.click("#ask")
    until(page, "() => !document.querySelector('#problem').hidden")
    assert reason in page.text_content("#problem")


def test_before_a_question_no_figure_says_anything(server, opened):
    page = opened(server)
    ready(page)
    assert page.locator("#lanes").is_hidden()
    assert page.text_content("#inside-note").strip() == ""
    page.click("#ask")
    until(page, ANSWERED)
    assert page.locator("#lanes .axis span").count() > 1
    assert page.text_content("#inside-note") == "ran inside the target's reading"
    page.dispatch_event("#clips", "change")  # what was said of a clip goes with it
    assert page.locator("#lanes").is_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_picture_of_the_events_has_the_colours_of_the_page(server, opened, scheme):
    page = opened(server, color_scheme=scheme)
    ready(page)
    shot = cv2.imdecode(np.frombuffer(page.locator("#events").screenshot(), np.uint8), cv2.IMREAD_COLOR)
    assert (np.median(shot) > 200) == (scheme == "light")
    assert (np.median(shot) < 55) == (scheme == "dark")


def test_the_pair_is_compared_without_what_it_knows_of_the_clip(server):
    """The target alone knows nothing of it either."""
    asked, seen, agenerate = {"model": "reference", "messages": messages()}, [], server.engine.agenerate

    async def noted(request):
        seen.append(await agenerate(request))
        return seen[-1]

    assert server.post(asked).status_code == server.post(asked).status_code == 200
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(server.engine, "agenerate", noted)
        found = httpx.post(f"{server.url}/page/alone", json=asked, timeout=60).json()
    assert [one.stats.cached_tokens for one in seen] == [0]
    assert found["pair_ms"] == pytest.approx(seen[0].stats.total_s * 1e3, abs=1e-3)
    assert found["text"] == seen[0].text


def test_the_hidden_draft_dims_in_before_the_answer(server, opened, drafted_for):
    page = ready(opened(server))
    page.evaluate(WATCHED)
    for frames in (3, 4, 5, 6):  # nothing is known of them, so the target reads; on a busy machine a draft may be late
        asked = {"media_io_kwargs": {"video": {"num_frames": frames}}}
        page.unroute_all()
        page.route(
            "**/v1/chat/completions",
            lambda route, *, asked=asked: route.continue_(post_data=json.dumps(route.request.post_data_json | asked)),
        )
        page.click("#ask")
        answer_of(page)
        if "provisional" in (seen := page.evaluate("window.seen")):
            break
    assert "provisional" in seen
    assert page.evaluate("window.mixed") == 0  # the first final word takes the place of all provisional ones
    assert re.fullmatch(r"[1-9]\d* ms", page.text_content("#first"))
    assert re.fullmatch(r"[1-9]\d* ms", page.text_content("#inside"))
    assert page.locator("#answer .provisional").count() == 0
    assert page.locator(".lane .bar.hidden-draft").count() > 0


def test_the_timelines_go_on_while_an_answer_is_on_its_way(server, opened, monkeypatch, held_rounds):
    """By the page's own clock: while the target reads, and when its first words are there."""
    page, read, extend = ready(opened(server)), threading.Event(), Target.extend

    def late(target, cache, rows):
        if any(len(row.chunk.tokens) > 1 for row in rows):  # of a prompt
            assert read.wait(60)
        return extend(target, cache, rows)

    def goes_on(seen):
        """The next look, at least 200 ms later by the page's clock."""
        until(page, f"({READING})()?.now >= {seen['now'] + 200}")
        return page.evaluate(READING)

    monkeypatch.setattr(Target, "extend", late)
    asked = {
        "min_tokens": 100,  # longer than a draft
        "max_tokens": 100,
        "media_io_kwargs": {"video": {"num_frames": 9}},
    }
    page.route(
        "**/v1/chat/completions",
        lambda route: route.continue_(post_data=json.dumps(route.request.post_data_json | asked)),
    )
    page.fill("#question", "Which side of the road is free?")  # no other test's: nothing is known, the target reads
    with ExitStack() as holding:
        holding.callback(read.set)
        page.click("#ask")
        first = goes_on({"now": 0})
        second = goes_on(first)
        assert second["end"] - first["end"] == pytest.approx(second["now"] - first["now"], abs=2)
        assert first["share"] == second["share"] == 1  # it reads on
    until(page, "document.querySelector('#answer .target')")  # the first words, of which one is the target's
    third = goes_on(page.evaluate(READING))
    fourth = goes_on(third)
    assert fourth["end"] == third["end"]
    assert fourth["share"] == pytest.approx(third["share"] * third["now"] / fourth["now"], abs=0.01)
    assert fourth["share"] < third["share"] < 1
    held_rounds.go.set()
    assert answer_of(page)


def test_events_are_shown_in_time_with_the_clip(server, opened):
    page = ready(opened(server))
    for share in (0.0, 0.5, 0.9):
        frame = page.evaluate(
            """async (share) => {
                const clip = document.querySelector('#clip'), events = document.querySelector('#events');
                clip.pause();
                clip.currentTime = share * clip.duration;
                await new Promise((done) => clip.addEventListener('seeked', done, {once: true}));
                await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
                return Number(events.dataset.frame);
            }""",
            share,
        )
        assert abs(frame - share * 96) <= 1
    colours = page.evaluate(
        """() => {
            const found = document.querySelector('#events'), all = new Set();
            const {data} = found.getContext('2d').getImageData(0, 0, found.width, found.height);
            for (let at = 0; at < data.length; at += 4) all.add(data.slice(at, at + 3).join());
            return [...all];
        }"""
    )
    assert {"255,0,0", "0,0,255", "255,255,255"} <= set(colours)


def test_cancel_ends_the_request(server, opened):
    page = ready(opened(server))
    page.fill("#question", LONG)
    for wait_ms in (30, 20, 10, 0):  # an answer may be there already
        page.click("#ask")
        page.evaluate("(wait) => setTimeout(() => document.querySelector('#cancel').click(), wait)", wait_ms)
        until(page, "!document.querySelector('#ask').disabled")
        if page.text_content("#status") == "Cancelled.":
            break
    assert page.text_content("#status") == "Cancelled."
    assert page.is_hidden("#problem")
    assert page.is_disabled("#cancel")
    assert idle(server)
    page.click("#ask")
    assert answer_of(page) == api_answer(server, LONG)


def test_what_was_said_of_a_clip_goes_with_it(server, opened):
    page = ready(opened(server))
    page.route("**/v1/chat/completions", lambda route: None)  # an answer that never comes
    page.click("#ask")
    page.click("#cancel")
    until(page, "document.querySelector('#status').textContent === 'Cancelled.'")
    page.set_input_files("#files", server.root / "clip.mp4")
    until(page, "document.querySelector('#clips').options.length === 2")
    until(page, "document.querySelector('#status').textContent.trim() === ''")
    page.click("#ask")  # and one that runs while another clip is chosen
    until(page, "document.querySelector('#ask').disabled")
    page.select_option("#clips", index=1)
    until(page, "!document.querySelector('#ask').disabled")
    assert page.text_content("#status").strip() == ""


def test_a_clip_that_comes_late_does_not_take_the_place_of_the_one_asked_about(server, opened):
    page = ready(opened(server))
    page.set_input_files("#files", server.root / "clip.mp4")
    until(page, "document.querySelector('#clips').options.length === 2")
    source, late = "document.querySelector('#clip').src", []
    before = page.evaluate(source)
    page.route("**/v1/media/content*", lambda route: route.continue_() if late else late.append(route))
    page.select_option("#clips", index=1)
    while not late:
        page.wait_for_timeout(20)
    page.select_option("#clips", index=0)
    until(page, f"{source} !== {json.dumps(before)}")
    shown = page.evaluate(source)
    late[0].continue_()
    late[0].request.response().finished()
    page.wait_for_timeout(200)
    assert page.evaluate(source) == shown
    assert page.evaluate("JSON.parse(sessionStorage.shown).clip.url.startsWith('file-')")


def test_a_screen_reader_says_the_answer_once_and_whole(server, opened):
    page = ready(opened(server))
    page.evaluate(
        """() => {
            window.heard = [];
            const live = [...document.querySelectorAll('[aria-live=polite]')];
            const note = () => window.heard.push(live.map((one) => one.textContent).join(''));
            for (const one of live) new MutationObserver(note).observe(one, {childList: true});
        }"""
    )
    page.click("#ask")
    answer = answer_of(page)
    assert [one for one in page.evaluate("window.heard") if one] == [answer]


def test_errors_are_one_sentence(server, opened):
    page = ready(opened(server))
    page.route(
        "**/v1/chat/completions",
        lambda route: route.continue_(post_data=route.request.post_data.replace("clip.mp4", "none.mp4")),
    )
    page.click("#ask")
    page.wait_for_selector("#problem:not([hidden])")
    assert page.text_content("#problem") == "There is no such file in the server's media folder; check the address."
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", lambda route: route.abort())
    page.click("#ask")
    until(page, "document.querySelector('#problem').textContent.includes('cannot be reached')")
    page.unroute("**/v1/chat/completions")
    page.click("#ask")
    answer_of(page)
    assert page.is_hidden("#problem")


def test_a_reload_keeps_the_question_and_ends_the_request(server, opened):
    page = ready(opened(server))
    page.fill("#question", LONG)
    page.click("#ask")
    page.reload()
    ready(page)
    assert page.input_value("#question") == LONG
    assert idle(server)
    page.click("#ask")
    answer_of(page)


def test_it_works_by_keyboard_alone(server, opened):
    page = ready(opened(server))
    order = []
    for _ in range(20):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id"))
        if order[-1] == "question":
            break
    assert {"clips", "choose"} <= set(order)
    page.keyboard.press("Control+A")
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    assert answer_of(page) == api_answer(server)
    for wanted in ("ask", "compare"):  # cancel is disabled
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == wanted
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    until(page, "!document.querySelector('#ask').disabled")
    assert page.evaluate("document.activeElement.id") == "compare"  # where it was


def test_a_comparison_that_nobody_waits_for_ends(server, monkeypatch):
    begun, ends, alone = threading.Event(), [], Engine.alone

    def watched(*arguments):
        begun.set()
        try:
            answer = alone(*arguments)
        except CancelledError:  # before its first step
            ends.append(Finish.CANCELLED)
            raise
        ends.append(answer.finish)
        return answer

    monkeypatch.setattr(Engine, "alone", watched)
    asked = json.dumps(
        {"model": "reference", "messages": messages(LONG), "max_tokens": 300, "seed": 1, "temperature": 2}
    )
    head = f"POST /page/alone HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(asked)}\r\n\r\n"
    until, said = time.monotonic() + 60, b""
    while not begun.is_set():  # refused while a request of the test before is still ending
        assert time.monotonic() < until, said
        assert idle(server)
        with server.connection() as connection:
            connection.sendall((head + asked).encode())
            while not begun.wait(0.05) and not (said := peeked(connection)) and time.monotonic() < until:
                pass
    assert idle(server)
    assert set(ends) == {Finish.CANCELLED}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_in_one_direction_alone(server, opened, scheme):
    page = ready(opened(server, viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True))
    page.tap("#ask")
    answer_of(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", background))) > 3 * 128
    assert light == (scheme == "light")
    words = "h2, dt, figcaption, .hint, .legend, .legend span, #answer span"
    assert min(page.eval_on_selector_all(words, f"all => all.map({CONTRAST})")) >= 4.5  # of WCAG's level AA


def test_a_long_word_and_the_last_mark_of_the_axis_fit_on_a_phone(server, opened):
    """Of an answer that is made up: 1,031 ms, so that the last mark stands near the edge."""
    span = {"lane": "target", "name": "prefill", "start_ms": 0, "end_ms": 1031}
    stats = {"hidden_drafted": 0, "cached_tokens": 0, "first_provisional_ms": None, "ttft_ms": 1031, "total_ms": 1031}
    stats |= {"new_tokens": 1, "rounds": 1}
    piece = {"choices": [{"delta": {"content": "yes"}}], "crossdraft": {"origin": "target", "tokens": 1, "ms": 1031}}
    news = {"timeline": {"spans": [span], "stats": stats, "notes": ["A note.", "x" * 200]}}
    said = f"data: {json.dumps(piece)}\n\n: crossdraft {json.dumps(news)}\n\ndata: [DONE]\n\n"
    page = ready(opened(server, viewport={"width": 390, "height": 844}))
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=said))
    page.click("#ask")
    assert answer_of(page) == "yes"
    assert page.text_content("#status") == f"Answered: 1 token. A note. {'x' * 200}"
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    mark = page.locator(".axis span").last
    assert mark.text_content() == "1000"
    assert page.locator(".axis .track").evaluate("one => getComputedStyle(one).overflow") == "visible"
    right, card = "one => one.getBoundingClientRect().right", page.locator(".card", has=mark)
    assert mark.evaluate(right) < card.evaluate(right)


def test_files_are_opened_and_asked_about(server, opened):
    page = opened(server)
    ready(page).set_input_files("#files", [server.root / "clip.mp4", server.root / "clip.h5"])
    until(page, "JSON.parse(sessionStorage.shown).clip.url.startsWith('file-')")
    assert page.evaluate("document.querySelector('#files').files.length") == 0  # the same ones may be opened again
    ready(page).click("#ask")
    assert answer_of(page) == api_answer(server)
    page.reload()  # the upload is there still
    ready(page)
    assert page.evaluate("JSON.parse(sessionStorage.shown).clip.url.startsWith('file-')")


def test_files_are_dropped_and_asked_about(server, opened):
    page = ready(opened(server))
    box = page.locator("#media").bounding_box()
    at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    data = {
        "items": [],
        "files": [str(server.root / name) for name in ("clip.h5", "clip.mp4")],
        "dragOperationsMask": 1,
    }
    browser, marked = page.context.new_cdp_session(page), "document.querySelector('#media.dropping') !== null"
    for kind in ("dragEnter", "dragOver"):
        browser.send("Input.dispatchDragEvent", {"type": kind, "data": data, **at})
    until(page, marked)
    browser.send("Input.dispatchDragEvent", {"type": "drop", "data": data, **at})
    shown = "JSON.parse(sessionStorage.shown)"
    until(page, f"{shown}.clip.url.startsWith('file-') && {shown}.events?.url.startsWith('file-')")
    assert not page.evaluate(marked)
    assert [page.text_content(at) for at in ("#clip-name", "#events-name")] == ["clip.mp4", "clip.h5"]
    ready(page).click("#ask")
    assert answer_of(page) == api_answer(server)


def test_a_server_with_keys_asks_for_one(start, opened, tmp_path):
    key = new_key()
    append_key(tmp_path / "keys.yaml", KeyRecord(name="me", sha256=digest_of(key)))
    running = start(keys_file=tmp_path / "keys.yaml")
    assert httpx.get(f"{running.url}/page/events.png", params={"url": "file:clip.h5"}).status_code == 401
    page = opened(running)
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#problem:not([hidden])")
    assert "API key is missing or wrong" in page.text_content("#problem")
    page.fill("#key", key)
    page.keyboard.press("Enter")
    ready(page)
    assert page.is_hidden("#key-form")
    page.click("#ask")
    answer_of(page)


def test_its_policy_lets_nothing_in(server):
    for path in ("/", "/page/page.js", "/page/page.css", "/page/icon.svg"):
        found = httpx.get(server.url + path)
        assert (found.status_code, found.headers["content-security-policy"]) == (
            200,
            HEADERS["content-security-policy"],
        )
        assert "unsafe" not in found.headers["content-security-policy"]
        assert found.headers["x-content-type-options"] == "nosniff"
        assert "http:" not in found.text.replace("http://www.w3.org/2000/svg", "")
        assert "https:" not in found.text
    page = httpx.get(server.url).text
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", page)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"url": "file:clip.h5", "seconds": "2"}, 200), ({"url": "file:clip.h5"}, 200),
        ({"url": "file:none.h5"}, 404), ({"url": "file:../clip.h5"}, 404), ({"url": "file:clip.mp4"}, 400),
        ({"url": "file:clip.h5", "frames": "7"}, 400), ({"url": "file:clip.h5", "seconds": "nan"}, 400), ({}, 400),
    ],
)  # fmt: skip
def test_event_pictures(server, query, status):
    found = httpx.get(f"{server.url}/page/events.png", params=query, timeout=60)
    assert found.status_code == status, found.text
    assert found.content.startswith(b"\x89PNG") if status == 200 else found.json()["error"]["message"]


def test_a_strip_has_a_frame_for_each_span_of_time(tmp_path):
    # A clip of 16 ms in 8 frames of 2 ms: an event in the first, two in the last, one behind the clip's end.
    x, y, t, p = [0, 1, 2, 3], [0, 1, 0, 1], [0, 14_000, 15_999, 16_000], [1, 0, 1, 1]
    columns = (np.array(values) for values in (x, y, t, p))
    write_events(tmp_path / "some.h5", [Events.checked(*columns, 4, 2)])
    found = event_strip(tmp_path / "some.h5", 0.016, 8, DEFAULT_LIMITS)
    wanted = np.full((2, 8 * 4, 3), 255, np.uint8)
    wanted[0, 0] = wanted[0, 7 * 4 + 2] = (255, 0, 0)
    wanted[1, 7 * 4 + 1] = (0, 0, 255)
    assert found.tolist() == wanted.tolist()


def test_the_target_alone_is_refused_while_others_are_answered(server):
    asked = {"model": "reference", "messages": messages(), "max_tokens": 8}
    found = httpx.post(f"{server.url}/page/alone", json=asked, timeout=60).json()
    assert found["new_tokens"] == 8
    assert found["text"] == server.post(asked).json()["choices"][0]["message"]["content"]
    with server.service.limits.admitted(Client()):
        assert httpx.post(f"{server.url}/page/alone", json=asked, timeout=60).status_code == 503


def test_a_comparison_does_not_begin_if_others_came_while_its_clip_was_read(server, monkeypatch):
    asked, question, runs = {"model": "reference", "messages": messages(), "max_tokens": 8}, Answering.loaded, []
    with ExitStack() as others:

        async def joined(self, held):
            found = await question(self, held)
            others.enter_context(self.service.limits.admitted(Client()))
            return found

        monkeypatch.setattr(Answering, "loaded", joined)
        monkeypatch.setattr(Engine, "alone", lambda *arguments: runs.append(arguments))
        found = httpx.post(f"{server.url}/page/alone", json=asked, timeout=60)
    assert (found.status_code, found.json()["error"]["code"]) == (503, "busy")
    assert not runs


def test_a_comparison_ends_as_soon_as_somebody_else_asks(server, monkeypatch):
    asked, alone, stops = {"model": "reference", "messages": messages(), "max_tokens": 8}, Engine.alone, []
    with ExitStack() as others:

        def joined(self, request, cores, stop):
            if not stops:
                others.enter_context(server.service.limits.admitted(Client()))
                stops.append(stop.wait(20))
            return alone(self, request, cores, stop)

        monkeypatch.setattr(Engine, "alone", joined)
        found = httpx.post(f"{server.url}/page/alone", json=asked, timeout=60)
    assert stops == [True]
    assert (found.status_code, found.json()["error"]["code"]) == (503, "busy")
    assert idle(server)


def test_its_colours_and_kinds_are_those_of_the_pictures(server):
    style, script = (httpx.get(f"{server.url}/page/page.{kind}").text for kind in ("css", "js"))
    for kind in {kind.style for kind in KINDS} | {"decode", "other", "hidden", "drafted", "target", "ink", "faint"}:
        assert [found.strip() for found in re.findall(rf"--{kind}:([^;]+);", style)] == list(PALETTE[kind])
    for kind in KINDS:
        for name in kind.names:
            assert re.search(rf'"?{name}"?: "{kind.style}"', script), name


@pytest.mark.slow
def test_the_picture_of_the_docs_is_taken(server, opened, tmp_path):
    picture = tmp_path / "serve.png"
    take(opened(server, viewport=VIEW), server.url, picture)
    height, width, _ = cv2.imread(str(picture)).shape
    assert (width, height) == (VIEW["width"], VIEW["height"])
