"""As much of vLLM's scheduler and worker as drafts meet, after 0.32's source: what is scheduled, verified, counted.

`FakeScheduler.step` is one pass. The model is a list of answers. What would end the real engine raises here: a draft
that is longer than was announced and accepted, an id that the embedding has no row for, a token without a place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

EOS = 0


@dataclass(eq=False)
class FakeRequest:
    """A request as the scheduler holds it."""

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    extra: Mapping[str, Any] | None = None
    temperature: float = 0.0
    seed: int | None = None
    prompt_logprobs: int | None = None
    use_structured_output: bool = False
    cache_salt: str | None = None
    resumable: bool = False
    output_token_ids: list[int] = field(default_factory=list)
    spec_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    is_prefill_chunk: bool = False
    finished: bool = False

    @property
    def sampling_params(self) -> Any:
        return SimpleNamespace(
            extra_args=self.extra, temperature=self.temperature, seed=self.seed, prompt_logprobs=self.prompt_logprobs
        )

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)


@dataclass
class FakeOutput:
    """What one pass reads."""

    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)


class FakeScheduler:
    """The base class.

    Args:
        answers: of each request, by its name.
        k: `num_speculative_tokens`.
        budget: tokens of a pass.
        rows: requests of a pass.
        vocabulary: rows of the embedding.
        context: `max_model_len`.
    """

    def __init__(
        self,
        answers: Mapping[str, Sequence[int]],
        k: int = 4,
        budget: int = 64,
        rows: int = 4,
        vocabulary: int = 100,
        context: int = 10_000,
    ) -> None:
        self.answers = answers
        self.num_spec_tokens = k
        self.max_num_scheduled_tokens = budget
        self.rows, self.vocabulary, self.context = rows, vocabulary, context
        self.requests: dict[str, FakeRequest] = {}
        self.waiting: list[FakeRequest] = []
        self.running: list[FakeRequest] = []
        self.passes = 0
        self.drafted = self.accepted = 0
        self.done: dict[str, list[int]] = {}
        self.scheduled: list[FakeOutput] = []

    # -- what the integration overrides ---------------------------------------------------------------------------

    def add_request(self, request: FakeRequest) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def schedule(self) -> FakeOutput:
        output, left = FakeOutput(), self.max_num_scheduled_tokens
        for request in self.running:
            count = request.num_tokens + len(request.spec_token_ids) - request.num_computed_tokens
            count = min(count, left, self.context - request.num_computed_tokens - 1)
            if count <= 0:
                continue
            left -= count
            output.num_scheduled_tokens[request.request_id] = count
            drafts = count + request.num_computed_tokens - request.num_tokens
            if drafts > 0 and request.spec_token_ids:
                output.scheduled_spec_decode_tokens[request.request_id] = request.spec_token_ids[:drafts]
            request.spec_token_ids = []
        while left and self.waiting and len(self.running) < self.rows:
            request = self.waiting.pop(0)
            count = min(request.num_tokens - request.num_computed_tokens, left)
            left -= count
            output.num_scheduled_tokens[request.request_id] = count
            self.running.append(request)
        for name, count in output.num_scheduled_tokens.items():
            request = self.requests[name]
            request.num_computed_tokens += count
            request.is_prefill_chunk = request.num_computed_tokens < request.num_tokens
        return output

    def update_draft_token_ids(self, drafted: Any) -> None:
        for name, tokens in zip(drafted.req_ids, drafted.draft_token_ids, strict=True):
            request = self.requests.get(name)
            if request is None or request.finished:
                continue
            request.spec_token_ids = [] if request.is_prefill_chunk else list(tokens)

    def make_spec_decoding_stats(self, drafted: int, accepted: int) -> None:
        assert accepted <= self.num_spec_tokens  # v1/spec_decode/metrics.py: it ends the engine
        self.drafted += drafted
        self.accepted += accepted

    def _free_request(self, request: FakeRequest) -> None:
        del self.requests[request.request_id]

    def shutdown(self) -> None:
        pass

    # -- the rest of the engine -----------------------------------------------------------------------------------

    def step(self, own: Mapping[str, list[int]] | None = None) -> None:
        """One pass, and what follows from it; `own` are drafts of the worker's own head."""
        output = self.schedule()
        if not output.num_scheduled_tokens:
            return
        self.passes += 1
        self.scheduled.append(output)
        sampled = {name: self._sampled(name, output) for name in output.num_scheduled_tokens}
        for name, tokens in sampled.items():
            self._update(self.requests[name], tokens, output.scheduled_spec_decode_tokens.get(name, []))
        drafts = [list((own or {}).get(name, [])) for name in sampled]
        self.update_draft_token_ids(SimpleNamespace(req_ids=list(sampled), draft_token_ids=drafts))

    def run(self) -> dict[str, list[int]]:
        """Until everything is answered."""
        while self.requests:
            before = self.passes
            self.step()
            assert self.passes > before, "nothing was scheduled"
        return self.done

    def preempt(self, name: str) -> None:
        """Take a running request's keys and values away."""
        request = self.requests[name]
        if request in self.running:
            self.running.remove(request)
            request.num_computed_tokens, request.spec_token_ids = 0, []
            self.waiting.insert(0, request)

    def abort(self, name: str) -> None:
        """The client is gone."""
        self._finish(self.requests[name])

    def _sampled(self, name: str, output: FakeOutput) -> list[int]:
        """The rejection sampler: the drafts that the model says too, then its own token."""
        request, drafts = self.requests[name], output.scheduled_spec_decode_tokens.get(name, [])
        if request.is_prefill_chunk:
            assert not drafts, "a draft behind a part of a prompt"
            return []
        rows = range(self.vocabulary)
        for token in drafts:
            rows[token]  # the embedding
        said = [*self.answers[name], *[EOS] * 1000][len(request.output_token_ids) :]
        kept = next((i for i, token in enumerate(drafts) if token != said[i]), len(drafts))
        return said[: kept + 1]

    def _update(self, request: FakeRequest, tokens: list[int], drafts: list[int]) -> None:
        if drafts:
            request.num_computed_tokens -= len(drafts) - (len(tokens) - 1)
            self.make_spec_decoding_stats(len(drafts), len(tokens) - 1)
        for token in tokens:
            request.output_token_ids.append(token)
            if token == EOS or len(request.output_token_ids) == request.max_tokens:
                self._finish(request)
                return

    def _finish(self, request: FakeRequest) -> None:
        request.finished = True
        self.done[request.request_id] = list(request.output_token_ids)
        for queue in (self.running, self.waiting):
            if request in queue:
                queue.remove(request)
        self._free_request(request)
