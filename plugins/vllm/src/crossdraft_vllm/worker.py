# pyright: basic, reportMissingImports=false
"""A worker for vLLM's Model Runner V2: `--worker-cls crossdraft_vllm.worker.DraftWorker`.

**Unverified**: written to the source of vLLM 0.32, never run, as V2 needs a GPU. There the drafts of a request are a
row of `req_states.draft_tokens`, which the worker's own speculator has written; the scheduler's list only counts them.
So the scheduler's tokens are written over that row before a pass. The kernel that puts them behind the prompt's tail
(`combine_sampled_and_draft_tokens`) is told to keep that tail.
"""

from typing import Any

from vllm.v1.worker.gpu_worker import Worker

from crossdraft_vllm.device_drafts import write_drafts


class DraftWorker(Worker):
    """vLLM's worker; where the scheduler has drafts, they replace the worker's own."""

    def execute_model(self, scheduler_output: Any) -> Any:
        """Run one pass, with the scheduler's drafts."""
        scheduled = scheduler_output.scheduled_spec_decode_tokens
        if scheduled:
            states = self.model_runner.req_states
            write_drafts(states.draft_tokens, states.req_id_to_index, scheduled)
        return super().execute_model(scheduler_output)
