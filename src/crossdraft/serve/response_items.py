"""The body of `/v1/responses`: OpenAI's items, as the messages of a chat."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, model_validator

from crossdraft.serve.bodies import check_values
from crossdraft.serve.errors import bad_request, refuse_names
from crossdraft.serve.schema import (
    MAX_MESSAGES,
    NO_MESSAGES,
    Body,
    ChatMessage,
    ChatRequest,
    EventPart,
    Id,
    ResponseFormat,
    ToolChoice,
    Url,
    VideoPart,
    Whole,
)

# Fields of a chat request that are called otherwise here, or have no meaning.
OTHERS = frozenset({"messages", "max_completion_tokens", "n", "text.format", "logprobs", "modalities", "crossdraft"})
LOGPROBS = "message.output_text.logprobs"


class TextItem(Body):
    """A text that was asked, or answered."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class ImageItem(Body):
    """An image: its address, or the id of an upload."""

    type: Literal["input_image"]
    image_url: Url | None = None
    file_id: Id | None = None
    detail: str | None = None


class FileItem(Body):
    """An upload; its content tells whether it is an image, a clip or a recording."""

    type: Literal["input_file"]
    file_id: Id
    filename: str | None = None


PartItem = Annotated[TextItem | ImageItem | FileItem | VideoPart | EventPart, Discriminator("type")]


class InputItem(Body):
    """Fields of all items, which answers bring and nobody reads."""

    id: str | None = None
    status: str | None = None
    phase: str | None = None


class MessageItem(InputItem):
    """A message."""

    type: Literal["message"]
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[PartItem], Field(fail_fast=True)]


class CallItem(InputItem):
    """A call of a tool, which an answer made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class ResultItem(InputItem):
    """The result of a tool."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[TextItem]


class ReasoningItem(InputItem):
    """Reasoning of an earlier answer, which is not read."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: Literal["reasoning"]


AnyItem = Annotated[MessageItem | CallItem | ResultItem | ReasoningItem, Discriminator("type")]


class ResponseText(Body):
    """OpenAI's `text`; its `format` is read as a `response_format`."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponseRequest(ChatRequest):
    """The body of a response request, as a chat request whose messages are made of `input`."""

    input: list[AnyItem] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    instructions: str | None = None
    previous_response_id: Id | None = None
    max_tokens: Whole | None = Field(default=None, ge=1, validation_alias="max_output_tokens")
    response_format: ResponseFormat | None = Field(default=None, validation_alias="text.format")
    text: ResponseText = ResponseText()
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] = Field(default_factory=list)
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    reasoning: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _as_chat(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        refuse_names(values, OTHERS)
        found, items = {**values, "messages": NO_MESSAGES}, values.get("input")
        items = [{"role": "user", "content": items}] if isinstance(items, str) else items
        if isinstance(items, list):
            found["input"] = [
                {**one, "type": one.get("type") or "message"} if isinstance(one, dict) else one for one in items
            ]
        if isinstance(text := values.get("text"), dict):
            found["text.format"] = _nested(text.get("format"), "json_schema")
        if isinstance(tools := values.get("tools"), list):
            found["tools"] = [_nested(one, "function") for one in tools]
        found["tool_choice"] = _nested(values.get("tool_choice"), "function")
        found["logprobs"] = values.get("top_logprobs") is not None or LOGPROBS in (values.get("include") or ())
        return found

    @property
    def flat_tools(self) -> list[Any]:
        """The tools as they came."""
        inner = [(one, one.get("function")) for one in self.tools or ()]
        return [{"type": "function", **made} if isinstance(made, dict) else one for one, made in inner]

    @property
    def flat_choice(self) -> object:
        """The choice of a tool as it came."""
        choice = self.tool_choice
        return {"type": "function", **choice.function} if isinstance(choice, ToolChoice) else choice or "auto"

    def continued(self, before: Sequence[Any]) -> list[ChatMessage]:
        """The messages `before` and those of the input, bounded as a chat's; calls join the answer before them.

        Raises:
            ValidationError: an item is no message of a chat.
            ApiError: they are too many, or have too many values.
        """
        asked: list[Any] = []
        for one in self.input:
            made = _message(one)
            if made and "tool_calls" in made and asked and asked[-1]["role"] == "assistant":
                before_it = asked.pop()
                made = {**before_it, "tool_calls": [*before_it.get("tool_calls", ()), *made["tool_calls"]]}
            asked += [made] if made else []
        if len(before) + len(asked) > MAX_MESSAGES:
            raise bad_request(f"The conversation has more than {MAX_MESSAGES} messages; begin another one.", "input")
        check_values(messages := [*before, *asked])
        return [ChatMessage.model_validate(one) for one in messages]


def _nested(given: Any, kind: str) -> Any:
    """A format, a tool or the choice of one as chats write it: what a `kind` has stands under its name."""
    if not isinstance(given, dict) or given.get("type") != kind or kind in given:
        return given
    return {"type": kind, kind: {name: one for name, one in given.items() if name != "type" and one is not None}}


def _message(item: object) -> dict[str, Any] | None:
    """An item as a chat's message; `None` if nobody reads it."""
    match item:
        case MessageItem():
            parts = item.content if isinstance(item.content, str) else [_part(one) for one in item.content]
            return {"role": item.role, "content": parts}
        case CallItem():
            function = {"name": item.name, "arguments": item.arguments}
            calls = [{"id": item.call_id, "type": "function", "function": function}]
            return {"role": "assistant", "content": "", "tool_calls": calls}
        case ResultItem():
            said = item.output if isinstance(item.output, str) else "".join(one.text for one in item.output)
            return {"role": "tool", "tool_call_id": item.call_id, "content": said}
    return None


def _part(part: object) -> object:
    match part:
        case TextItem():
            return {"type": "text", "text": part.text}
        case ImageItem(file_id=str(found)) | FileItem(file_id=str(found)):
            return {"type": "file", "file": {"file_id": found}}
        case ImageItem():
            return {"type": "image_url", "image_url": part.image_url}
    return part
