"""Checks of vLLM's configuration: can it take drafts from its scheduler?"""

from typing import Any

from crossdraft.errors import CrossdraftError

WITHOUT_HEAD = ("custom_class", "ngram", "ngram_gpu")  # vLLM's methods without a head: all drafts may be ours
WORKER = "crossdraft_vllm.worker.DraftWorker"


def check_config(vllm_config: Any, hidden_tokens: int) -> None:
    """Refuse a configuration that cannot work, before a model is read.

    Raises:
        CrossdraftError: no speculation is configured, the scheduler runs ahead of the worker, a head draws its drafts,
            or V2 runs the model without our worker, in several stages, or with a longer first draft than others.
    """
    speculative = vllm_config.speculative_config
    if speculative is None:
        raise CrossdraftError(
            'vLLM verifies no drafts; add --speculative-config \'{"method": "custom_class", "model": '
            '"crossdraft_vllm.proposer.SilentProposer", "num_speculative_tokens": 48}\'.'
        )
    if vllm_config.scheduler_config.async_scheduling:
        raise CrossdraftError("vLLM schedules ahead of its worker and takes no drafts; add --no-async-scheduling.")
    if speculative.method not in WITHOUT_HEAD and speculative.draft_sample_method != "greedy":
        raise CrossdraftError(
            "With draft_sample_method 'probabilistic' vLLM takes every draft for one that its head drew; leave it at "
            "'greedy'."
        )
    if not vllm_config.use_v2_model_runner:
        return
    parallel = vllm_config.parallel_config
    if parallel.worker_cls != WORKER or parallel.pipeline_parallel_size > 1:
        raise CrossdraftError(
            "vLLM's Model Runner V2 takes no drafts from the scheduler; set VLLM_USE_V2_MODEL_RUNNER=0, or try "
            f"--worker-cls {WORKER}, without pipeline parallelism."
        )
    if hidden_tokens > speculative.num_speculative_tokens:
        raise CrossdraftError(
            f"hidden_tokens is {hidden_tokens}; Model Runner V2 verifies num_speculative_tokens "
            f"({speculative.num_speculative_tokens}) at most."
        )
