"""The trees that drafters around heads grow, by name."""

from collections.abc import Mapping
from functools import partial

from crossdraft.drafters.trees import expand_and_rerank
from crossdraft.drafters.trees.beams import beam_search
from crossdraft.drafters.trees.widths import chain_with_siblings
from crossdraft.heads.drafting.head_drafter import Grow

TREES: Mapping[str, Grow] = {
    "dynamic": partial(expand_and_rerank, beam=10, width=lambda probs: 10, depth=8),
    "chain": partial(expand_and_rerank, beam=1, width=lambda probs: 1),
    "cape": chain_with_siblings,
    "beams": beam_search,
}
