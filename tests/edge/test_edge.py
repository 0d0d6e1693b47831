"""Edge and cloud through a slow network: the answer is the target's own, whatever the network does."""

import asyncio
import math
import time

import pytest

import crossdraft.edge.client as client_module
from crossdraft.edge.estimate import LinkEstimate
from crossdraft.edge.frames import DraftFrame, encode
from crossdraft.engine.estimates import Ema
from crossdraft.engine.request import Origin
from crossdraft.errors import CrossdraftError
from crossdraft.serve.edge import EdgeConnection
from crossdraft.serve.service import load_engine
from crossdraft_lab.bench.edge.proxy import DelayingProxy, Network
from tests.edge.conftest import chat, settings
from tests.serve.conftest import Runner


def at(running) -> str:
    return f"ws://{running.address[0]}:{running.address[1]}"


@pytest.mark.parametrize("network", [Network(), Network(0.02, 0.005), Network(0.1, bits_per_s=1e6)], ids=str)
def test_the_answer_is_the_targets_own(start, edge, alone, network):
    shown = []
    with DelayingProxy(start().address, network) as proxy, edge.client(proxy.address) as client:
        answers = [edge.ask(client, lambda *piece: shown.append(piece)) for _ in range(2)]
        nothing = edge.ask(client, drafts=False)
    assert {answer.tokens for answer in (*answers, nothing)} == {alone}
    assert {answer.drafter_error for answer in answers} == {None}
    assert answers[0].text == nothing.text
    assert answers[0].frames["draft"]
    assert nothing.frames["draft"] == 0
    assert answers[0].report["metrics"]["lossless"]
    assert answers[1].report["edge"]["rtt_ms"] >= 1e3 * network.rtt_s
    final = [piece for origin, *piece in shown if origin is not Origin.PROVISIONAL]
    assert [token for tokens, _ in final for token in tokens] == [*alone, *alone]


def test_an_edge_may_send_a_prediction(edge, alone, media):
    """The cloud drafts from it, beside what the edge drafts or alone."""
    asked = settings(media_root=media, adaptive=False)
    with load_engine(asked) as engine:
        started = Runner(engine, media).start(asked)
        with edge.client(at(started[0])) as client:
            without = edge.ask(client, drafts=False)
            body = chat(prediction={"type": "content", "content": without.text})
            answers = [client.ask(body, edge.request(), one, lambda *piece: None) for one in (None, edge.drafter)]
        Runner.stop(*started)
    assert {answer.tokens for answer in (without, *answers)} == {alone}
    for answer in answers:
        assert answer.report["metrics"]["speculative_decoding"]["mean_acceptance_length"] > 4


def test_a_speculative_prefill_reads_whole_what_an_edge_asks(edge, alone, media):
    """The events, by which it predicts, lie at the edge; there they are drafted by as ever."""
    asked = settings(media_root=media, lossy_prefill="predicted")
    with load_engine(asked) as engine:
        started = Runner(engine, media).start(asked)
        with edge.client(at(started[0])) as client:
            answer = edge.ask(client)
        Runner.stop(*started)
    assert answer.tokens == alone
    assert answer.report["metrics"]["lossless"]
    assert "Read whole: its events lie at an edge, and are not sent." in answer.report["notes"]


def test_a_question_that_comes_without_an_edge_is_drafted_for_by_the_clouds_own(edge, alone, media):
    """Greedy and sampled; an edge drafts hidden as ever, and the cloud's own drafter goes on."""
    asked = settings(media_root=media, drafter="phased:edge,eagle2", cache_bytes=0, adaptive=False)
    with load_engine(asked) as engine:
        started = Runner(engine, media).start(asked)
        with edge.client(at(started[0])) as client:
            seen = edge.ask(client)
        plain = started[0].post(chat(crossdraft={"timeline": True})).json()
        sampled = started[0].post(chat(temperature=1.0, seed=3, crossdraft={"timeline": True})).json()
        Runner.stop(*started)
    assert seen.tokens == alone
    assert seen.drafter_error is None
    assert not any("gave up" in note for note in seen.report.get("notes", ()))
    assert plain["choices"][0]["message"]["content"] == seen.text
    for answer in (plain, sampled):
        found = answer["crossdraft"]["timeline"]
        note = "The drafter of the prefill gave up (the question did not come from an edge); the other one drafted."
        assert found["notes"] == [note]
        assert found["stats"]["drafted"] > 0


def test_the_draft_is_on_its_way_while_the_cloud_reads(start, edge, alone):
    """The edge begins without a word of the cloud; a slow network costs the question as much as the draft."""
    with DelayingProxy(start().address, Network(0.3)) as proxy, edge.client(proxy.address) as client:
        client.open()
        answers = [edge.ask(client) for _ in range(3)]  # other work may hold the edge's drafter
    assert all(answer.first_provisional_s < answer.first_s for answer in answers)
    assert any(answer.report["metrics"]["hidden_accepted_tokens"] > 0 for answer in answers)
    assert {answer.tokens for answer in answers} == {alone}


def test_a_union_goes_on_with_the_edge_where_its_part_in_another_process_cannot_read_the_events(edge, alone, media):
    asked = settings(media_root=media, drafter="union:edge,event", placement="process")
    with load_engine(asked) as engine:
        started = Runner(engine, media).start(asked)
        with DelayingProxy(started[0].address, Network(0.1)) as proxy, edge.client(proxy.address) as client:
            client.open()
            answers = [edge.ask(client) for _ in range(3)]  # other work may hold the edge's drafter
        Runner.stop(*started)
    assert {answer.tokens for answer in answers} == {alone}
    notes = [note for answer in answers for note in answer.report["notes"]]
    assert not [note for note in notes if "rounds" not in note]  # but why hardly anything was drafted
    drafted = [answer.report["metrics"]["speculative_decoding"] for answer in answers]
    assert any(one is not None and one["num_accepted_draft_tokens"] for one in drafted)


@pytest.mark.parametrize(("nbytes", "drafts"), [(1, True), (60, True), (1, False), (200, False), (600, False)])
def test_a_cut_costs_no_token(start, edge, alone, nbytes, drafts):
    """Before anything final is there, in the midst of the answer, near its end."""
    with DelayingProxy(start().address, Network(0.01)) as proxy, edge.client(proxy.address) as client:
        client.open()
        proxy.cut_after = nbytes
        shown = []
        answer = edge.ask(client, lambda *piece: shown.append(piece), drafts=drafts)
        # A draft may be accepted whole; then all of the answer may come at once.
        assert (answer.cuts, proxy.connections) in {(1, 2), *([(0, 1)] if (nbytes, drafts) == (60, True) else [])}
    assert answer.tokens == alone
    final = [token for origin, tokens, _ in shown if origin is not Origin.PROVISIONAL for token in tokens]
    assert tuple(final) == alone  # nothing twice


def test_an_edge_that_does_not_come_back_costs_nothing(start, edge):
    running = start(edge_resume_seconds=0.2)
    with DelayingProxy(running.address) as proxy, edge.client(proxy.address, patience_s=0.0) as client:
        client.open()
        proxy.cut_after = 1
        proxy.upstream = ("127.0.0.1", 9)  # nobody
        with pytest.raises(CrossdraftError, match="lost"):
            edge.ask(client)
    until = time.monotonic() + 10
    while (running.rows() or running.service.limits.active) and time.monotonic() < until:
        time.sleep(0.02)
    assert (running.rows(), running.service.limits.active) == (0, 0)


def test_a_node_of_a_sampled_draft_is_sent_once(start, edge, monkeypatch):
    """Its distribution travels with it; a draft that grew is not sent again, however many nodes a frame takes along."""
    drafts: list[DraftFrame] = []

    def record(frame):
        if isinstance(frame, DraftFrame):
            drafts.append(frame)
        return encode(frame)

    monkeypatch.setattr(client_module, "encode", record)
    with edge.client(at(start(drafter="edge:draws=yes"))) as client:
        client.open()
        answer = edge.ask(client, temperature=1.0, top_k=16, seed=3)
    assert answer.drafter_error is None
    lengths = {}
    for frame in drafts:
        assert frame.start == lengths.get(frame.serial, 0)
        lengths[frame.serial] = frame.start + len(frame.tokens)
    assert answer.frames["draft"] == len(drafts) > 0
    assert answer.sent["draft"] < 70 * len(drafts) + (16 * 8 + 12 * 8) * sum(lengths.values())


def test_a_sampled_answer_is_drafted_by_the_likeliest_tokens_and_no_distribution_is_sent(start, edge, monkeypatch):
    """By default no answer depends on what an edge says that its tokens were drawn from."""
    sent_frames = []
    monkeypatch.setattr(client_module, "encode", lambda frame: sent_frames.append(frame) or encode(frame))
    with edge.client(at(start())) as client:
        client.open()
        answers = [edge.ask(client, temperature=1.0, top_k=16, seed=3) for _ in range(2)]
    assert {answer.drafter_error for answer in answers} == {None}
    assert all(answer.report["metrics"]["lossless"] for answer in answers)
    frames = [frame for frame in sent_frames if isinstance(frame, DraftFrame)]
    assert frames
    assert not any(frame.counts or frame.ids for frame in frames)


@pytest.fixture
def known(monkeypatch):
    """Has the cloud know long since what its target takes, so that only the link is new to it."""

    def know(answer_s: float, pass_s: float) -> None:
        def long_known(seconds: float) -> Ema:
            return Ema(0.999, 1000.0, 1000.0 * seconds)

        made = lambda: LinkEstimate(answer_s=long_known(answer_s), pass_s=long_known(pass_s))  # noqa: E731
        monkeypatch.setattr("crossdraft.serve.edge.LinkEstimate", made)

    return know


@pytest.mark.parametrize(("pass_s", "policy"), [(0.001, "hidden"), (10.0, "rounds")])
def test_rounds_are_decided_by_the_round_trip_that_was_measured(start, edge, alone, known, pass_s, policy):
    """Over half a second's round trip a reply comes after 500 passes of a millisecond, or in the midst of one."""
    known(10.0, pass_s)
    with DelayingProxy(start().address, Network(0.5)) as proxy, edge.client(proxy.address) as client:
        answer = edge.ask(client)
    assert answer.tokens == alone
    said = answer.report["edge"]
    assert said["policy"] == policy
    assert said["rtt_ms"] >= 500
    assert said["next"] is True


def test_an_answer_that_is_whole_before_any_of_it_is_sent_was_decided_by_its_first_tokens(
    start, edge, known, monkeypatch
):
    """The engine may be ahead of the loop: then the report is made before the first commit."""
    known(10.0, 0.001)
    write = EdgeConnection._write

    async def late(connection, session):
        while session.last is None:
            await asyncio.sleep(0.01)
        await write(connection, session)

    monkeypatch.setattr(EdgeConnection, "_write", late)
    with DelayingProxy(start().address, Network(0.5)) as proxy, edge.client(proxy.address) as client:
        assert edge.ask(client).report["edge"]["policy"] == "hidden"


def test_the_round_trip_is_known_before_the_first_question_and_after_a_cut(start, edge):
    with DelayingProxy(start().address, Network(0.5)) as proxy, edge.client(proxy.address) as client:
        client.open()
        proxy.cut_after = 1
        answers = [edge.ask(client) for _ in range(2)]
    assert [answer.cuts for answer in answers] == [1, 0]
    assert all(answer.report["edge"]["rtt_ms"] >= 500 for answer in answers)


def test_an_edge_whose_drafts_come_after_the_answers_end_drafts_no_more(start, edge, alone, known, monkeypatch):
    known(0.001, 0.001)
    begin = edge.drafter.begin
    monkeypatch.setattr(edge.drafter, "begin", lambda requests: time.sleep(0.05) or begin(requests))
    with DelayingProxy(start().address) as proxy, edge.client(proxy.address) as client:
        client.open()
        answers = [edge.ask(client) for _ in range(2)]
    assert {answer.tokens for answer in answers} == {alone}
    assert [answer.report["edge"]["next"] for answer in answers] == [False, False]
    assert answers[1].report["edge"]["policy"] == "off"
    assert answers[1].frames["draft"] == 0


def test_the_bandwidth_is_measured_by_the_frames(start, edge, alone):
    with DelayingProxy(start().address, Network(bits_per_s=2e4)) as proxy, edge.client(proxy.address) as client:
        found: list[float] = []
        for _ in range(8):  # frames that a busy machine reads together tell nothing, or too much
            answer = edge.ask(client)
            assert answer.tokens == alone
            found.append(answer.report["edge"]["mbit_s"] or math.inf)
            if found[-1] < 0.04:
                break
    assert 0.004 < found[-1] < 0.04


def test_a_question_that_is_refused_has_a_sentence(start, edge):
    with edge.client(at(start())) as client:
        client.open()
        request = edge.request()
        with pytest.raises(CrossdraftError, match="no model 'other'"):
            client.ask({"model": "other", "messages": [{"role": "user", "content": "?"}]}, request, edge.drafter)
        with pytest.raises(CrossdraftError, match="tools"):
            client.ask(
                {"model": "reference", "messages": [{"role": "user", "content": "?"}], "tools": [1]}, request, None
            )
        assert edge.ask(client).tokens  # and the next one is answered
