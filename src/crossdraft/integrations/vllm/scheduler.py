# pyright: basic, reportMissingImports=false
"""The scheduler class for vLLM's command line: `--scheduler-cls crossdraft.integrations.vllm.scheduler.DraftScheduler`.

For Model Runner V1 (vLLM 0.32 and 0.33): V2 keeps drafts on the GPU and takes none from the scheduler.
"""

from functools import partial
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.errors import CrossdraftError
from crossdraft.integrations.vllm.hosting import DraftLimits, HostedDrafts
from crossdraft.integrations.vllm.requests import RequestReader
from crossdraft.integrations.vllm.scheduling import HiddenDrafts
from crossdraft.integrations.vllm.settings import LONGEST, HostSettings
from crossdraft.load import reserved_ids, tokenizer_of
from crossdraft.methods import DrafterContext, build_spec, read_spec


class DraftScheduler(HiddenDrafts, Scheduler):
    """vLLM's scheduler with drafts of ours; see `scheduling`.

    With `"method": "custom_class"` all drafts are ours. With another method, `eagle3` for example, only the first one
    of each answer is, which was made while the prompt was read.

    Raises:
        CrossdraftError: vLLM is configured in a way that cannot take them.
    """

    def __init__(self, vllm_config: Any, *arguments: Any, **named: Any) -> None:
        settings = HostSettings.of(vllm_config.additional_config)
        check_config(vllm_config)
        super().__init__(vllm_config, *arguments, **named)  # pyright: ignore[reportCallIssue]
        speculative, model = vllm_config.speculative_config, vllm_config.model_config
        most = min(self.num_spec_tokens, LONGEST)
        tokenizer = tokenizer_of(model.model)
        size = model.hf_text_config.vocab_size
        eos = end_ids(model, tokenizer)
        banned = reserved_ids(tokenizer, size, eos)
        limits = DraftLimits(
            settings.hidden_tokens or most,
            most if speculative.method == "custom_class" else 0,
            settings.wait_ms / 1000,
            settings.requests,
            size,
            frozenset(banned),
        )
        context = DrafterContext(
            model.model, settings.device, settings.dtype, vocab_size=size, eos=eos, banned=tuple(banned)
        )
        drafter = ProcessDrafter(
            partial(build_spec, read_spec(settings.drafter), context),
            settings.cores,
            settings.drafter_timeout_s,
            parallel=settings.parallel,
        )
        root = None if settings.media_root is None else Path(settings.media_root)
        self.host(HostedDrafts(drafter, limits), RequestReader(model.hf_config, tokenizer, root))


def end_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Ids that end an answer: the generation config's, else the tokenizer's."""
    found = model.try_get_generation_config().get("eos_token_id", tokenizer.eos_token_id)
    return (found,) if isinstance(found, int) else tuple(found or ())


def check_config(vllm_config: Any) -> None:
    """Refuse what cannot work, before a model is read.

    Raises:
        CrossdraftError: no speculation is configured, the scheduler runs ahead of the worker, or V2 runs the model.
    """
    if vllm_config.speculative_config is None:
        raise CrossdraftError(
            'vLLM verifies no drafts; add --speculative-config \'{"method": "custom_class", "model": '
            '"crossdraft.integrations.vllm.proposer.SilentProposer", "num_speculative_tokens": 48}\'.'
        )
    if vllm_config.scheduler_config.async_scheduling:
        raise CrossdraftError("vLLM schedules ahead of its worker and takes no drafts; add --no-async-scheduling.")
    if vllm_config.use_v2_model_runner:
        raise CrossdraftError(
            "vLLM's Model Runner V2 takes no drafts from the scheduler; set VLLM_USE_V2_MODEL_RUNNER=0."
        )
