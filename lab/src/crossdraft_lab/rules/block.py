"""`block`: lossless when sampling. Chains only (block verification, Sun et al. 2024).

Token-by-token verification ends a chain at the first refused token, even if later tokens would have made up for it.
Here the joint ratio decides, capped at 1 after every token, and the longest prefix that passes is kept:

    w_0 = 1;   w_i = min(1, w_{i-1} · p_i(x_i) / q_i(x_i))                   chance that the prefix x_1 … x_i is kept
    r_i(x) = max(0, w_i · p_{i+1}(x) - q_{i+1}(x)),   s_i = Σ r_i            residual after this prefix, and its sum
    x_1 … x_i passes with probability  s_i / (s_i + 1 - w_i),  the whole chain with probability w_n.

The bonus token is drawn from r_i / s_i after a prefix, and from p after the whole chain. Why this is exact: suppose
that x_1 … x_i is kept, alone or within a longer prefix, with probability w_i. A longer prefix is kept with probability
Σ_x min(w_i p, q) = w_i - s_i; otherwise x_1 … x_i passes with probability h. So (w_i - s_i) + h (1 - w_i + s_i) = w_i,
which gives the h above. The next token x comes from the draft with weight min(w_i p(x), q(x)), and as the bonus with
weight h (1 - w_i + s_i) r_i(x) / s_i = r_i(x); together w_i p(x). Hence x follows p, whatever was kept before it. On
average this accepts at least as many tokens as `rejection`, and no lossless rule for chains accepts more.

For a token chosen deterministically q is a point mass. The chain's length may depend on the tokens drawn so far.
"""

import torch
from torch import Tensor

from crossdraft.engine.accept import Acceptance, Chance, Dice, Rule, acceptance_ratios, aligned, draft_probs, normalised
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError


def verify(tree: DraftTree, probs: Tensor, generator: torch.Generator) -> Acceptance:
    """Verify a chain; the emitted tokens follow the distributions `probs` [1 + n, V].

    Raises:
        CrossdraftError: the tree branches, or its distributions are over another vocabulary.
    """
    if not tree.is_chain:
        raise CrossdraftError(
            "The acceptance rule 'block' verifies chains, and this draft branches; name no rule, and one that "
            "verifies trees is taken."
        )
    return keep_longest(aligned(tree, probs), probs, Dice(generator))


def keep_longest(chain: DraftTree, probs: Tensor, chance: Chance) -> Acceptance:
    """Try the whole chain, then ever shorter prefixes, and keep the first one that passes."""
    owed = joint(acceptance_ratios(chain, probs))
    kept = len(chain)
    if chance.happens(owed[kept]):
        return Acceptance(tuple(range(kept)), chance.draw(probs[kept]))
    rests = [beyond(probs[i], draft_probs(chain, i, (), probs[i]), owed[i]) for i in range(kept)]
    sums = torch.stack([rest.sum() for rest in rests]).tolist()  # one transfer from the device for all
    while True:
        kept -= 1
        if kept == 0 or chance.happens(passes(sums[kept], owed[kept])):
            return Acceptance(tuple(range(kept)), chance.draw(normalised(rests[kept], probs[kept])))


def joint(ratios: list[float]) -> list[float]:
    """Return w_0 … w_n from the ratio p(x) / q(x) of each token."""
    owed = [1.0]
    for ratio in ratios:
        owed.append(min(1.0, owed[-1] * ratio))
    return owed


def beyond(p: Tensor, q: Tensor, owed: float | Tensor) -> Tensor:
    """r = max(0, w p - q) over [..., V]."""
    return (owed * p - q).clamp_min(0)


def passes(rest: float, owed: float) -> float:
    """s / (s + 1 - w); 0 where s = 0: if w = 1 as well, then p = q, and a longer prefix is always kept."""
    return rest / (rest + 1 - owed) if rest > 0 else 0.0


RULE = Rule(
    "block", lossless=True, greedy=False, verify=verify, chains=True, takes="a chain",
    paper="block verification, Sun et al. 2024",
)  # fmt: skip
