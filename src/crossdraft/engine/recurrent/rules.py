"""Recurrent layers read along the paths of a draft tree, in one pass and without a state for each node.

A head's memory S [dk, dv] changes with a token as S ← e^g S + k (β (v − (e^g S)ᵀ k))ᵀ in the gated delta rule
(Gated DeltaNet, arXiv 2412.06464; with a decay g for each channel: Kimi Delta Attention, arXiv 2510.26692), or as
S ← e^g S + k vᵀ (Mamba-2, arXiv 2405.21060). The chunk form of the rule (the UT transform, arXiv 2406.06484) says what
came before a token in one place, a triangular mask. With the mask "is the token itself or one that it follows" in its
place, and decays summed along paths, the same few products give every node what it would get behind its own path:
parents stand before children, so the system stays unit lower triangular. The memory after an accepted path is then one
product of what the pass left. Related: STree (arXiv 2505.14969), trees for state-space models by the same mask.

Pure functions on tensors, in the precision of their arguments.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

PIECE = 64  # tokens of a text that are read at once where decays are a head's
NARROW = 16  # where they are a channel's: a number for each pair of tokens and each channel


class Left(NamedTuple):
    """Tensors of a pass of which the memory after any of its paths is made.

    Args:
        keys: [B, G, n, dk], G a divisor of the number of heads H.
        values: [B, H, n, dv] that are written: v, or in the delta rule what v adds to the memory's own answer.
        sums: [B, H, n, c] decays summed along each token's path; c = 1, or dk.
    """

    keys: Tensor
    values: Tensor
    sums: Tensor


ReadTree = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Left]]


def read_tree(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, memory: Tensor, seen: Tensor, beta: Tensor | None = None
) -> tuple[Tensor, Left]:
    """Read tokens that follow one another as a tree does; returns [B, H, n, dv] answers, and what a commit needs.

    Args:
        q, k: [B, G, n, dk] queries, scaled, and keys; each serves H / G consecutive heads.
        v: [B, H, n, dv].
        decay: [B, H, n, c] logarithm of the decay, ≤ 0; c = 1, or dk.
        memory: [B, H, dk, dv] before the pass.
        seen: [B, n, n] true where the second token is the first, or one that it follows; parents before children.
        beta: [B, H, n, 1] strength of the delta rule; `None` = values are added as they are.

    >>> one = torch.ones(1, 1, 1, 1)
    >>> read_tree(one, one, one, 0 * one, 2 * one, torch.ones(1, 1, 1) > 0)[0].item()
    3.0
    """
    left_keys, groups, n = k, v.shape[1] // k.shape[1], k.shape[2]
    if groups > 1:
        q, k = q.repeat_interleave(groups, 1), k.repeat_interleave(groups, 1)
    follows = seen[:, None]
    sums = follows.to(decay) @ decay
    asked = q * sums.exp()  # what a query reads of the memory before the pass
    if beta is None:
        new, old = v, asked @ memory
    else:
        weak = beta * k
        new, known = beta * v, weak * sums.exp()
        if n > 1:
            system = _scores(weak, k, sums, follows)  # its diagonal is taken for ones
            solved = torch.linalg.solve_triangular(system, torch.cat((new, known), -1), upper=False, unitriangular=True)
            new, known = solved.split((v.shape[-1], k.shape[-1]), -1)
        old, answered = (torch.cat((asked, known), -2) @ memory).split(n, -2)  # the memory is read once
        new = new - answered
    return old + _scores(q, k, sums, follows) @ new, Left(left_keys, new, sums)


def _scores(q: Tensor, k: Tensor, sums: Tensor, seen: Tensor) -> Tensor:
    """[B, H, n, n] products of queries and keys, decayed along the path between them; 0 where there is none."""
    if sums.shape[-1] == 1:
        between = (sums - sums.transpose(-1, -2)).masked_fill(~seen, -torch.inf)
        return (q @ k.transpose(-1, -2)) * between.exp()
    between = (sums[..., :, None, :] - sums[..., None, :, :]).masked_fill(~seen[..., None], -torch.inf)
    return torch.einsum("bhid,bhjd,bhijd->bhij", q, k, between.exp())


def committed(memory: Tensor, left: Left, last: Tensor, seen: Tensor) -> Tensor:
    """[B, H, dk, dv] memory after the path that ends with the token `last` [B] of each row.

    Args:
        memory: before the pass.
        left, seen: from and as in `read_tree`.
    """
    rows = torch.arange(len(last), device=last.device)
    end = left.sums[rows, :, last][:, :, None]
    path = seen[rows, last][:, None, :, None]
    weight = (end - left.sums).masked_fill(~path, -torch.inf).exp()
    keys = left.keys.repeat_interleave(left.values.shape[1] // left.keys.shape[1], 1) * weight
    return memory * end.exp().transpose(-1, -2) + keys.transpose(-1, -2) @ left.values


def read_text(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    memory: Tensor,
    beta: Tensor | None = None,
    tree_rule: ReadTree = read_tree,
) -> tuple[Tensor, Tensor]:
    """Read tokens that follow one another; returns [B, H, n, dv] answers, and the memory after the last one.

    Arguments as in `read_tree`; a piece of tokens is read after the other, by `tree_rule`.
    """
    answers: list[Tensor] = []
    size = PIECE if decay.shape[-1] == 1 else NARROW
    for start in range(0, v.shape[2], size):
        part = slice(start, start + size)
        n = min(size, v.shape[2] - start)
        seen = torch.ones(n, n, dtype=torch.bool, device=v.device).tril().expand(len(v), n, n)
        answer, left = tree_rule(
            *(q[:, :, part], k[:, :, part], v[:, :, part], decay[:, :, part]),
            *(memory, seen, None if beta is None else beta[:, :, part]),
        )
        memory = committed(memory, left, torch.full((len(v),), n - 1, device=v.device), seen)
        answers.append(answer)
    return torch.cat(answers, 2), memory


def convolve(inputs: Tensor, taps: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[B, n, C] outputs of a short depthwise convolution along each token's path.

    Args:
        inputs: [B, K - 1 + n, C], the last K - 1 before the pass and those of the pass.
        taps: [B, n, K] indexes of each token's inputs in them, its own first; see `tap_table`.
        weight: [C, K], that of a token's own input last.
        bias: [C].
    """
    wide = inputs.float() if inputs.dtype in (torch.bfloat16, torch.float16) else inputs
    at = taps + inputs.shape[1] * torch.arange(len(inputs), device=taps.device)[:, None, None]
    flat, total = wide.flatten(0, 1), wide.new_zeros(()) if bias is None else bias.to(wide)
    for tap, one in enumerate(weight.to(wide).flip(1).unbind(1)):
        total = total + F.embedding(at[..., tap], flat) * one
    return total.to(inputs)


def tap_table(parents: Tensor, width: int) -> Tensor:
    """[B, n, K] indexes of the K last inputs on each token's path, among K - 1 inputs before the pass and n of it.

    Args:
        parents: [B, n] token that each token follows, -1 = the last one before the pass.
        width: K.

    >>> tap_table(torch.tensor([[-1, 0, 0]]), 3).tolist()
    [[[2, 1, 0], [3, 2, 1], [4, 2, 1]]]
    """
    before = width - 1
    first = torch.arange(-1, before - 1, device=parents.device).clamp_(min=0).expand(len(parents), -1)
    above = torch.cat((first, parents + before), 1)
    found = [torch.arange(before, before + parents.shape[1], device=parents.device).expand_as(parents)]
    for _ in range(before):
        found.append(above.gather(1, found[-1]))
    return torch.stack(found, -1)
