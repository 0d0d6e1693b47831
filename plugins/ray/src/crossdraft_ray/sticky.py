"""Session affinity: requests about one clip share a digest, so that they reach the replica that has read the clip."""

import hashlib
from itertools import islice

from pydantic import ValidationError

from crossdraft.data_url import AT_ONCE
from crossdraft.serve.bodies import chat_of, parsed
from crossdraft.serve.errors import ApiError
from crossdraft.serve.schema import EventPart, FilePart, ImagePart, TextPart, VideoPart


async def session_of(body: bytes, owner: str, most: int) -> str:
    """Compute the digest to route a chat request by; "" if the request names no clip that a replica may hold.

    Args:
        body: body of the request. If it is no chat request, there is no session; a replica reports the fault.
        owner: key of the client. Caches of clips are kept per key: the same clip under another key is another session.
        most: most images, clips and recordings that the request may hold.
    """

    def session(body: bytes) -> str:
        name = clip_name(body, most)
        return "" if name is None else digest(owner, name)

    return await parsed(body, session)


def digest(owner: str, name: str) -> str:
    """Compute the digest of a key and a client's name of a clip; the name may be a whole file, and is not copied."""
    found = hashlib.sha256(f"{owner}\0".encode())
    for at in range(0, len(name), AT_ONCE):
        found.update(name[at : at + AT_ONCE].encode())
    return found.hexdigest()


def clip_name(body: bytes, most: int) -> str | None:
    r"""Return the client's name of the first clip or image of a conversation: its `uuid`, else its address.

    The first one counts, since prompts share their beginnings: later turns add clips behind it. A recording stands for
    the clip only if there is neither clip nor image, since the target does not read it. A request with more than `most`
    media has no name, as no replica reads it.

    >>> asked = b'{"model": "m", "messages": [{"role": "user", "content": [{"type": "video_url", "uuid": "one"}]}]}'
    >>> clip_name(asked, 1)
    'one'
    """
    try:
        chat = chat_of(body)
    except (ValidationError, ApiError):
        return None
    parts = (part for message in chat.messages if not isinstance(message.content, str) for part in message.content)
    media = [*islice((part for part in parts if not isinstance(part, TextPart)), most + 1)]
    if len(media) > most:
        return None
    for kinds in ((VideoPart, ImagePart, FilePart), (EventPart,)):
        for part in media:
            if isinstance(part, kinds) and (name := _name(part)) is not None:
                return name
    return None


def _name(part: VideoPart | ImagePart | EventPart | FilePart) -> str | None:
    match part:
        case FilePart():
            return part.file.file_id
        case VideoPart():
            source = part.video_url
        case ImagePart():
            source = part.image_url
        case EventPart():
            source = part.event_url
    return part.uuid or (None if source is None else source.url)
