"""A question about a clip as the input tensors of a `transformers` video model's forward."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jinja2 import TemplateError
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from crossdraft.errors import CrossdraftError
from crossdraft.messages import Message, Part, holds_words, refuse_tools
from crossdraft.video.classes import model_class
from crossdraft.video.families import FAMILIES, VIDEO_TYPES, ChatFormat, Family
from crossdraft.video.preprocess import preprocess
from crossdraft.video.spec import FrameSpec, PixelBudget
from crossdraft.video.spelt import spelling_ids, stand_ins
from crossdraft.video.stills import Features
from crossdraft.video.tiles import cut

TEMPLATE: Mapping[str, Any] = {"tokenize": False, "add_generation_prompt": True}


@dataclass(frozen=True, slots=True)
class ClipText:
    """Text and visual tokens of a clip in a prompt.

    Args:
        text: text with one placeholder for each run of visual tokens.
        run: number of visual tokens of each run.
        kind: `video` or `image`.
    """

    text: str
    run: int
    kind: str = "video"

    def tokens(self, placeholder: str) -> int:
        """Number of visual tokens of the clip."""
        return self.run * self.text.count(placeholder)


def clip_inputs(
    config: PretrainedConfig,
    spec: FrameSpec | None,
    frames: Tensor,
    times_s: np.ndarray,
    indices: Tensor | None = None,
    count: int | None = None,
) -> tuple[ClipText, Features]:
    """Prepare a clip alone: its text in a prompt, and its preprocessed frames, a batch of one.

    Args:
        config: configuration of the model.
        spec: as `FrameSpec.from_pretrained` read it; None takes the family's own.
        frames: uint8 RGB [F, H, W, 3].
        times_s: [F] seconds, as `read_frames` returns them.
        indices: [F] indices into `frames`, if these are fewer and repeat; see `ClipFrames`.
        count: number of frames of the whole clip, if `frames` are only some of them.

    Raises:
        CrossdraftError: an unknown model_type, or a spec that does not fit the model.
    """
    family = _family(config.model_type)
    spec = family.spec(config) if spec is None else spec
    if family.clip_budget:
        spec = _budgeted(config, spec, count or len(times_s))
    pixels = preprocess(frames, spec)
    if indices is not None:
        pixels = pixels[indices]
    features = family.features(config, pixels, times_s)
    text = family.placeholder if family.text is None else family.text(config, times_s)
    return ClipText(text, family.count(config, features) // text.count(family.placeholder)), features


def image_inputs(config: PretrainedConfig, spec: FrameSpec | None, pixels: Tensor) -> tuple[ClipText, Features]:
    """Prepare an image alone: its text in a prompt, and its preprocessed pixels, a batch of one.

    Args:
        config: configuration of the model.
        spec: as `image_spec` read it; None takes the family's own.
        pixels: uint8 RGB [1, H, W, 3].

    Raises:
        CrossdraftError: the spec does not fit the model.
    """
    still = _family(config.model_type).still
    spec = image_spec(config) if spec is None else spec
    tiles = cut(pixels, _budgeted(config, spec, 1) if still.clip_budget else spec)
    features = still.features(config, tiles)
    text = still.placeholder if still.text is None else still.text(config, tiles)
    return ClipText(text, still.count(config, features) // text.count(still.placeholder), "image"), features


def image_spec(
    config: PretrainedConfig, settings: Mapping[str, Any] | None = None, where: object = "The processor"
) -> FrameSpec:
    """Preprocessing of images that a model asks for.

    Args:
        config: configuration of the model.
        settings: settings of the checkpoint's image processor; None takes the family's own.
        where: place of the settings, with which errors begin.

    Raises:
        CrossdraftError: as `FrameSpec.from_settings`.
    """
    family = _family(config.model_type)
    still = family.still
    spec = (still.spec or family.spec)(config) if settings is None else FrameSpec.from_settings(settings, where)
    if still.tiling is None:
        return spec
    try:
        return replace(spec, tiles=still.tiling(config, settings or {}))
    except (TypeError, ValueError, CrossdraftError) as error:
        raise CrossdraftError(f"{where} cannot be used: {error}; take it from the checkpoint again.") from None


def _budgeted(config: PretrainedConfig, spec: FrameSpec, frames: int) -> FrameSpec:
    """Return a spec with the budget of pixels of a clip of `frames` frames, if it has a budget."""
    if not isinstance(spec.size, PixelBudget):
        return spec
    vision: Any = getattr(config, "vision_config")  # noqa: B009
    return replace(spec, size=spec.size.of_clip(frames, vision.temporal_patch_size))


def question_inputs(
    config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, clip: ClipText, question: str
) -> Features:
    """`chat_inputs` of one question about one clip.

    Args:
        config, tokenizer: as in `chat_inputs`.
        clip: text and visual tokens of the clip.
        question: plain text.

    Raises:
        CrossdraftError: as `chat_inputs`.
    """
    asked = Message("user", (Part("video", None), Part("text", question)))
    return chat_inputs(config, tokenizer, (asked,), (clip,))[0]


def chat_inputs(
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    items: Sequence[ClipText],
    template: Mapping[str, Any] = TEMPLATE,
) -> tuple[Features, list[int]]:
    """Make the inputs that depend on the conversation: `input_ids` [1, L], and token types if the model wants them.

    Placeholders that stand in the words of a message are text, unless that message shows something.

    Args:
        config: configuration of the model; `config.model_type` chooses the family.
        tokenizer: tokenizer of the checkpoint; its chat template is used if it can render a video.
        messages: the conversation.
        items: text and visual tokens of its images and clips, in their order.
        template: keywords for the chat template; see `Request.template`.

    Returns:
        These inputs, and the numbers of the items in the order of their placeholders: a template may put images first.

    Raises:
        CrossdraftError: an unknown model_type, a tokenizer that does not fit the model, a placeholder in a message that
            shows something, or no format for conversations is known for the model.
    """
    family, visual = _family(config.model_type), placeholder_ids(config)
    spelling_of = {token: tokenizer.convert_ids_to_tokens(token) for token in visual}
    known = {spelling: token for token, spelling in spelling_of.items() if isinstance(spelling, str)}
    markers = (one for one in _markers(family).values() if not any(spelling in one for spelling in known))
    messages, stands = stand_ins(messages, {*known, *markers})
    text, order = _written(family, items, _rendered(tokenizer, family, messages, template))
    own = {"video": placeholder_id(config), "image": getattr(config, "image_token_id", None)}
    tokens = {"video": family.placeholder, "image": family.still.placeholder}
    for kind in {item.kind for item in items} or {"video"}:
        _check_placeholder(tokenizer, tokens[kind], own[kind])
    # A template may write the start token itself; the tokenizer must not add a second one.
    bos = tokenizer.bos_token
    starts = isinstance(bos, str) and text.startswith(bos)
    shown = [items[number] for number in order]
    _refuse_mixed(config, family, shown)
    runs = iter([(own[item.kind], item) for item in shown for _ in range(item.text.count(tokens[item.kind]))])
    spelt = {character: known[spelling] for character, spelling in stands.items() if spelling in known}
    found = re.findall("|".join(map(re.escape, (*known, *spelt))) or "(?!)", text)
    marks = [(spelt[one], None) if one in spelt else next(runs, (None, None)) for one in found]
    for character, spelling in stands.items():
        text = text.replace(character, spelling)
    # The length is checked later, with a better message than the tokenizer's warning.
    ids: list[int] = tokenizer(text, add_special_tokens=not starts, verbose=False)["input_ids"]
    if [one for one in ids if one in visual] != [token for token, _ in marks] or next(runs, None) is not None:
        raise _placeholder_in_text()
    following, read = iter(marks), list[tuple[int, ClipText | None]]()
    for one in ids:
        item = next(following)[1] if one in visual else None
        in_words = one in visual and item is None
        read += [(token, item) for token in (_as_text(tokenizer, one, visual) if in_words else (one,))]
    ids, items_of = [token for token, _ in read], [item for _, item in read]
    counts = torch.tensor([1 if item is None else item.run for item in items_of])
    inputs = {"input_ids": torch.tensor(ids).repeat_interleave(counts)[None]}
    if family.token_types is not None:
        name, number = family.token_types
        numbers = {"video": number, "image": 1}
        types = torch.tensor([0 if item is None else numbers[item.kind] for item in items_of], dtype=torch.int)
        inputs[name] = types.repeat_interleave(counts)[None]
    return inputs, order


def _as_text(tokenizer: PreTrainedTokenizerBase, token: int, visual: frozenset[int]) -> list[int]:
    """Ids of a placeholder that stands in words, as plain text."""
    ids = spelling_ids(tokenizer, str(tokenizer.convert_ids_to_tokens(token)))
    if not ids or not visual.isdisjoint(ids):
        raise _placeholder_in_text()
    return ids


def _refuse_mixed(config: PretrainedConfig, family: Family, shown: Sequence[ClipText]) -> None:
    """Refuse an image and a clip in one prompt of GLM, whose one token for both would mix up their features."""
    one_token = family.placeholder == family.still.placeholder and family.token_types == VIDEO_TYPES
    if one_token and len({item.kind for item in shown}) > 1:
        raise CrossdraftError(
            f"{model_class(config.model_type)} cannot read an image and a clip in one conversation; give the image as "
            "a clip of one frame, video=image[None]."
        )


def merged(config: PretrainedConfig, parts: Sequence[Mapping[str, Tensor]]) -> Features:
    """Join the inputs of several images or clips to those of one batch.

    Args:
        config: configuration of the model.
        parts: inputs of each.

    Raises:
        CrossdraftError: their sizes differ, which this version of `transformers` cannot read together.
    """
    names = dict.fromkeys(name for features in parts for name in features)
    dim = _family(config.model_type).clips_dim
    try:
        return {
            name: torch.cat(
                [features[name] for features in parts if name in features],
                dim if name.startswith("pixel_values") else 0,
            )
            for name in names
        }
    except RuntimeError:
        raise CrossdraftError(
            "The request's clips differ in their number of frames, and the model reads them together here; give "
            "clips of one length."
        ) from None


def placeholder_id(config: PretrainedConfig) -> int:
    """Id of the visual placeholder in a model's prompts."""
    return getattr(config, f"{_family(config.model_type).kind}_token_id")


def placeholder_ids(config: PretrainedConfig) -> frozenset[int]:
    """All ids of visual placeholders."""
    ids = (getattr(config, f"{kind}_token_id", None) for kind in ("image", "video"))
    return frozenset(token for token in ids if isinstance(token, int))


def placeholder_of(config: PretrainedConfig, kind: str) -> str:
    """Placeholder token of an image or a clip."""
    family = _family(config.model_type)
    return family.placeholder if kind == "video" else family.still.placeholder


def _family(model_type: str) -> Family:
    if model_type not in FAMILIES:
        raise CrossdraftError(
            f"Models of type {model_type!r} are not in the table of families: the checkpoint's own processor writes "
            "their inputs; add the type as docs/adding_a_vlm.md shows."
        )
    return FAMILIES[model_type]


def _check_placeholder(tokenizer: PreTrainedTokenizerBase, placeholder: str, own: int | None) -> None:
    known = tokenizer.convert_tokens_to_ids(placeholder)
    if known != own:
        raise CrossdraftError(
            f"The tokenizer writes {placeholder} as {known}, but the model expects {own}; "
            "take both from one checkpoint."
        )


def _placeholder_in_text() -> CrossdraftError:
    return CrossdraftError("The question contains an image or video placeholder of the model; leave it out.")


def _written(family: Family, items: Sequence[ClipText], rendered: str) -> tuple[str, list[int]]:
    """Fill in the items' placeholders; return the conversation, and the items' numbers in placeholder order."""
    markers = _markers(family)
    tokens = "|".join(map(re.escape, dict.fromkeys(markers.values())))
    pieces = re.split(f"({tokens})", rendered)
    left = {
        marker: [number for number, item in enumerate(items) if markers[item.kind] == marker]
        for marker in markers.values()
    }
    order: list[int] = []
    for at in range(1, len(pieces), 2):
        numbers = left[pieces[at]]
        if not numbers:
            raise _placeholder_in_text()
        order.append(numbers.pop(0))
        pieces[at] = items[order[-1]].text
    return "".join(pieces), order


def _markers(family: Family) -> dict[str, str]:
    """Markers that a chat template writes for a clip and for an image; they may be equal."""
    still = family.still
    return {"video": family.marker or family.placeholder, "image": still.marker or still.placeholder}


def _rendered(
    tokenizer: PreTrainedTokenizerBase, family: Family, messages: Sequence[Message], template: Mapping[str, Any]
) -> str:
    """Render by the tokenizer's template, if its text contains all items and words; else by the family's own."""
    for plain in (False, True) if tokenizer.chat_template else ():
        given = [message.as_dict(plain=plain, video=family.part) for message in messages]
        try:
            text = tokenizer.apply_chat_template(given, **template)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
            # The template is for plain text only, or broken; its ranges may overflow.
            continue
        if (
            isinstance(text, str)
            and _holds_markers(text, _markers(family), messages)
            and holds_words(text, messages, template)
        ):
            return text
    refuse_tools(tokenizer.name_or_path, messages, template)
    return _own_text(family.chat, messages, goes_on=not template["add_generation_prompt"])


def _holds_markers(text: str, markers: Mapping[str, str], messages: Sequence[Message]) -> bool:
    """True if a rendered text contains all markers."""
    parts = (part for message in messages for part in message.parts)
    wanted = Counter(markers[part.kind] for part in parts if part.kind in markers)
    return all(text.count(marker) >= count for marker, count in wanted.items())


def _own_text(chat: ChatFormat, messages: Sequence[Message], *, goes_on: bool = False) -> str:
    """Write a conversation in a family's own format; the last message has no end if it is to go on."""
    shown = {"video": chat.video, "image": chat.image}
    texts = [chat.start] if messages[0].role == "system" else [chat.start, chat.no_system]
    for message in messages:
        content = "".join(part.value if part.kind == "text" else shown[part.kind] for part in message.parts)
        form: str = getattr(chat, message.role)
        # Models begin an answer with a space, which the message has, too.
        content = content.strip() if message.role == "assistant" else content
        form = form.partition("{content}")[0] + "{content}" if goes_on and message is messages[-1] else form
        texts.append(form.replace("{content}", content))
    return "".join((*texts, "" if goes_on else chat.answer))
