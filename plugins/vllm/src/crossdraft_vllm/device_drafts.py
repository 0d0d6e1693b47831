"""Drafts that the scheduler sent, where Model Runner V2 reads them: a tensor on the device."""

from collections.abc import Mapping, Sequence

from torch import Tensor

NOT_KNOWN = -1  # vLLM's scheduler counts drafts that only the worker knows


def write_drafts(tokens: Tensor, rows: Mapping[str, int], scheduled: Mapping[str, Sequence[int]]) -> None:
    """Write drafts into the worker's tensor, in place; drafts that only the worker knows stay.

    Args:
        tokens: [requests, k] ids, as `combine_sampled_and_draft_tokens` reads them.
        rows: row of each request in `tokens`.
        scheduled: the drafts of one pass, by request.
    """
    for name, draft in scheduled.items():
        if draft and NOT_KNOWN not in draft and name in rows:  # vLLM's warm-up schedules requests without a row
            tokens[rows[name], : len(draft)] = tokens.new_tensor(draft)
