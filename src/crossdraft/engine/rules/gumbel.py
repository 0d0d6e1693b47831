"""`gumbel`: lossless when sampling. Any tree; the default rule for sampled answers.

Drafter-invariant speculative decoding (Daliri, Musco and Suresh, arXiv 2408.07978). After every node the target has a
token of its own: the arg max of log p + Gumbel noise, the noise a pure function of the request's seed, the token's
position in the answer and its id (`engine.noise`). A node is accepted if it is the target's own token after its parent;
the target's own token after the last accepted node is the bonus. So the text follows from the target and the seed
alone, whatever was drafted or learned, and over random seeds it has the target's distribution.

A token that was chosen deterministically is accepted with probability p(x), as by `rejection`. A drafter that draws
from q uses the same noise; its token is accepted with probability at least (1 - TV) / (1 + TV), TV the total variation
distance of p and q. `rejection`, which is optimal, accepts it with 1 - TV. `bench rules` measures both.
"""

from torch import Tensor

from crossdraft.engine.accept import Acceptance, follow
from crossdraft.engine.noise import Noise
from crossdraft.engine.tree import DraftTree


def verify(tree: DraftTree, probs: Tensor, noise: Noise) -> Acceptance:
    """Verify a tree; the emitted tokens are those that the noise draws from `probs` [1 + n, V].

    Raises:
        CrossdraftError: a distribution on the path is not finite.
    """
    return follow(tree, lambda node, depth: noise.choose(probs[node + 1], depth))
