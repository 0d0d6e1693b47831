# pyright: basic, reportAttributeAccessIssue=false
"""Additions to vLLM's scheduler: drafts that are made elsewhere while a prompt is prefilled. Imports no vLLM.

The names of vLLM's that it leans on, all of them those of 0.32 and 0.33: `schedule`, `add_request`,
`update_draft_token_ids`, `make_spec_decoding_stats`, `_free_request`, `shutdown`; `requests`, `running`,
`num_spec_tokens`, `max_num_scheduled_tokens`; and of a request `spec_token_ids`, `is_prefill_chunk`, `num_tokens`,
`num_computed_tokens`, `output_token_ids`, `use_structured_output`.

**A draft rides along** with the last chunk of a prompt that is prefilled in several: vLLM counts what is scheduled for
a request as computed tokens that it catches up with, prompt and draft alike, and takes the logits of the last
`drafts + 1` rows. A prompt that is prefilled at once is not cut for it: that would take as many passes, and the first
token would come later.
"""

import logging
from typing import Any

from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft_vllm.hosting import HostedDrafts
from crossdraft_vllm.requests import RequestReader

log = logging.getLogger(__name__)


class HiddenDrafts:
    """Mixin before vLLM's `Scheduler` in the bases of a class; `host` is called before the first request."""

    def host(self, drafts: HostedDrafts, reader: RequestReader, *, draws: bool = True) -> None:
        """Take drafts from `drafts`, for requests as `reader` reads them.

        `draws`: whether drafts of answers that are drawn are verified exactly; else such answers get no drafts.
        """
        self.drafts = drafts
        self._reader, self._draws = reader, draws
        self._seen: dict[str, int] = {}  # how many tokens of each answer the drafter was told
        # vLLM counts acceptance for each depth, and stops at a draft that is longer than it was told.
        self._longest = max(self.num_spec_tokens, drafts.limits.hidden)

    def add_request(self, request: Any) -> None:
        """Add a request, and have the drafter draft for it from now on."""
        if request.request_id not in self.requests and (asked := self._asked(request)) is not None:
            self._seen[request.request_id] = 0
            self.drafts.begin(request.request_id, asked)
        self._widened(super().add_request, request)

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        """Have drafts ride along with the last chunks of this step."""
        self.drafts.refresh()
        riders = [request for request in self.running if self._may_ride(request)]
        for request in riders:
            request.spec_token_ids = self.drafts.offer(request.request_id, self._longest)
        output = super().schedule(*arguments, **named)
        for request in riders:
            request.spec_token_ids = []  # a draft that found no room is dropped
        return output

    def update_draft_token_ids(self, drafted: Any) -> None:
        """Tell the drafter the emitted tokens, and hand its drafts out; a request without one gets the worker's own."""
        emitted = {name: self._emitted(name) for name in drafted.req_ids if name in self._seen}
        made = self.drafts.advance(emitted)
        pairs = zip(drafted.req_ids, drafted.draft_token_ids, strict=False)
        drafted.draft_token_ids = [made.get(name, list(own))[: self._longest] for name, own in pairs]
        super().update_draft_token_ids(drafted)

    def make_spec_decoding_stats(self, *arguments: Any, **named: Any) -> Any:
        """Count acceptance at each depth down to that of the longest hidden draft."""
        return self._widened(super().make_spec_decoding_stats, *arguments, **named)

    def shutdown(self) -> None:
        """Stop the drafter too."""
        self.drafts.close()
        super().shutdown()

    def _free_request(self, request: Any, *arguments: Any, **named: Any) -> Any:
        if self._seen.pop(request.request_id, None) is not None:
            self.drafts.end(request.request_id)
        return super()._free_request(request, *arguments, **named)

    def _asked(self, request: Any) -> Request | None:
        """Return the request to the drafter; `None` if vLLM's request must be answered without drafts."""
        sampling = request.sampling_params
        if sampling is None or request.resumable or (sampling.temperature != 0 and not self._draws):
            return None
        # Answers that are drawn with the same seed draw alike: what is learnt from one would know the other's draws.
        alike = sampling.temperature != 0 and sampling.seed is not None
        namespace = None if alike else request.cache_salt or ""
        try:
            return self._reader.read(request.prompt_token_ids, sampling.extra_args, request.max_tokens, namespace)
        except CrossdraftError as error:
            log.warning("Request %s is answered without drafts: %s", request.request_id, error)
        except Exception:  # whatever a client sent, the engine goes on
            log.exception("Request %s is answered without drafts.", request.request_id)
        return None

    def _may_ride(self, request: Any) -> bool:
        """True if the next pass may prefill the request's prompt to its end, and verify a draft behind the prompt.

        A draft in front of the answer would escape a grammar, which vLLM applies to drafts between two steps, and
        stand among the prompt's log-probabilities.
        """
        left = request.num_tokens - request.num_computed_tokens
        return (
            request.request_id in self._seen
            and request.is_prefill_chunk
            and left <= self.max_num_scheduled_tokens
            and not request.use_structured_output
            and request.sampling_params.prompt_logprobs is None
        )

    def _emitted(self, name: str) -> list[int]:
        """Return an answer's tokens that the drafter does not know yet; none while a prompt is read, even again."""
        request = self.requests.get(name)
        if request is None or request.is_prefill_chunk:
            return []
        tokens = list(request.output_token_ids[self._seen[name] :])
        self._seen[name] += len(tokens)
        return tokens

    def _widened(self, work: Any, *arguments: Any, **named: Any) -> Any:
        kept, self.num_spec_tokens = self.num_spec_tokens, self._longest
        try:
            return work(*arguments, **named)
        finally:
            self.num_spec_tokens = kept
