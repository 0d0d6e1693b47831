"""The rules of `rules.read_tree` as one Triton kernel: a program for each row, head and block of values.

Decays are summed, queries and keys multiplied, the unit triangular system solved and the memory read without a tensor
between them. A decay for each channel (Kimi Delta Attention) differs in the products alone.
"""

# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportMissingParameterType=false, reportOperatorIssue=false
# ruff: noqa: ANN001, PLR0915

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossdraft.engine.recurrent.rules import PIECE, Left, read_tree

BLOCK = 32  # channels of keys that are read at once, and channels of values of a program


def fused_tree(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, memory: Tensor, seen: Tensor, beta: Tensor | None = None
) -> tuple[Tensor, Left]:
    """Read tokens that follow one another as a tree does; `read_tree` reads more than a piece, or other dtypes."""
    (rows, groups, n, dk), heads, dv = k.shape, v.shape[1], v.shape[-1]
    if n > PIECE or {x.dtype for x in (q, k, v, decay, memory)} != {torch.float32}:
        return read_tree(q, k, v, decay, memory, seen, beta)
    strength = v if beta is None else beta  # where there is none, it is not read
    given = [x.contiguous() for x in (q, k, v, decay, strength, memory, seen)]
    answers, new, sums = (torch.empty_like(x) for x in (given[2], given[2], given[3]))
    width = max(16, triton.next_power_of_2(n))
    kind = {"DELTA": beta is not None, "CHANNELS": decay.shape[-1] > 1, "num_warps": 4 if width == 16 else 8}
    grid = rows * heads, triton.cdiv(dv, BLOCK)
    with torch.cuda.device_of(memory):  # layers may lie on several
        _read_tree[grid](*given, answers, new, sums, n, heads, heads // groups, dv, DK=dk, N=width, BLOCK=BLOCK, **kind)
    return answers, Left(k, new, sums)


@triton.jit
def _read_tree(
    q, k, v, decay, beta, memory, seen, answers, written, summed, n, heads, shared, dv,
    DK: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, DELTA: tl.constexpr, CHANNELS: tl.constexpr,
) -> None:  # fmt: skip
    """Read the tokens of one row and head, into BLOCK channels of the answers.

    Tokens are padded to N; padded ones follow nothing. `shared` consecutive heads have one key.
    """
    head = tl.program_id(0).to(tl.int64)
    token, value = tl.arange(0, N), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own, in_v = token < n, value < dv
    value_at, value_in = (head * n + token[:, None]) * dv + value[None], own[:, None] & in_v[None]
    pairs = own[:, None] & own[None]
    follows = tl.load(seen + head // heads * n * n + token[:, None] * n + token[None], pairs, 0) != 0
    total = tl.zeros([N], tl.float32)
    if not CHANNELS:
        decays = tl.load(decay + head * n + token, own, 0.0)
        total = tl.sum(tl.where(follows, decays[None], 0.0), 1)
        tl.store(summed + head * n + token, total, own)
    by_query, by_key = tl.zeros([N, N], tl.float32), tl.zeros([N, N], tl.float32)
    answer, known = tl.zeros([N, BLOCK], tl.float32), tl.zeros([N, BLOCK], tl.float32)
    for first in range(0, DK, BLOCK):
        channel = first + tl.arange(0, BLOCK)
        in_k = channel < DK
        at, there = token[:, None] * DK + channel[None], own[:, None] & in_k[None]
        keys = head // shared * n * DK  # [B, G, n, dk]: the heads of a row are a multiple of `shared`
        asked, key = tl.load(q + keys + at, there, 0.0), tl.load(k + keys + at, there, 0.0)
        if CHANNELS:
            decays = tl.load(decay + head * n * DK + at, there, 0.0)
            sums = tl.dot(follows.to(tl.float32), decays, input_precision="tf32x3")
            tl.store(summed + head * n * DK + at, sums, there)
            for other in range(N):
                is_other = token == other
                its_key = tl.sum(tl.where(is_other[:, None], key, 0.0), 0)
                its_sums = tl.sum(tl.where(is_other[:, None], sums, 0.0), 0)
                weighted = tl.exp(tl.minimum(sums - its_sums[None], 0.0)) * its_key[None]  # along a path they are ≤ 0
                by_query += tl.where(is_other[None], tl.sum(asked * weighted, 1)[:, None], 0.0)
                by_key += tl.where(is_other[None], tl.sum(key * weighted, 1)[:, None], 0.0)
            faded = tl.exp(sums)
        else:
            by_query += tl.dot(asked, tl.trans(key), input_precision="tf32x3")
            by_key += tl.dot(key, tl.trans(key), input_precision="tf32x3")
            faded = tl.exp(total)[:, None]
        place = (head * DK + channel[:, None]) * dv + value[None]
        before = tl.load(memory + place, in_k[:, None] & in_v[None], 0.0)
        answer += tl.dot(asked * faded, before, input_precision="tf32x3")
        if DELTA:
            known += tl.dot(key * faded, before, input_precision="tf32x3")
    # Among tokens that do not follow one another, differences of the sums have any sign.
    between = tl.exp(tl.where(follows, total[:, None] - total[None], -float("inf")))
    new = tl.load(v + value_at, value_in, 0.0)
    if DELTA:
        strength = tl.load(beta + head * n + token, own, 0.0)[:, None]
        new = strength * (new - known)
        system = tl.where(token[:, None] > token[None], strength * by_key * between, 0.0)
        for last in range(1, N):  # forward substitution: a token is solved behind those that it follows
            is_last = token == last
            weights = tl.sum(tl.where(is_last[:, None], system, 0.0), 0)
            new -= tl.where(is_last[:, None], tl.sum(weights[:, None] * new, 0)[None], 0.0)
    tl.store(written + value_at, new, value_in)
    answer += tl.dot(by_query * between, new, input_precision="tf32x3")
    tl.store(answers + value_at, answer, value_in)
