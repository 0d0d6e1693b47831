"""Random numbers of their own for drafters that write one answer together.

Each drafter draws from a stream that begins at the request's seed. Were it the same stream for two of them, the token
of one would tell what the other draws: it would not follow the distribution that is sent with it, and the acceptance of
sampled drafts, which trusts that distribution, would no longer be exact.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from crossdraft.engine.request import Request


def split_seeds(requests: Sequence[Request], index: int) -> list[Request]:
    """The requests as drafter number `index` of several is to read them: with a seed of its own."""
    return [
        request
        if request.sampling.greedy or request.sampling.seed is None
        else replace(request, sampling=replace(request.sampling, seed=split_seed(request.sampling.seed, index)))
        for request in requests
    ]


def split_seed(seed: int, index: int) -> int:
    """Another seed, of 62 bits; drafters inside drafters get different ones, since seeds are split at every level."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 2
