"""`gumbel`: lossless when sampling. Any tree; what is used where no rule is named.

Drafter-invariant speculative decoding (Daliri, Musco and Suresh, arXiv 2408.07978). After every node the target has a
token of its own: the arg max of log p + Gumbel noise, the noise a pure function of the request's seed, the token's
position in the answer and its id (`engine.noise`). A node is accepted where it is that token; the token after the last
accepted node is the bonus. So the text follows from the target and the seed alone, as if there were no drafter,
whatever was drafted or learned, and over random seeds it has the target's distribution.

A token that was chosen deterministically is accepted with probability p(x), as by `rejection`. A drafter that draws
from q draws with the same noise, and then its token is accepted with probability at least (1 - TV) / (1 + TV); by
`rejection`, which is optimal, with 1 - TV. `bench rules` measures both.
"""

from torch import Tensor

from crossdraft.engine.accept import Acceptance, follow
from crossdraft.engine.noise import Noise
from crossdraft.engine.tree import DraftTree


def verify(tree: DraftTree, probs: Tensor, noise: Noise) -> Acceptance:
    """The tokens emitted are those that the noise draws from `probs` [1 + n, V].

    Raises:
        CrossdraftError: a distribution on the path is not finite.
    """
    return follow(tree, lambda node, depth: noise.choose(probs[node + 1], depth))
