"""Chance of their own for drafters that write one answer together.

Each drafter draws from a stream that begins at the request's seed. Were it the same stream for two of them, the word of
one would tell what the other draws: it would not follow the law that is told with it, and the acceptance of sampled
drafts, which trusts that law, would no longer be exact.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from crossdraft.engine.request import Request


def apart(requests: Sequence[Request], place: int) -> list[Request]:
    """The requests as the drafter at this place among several is to read them: with a seed of its own."""
    return [
        request
        if request.sampling.greedy or request.sampling.seed is None
        else replace(request, sampling=replace(request.sampling, seed=stirred(request.sampling.seed, place)))
        for request in requests
    ]


def stirred(seed: int, place: int) -> int:
    """Another seed, of 62 bits; drafters inside drafters get different ones, since seeds are stirred at every level."""
    digest = hashlib.blake2b(f"{seed}/{place}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 2
