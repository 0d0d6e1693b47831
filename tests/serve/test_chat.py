"""`/v1/chat/completions`, asked with OpenAI's own client."""

import asyncio
import base64
import json
import time

import httpx
import openai
import pytest

from crossdraft import Request, Sampling
from crossdraft.events.excerpt import Excerpt
from tests.serve.conftest import QUESTION, body, content, messages
from tests.serve.test_security import reaches


def direct(server, question: str = QUESTION, tokens: int = 24):
    """What the engine says when it is asked itself."""
    shown = Excerpt(server.root / "clip.h5", 0, 2_000_000)
    video = str(server.root / "clip.mp4")
    return server.engine.generate(Request(question, video, shown, max_new_tokens=tokens, namespace=None))


def test_answer_is_the_engines_own(server, drafted_for):
    found = server.client().chat.completions.create(**body())
    wanted = direct(server)
    assert found.choices[0].message.content == wanted.text
    assert found.choices[0].finish_reason == "length"
    assert (found.object, found.model, found.id[:9]) == ("chat.completion", "reference", "chatcmpl-")
    assert found.usage.completion_tokens == len(wanted.tokens)
    assert found.usage.prompt_tokens == wanted.stats.prompt_tokens
    spec = found.metrics["speculative_decoding"]
    assert sum(spec["acceptance_histogram"]) == spec["num_spec_steps"] > 0
    assert found.metrics["time_to_first_token_ms"] > 0


def test_a_seed_repeats_whatever_drafts(server, drafted_for):
    """What the target says by itself under that seed: at once, in a stream, asked again."""
    sampling = Sampling(temperature=2.0, top_p=0.95, seed=7)
    video = str(server.root / "clip.mp4")
    alone = server.engine.alone(Request(QUESTION, video, max_new_tokens=24, namespace=None, sampling=sampling))
    asked = body(temperature=2.0, top_p=0.95, seed=7)
    for _ in range(2):
        assert server.client().chat.completions.create(**asked).choices[0].message.content == alone.text
    chunks = server.client().chat.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == alone.text
    other = server.client().chat.completions.create(**{**asked, "seed": 9})
    assert other.choices[0].message.content != alone.text


def test_text_alone_is_answered_as_by_the_target_alone(server):
    """Legal for OpenAI's clients; what the reference target makes of it is its own."""
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    found = server.client().chat.completions.create(**body(messages=asked))
    alone = server.engine.alone(Request(messages=asked, max_new_tokens=24))
    assert found.choices[0].message.content == alone.text
    assert found.usage.completion_tokens == len(alone.tokens) > 1
    assert found.metrics["lossless"] is True


def test_finish_reason_stop(server):
    found = server.client().chat.completions.create(**body(max_tokens=100)).choices[0]
    assert found.finish_reason == "stop"
    cut = server.client().chat.completions.create(**body(max_tokens=100, stop=[" ahead", "x" * 1024])).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.message.content == found.message.content.partition(" ahead")[0]


def test_stream_is_the_answer_piece_by_piece(server, drafted_for):
    chunks = list(server.client().chat.completions.create(**body(stream=True, stream_options={"include_usage": True})))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == direct(server).text
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 24
    assert chunks[-1].metrics["speculative_decoding"]["num_spec_steps"] > 0
    assert len({chunk.id for chunk in chunks}) == 1


def test_async_client_streams_several_at_once(server):
    async def ask(question: str) -> str:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")
        stream = await client.chat.completions.create(**body(messages=messages(question), stream=True))
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def both():
        return await asyncio.gather(*(ask(question) for question in questions))

    questions = (QUESTION, "Is it dark?")
    assert asyncio.run(both()) == [direct(server, question).text for question in questions]


def test_provisional_text_is_passed_over_by_stock_clients(server, drafted_for):
    fresh = {"media_io_kwargs": {"video": {"num_frames": 7}}}  # nothing is known of it, so the target reads
    asked = {"crossdraft": {"provisional": True, "origins": True, "timeline": True}, **fresh}
    lines = [line for line in server.post(body(stream=True, **asked)).text.splitlines() if line]
    news = [json.loads(line.removeprefix(": crossdraft ")) for line in lines if line.startswith(":")]
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert lines[0].startswith("data: ")  # the role is first, as from OpenAI, whatever is drafted
    assert lines[-1] == "data: [DONE]"
    assert "".join(one.get("provisional", "") for one in news)
    spans = news[-1]["timeline"]["spans"]
    assert {"target", "drafter"} <= {span["lane"] for span in spans}
    origins = [one["crossdraft"]["origin"] for one in chunks if "crossdraft" in one]
    assert set(origins) <= {"hidden", "drafted", "target"}
    stock = server.client().chat.completions.create(**body(stream=True, extra_body=asked))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stock)
    assert text == "".join(one["choices"][0]["delta"].get("content", "") for one in chunks)


def test_system_prompt_and_several_turns(server):
    client = server.client().chat.completions
    first = client.create(**body()).choices[0].message.content
    turns = [
        {"role": "system", "content": "Answer in one sentence."},
        {"role": "user", "content": content()},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "Is it near?"},
    ]
    found = client.create(**body(messages=turns, max_tokens=8))
    video = str(server.root / "clip.mp4")
    shown = {"type": "video", "video": video}
    wanted = [turns[0], {"role": "user", "content": [shown, {"type": "text", "text": QUESTION}]}, turns[2], turns[3]]
    assert found.choices[0].message.content == server.engine.generate(Request(messages=wanted, max_new_tokens=8)).text


def test_penalties_by_counts_are_the_engines(server):
    penalties = {"presence_penalty": -2.0, "frequency_penalty": -2.0}
    drawn = {"temperature": 2.0, "seed": 7}
    found, plain = (server.client().chat.completions.create(**body(**drawn, **more)) for more in (penalties, {}))
    sampling = Sampling(**drawn, **penalties)
    asked = Request(QUESTION, str(server.root / "clip.mp4"), max_new_tokens=24, sampling=sampling)
    assert found.choices[0].message.content == server.engine.generate(asked).text
    assert found.choices[0].message.content != plain.choices[0].message.content


def test_an_answer_may_be_sent_back_as_it_came(server):
    client = server.client().chat.completions
    first = client.create(**body(max_tokens=4, presence_penalty=0.0, n=1, tools=[])).choices[0].message
    turns = [*messages(), first, {"role": "user", "content": "Is it near?"}]
    assert client.create(**body(messages=turns, max_tokens=2)).usage.completion_tokens == 2


def test_a_second_question_about_the_same_bytes_reads_only_itself(server):
    video = base64.b64encode((server.root / "clip.mp4").read_bytes()).decode()
    client = server.client()
    client.chat.completions.create(**body(messages=messages(video=f"data:video/mp4;base64,{video}")))
    again = client.chat.completions.create(**body(messages=messages("Is it dark?")))
    usage = again.usage
    assert usage.prompt_tokens_details.cached_tokens > usage.prompt_tokens / 2


def test_uuid_names_a_clip_that_was_sent_before(server):
    client = server.client().chat.completions
    named = {"type": "video_url", "video_url": {"url": "file:clip.mp4"}, "uuid": "clip-1"}
    short = {"type": "video_url", "uuid": "clip-1"}
    text = {"type": "text", "text": QUESTION}
    first = client.create(**body(messages=[{"role": "user", "content": [named, text]}]))
    second = client.create(**body(messages=[{"role": "user", "content": [short, text]}]))
    assert first.choices[0].message.content == second.choices[0].message.content
    unknown = {"type": "video_url", "uuid": "clip-2"}
    with pytest.raises(openai.BadRequestError, match="uuid"):
        client.create(**body(messages=[{"role": "user", "content": [unknown, text]}]))


def test_uploads_are_named_by_their_ids(server):
    client = server.client()
    ids = {}
    for name in ("clip.mp4", "clip.h5"):
        with open(server.root / name, "rb") as file:
            ids[name] = client.files.create(file=file, purpose="user_data").id
    assert {one.id for one in client.files.list().data} >= set(ids.values())
    assert client.files.content(ids["clip.mp4"]).read() == (server.root / "clip.mp4").read_bytes()
    parts = [{"type": "file", "file": {"file_id": found}} for found in ids.values()]
    parts.append({"type": "text", "text": QUESTION})
    found = client.chat.completions.create(**body(messages=[{"role": "user", "content": parts}]))
    assert found.choices[0].message.content == direct(server).text
    assert found.metrics["speculative_decoding"]["num_accepted_draft_tokens"] > 0  # so the events were read
    for one in ids.values():
        assert client.files.delete(one).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(ids["clip.mp4"])


def test_logprobs(server):
    found = server.client().chat.completions.create(**body(logprobs=True, max_tokens=4)).choices[0]
    tokens = found.logprobs.content
    assert len(tokens) == 4
    assert "".join(one.token for one in tokens).strip() == found.message.content
    assert all(one.logprob <= 0 and not one.top_logprobs for one in tokens)


def test_logprobs_have_the_stop_string_that_the_text_leaves_out(server):
    found = server.client().chat.completions.create(**body(logprobs=True, stop=[" ahead"], max_tokens=40)).choices[0]
    spelt = b"".join(bytes(one.bytes) for one in found.logprobs.content).decode()
    assert spelt.lstrip(" ").startswith(f"{found.message.content} ahead")


@pytest.mark.parametrize("more", [{}, {"top_logprobs": 3}, {"top_logprobs": 2, "stop": [" ahead"]}, {"temperature": 1}])
def test_logprobs_of_a_stream_are_those_of_the_whole_answer(server, more):
    asked = body(logprobs=True, seed=5, max_tokens=40, **more)
    whole = server.client().chat.completions.create(**asked).choices[0].logprobs
    assert len(whole.content) >= 4
    chunks = [chunk.choices[0] for chunk in server.client().chat.completions.create(**asked, stream=True)]
    streamed = [one for chunk in chunks if chunk.logprobs is not None for one in chunk.logprobs.content]
    assert [one.token for one in streamed] == [one.token for one in whole.content]
    assert [one.logprob for one in streamed] == pytest.approx([one.logprob for one in whole.content], abs=1e-4)
    for here, there in zip(streamed, whole.content, strict=True):
        assert [one.token for one in here.top_logprobs] == [one.token for one in there.top_logprobs]
        assert len(here.top_logprobs) == more.get("top_logprobs", 0)
        values = [one.logprob for one in here.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert not values or values[0] == here.logprob  # greedy: the first is what was said
    assert chunks[0].logprobs is chunks[-1].logprobs is None


def test_frames_that_the_client_sampled(server, tmp_path):
    import av
    import numpy as np

    shots = []
    for number in range(3):
        path = tmp_path / f"{number}.jpg"
        with av.open(str(path), "w", format="mjpeg") as file:
            stream = file.add_stream("mjpeg", rate=1)
            stream.width = stream.height = 64
            stream.pix_fmt = "yuvj420p"
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 40 * number, np.uint8), format="rgb24")
            for packet in [*stream.encode(frame), *stream.encode(None)]:
                file.mux(packet)
        shots.append(base64.b64encode(path.read_bytes()).decode())
    asked = messages(video="data:video/jpeg;base64," + ",".join(shots), events=None)
    assert server.client().chat.completions.create(**body(messages=asked, max_tokens=2)).usage.completion_tokens == 2


def test_what_is_wrong_with_a_clip_stands_in_the_metrics_and_in_the_log(server, caplog):
    caplog.set_level("INFO", "crossdraft.serve")
    clip = (server.root / "clip.mp4").read_bytes()
    begin = clip.index(b"mdat")
    sent = base64.b64encode(clip[: begin + (len(clip) - begin) * 2 // 3]).decode()
    asked = body(messages=messages(video=f"data:video/mp4;base64,{sent}", events=None), max_tokens=2)
    note = server.client().chat.completions.create(**asked).metrics["notes"][0]
    assert note.startswith("messages[0].content[0] is cut off or damaged: only ")
    assert note in getattr(caplog.records[-1], "facts", {})["notes"]


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"model": "gpt-x"}, 404, "no model"),
        ({"messages": []}, 400, "messages"),
        ({"n": 2}, 400, "greedy ones are equal"),
        ({"fps": 2}, 400, "fps"),
        ({"tools": [{"type": "function"}]}, 400, "tools"),
        ({"presence_penalty": 3}, 400, "presence_penalty: Input should be less than or equal to 2"),
        ({"messages": [{"role": "user", "content": "x", "text": "y"}]}, 400, "argument: messages[0].text;"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "messages[0].content[0].text: Field"),
        ({"messages": [{"role": "user", "content": 1}]}, 400, "messages[0].content: "),
        ({"media_io_kwargs": {"video": {"url": "file:clip.mp4"}}}, 400, "argument: media_io_kwargs.video.url;"),
        ({"stop": 1}, 400, "stop: "),
        ({"stop": "x" * 1025}, 400, "more than 1,024 characters"),
        ({"stop": ["a", "x" * 1025]}, 400, "more than 1,024 characters"),
        ({"logit_bias": {"99999999": 1}}, 400, "A bias names token"),
        ({"logit_bias": {"-1": 1}}, 400, "logit_bias"),
        ({"max_tokens": 100_000}, 400, "at most"),
        ({"max_tokens": True}, 400, "max_tokens: true is no number"),
        ({"temperature": False}, 400, "temperature: false is no number"),
        ({"max_tokens": 1000}, 400, "context"),
        ({"temperature": 3}, 400, "temperature"),
        ({"top_logprobs": 2}, 400, "top_logprobs come with logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
        ({"messages": [{"role": "ipython", "content": "x"}]}, 400, "role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "tool_call_id"),
        ({"messages": messages("What is <video>?")}, 400, "placeholder"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "last message"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, 400, "content"),
        ({"messages": messages(video="ftp://x/y")}, 400, "no known kind"),
        ({"messages": messages(video="data:video/mp4;base64,AAAA")}, 400, "messages[0].content[0] is not a video"),
        ({"messages": messages(video="data:video/mp4;base64,%%%")}, 400, "base64"),
        ({"messages": messages(video="file:clip.h5")}, 400, "not a video"),
        ({"messages": messages(events="file:clip.mp4")}, 400, "messages[0].content[1]"),
    ],
)
def test_what_is_wrong_is_said_in_openais_shape(server, change, status, says):
    for stream in (False, True):
        found = server.post({**body(stream=stream), **change})
        error = found.json()["error"]
        assert found.status_code == status
        assert says in error["message"]
        assert set(error) == {"message", "type", "param", "code"}
        assert str(server.root) not in error["message"]


def test_a_client_that_goes_away_leaves_nothing_of_its_request(server):
    asked = body(messages=messages("Describe the scene in detail."), max_tokens=200, stream=True)
    for _ in range(5):
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=asked, timeout=30) as response:
            next(response.iter_lines())
    assert idle(server)
    assert 0 in [server.rows() for _ in range(5)]  # each is looked up between two rounds
    assert server.service.media.files.spooled == 0


def test_a_client_that_waits_for_a_whole_answer_may_go_away_too(server):
    data = json.dumps(body(max_tokens=200)).encode()
    for _ in range(3):
        with server.connection() as connection:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
            connection.sendall(head.encode() + data)
            time.sleep(0.02)
    assert idle(server)
    assert 0 in [server.rows() for _ in range(5)]  # each is looked up between two rounds


@pytest.mark.parametrize("stream", [True, False])
def test_no_round_begins_after_the_one_in_which_a_client_left(server, held_rounds, stream):
    """The server gives its answer up while that round runs: it waits for no piece to notice."""
    data, said = json.dumps(body(max_tokens=200, min_tokens=200, stream=stream)).encode(), b""
    with server.connection() as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        while stream and b"data: " not in said:
            said += connection.recv(4096)
        assert reaches(lambda: held_rounds.begun, 1)
    assert idle(server)
    held_rounds.go.set()
    assert reaches(server.rows, 0)
    assert held_rounds.begun == 1


def idle(server) -> bool:
    """Whether nothing is being answered, soon."""
    until = time.monotonic() + 20
    while server.service.limits.active and time.monotonic() < until:
        time.sleep(0.01)
    return not server.service.limits.active


def test_a_full_queue_is_503_and_says_when_to_ask_again(server):
    async def ask(client, number):
        asked = body(messages=messages(f"What is ahead? {number}"), max_tokens=16)
        return await client.post(f"{server.url}/v1/chat/completions", json=asked)

    async def everybody():
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=40)) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(20)))

    found = asyncio.run(everybody())
    statuses = [one.status_code for one in found]
    assert set(statuses) == {200, 503}
    assert statuses.count(200) >= 6  # two that run and four that wait
    refused = next(one for one in found if one.status_code == 503)
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "queue_full"
    assert idle(server)
