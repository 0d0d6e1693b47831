"""Inputs and outputs of the engine: requests, pieces of an answer, answers."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from crossdraft.checks import NamedFields, choice, positive, text, whole
from crossdraft.engine.noise import seed_of
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import ContextLengthError, CrossdraftError
from crossdraft.messages import VISUAL, Message, Part, ToolCall, is_path, read_messages, several

if TYPE_CHECKING:
    from crossdraft.engine.stats import Stats
    from crossdraft.engine.structure import MaskSource
    from crossdraft.engine.timeline import Timeline


REPR_LETTERS = 60  # of an answer's text in its `repr`
LETTERS_PER_TOKEN = 32  # most characters that a token may stand for: text has about 4, long runs of spaces more
MOST_PRIORITY = 1 << 31
MOST_AXES = 8  # of pixels in nested lists: images, clips, frames, rows, columns, channels
STOPS_IN = ("text", "tokens")
MOST_KWARGS, MOST_VALUE = 16, 1024  # of a chat template's further values: their number, and characters of one
# Names that `apply_chat_template` takes for itself, or that stand for a conversation in templates.
OWN_KWARGS = frozenset(
    (
        *("self", "conversation", "messages", "chat", "tools", "tools_in_user_message", "documents", "chat_template"),
        *("tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"),
        *("return_assistant_tokens_mask", "processor_kwargs", "kwargs", "raise_exception", "strftime_now"),
        *("add_generation_prompt", "continue_final_message"),
    )
)
MOST_TEXTS, MOST_TEXT = 8, 1 << 17  # predictions and hints of a request, and their characters in all
MAX_NEW_TOKENS = 128  # where neither the request nor the checkpoint says how long an answer may be


@dataclass(frozen=True, eq=False)
class AnswerGroup:
    """The group of `size` requests for several answers to one question."""

    size: int


@dataclass(frozen=True)
class Request(NamedFields):
    """A question about clips and images, or a conversation about them.

    Its arrays must not be changed until it is answered.

    Args:
        prompt: the question, plain text.
        video: path of the clip, uint8 frames [F, H, W, 3], `video.ClipFrames` (frames with times), or whatever the
            target's `prepare` reads; or a list of clips.
        events: path of an event recording, of which the drafter reads the end, as long as it was made for; an
            `events.Excerpt` of a recording, to choose another part; or an event stream.
        max_new_tokens: the longest answer, in tokens. `None`: what the checkpoint's generation_config says, else 128;
            then the answer also ends where the model's context does.
        sampling: temperature and other sampling settings. Settings that are `None` are those of the checkpoint's
            generation_config, else greedy; `None` = all of them are.
        stop: a string, or several, that end the answer; they are not part of its text. `None`: the checkpoint's.
        stop_in: where stop strings are looked for. `text`: in the answer as it is shown; a string that spells a special
            token ends the answer at that token. `tokens`: as in `transformers`, in the spelling of all tokens, special
            ones and the prompt's included. The checkpoint's own strings are always looked for in `tokens`.
        stop_token_ids: ids that end the answer, as the checkpoint's own do; they are its last token.
        ignore_eos: the checkpoint's own ids do not end the answer.
        max_time: seconds after the request was taken out of the queue from which on no further round is begun; the
            first token always comes. `None`: the checkpoint's, else no limit.
        logprobs: report the target's log-probability of every emitted token (raw, before warping).
        top_logprobs: report the log-probabilities of this many most probable tokens at each position, too.
        namespace: owner of the request: what drafters learn and the prefix cache holds is kept apart by namespace.
            `None`: nothing is learned from the request, or cached, and nothing learned or cached is used.
        priority: among waiting requests the one of the highest priority is taken up first, among equal ones the one
            that came first.
        image: path of an image, the bytes of its file, a `data:` address, a PIL image, uint8 [H, W, 3], or a list of
            images; they come before the clips.
        system: what the model is told before the question.
        messages: a conversation, in place of prompt, system, image and video: `{"role": …, "content": …}` for each
            message, as `transformers` chat templates take them. The last one is the user's, or a tool's.
        template_kwargs: further values for the checkpoint's chat template, such as `{"enable_thinking": False}`.
        continue_final_message: the last one of `messages` is the assistant's, and the answer goes on from its text.
        structure: what the answer must look like, such as `Structure.json(schema)`; `None` = any text.
        predictions: texts that the answer may be, or nearly so, such as the file that is to be edited: it is drafted
            from them, and stays what it is without them.
        hints: texts that the answer may quote, such as subtitles or what an OCR program reads; or futures of such
            texts, which nobody waits for.
        tools: a `Tools`, which the answer may call, or must.
    """

    prompt: str = ""
    video: object = None
    events: object = None
    max_new_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: str | Sequence[str] | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    namespace: str | None = ""
    inputs: Mapping[str, object] | None = None  # ready-made model inputs; then `video` is not read
    max_time: float | None = None
    priority: int = 0
    image: object = None
    system: str | None = None
    messages: Sequence[Mapping[str, object] | Message] | None = None
    stop_in: str = "text"
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    structure: "MaskSource | None" = None
    template_kwargs: Mapping[str, str | float | bool | None] = field(default_factory=dict[str, Any])
    continue_final_message: bool = False
    predictions: Sequence[str] = ()
    hints: "Sequence[str | Future[str]]" = ()
    tools: Any = None
    # The target's [N, E] visual features, for a drafter that needs them (`Needs.visual`). The engine sets it: a
    # `VisualFuture` in the target's process; in the drafter's own a function that waits for them.
    visual_features: Any = field(default=None, repr=False, compare=False)
    # The prompt's token ids, for a drafter that copies text (`Needs.prompt`): a `prompt.PromptIds`, for which no
    # drafter is to wait. The engine sets it.
    prompt_ids: Any = field(default=None, repr=False, compare=False)
    # Values that a compression of the target notes for itself, by name. They are not sent to another process.
    extras: Mapping[str, object] = field(default_factory=dict[str, object], repr=False, compare=False)
    # Digests of what the request shows (`engine.content.Content`), and whether that is cached. The engine sets both.
    content: Any = field(default=None, repr=False, compare=False)
    known: bool = field(default=False, repr=False, compare=False)
    # The same object in requests that `several` made of one; a copy by `dataclasses.replace` has none.
    group: AnswerGroup | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_new_tokens is not None:
            object.__setattr__(self, "max_new_tokens", whole("max_new_tokens", self.max_new_tokens))
        object.__setattr__(self, "priority", whole("priority", self.priority, least=-MOST_PRIORITY))
        self._check_logprobs()
        if self.max_time is not None:
            object.__setattr__(self, "max_time", positive("max_time", self.max_time))
        self._check_text()
        sampling: Sampling | None = self.sampling
        if sampling is None:
            object.__setattr__(self, "sampling", Sampling())
        elif not isinstance(sampling, Sampling):
            raise CrossdraftError(f"sampling is {sampling!r}; give a Sampling, such as Sampling(temperature=1).")
        elif self.max_new_tokens is not None and (sampling.min_new_tokens or 0) > self.max_new_tokens:
            raise CrossdraftError(
                f"min_new_tokens is {sampling.min_new_tokens}, more than max_new_tokens, {self.max_new_tokens}; "
                "lower the one or raise the other."
            )
        if self.stop is not None:
            object.__setattr__(self, "stop", stop_strings(self.stop))
        if not isinstance(self.stop_token_ids, Sequence):
            raise CrossdraftError(f"stop_token_ids is {self.stop_token_ids!r}; give a list of token ids.")
        ids = tuple(whole("stop_token_ids", one, least=0) for one in self.stop_token_ids)
        object.__setattr__(self, "stop_token_ids", ids)
        choice("stop_in", self.stop_in, STOPS_IN)
        self._check_structure()
        self._check_texts()
        if self.inputs is not None and not isinstance(self.inputs, Mapping):
            raise CrossdraftError(
                f"inputs is a {type(self.inputs).__name__}; give a mapping of tensors, as a processor makes it."
            )
        if self.namespace is not None:
            text("namespace", self.namespace, "anna")

    @property
    def constraint(self) -> "MaskSource | None":
        """The constraint on the answer: its structure, or calls of its tools."""
        return self.structure if self.tools is None else self.tools.structure

    def _check_structure(self) -> None:
        if not (self.tools is None or callable(getattr(self.tools, "reader", None))):
            raise CrossdraftError(f"tools is a {type(self.tools).__name__}; give crossdraft.Tools([…]).")
        if None not in (self.tools, self.structure):
            raise CrossdraftError("The request has tools, and a structure, which no call would have; give one of them.")
        if self.constraint is None:
            return
        if not callable(getattr(self.constraint, "begin", None)):
            raise CrossdraftError(
                f"structure is {self.structure!r:.100}; give a crossdraft.Structure, such as Structure.json(schema)."
            )
        if self.ignore_eos:
            raise CrossdraftError("A structured answer ends where its structure does; leave out ignore_eos.")

    def _check_texts(self) -> None:
        texts: list[object] = []
        for name, example in (("predictions", "What will come."), ("hints", "What may be quoted.")):
            given = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Sequence):
                raise CrossdraftError(f"{name} is {given!r:.100}; give a list of texts.")
            for one in given:
                if name == "predictions" or not isinstance(one, Future):
                    _check_decoded(f"One of the {name}", text(f"One of the {name}", one, example))
            texts += given
            object.__setattr__(self, name, tuple(given))
        letters = sum(len(one) for one in texts if isinstance(one, str))
        if len(texts) > MOST_TEXTS or letters > MOST_TEXT:
            raise CrossdraftError(
                f"The request has {len(texts)} predictions and hints, with {letters:,} characters in all; at most "
                f"{MOST_TEXTS} and {MOST_TEXT:,} are read. Leave some out, or shorten them."
            )

    def _check_logprobs(self) -> None:
        object.__setattr__(self, "top_logprobs", whole("top_logprobs", self.top_logprobs, least=0))
        if not isinstance(self.logprobs, bool):
            raise CrossdraftError(f"logprobs is {self.logprobs!r}; say True, and top_logprobs=5 for five others too.")
        if self.top_logprobs and not self.logprobs:
            raise CrossdraftError(
                f"top_logprobs is {self.top_logprobs} without logprobs; say logprobs=True, or leave it out."
            )

    def _check_text(self) -> None:
        if self.messages is not None:
            given = {name: getattr(self, name) for name in ("system", "image", "video", "inputs")}
            given_too = [name for name, value in given.items() if value is not None] + ["prompt"] * bool(self.prompt)
            if given_too:
                raise CrossdraftError(
                    f"The request has messages, and {given_too[0]} too; put all of it into the messages."
                )
            object.__setattr__(self, "messages", read_messages(self.messages, answer=self.continue_final_message))
        elif self.continue_final_message:
            raise CrossdraftError("continue_final_message is for messages, the last of which goes on; give messages.")
        elif not text("prompt", self.prompt, "What is ahead?").strip() and self.inputs is None:
            raise CrossdraftError("The prompt is empty; ask a question about the clip.")
        if self.image is not None:
            images = [part.value for part in several("image", self.image)]
            object.__setattr__(self, "image", images[0] if len(images) == 1 else images)
        for name in ("events", "inputs", "image", "video", "messages"):
            _check_stored(name, getattr(self, name))
        if self.system is not None:
            text("system", self.system, "Answer in one word.")
        _check_template(self.template_kwargs)
        for part in (part for message in self.conversation for part in message.parts if part.kind == "text"):
            _check_decoded("The prompt", part.value)

    @property
    def conversation(self) -> tuple[Message, ...]:
        """All messages; a plain `prompt` gives one of the user, after one of the system if `system` is given."""
        if self.messages is not None:
            return read_messages(self.messages, answer=self.continue_final_message)
        shown = (*several("image", self.image), *several("video", self.video))
        asked = Message("user", (*shown, Part("text", self.prompt)))
        return (asked,) if self.system is None else (Message("system", (Part("text", self.system),)), asked)

    @property
    def visuals(self) -> tuple[Part, ...]:
        """The images and clips, in their order; none for ready-made inputs."""
        if self.inputs is not None:
            return ()
        return tuple(part for message in self.conversation for part in message.parts if part.kind in VISUAL)

    @property
    def question(self) -> str:
        """The text of the user's last message."""
        return next((one.text for one in reversed(self.conversation) if one.role == "user"), "")

    @property
    def template(self) -> dict[str, Any]:
        """Keywords for the chat template, besides the conversation."""
        goes_on = self.continue_final_message
        return {
            **self.template_kwargs,
            **({} if self.tools is None else {"tools": [*self.tools.definitions]}),
            "tokenize": False,
            "add_generation_prompt": not goes_on,
            "continue_final_message": goes_on,
        }

    @property
    def clip(self) -> object:
        """The last clip; `None` if there is none."""
        return next((part.value for part in reversed(self.visuals) if part.kind == "video"), None)

    def several(self, count: int) -> list[Self]:
        """Requests for `count` answers that are drawn independently; the first one's is the request's own.

        Answer i draws by the seed and i; without a seed each draws one of its own. `Engine.generate` takes them: their
        prompt is read once. It refuses greedy ones, whose answers would be equal.
        """
        if whole("count", count) == 1:
            return [self]
        seed, group = self.sampling.seed, AnswerGroup(count)
        seeds = [None if seed is None else seed_of(seed, at) for at in range(count)]
        found = [replace(self, sampling=replace(self.sampling, seed=one)) for one in seeds]
        for request in found:
            object.__setattr__(request, "group", group)
        return found

    def without_pixels(self) -> "Request":
        """The request without decoded images and frames, which are large; paths of files stay."""
        if self.messages is None:
            shown = (*several("image", self.image), *several("video", self.video))
            paths = [part for part in shown if is_path(part.value)]
            image, video = ([part.value for part in paths if part.kind == kind] for kind in VISUAL)
            asked = None if self.prompt.strip() else dict[str, object]()  # a request without a prompt must have inputs
            return replace(self, inputs=asked, image=_one(image), video=_one(video))
        messages = tuple(
            replace(one, parts=tuple(part for part in one.parts if part.kind == "text" or is_path(part.value)))
            for one in self.conversation
        )
        return replace(self, messages=messages)

    def check_length(self, context: int) -> None:
        """Refuse a prompt with more characters than any text of `context` tokens, before it is tokenised.

        Raises:
            ContextLengthError: the prompt is longer.
        """
        letters = sum(len(message.text) + len(str(message.calls or "")) for message in self.conversation)
        if letters > LETTERS_PER_TOKEN * context:
            raise ContextLengthError(
                f"The prompt has {letters:,} characters, and the model's context holds {context:,} tokens; "
                "ask a shorter question.",
                context,
            )

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings that end the answer."""
        return () if self.stop is None else tuple(self.stop)

    @property
    def token_limit(self) -> int:
        """Most tokens of the answer: `max_new_tokens`, or `MAX_NEW_TOKENS` while that is `None`."""
        return MAX_NEW_TOKENS if self.max_new_tokens is None else self.max_new_tokens


def _check_template(given: Any) -> None:
    """Refuse values for a chat template that are many, long, of another type, or the caller's own arguments."""
    if not isinstance(given, Mapping) or len(given) > MOST_KWARGS:
        raise CrossdraftError(f"template_kwargs is {given!r:.100}; give a mapping of at most {MOST_KWARGS} values.")
    for name, value in given.items():
        if not isinstance(name, str) or not name.isidentifier() or name in OWN_KWARGS or name.endswith("_token"):
            raise CrossdraftError(f"template_kwargs sets {name!r:.60}, which is not for requests to set; leave it out.")
        if not (value is None or isinstance(value, int | float | str)) or len(str(value)) > MOST_VALUE:
            raise CrossdraftError(
                f"template_kwargs: {name:.60} is {value!r:.60}; give a number, true, false or a text of at most "
                f"{MOST_VALUE:,} characters."
            )


def nbytes_of(value: Any) -> int:
    """Bytes of all tensors, arrays and files in nested mappings and sequences."""
    if isinstance(value, Mapping):
        return sum(map(nbytes_of, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(nbytes_of, value))
    if isinstance(value, bytes):
        return len(value)
    return int(getattr(value, "nbytes", 0))


def _check_stored(name: str, given: Any) -> None:
    """Refuse tensors and arrays whose bytes are not their values, as requests are hashed and sent by their bytes."""
    waiting: list[Any] = [given]
    seen = set[int]()  # lists that were looked into: one may hold itself
    while waiting:
        value = waiting.pop()
        if isinstance(value, Message):
            waiting += [part.value for part in value.parts]
        elif isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            if id(value) not in seen and not _numbers(value):
                seen.add(id(value))
                waiting += value
        elif isinstance(value, Tensor) and (
            value.layout != torch.strided or value.is_nested or value.is_meta or value.is_conj() or value.is_neg()
        ):
            raise CrossdraftError(
                f"The request's {name} has a tensor that is sparse, nested, conjugate or on the meta device; give its "
                "values as a plain tensor."
            )
        elif isinstance(value, np.ma.MaskedArray) and value.mask.any():
            raise CrossdraftError(f"The request's {name} has masked values; fill them, as by filled(0).")


def _check_decoded(name: str, given: str) -> None:
    """Refuse a text that cannot be encoded as UTF-8."""
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise CrossdraftError(
            f"{name} has half a surrogate pair, {given[error.start]!r}, at character {error.start}, "
            "which is no text; leave it out, or decode what it came from as UTF-8."
        ) from None


def _numbers(value: Any) -> bool:
    """True if nested lists hold numbers, such as pixels: there may be millions, and no tensor is among them."""
    for _ in range(MOST_AXES):
        if not isinstance(value, list | tuple) or not value:
            break
        value = value[0]
    return isinstance(value, int | float)


def _one(values: list[Any]) -> object:
    return values if len(values) > 1 else next(iter(values), None)


def stop_strings(given: object) -> tuple[str, ...]:
    """One stop string, or several, as a tuple.

    Raises:
        CrossdraftError: a string is empty (every text contains it), or something is no string.
    """
    strings = (given,) if isinstance(given, str) else given
    if not isinstance(strings, Sequence) or not all(isinstance(string, str) for string in strings):
        raise CrossdraftError(f"stop is {given!r}; give a string that ends the answer, or a list of them.")
    if not all(strings):
        raise CrossdraftError("A stop string is empty, so every answer would end at once; leave it out.")
    return tuple(strings)


def single(request: object) -> Request:
    """Return the only request.

    Raises:
        CrossdraftError: it is no request, or there is not exactly one.
    """
    found = listed(request)
    if len(found) != 1:
        raise CrossdraftError(f"{len(found)} requests came where one is answered; hand several to generate.")
    return found[0]


def listed(requests: object) -> list[Request]:
    """One request or several as a list.

    Raises:
        CrossdraftError: something among them is no request.
    """
    found: list[Any] = [requests]
    if isinstance(requests, Iterable) and not isinstance(requests, str | Mapping):
        found = list(requests)
    for request in found:
        if not isinstance(request, Request):
            raise CrossdraftError(
                f"A request is of the type {type(request).__name__}; give a crossdraft.Request(prompt=…, video=…)."
            )
    return found


class Origin(StrEnum):
    """Source of a token, as the reader of a stream sees it."""

    PROVISIONAL = "provisional"  # the drafter's, while the target was still reading; may be taken back
    HIDDEN = "hidden"  # final: drafted during the prefill, accepted
    DRAFTED = "drafted"  # final: drafted in a later round, accepted
    TARGET = "target"  # final: the target's own token


class Finish(StrEnum):
    """Why an answer ended."""

    EOS = "eos"
    LENGTH = "length"
    STOP = "stop"
    TIME = "time"
    CANCELLED = "cancelled"


# The most probable tokens at one place of an answer, each with its log-probability, the first the most probable.
TopTokens = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of an answer with one origin. `request` is the id that the request was queued under.

    `logprobs` and `top_logprobs` are set if the request asked for them; provisional pieces have none, and no number of
    the prompt's tokens. `calls` are those that the piece completes; their text is not part of its text.
    """

    tokens: tuple[int, ...]
    text: str
    origin: Origin
    request: int = 0
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[TopTokens, ...] | None = None
    prompt_tokens: int = field(default=0, compare=False, repr=False)
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, repr=False)
class Answer:
    """The whole answer: exactly the tokens that the target alone would have written (unless a rule is lossy).

    A notebook shows it as its text by origin and its timeline; `repr` is one short line.

    Args:
        notes: sentences for people: a damaged clip, a lost drafter, a dropped draft, why hardly anything was drafted.
        drafter_error: why the drafter drafted nothing, or nothing more, where it failed or refused; also in `notes`.
    """

    text: str
    tokens: tuple[int, ...]
    pieces: tuple[Piece, ...]
    finish: Finish
    stats: "Stats"
    timeline: "Timeline"
    logprobs: tuple[float, ...] | None = None
    notes: tuple[str, ...] = ()
    drafter_error: str | None = None
    top_logprobs: tuple[TopTokens, ...] | None = None

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the request's tools, in their order."""
        return tuple(call for piece in self.pieces for call in piece.calls)

    @property
    def other_notes(self) -> tuple[str, ...]:
        """The notes without the one that says why hardly anything was drafted: that is no fault of the answer."""
        return tuple(note for note in self.notes if note != self.stats.undrafted)

    def __repr__(self) -> str:
        text = self.text.strip()
        shown = text if len(text) <= REPR_LETTERS else text[: REPR_LETTERS - 1] + "…"
        stats = self.stats
        figures = f"{len(self.tokens)} tokens, {self.finish}, {stats.total_s * 1e3:.0f} ms, tau {stats.tau:.2f}"
        noted = f", {len(self.notes)} notes" if self.notes else ""
        return f"<Answer {shown!r}: {figures}{noted}>"

    def _repr_html_(self) -> str:
        """The picture of the answer, for notebooks."""
        from crossdraft.drawing.timeline import timeline_img

        return timeline_img(self)
