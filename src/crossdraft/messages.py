"""Conversations: who says what, and what they show, in the chat format of Hugging Face and OpenAI."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from crossdraft.data_url import data_url, scheme_of
from crossdraft.errors import CrossdraftError
from crossdraft.files import parse_json

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

ROLES = ("system", "user", "assistant", "tool")
VISUAL = ("image", "video")
BAND = 256  # rows of a picture that are copied at once
READERS = [f"{name}ImagePlugin" for name in ("Png", "Jpeg", "WebP", "Bmp", "Tiff")]  # Tiff reads EXIF
SHAPE = 'give {"role": "user", "content": [{"type": "video", "video": "clip.mp4"}, {"type": "text", "text": "…"}]}'


@dataclass(frozen=True)
class Part:
    """A piece of a message.

    Args:
        kind: `text`, `image` or `video`.
        value: the text; or a path, the bytes of an image file, an image uint8 [H, W, 3], or frames uint8 [F, H, W, 3].
    """

    kind: str
    value: Any


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool: `arguments` is a JSON object as text; by `id` the message with the result names the call."""

    name: str
    arguments: str
    id: str = field(default="", compare=False)


@dataclass(frozen=True)
class Message:
    """A message of the system, the user, the assistant or a tool.

    Args:
        calls: what chat templates read of it besides its content: `tool_calls`, or `tool_call_id` and `name`.
    """

    role: str
    parts: tuple[Part, ...]
    calls: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def text(self) -> str:
        """The message's text, without its images and clips."""
        return "\n".join(part.value for part in self.parts if part.kind == "text")

    def as_dict(self, *, plain: bool, video: str = "video") -> dict[str, Any]:
        """The form of chat templates, with a clip as `video`; with `plain`, text alone is a string."""
        if (plain and all(part.kind == "text" for part in self.parts)) or self.calls or self.role == "tool":
            return {"role": self.role, "content": self.text, **self.calls}
        parts = [
            {"type": "text", "text": one.value}
            if one.kind == "text"
            else {"type": {"video": video}.get(one.kind, one.kind)}
            for one in self.parts
        ]
        return {"role": self.role, "content": parts}


def read_messages(given: object, *, answer: bool = False) -> tuple[Message, ...]:
    """Read messages, given as dicts or as `Message`s; several of the system in front become one.

    The last one is the user's, or with `answer` the assistant's, whose text is to go on.

    Raises:
        CrossdraftError: the messages have another shape, hold no text, or the last message is not the user's.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence) or not given:
        shown = "empty" if given == [] else f"a {type(given).__name__}"
        raise CrossdraftError(f"messages is {shown}; {SHAPE}, one for each message, in a list.")
    found = tuple(_message(one, number) for number, one in enumerate(given))
    front = tuple(takewhile(lambda one: one.role == "system", found))
    late = next((number for number, one in enumerate(found) if number >= len(front) and one.role == "system"), None)
    if late is not None:
        raise CrossdraftError(f"messages[{late}] is of the system, after others; only the first ones can be.")
    if len(front) > 1:
        found = (Message("system", (Part("text", "\n\n".join(one.text for one in front)),)), *found[len(front) :])
    _check_last(found[-1], answer=answer, read=isinstance(given[-1], Message))
    if not any(one.text.strip() for one in found):
        raise CrossdraftError("The messages hold no text; ask a question about what they show.")
    ids = list[object]()
    for number, one in enumerate(found):
        if one.role == "tool" and one.calls.get("tool_call_id") not in ids:
            raise CrossdraftError(f"messages[{number}] is of a tool; give the id of a call before it as tool_call_id.")
        ids += [call["id"] for call in one.calls.get("tool_calls", ())]
    return found


def _check_last(last: Message, *, answer: bool, read: bool) -> None:
    """Check that the last message can be answered, or with `answer` go on; one `read` before may lack pixels."""
    if answer and not (last.role == "assistant" and last.text.strip()):
        raise CrossdraftError(
            "continue_final_message: end with a message of the assistant that holds text, or drop it."
        )
    if not answer and last.role not in ("user", "tool"):
        raise CrossdraftError(
            f"The last message is of the {last.role}; end with the user's, or a tool's, which is answered."
        )
    said = any(part.kind in VISUAL or part.value.strip() for part in last.parts) or last.role == "tool"
    if not said and not read:
        raise CrossdraftError("The last message is empty; ask a question in it.")


def _message(given: object, number: int) -> Message:
    if isinstance(given, Message):
        return given
    fields: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    role, content = fields.get("role"), fields.get("content")
    content = "" if content is None and role == "assistant" else content
    if role not in ROLES or not isinstance(content, str | Sequence):
        raise CrossdraftError(f"messages[{number}] has the role {role!r} and a {type(content).__name__}; {SHAPE}.")
    where = f"messages[{number}]"
    parts = (Part("text", content),) if isinstance(content, str) else tuple(_part(one, where) for one in content)
    if role != "user" and any(part.kind != "text" for part in parts):
        raise CrossdraftError(f"{where} is of the {role} and shows something; only the user's messages can.")
    calls: dict[str, Any] = {}
    if role == "assistant" and (made := fields.get("tool_calls")):
        made = made if isinstance(made, Sequence) else (made,)
        calls["tool_calls"] = [_call(one, f"{where}.tool_calls[{at}]") for at, one in enumerate(made)]
    if role == "tool":
        calls = {name: fields[name] for name in ("tool_call_id", "name") if fields.get(name) is not None}
    return Message(str(role), parts, calls)


def _call(given: Any, where: str) -> dict[str, Any]:
    """A call as chat templates read it, with its arguments as an object; OpenAI's clients send them as text."""
    try:
        name, arguments = given["function"]["name"], given["function"].get("arguments") or {}
        arguments = parse_json(arguments) if isinstance(arguments, str) else arguments
        "".join((name, given["id"], json.dumps(arguments, ensure_ascii=False))).encode()
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        name = arguments = None
    if not isinstance(arguments, Mapping):
        shape = '{"id": …, "type": "function", "function": {"name": …, "arguments": "{…}"}}'
        raise CrossdraftError(f"{where} is no call of a tool, or its arguments are no JSON object; give {shape}.")
    return {"type": "function", "id": given["id"], "function": {"name": name, "arguments": arguments}}


def holds_words(text: str, messages: Sequence[Message], template: Mapping[str, Any]) -> bool:
    """True if what a chat template wrote holds all words and names of tools; a tool's result may be written as JSON."""
    tools = (*template.get("tools", ()), *(call for one in messages for call in one.calls.get("tool_calls", ())))
    words = [(one.role, part.value.strip()) for one in messages for part in one.parts if part.kind == "text"]
    spelt = (
        said in text or (role == "tool" and json.dumps(said, ensure_ascii=False)[1:-1] in text) for role, said in words
    )
    return all(spelt) and all(tool["function"]["name"] in text for tool in tools)


def refuse_tools(model: str, messages: Sequence[Message], template: Mapping[str, Any]) -> None:
    """Refuse tools, calls and results, if there are any: the model's chat template does not write them."""
    if "tools" in template or any(one.calls for one in messages):
        name = Path(model).name or "this model"
        raise CrossdraftError(f"The chat template of {name} does not write tools and their results; leave them out.")


def _part(given: object, where: str) -> Part:
    """A part as a dict: `{"type": "text", "text": …}`, `{"type": "image", "image": …}`, or OpenAI's `image_url`."""
    if isinstance(given, Mapping):
        kind: Any = given.get("type")
        name = str(kind).removesuffix("_url")
        value: Any = given.get(kind, given.get("path"))
        if name != kind and isinstance(value, Mapping):
            value = value.get("url")
        if name == "text" and isinstance(value, str):
            return Part("text", value)
        if name in VISUAL and value is not None:
            return Part(name, portable(value))
    shown = {"type": given.get("type")} if isinstance(given, Mapping) else type(given).__name__
    raise CrossdraftError(f"A part of {where} is {shown}, of no known kind or without what it names; {SHAPE}.")


def portable(visual: Any) -> Any:
    """Convert an image, or a list of a clip's frames, to a form that can be hashed and sent to another process.

    A PIL image becomes uint8 RGB [H, W, 3], turned as its EXIF says, as by `transformers.image_utils.load_image`; a
    `data:` address and a buffer become the bytes of their file. Paths, arrays and the rest stay what they are.

    Raises:
        CrossdraftError: the address holds no file.
    """
    if isinstance(visual, list | tuple):  # lists in it are numbers of pixels
        return [one if isinstance(one, list | tuple) else portable(one) for one in visual]
    if isinstance(visual, str) and scheme_of(visual) == "data":
        return _sent(visual)
    if isinstance(visual, bytearray | memoryview):
        return bytes(visual)
    if not (hasattr(visual, "convert") and hasattr(visual, "mode")):
        return visual
    return rgb_pixels(cast("Image", visual))


def pillow() -> "ModuleType":
    """Import `PIL.Image`, with the supported formats.

    Raises:
        CrossdraftError: Pillow is not installed.
    """
    try:
        for name in (*READERS, "ImageOps"):
            import_module(f"PIL.{name}")
        return import_module("PIL.Image")
    except ImportError as error:
        raise CrossdraftError("Images are read by Pillow; install it with `pip install pillow`.") from error


def rgb_pixels(picture: "Image", *, in_place: bool = False) -> "NDArray[np.uint8]":
    """Return a PIL image as uint8 RGB [H, W, 3], turned as its EXIF says.

    Args:
        in_place: turn the image itself, which saves a copy.

    Raises:
        CrossdraftError: Pillow cannot convert the image's mode to RGB.
    """
    import numpy as np
    from PIL import ImageOps

    try:
        turned: Any = ImageOps.exif_transpose(picture, in_place=in_place) or picture
        turned.info.pop("transparency", None)  # RGB cannot hold it, as Pillow would warn
        turned = turned if turned.mode == "RGB" else turned.convert("RGB")
    except ValueError as error:
        raise CrossdraftError(f"A PIL image of the mode {picture.mode!r} is no RGB ({error}); convert it.") from None
    found = np.empty((turned.height, turned.width, 3), np.uint8)
    for top in range(0, turned.height, BAND):  # not at once: Pillow hands out its pixels as copies of copies
        bottom = min(top + BAND, turned.height)
        found[top:bottom] = turned.crop((0, top, turned.width, bottom))
    return found


def _sent(url: str) -> bytes:
    found = data_url(url)
    try:
        data = b"" if found is None else b"".join(found.decoded())
    except ValueError:
        data = b""
    if not data:
        raise CrossdraftError(
            f"The address {url[:40]}… holds no file; write data:image/png;base64, and the file in base64 behind it."
        )
    return data


def several(kind: str, value: Any) -> tuple[Part, ...]:
    """Return parts of one image or clip, or of a list of them; a list of a clip's frames is one clip.

    >>> several("video", ["a.mp4", "b.mp4"])
    (Part(kind='video', value='a.mp4'), Part(kind='video', value='b.mp4'))
    """
    values: Sequence[Any] = [value]
    if isinstance(value, list | tuple):
        clips = all(is_path(one) or getattr(one, "ndim", None) == 4 or hasattr(one, "times_s") for one in value)
        values = value if kind == "image" or clips else values
    return tuple(Part(kind, portable(one)) for one in values if one is not None)


def is_path(value: object) -> bool:
    """True if an image or clip is given as a file's path."""
    return isinstance(value, str | os.PathLike)
