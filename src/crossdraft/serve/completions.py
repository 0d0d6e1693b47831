"""`/v1/completions`: texts that the target continues as they stand, without a chat template."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field, model_validator

from crossdraft.engine.request import Answer, Piece
from crossdraft.engine.request import Request as Question
from crossdraft.engine.target import Target
from crossdraft.serve import convert
from crossdraft.serve.answering import Answering, endpoint
from crossdraft.serve.bodies import validated
from crossdraft.serve.chat import ChatForm, read_body
from crossdraft.serve.errors import bad_request, refuse_names
from crossdraft.serve.gate import RequestInfo
from crossdraft.serve.schema import MAX_TOP, NO_MESSAGES, ChatRequest
from crossdraft.serve.service import Service

router = APIRouter()

USUAL_TOKENS = 16  # of an answer for which the request names no length, as with OpenAI
# Fields of a chat request that have no meaning here.
OF_CHATS = frozenset(
    {"messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls", "modalities"}
    | {"media_io_kwargs", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"}
)


class CompletionRequest(ChatRequest):
    """The body of a completion request, as a chat request with other prompts; `logprobs` is a number in the body."""

    prompt: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1, max_length=16, fail_fast=True)
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    suffix: Literal[""] | None = None

    @model_validator(mode="before")
    @classmethod
    def _as_chat(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        refuse_names(values, OF_CHATS)
        prompt, count = values.get("prompt"), values.get("logprobs")
        if isinstance(prompt, list) and any(isinstance(one, int | list) for one in prompt):
            raise bad_request("prompt: it is made of token ids; send the text.", "prompt", "invalid_value")
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_TOP):
            raise bad_request(f"logprobs: give a number from 0 to {MAX_TOP}.", "logprobs", "invalid_value")
        prompt = [prompt] if isinstance(prompt, str) else prompt
        more = {"messages": NO_MESSAGES, "logprobs": count is not None, "top_logprobs": count}
        return {"max_tokens": USUAL_TOKENS, **values, "prompt": prompt, **more}


async def begin(service: Service, body: bytes, asked: RequestInfo) -> "tuple[Answering, CompletionForm]":
    """Read the body of a completion request; errors as `chat.read_body`."""
    found = await read_body(service, body, partial(validated, CompletionRequest), asked.client)
    all_of_them = found.model_copy(update={"n": found.n * len(found.prompt)})
    return Completing(service, all_of_them, asked), CompletionForm(service, all_of_them, asked)


router.add_route("/v1/completions", endpoint(begin), methods=["POST"])


class Completing(Answering):
    """Answers a completion request."""

    names = (("^messages$", "prompt"),)

    def __init__(self, service: Service, chat: CompletionRequest, asked: RequestInfo) -> None:
        super().__init__(service, chat, asked)
        self._prompts, self._each = chat.prompt, chat.n // len(chat.prompt)

    async def questions(self, held: AsyncExitStack) -> list[Question]:
        """One question for each completion, those of the first prompt first."""
        question, target = await self.question(held), self.service.engine.target
        prompts = [await asyncio.to_thread(raw, question, one, target) for one in self._prompts]
        return [one for prompt in prompts for one in prompt.several(self._each)]


def raw(question: Question, prompt: str, target: Target) -> Question:
    """The question with a prompt that is tokenised as it stands.

    Raises:
        ApiError: the prompt holds a placeholder.
        ContextLengthError: it is longer than the model's context.
    """
    found = replace(question, messages=None, prompt=prompt, inputs={})
    found.check_length(target.context)
    ids = target.text.tokenizer(prompt, return_tensors="pt", verbose=False)["input_ids"].long()
    if shown := sorted(target.traits.visual_ids & set(ids[0].tolist())):
        name = target.text.tokenizer.convert_ids_to_tokens(shown[0])
        raise bad_request(f"The prompt holds {name}, which stands for a picture; ask /v1/chat/completions.", "prompt")
    return replace(found, inputs={"input_ids": ids})


class CompletionForm(ChatForm):
    """OpenAI's text completions; see `Form`."""

    ids, kind, chunk = "cmpl-", "text_completion", "text_completion"

    def __init__(self, service: Service, chat: CompletionRequest, asked: RequestInfo) -> None:
        super().__init__(service, chat, asked)
        self._each = chat.n // len(chat.prompt)
        self._sent_text: dict[int, str] = {}  # of each completion

    def begin(self) -> bytes:
        return b""

    def piece(self, number: int, piece: Piece) -> bytes:
        return super().piece(number, replace(piece, text=self._spaced(number, piece)))

    def _answered(self, number: int, answer: Answer) -> dict[str, object]:
        said = {"content": self._spaced(number, answer)}
        return self._choice(number, said, convert.FINISH_REASONS[answer.finish], convert.logprobs(answer, self._target))

    def _spaced(self, number: int, said: Answer | Piece) -> str:
        """The text with the spaces in front of a completion, which an answer leaves out."""
        if self._sent_text.get(number, "").strip():
            return said.text
        spelt = b"".join(map(self._target.text.bytes_of, said.tokens))
        return " " * (len(spelt) - len(spelt.lstrip(b" "))) + said.text

    def _choice(
        self, number: int, delta: Mapping[str, object], reason: str | None, logprobs: dict[str, object] | None
    ) -> dict[str, object]:
        """A completion, or the next piece of it, with log-probabilities in the older form."""
        text = str(delta.get("content", ""))
        tokens: Any = logprobs["content"] if logprobs else ()
        before = self._sent_text.get(number, "")
        self._sent_text[number] = before + text
        offsets = [*accumulate((len(one["token"]) for one in tokens), initial=len(before))][:-1]
        tops = [{_name(top): top["logprob"] for top in one["top_logprobs"]} for one in tokens]
        older = {
            "tokens": [_name(one) for one in tokens],
            "token_logprobs": [one["logprob"] for one in tokens],
            "top_logprobs": tops if self._chat.top_logprobs else None,
            "text_offset": offsets,
        }
        return {"index": number, "text": text, "logprobs": logprobs and older, "finish_reason": reason}

    def _used(self, answers: Sequence[Answer]) -> dict[str, object]:
        first = [one.stats for one in answers[:: self._each]]
        found = convert.usage_so_far(
            sum(one.prompt_tokens for one in first), sum(one.stats.new_tokens for one in answers)
        )
        return found | {"prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in first)}}


def _name(token: dict[str, Any]) -> str:
    """A token's text; of a part of a character its bytes, as OpenAI spells them."""
    spelt = bytes(token["bytes"])
    with suppress(UnicodeDecodeError):
        return spelt.decode()
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelt)
