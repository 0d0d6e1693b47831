"""The body of `/v1/responses`: OpenAI's items, as the messages of a chat."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, model_validator

from crossdraft.serve.errors import bad_request, refuse_names
from crossdraft.serve.schema import (
    MAX_MESSAGES,
    NO_MESSAGES,
    Body,
    ChatMessage,
    ChatRequest,
    EventPart,
    FilePart,
    Id,
    ImagePart,
    TextPart,
    ToolChoice,
    Url,
    VideoPart,
    Whole,
)

# Fields of a chat request that are called otherwise here, or have no meaning.
OF_CHATS = frozenset(
    {"messages", "max_tokens", "max_completion_tokens", "n", "response_format", "logprobs", "modalities", "crossdraft"}
)
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


class ResponseRequest(ChatRequest):
    """The body of a response request, as a chat request whose messages are made of `input`."""

    input: list[AnyItem] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    instructions: str | None = None
    previous_response_id: Id | None = None
    max_output_tokens: Whole | None = Field(default=None, ge=1)
    text: dict[str, Any] = Field(default_factory=dict)
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] = Field(default_factory=list)
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    reasoning: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _as_chat(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        refuse_names(values, OF_CHATS)
        tokens, items = values.get("max_output_tokens"), values.get("input")
        found = {**values, "messages": NO_MESSAGES}
        if isinstance(tokens, int) and tokens > 0:
            found["max_tokens"] = tokens
        items = [{"role": "user", "content": items}] if isinstance(items, str) else items
        if isinstance(items, list):
            found["input"] = [{"type": "message", **one} if isinstance(one, dict) else one for one in items]
        if isinstance(text := values.get("text"), dict) and text.get("format") is not None:
            found["response_format"] = _format(text["format"])
        if isinstance(tools := values.get("tools"), list):
            found["tools"] = [_nested(one) for one in tools]
        found["tool_choice"] = _nested(values.get("tool_choice"))
        found["logprobs"] = values.get("top_logprobs") is not None or LOGPROBS in (values.get("include") or ())
        return found

    @property
    def flat_tools(self) -> list[Any]:
        """The tools as they came."""
        return [{"type": "function", **one["function"]} for one in self.tools or ()]

    @property
    def flat_choice(self) -> object:
        """The choice of a tool as it came."""
        choice = self.tool_choice
        return {"type": "function", **choice.function} if isinstance(choice, ToolChoice) else choice or "auto"

    def continued(self, before: Sequence[ChatMessage]) -> list[ChatMessage]:
        """The messages `before` and those of the input, as many as a chat may have; calls join the answer before them.

        Raises:
            ValidationError: an item is no message of a chat.
            ApiError: they are too many.
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
        return [*before, *(ChatMessage.model_validate(one) for one in asked)]


def _format(given: Any) -> Any:
    """OpenAI's `text.format` as a `response_format`."""
    if not isinstance(given, dict) or given.get("type") != "json_schema":
        return given
    return {"type": "json_schema", "json_schema": {name: one for name, one in given.items() if name != "type"}}


def _nested(tool: Any) -> Any:
    """A tool, or the choice of one, as chats write it."""
    if not isinstance(tool, dict) or tool.get("type") != "function" or "function" in tool:
        return tool
    return {"type": "function", "function": {name: one for name, one in tool.items() if name != "type"}}


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
            return TextPart(type="text", text=part.text)
        case ImageItem(file_id=str(found)) | FileItem(file_id=str(found)):
            return FilePart.model_validate({"type": "file", "file": {"file_id": found}})
        case ImageItem():
            return ImagePart.model_validate({"type": "image_url", "image_url": part.image_url})
    return part
