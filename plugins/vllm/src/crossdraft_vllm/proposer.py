"""A proposer for vLLM's `custom_class` speculation in the worker: it drafts nothing, the scheduler hands drafts out."""

from collections.abc import Sequence


class SilentProposer:
    """Turns vLLM's verification on and drafts nothing. Name it as the `model` of the speculative config."""

    def __init__(self, vllm_config: object) -> None:
        """`vllm_config` is not read."""

    def load_model(self, *unused: object) -> None:
        """Load nothing: there is no model."""

    def propose(self, sampled_token_ids: Sequence[object], *unused: object, **more: object) -> list[list[int]]:
        """Return an empty draft for every row."""
        return [[] for _ in sampled_token_ids]
