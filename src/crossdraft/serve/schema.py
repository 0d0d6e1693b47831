"""The body of `/v1/chat/completions`: OpenAI's fields, vLLM's for media and sampling, and our own few.

Unknown fields are refused by name, also inside media: otherwise an `fps` in the wrong place would be ignored silently.
Fields with an effect that the engine does not have are refused, fields without an effect are accepted. A client is told
only the first wrong element of a list (`fail_fast`): an error for each element would be costly.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, model_validator

from crossdraft.data_url import MOST_URL, scheme_of

MAX_STOPS = 16
MAX_STOP_IDS = 128
MAX_STOP = 1024  # characters of a stop string
MAX_TOP = 20  # OpenAI's limit
MAX_MESSAGES = 256
MAX_ANSWERS = 8  # to one request
MAX_TOOLS = 128  # of a request, and calls of one message; OpenAI's limit
NO_MESSAGES = [{"role": "user", "content": "-"}]  # stand for what other endpoints have in place of messages
MAX_FRAMES = 768  # equal to `video.clip.MAX_FRAMES`
MAX_QUESTIONS = 8  # questions of a stream


def _no_boolean(value: Any) -> Any:
    """Refuse a truth value in place of a number: Python, and so pydantic, takes `true` for 1."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is no number")  # noqa: TRY004 - what pydantic turns into the client's message
    return value


Whole = Annotated[int, BeforeValidator(_no_boolean)]
# The bounds are inside: behind a validator pydantic would report them as rounded floats.
Seed = Annotated[int, Field(ge=-1, lt=2**63), BeforeValidator(_no_boolean)]
Number = Annotated[float, BeforeValidator(_no_boolean)]
Id = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[\w.:/+=-]+$")]
Pixels = Annotated[Whole, Field(ge=1, le=65536)]
EventFormat = Annotated[str, Field(max_length=32)]
TimeUnit = Literal["s", "ms", "us", "ns"]


def _bounded(url: str) -> str:
    """Refuse a URL that is too long; a `data:` URL is limited with the body."""
    if len(url) > MOST_URL and scheme_of(url) != "data":
        raise ValueError(f"the address has more than {MOST_URL:,} characters, the limit; give a shorter one")
    return url


Url = Annotated[str, AfterValidator(_bounded)]


Empty = Annotated[list[Any], Field(max_length=0)]


class Body(BaseModel):
    """Base of a request's parts, which refuses unknown keys. A known key that is `null` is absent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        if not isinstance(values, dict) or None not in values.values():
            return values
        return {name: value for name, value in values.items() if value is not None or name not in cls.model_fields}


class TextPart(Body):
    """A text."""

    type: Literal["text"]
    text: str


class ImageUrl(Body):
    """The URL of an image."""

    url: Url | None = None
    detail: Literal["auto", "low", "high"] | None = None  # the target's own preprocessing decides


class VideoSampling(Body):
    """Frames to read from a clip."""

    num_frames: Whole | None = Field(default=None, ge=1, le=MAX_FRAMES)
    fps: Number | None = Field(default=None, gt=0, le=1000)
    max_frames: Whole | None = Field(default=None, ge=1, le=MAX_FRAMES)

    @model_validator(mode="after")
    def _consistent(self) -> "VideoSampling":
        if self.num_frames is not None and (self.fps is not None or self.max_frames is not None):
            raise ValueError("num_frames is given, and fps or max_frames too; give num_frames, or fps and max_frames")
        if self.max_frames is not None and self.fps is None:
            raise ValueError("max_frames bounds fps; give both, or num_frames")
        return self


class VideoUrl(VideoSampling):
    """URL of a clip, and the frames to read from it."""

    url: Url | None = None


class EventUrl(Body):
    """The URL of an event recording, and the part of it that the drafter reads; see `crossdraft ask --events`."""

    url: Url | None = None
    format: EventFormat | None = None
    sensor: tuple[Pixels, Pixels] | None = None
    time_unit: TimeUnit | None = None
    clock: Literal["auto", "video", "own"] = "auto"
    start_s: Number | None = Field(default=None, ge=0, le=1e9)
    end_s: Number | None = Field(default=None, ge=0, le=1e9)
    windows: Whole = Field(default=1, ge=1, le=64)

    @model_validator(mode="after")
    def _consistent(self) -> "EventUrl":
        if self.end_s is not None and self.end_s <= (self.start_s or 0):
            raise ValueError(f"end_s is {self.end_s:g}, not after start_s, {self.start_s or 0:g}; give a later one")
        return self


class FileId(Body):
    """The id of an upload."""

    file_id: Id


class MediaPart(Body):
    """Field that all media share: the client's own name for a medium, by which later requests may refer to it."""

    uuid: Id | None = None


def _url(value: Any) -> Any:
    """Accept a bare URL, as some clients write it, in place of OpenAI's object."""
    return {"url": value} if isinstance(value, str) else value


SHORT = BeforeValidator(_url)


class ImagePart(MediaPart):
    """An image."""

    type: Literal["image_url"]
    image_url: Annotated[ImageUrl, SHORT] | None = None


class VideoPart(MediaPart):
    """A clip."""

    type: Literal["video_url"]
    video_url: Annotated[VideoUrl, SHORT] | None = None


class EventPart(MediaPart):
    """An event recording of the clip's moment. It is not part of the prompt: only the drafter reads it."""

    type: Literal["event_url"]
    event_url: Annotated[EventUrl, SHORT] | None = None


class FilePart(Body):
    """An upload, as OpenAI names it; its content tells whether it is an image, a clip or a recording."""

    type: Literal["file"]
    file: FileId


ContentPart = Annotated[TextPart | ImagePart | VideoPart | EventPart | FilePart, Discriminator("type")]


class ChatMessage(Body):
    """One message. `developer` is OpenAI's newer word for `system`; an answer's content may be `null`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)]
    name: str | None = None
    tool_calls: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None
    # Fields of an answer that OpenAI's clients send back if it is appended as it came:
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: None = None
    annotations: Empty | None = None
    function_call: None = None
    audio: None = None
    parsed: Any = None  # what OpenAI's `parse` made of it
    provider_specific_fields: dict[str, Any] | None = None  # LiteLLM's

    @model_validator(mode="before")
    @classmethod
    def _without_content(cls, values: Any) -> Any:
        said_nothing = isinstance(values, dict) and values.get("role") == "assistant" and values.get("content") is None
        return {**values, "content": ""} if said_nothing else values


class StreamOptions(Body):
    """OpenAI's `stream_options`, and vLLM's `continuous_usage_stats`: the usage so far in each chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool | None = None


class MediaIo(Body):
    """vLLM's `media_io_kwargs`: sampling of clips whose own parts do not set it."""

    video: VideoSampling | None = None


class JsonSchema(Body):
    """OpenAI's `response_format.json_schema`. The schema is always held to, whatever `strict` says."""

    name: str | None = Field(default=None, max_length=64)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's `response_format`: any text, any JSON object, or JSON by a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("type json_schema and json_schema come together; give both, or another type")
        return self


class StructuredOutputs(Body):
    """vLLM's `structured_outputs`: exactly one of these constraints."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: Literal[True] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "StructuredOutputs":
        given = [name for name, value in self if value is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of json, regex, choice, grammar and json_object")
        return self


class Prediction(Body):
    """OpenAI's `prediction`: what the answer is expected to be, or nearly so."""

    type: Literal["content"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, without its parts' borders; none if it is empty."""
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        return tuple(filter(None, ["".join(parts)]))


class ToolChoice(Body):
    """OpenAI's `tool_choice` that names the tool which the answer must call."""

    type: Literal["function"]
    function: Annotated[dict[Literal["name"], str], Field(min_length=1)]


class Extras(Body):
    """Extra fields for our own clients, in `extra_body={"crossdraft": …}`.

    Args:
        provisional: also send the hidden draft, which may be taken back, during the prefill (streams only).
        origins: add to each piece which model drafted it, and when (streams only).
        timeline: send the timeline of both models and all figures at the end.
        hints: texts that the answer may quote; see `Request.hints`.
    """

    provisional: bool = False
    origins: bool = False
    timeline: bool = False
    hints: Annotated[list[str], Field(fail_fast=True)] = []


class ChatRequest(Body):
    """The body of a chat request."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Whole | None = Field(default=None, ge=1)
    max_completion_tokens: Whole | None = Field(default=None, ge=1)
    min_tokens: Whole | None = Field(default=None, ge=0)
    temperature: Number | None = Field(default=None, ge=0, le=2)
    top_p: Number | None = Field(default=None, gt=0, le=1)
    top_k: Whole | None = Field(default=None, ge=-1)
    min_p: Number | None = Field(default=None, ge=0, le=1)
    repetition_penalty: Number | None = Field(default=None, gt=0, le=10)
    presence_penalty: Number | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: Number | None = Field(default=None, ge=-2, le=2)
    logit_bias: dict[Annotated[Whole, Field(ge=0)], Annotated[Number, Field(ge=-100, le=100)]] | None = Field(
        default=None, max_length=1024
    )
    seed: Seed | None = None
    n: Whole = Field(default=1, ge=1, le=MAX_ANSWERS)
    stop: str | Annotated[list[str], Field(fail_fast=True)] | None = Field(default=None)
    stop_token_ids: Annotated[list[Annotated[Whole, Field(ge=0)]], Field(max_length=MAX_STOP_IDS)] | None = None
    ignore_eos: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(default=None, ge=0, le=MAX_TOP)
    media_io_kwargs: MediaIo | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    prediction: Prediction | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool = True
    crossdraft: Extras = Extras()

    # Accepted with their neutral values only:
    modalities: list[Literal["text"]] | None = None
    skip_special_tokens: Literal[True] | None = None

    # Accepted without effect:
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "ChatRequest":
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > MAX_STOPS:
            raise ValueError(f"stop has more than {MAX_STOPS} strings")
        if any(len(stop) > MAX_STOP for stop in stops):
            raise ValueError(f"stop has a string of more than {MAX_STOP:,} characters; give a shorter one")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ, and mean the same; send one of them")
        if self.min_tokens is not None and self.longest is not None and self.min_tokens > self.longest:
            raise ValueError(f"min_tokens is {self.min_tokens}, more than the longest answer, {self.longest}; lower it")
        if self.add_generation_prompt is self.continue_final_message:
            raise ValueError("add_generation_prompt is false where continue_final_message is true, and only there")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs come with logprobs; say logprobs: true")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options are for streams; say stream: true, or leave them out")
        if (self.crossdraft.provisional or self.crossdraft.origins) and not self.stream:
            raise ValueError("crossdraft.provisional and crossdraft.origins are for streams; say stream: true")
        return self

    @model_validator(mode="after")
    def _constrained_once(self) -> "ChatRequest":
        if self.structured_outputs is not None and self.response_format not in (None, ResponseFormat(type="text")):
            raise ValueError("response_format and structured_outputs both constrain the answer; send one of them")
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise ValueError("tool_choice asks for a call, and there are no tools; send some, or leave it out")
        return self

    @property
    def longest(self) -> int | None:
        """Largest number of tokens of the answer; `None` if the client leaves it open."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class ReplayedClip(Body):
    """A clip that is replayed as a stream; windows show some of its frames."""

    url: Url


class ReplayedEvents(Body):
    """Event recording of the same time as a replayed clip; fields as in `EventUrl`."""

    url: Url
    format: EventFormat | None = None
    sensor: tuple[Pixels, Pixels] | None = None
    time_unit: TimeUnit | None = None
    clock: Literal["auto", "video", "own"] = "auto"


class Replay(Body):
    """A recorded clip as a stream.

    Args:
        video_url, event_url: URLs, as in the parts of a message.
        speed: speed of the replay; 1 = real time.
    """

    video_url: Annotated[ReplayedClip, SHORT]
    event_url: Annotated[ReplayedEvents, SHORT] | None = None
    speed: Number = Field(default=1.0, ge=0.01, le=100)


class WatchRequest(Body):
    """The first message to `/v1/watch`.

    Args:
        model: name of the model; by default the server's.
        questions: questions about every window, asked one after another.
        every_ms, window_ms: milliseconds from window to window, and length of a window.
        max_tokens: largest number of tokens of an answer; by default as the checkpoint says.
        frames: number of frames of a window; by default as many as the target takes from a clip of that length.
        pieces: also send the text piece by piece.
        sensor: width and height of the event camera of a live stream.
        replay: clip to replay; without it and `live` the client pushes the stream.
        live, live_events: sources that the server reads, `live:…`, at hosts that its operator allowed.
    """

    model: str | None = None
    questions: list[Annotated[str, Field(min_length=1, max_length=4096)]] = Field(
        min_length=1, max_length=MAX_QUESTIONS
    )
    every_ms: Number = Field(default=500, ge=20, le=60_000)
    window_ms: Number = Field(default=1000, ge=20, le=60_000)
    max_tokens: Whole | None = Field(default=None, ge=1)
    frames: Whole | None = Field(default=None, ge=1, le=64)
    pieces: bool = False
    sensor: tuple[Pixels, Pixels] | None = None
    replay: Replay | None = None
    live: Url | None = None
    live_events: Url | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "WatchRequest":
        if (self.replay and self.live) or (self.live_events and not self.live):
            raise ValueError("a stream is replayed or live, and live_events belong to a live one")
        if self.replay is not None and self.sensor is not None:
            raise ValueError("sensor is of a live stream; say it in replay.event_url")
        return self
