# pyright: basic, reportMissingImports=false
"""The scheduler class for vLLM's command line: `--scheduler-cls crossdraft_vllm.scheduler.DraftScheduler`.

For Model Runner V1 of vLLM 0.32 and 0.33. V2 keeps drafts on the GPU: there `worker.DraftWorker` must fetch them.
"""

from functools import partial
from pathlib import Path
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.core.sched.scheduler import Scheduler

from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.load import reserved_ids, tokenizer_of
from crossdraft.methods import build_spec, read_spec
from crossdraft.records import DrafterContext
from crossdraft_vllm.compatibility import WITHOUT_HEAD, check_config
from crossdraft_vllm.hosting import DraftLimits, HostedDrafts
from crossdraft_vllm.requests import RequestReader
from crossdraft_vllm.scheduling import HiddenDrafts
from crossdraft_vllm.settings import LONGEST, HostSettings


class DraftScheduler(HiddenDrafts, Scheduler):
    """vLLM's scheduler with our drafts; see `scheduling`.

    With `"method": "custom_class"` all drafts are ours; with `ngram` vLLM's drafts fill in where we have none. With a
    head's method, `eagle3` for example, only the first draft of each answer is ours, made while the prompt was read.

    Raises:
        CrossdraftError: vLLM's configuration cannot take our drafts.
    """

    def __init__(self, vllm_config: Any, *arguments: Any, **named: Any) -> None:
        settings = HostSettings.of(vllm_config.additional_config)
        check_config(vllm_config, settings.hidden_tokens or 0)
        super().__init__(vllm_config, *arguments, **named)  # pyright: ignore[reportCallIssue]
        speculative, model = vllm_config.speculative_config, vllm_config.model_config
        most = min(self.num_spec_tokens, LONGEST)
        tokenizer = tokenizer_of(model.model)
        size = model.hf_text_config.vocab_size
        eos = end_ids(model, tokenizer)
        banned = reserved_ids(tokenizer, size, eos)
        limits = DraftLimits(
            settings.hidden_tokens or most,
            most if speculative.method in WITHOUT_HEAD else 0,
            settings.wait_ms / 1000,
            settings.requests,
            size,
            frozenset(banned),
        )
        context = DrafterContext(
            model.model, settings.device, settings.dtype, vocab_size=size, eos=eos, banned=tuple(banned)
        )
        drafter = ProcessDrafter(
            partial(build_spec, read_spec(settings.drafter), context), settings.cores, settings.drafter_timeout_s
        )
        root = None if settings.media_root is None else Path(settings.media_root)
        reader = RequestReader(model.hf_config, tokenizer, root, model.max_model_len)
        # On a CPU vLLM 0.32 loses the temperature of the rows behind a draft (`cpu_triton_utils._expand_kernel_impl`
        # writes it into a copy), so what it draws there follows no distribution that was asked for.
        self.host(HostedDrafts(drafter, limits), reader, draws=not current_platform.is_cpu())


def end_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Ids that end an answer: the generation config's, else the tokenizer's."""
    found = model.try_get_generation_config().get("eos_token_id", tokenizer.eos_token_id)
    return (found,) if isinstance(found, int) else tuple(found or ())
