"""Conversion between OpenAI's shapes and the engine's: a chat request to `crossdraft.Request`, an answer to JSON."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from crossdraft.engine.request import Answer, Finish, Piece, Request
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.stats import Stats
from crossdraft.engine.target import Target
from crossdraft.messages import ToolCall
from crossdraft.serve.errors import bad_request
from crossdraft.serve.media import LoadedMedia
from crossdraft.serve.schema import ChatRequest, StructuredOutputs, ToolChoice
from crossdraft.structure.structure import Structure
from crossdraft.structure.tools import Tools

FINISH_REASONS = {
    Finish.EOS: "stop", Finish.STOP: "stop", Finish.LENGTH: "length", Finish.TIME: "length", Finish.CANCELLED: "stop",
}  # fmt: skip
LOCAL_PATH = re.compile(r"(?<![\w:/.])/\w")  # begin of an absolute path in a sentence


def to_request(chat: ChatRequest, media: LoadedMedia, owner: str, longest: int, seconds: float) -> Request:
    """Convert a chat request to a request for the engine.

    Args:
        chat: body of the request.
        media: loaded messages and recording of the request.
        owner: name of the client; cached prompts and answers are used for this client alone.
        longest: largest number of tokens of its answer.
        seconds: largest time for its answer.

    Raises:
        ApiError: the request asks for a longer answer than the client may have.
        CrossdraftError: as `Request` and `Sampling`.
    """
    if chat.longest is not None and chat.longest > longest:
        raise bad_request(f"Answers have at most {longest} tokens here; ask for fewer.", "max_tokens")
    sampling = Sampling(
        temperature=chat.temperature,
        top_k=None if chat.top_k is None else max(chat.top_k, 0),  # -1 means all tokens in vLLM
        top_p=chat.top_p,
        min_p=chat.min_p,
        repetition_penalty=chat.repetition_penalty,
        presence_penalty=chat.presence_penalty,
        frequency_penalty=chat.frequency_penalty,
        logit_bias=tuple(chat.logit_bias.items()) if chat.logit_bias else None,
        seed=None if chat.seed == -1 else chat.seed,  # as in vLLM
        min_new_tokens=chat.min_tokens,
    )
    return Request(
        messages=media.messages,
        events=media.events,
        max_new_tokens=chat.longest,
        sampling=sampling,
        stop=chat.stop or None,
        stop_token_ids=chat.stop_token_ids or (),
        ignore_eos=chat.ignore_eos,
        template_kwargs=chat.chat_template_kwargs,
        continue_final_message=chat.continue_final_message,
        max_time=seconds,
        logprobs=bool(chat.logprobs),
        top_logprobs=chat.top_logprobs or 0,
        namespace=owner,
        structure=structure_of(chat),
        predictions=() if chat.prediction is None else chat.prediction.texts,
        hints=chat.crossdraft.hints,
        tools=tools_of(chat),
    )


def tools_of(chat: ChatRequest) -> Tools | None:
    """The tools that a chat request's answer may call; none for the choice `none`, as in vLLM.

    Raises:
        CrossdraftError: as `Tools`.
    """
    choice = chat.tool_choice
    if not chat.tools:
        return None
    only = choice.function["name"] if isinstance(choice, ToolChoice) else None
    found = Tools(chat.tools, "required" if choice == "required" else "auto", only, chat.parallel_tool_calls)
    return None if choice == "none" else found


def message(answer: Answer) -> dict[str, object]:
    """OpenAI's message of an answer; one of calls alone has no content."""
    made = {"role": "assistant", "content": answer.text if answer.text or not answer.tool_calls else None}
    functions = [(one.id, {"name": one.name, "arguments": one.arguments}) for one in answer.tool_calls]
    calls = [{"id": id_, "type": "function", "function": function} for id_, function in functions]
    return {**made, "refusal": None, **({"tool_calls": calls} if calls else {})}


def finish_reason(answer: Answer) -> str:
    """OpenAI's `finish_reason` of an answer."""
    reason = FINISH_REASONS[answer.finish]
    return "tool_calls" if reason == "stop" and answer.tool_calls else reason


def call_deltas(calls: Sequence[ToolCall], first: int) -> Iterator[dict[str, object]]:
    """The deltas of a stream for whole calls, the first of which has the number `first`: each name, then arguments."""
    for index, one in enumerate(calls, first):
        named = {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": ""}}
        yield {"tool_calls": [{"index": index, **named}]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": one.arguments}}]}


def structure_of(chat: ChatRequest) -> Structure | None:
    """The structure that a chat request asks for; `None` = any text.

    Raises:
        CrossdraftError: as `Structure`.
    """
    if (form := chat.response_format) is not None and form.type != "text":
        return Structure.json(None if form.json_schema is None else form.json_schema.schema_)
    match chat.structured_outputs:
        case StructuredOutputs(regex=str(expression)):
            return Structure.regex(expression)
        case StructuredOutputs(choice=list(texts)):
            return Structure.choice(texts)
        case StructuredOutputs(grammar=str(text)):
            return Structure.grammar(text)
        case StructuredOutputs() as given:
            return Structure.json(given.json_)
    return None


def usage(*stats: Stats) -> dict[str, object]:
    """OpenAI's `usage` object of one answer, or of several to the same prompt, which counts once.

    A prediction's tokens that are not in the answer are its rejected ones.
    """
    details = {"prompt_tokens_details": {"cached_tokens": stats[0].cached_tokens}}
    if stats[0].predicted:
        missing = sum(max(0, one.predicted - one.predicted_accepted) for one in stats)
        accepted = sum(one.predicted_accepted for one in stats)
        kinds = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": missing}
        details["completion_tokens_details"] = kinds
    return usage_so_far(stats[0].prompt_tokens, sum(one.new_tokens for one in stats)) | details


def usage_so_far(prompt: int, new: int) -> dict[str, object]:
    """Counts of a `usage` object."""
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def metrics(stats: Stats) -> dict[str, object]:
    """vLLM's per-request `metrics` (`--enable-per-request-metrics`), with figures of hidden drafting added."""
    decode_s = max(0.0, stats.total_s - stats.ttft_s)
    later = max(stats.new_tokens - 1, 1)
    return {
        "time_to_first_token_ms": _ms(stats.ttft_s),
        "generation_time_ms": _ms(decode_s),
        "queue_time_ms": _ms(stats.queued_s),
        "mean_itl_ms": _ms(decode_s / later),
        "tokens_per_second": round(stats.tokens_per_s, 2),
        "speculative_decoding": speculative_decoding(stats),
        "first_provisional_ms": None if stats.first_provisional_s is None else _ms(stats.first_provisional_s),
        "hidden_share": None if stats.hidden_share is None else round(stats.hidden_share, 4),
        "hidden_draft_tokens": stats.hidden_drafted,
        "hidden_accepted_tokens": stats.hidden_accepted,
        "lossless": stats.lossless,
    }


def speculative_decoding(stats: Stats) -> dict[str, object] | None:
    """vLLM's object of the same name; `None` if nothing was drafted.

    A step is a verify pass with a draft. `acceptance_histogram[k]`: steps that accepted k tokens; `num_spec_tokens`:
    the largest depth that was offered. The mean acceptance length counts the bonus token. All nodes of a draft tree
    count as draft tokens, though only one path can be accepted.
    """
    if not stats.drafted_at:
        return None
    steps = stats.drafted_at[0]
    reached = [steps, *stats.accepted_at, 0]  # [k]: steps that accepted at least k tokens
    return {
        "mean_acceptance_length": round(1 + stats.accepted / steps, 4),
        "draft_acceptance_rate": round(stats.accepted / stats.drafted, 4) if stats.drafted else 0.0,
        "acceptance_histogram": [more - fewer for more, fewer in pairwise(reached)],
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": stats.accepted,
        "num_draft_tokens": stats.drafted,
        "num_spec_tokens": len(stats.drafted_at),
    }


def logprobs(said: Answer | Piece, target: Target) -> dict[str, object] | None:
    """OpenAI's `logprobs` of an answer, or of a piece of it: the target's own, before any sampling settings.

    The joined `bytes` of all tokens are those of the text plus those that the text leaves out: a leading space, the
    stop string with the rest of its last token, a partial character at the end. A token may be a part of a character.
    """
    if said.logprobs is None:
        return None

    def described(token: int, value: float) -> dict[str, object]:
        spelt = target.text.bytes_of(token)
        return {"token": spelt.decode(errors="replace"), "logprob": value, "bytes": list(spelt)}

    tops = said.top_logprobs or [()] * len(said.tokens)
    content = [
        {**described(token, value), "top_logprobs": [described(*one) for one in top]}
        for token, value, top in zip(said.tokens, said.logprobs, tops, strict=True)
    ]
    return {"content": content, "refusal": None}


def timeline(answer: Answer) -> dict[str, object]:
    """Spans of both models in milliseconds since the engine took the request, all figures, and notes for people."""
    start = answer.timeline.start
    spans = [
        {"lane": span.lane, "name": span.name, "start_ms": _ms(span.start - start), "end_ms": _ms(span.end - start)}
        | ({"tokens": span.tokens} if span.tokens else {})
        for span in answer.timeline.spans
    ]
    return {"spans": spans, "stats": answer.stats.to_json(), "notes": public_notes(answer.notes)}


def public_notes(notes: Sequence[str]) -> list[str]:
    """Notes for people, without those that name a path of this machine; a client's own URL may stand in one.

    >>> public_notes(["file:///a.mp4 is cut off: 1/2 of it can be read.", "No head in '/srv/head'."])
    ['file:///a.mp4 is cut off: 1/2 of it can be read.']
    """
    return [note for note in notes if not LOCAL_PATH.search(note)]


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
