"""`judge`: LOSSY, when sampling. Any tree (judge decoding, Bachmann et al. 2025).

A linear judge of the target's last feature at a drafted token says how likely the token does no harm, whoever would
have written it. It is kept where that is above a threshold, else as in `speculative`:

    accept x if σ(w · h(x) + b) > threshold   and   p(x) > 0:

what the request rules out, by top-k or a bias, stays out.

The rule reads logits: what is linear in the feature is linear in them (`train.heads.token_classifier`), and the judge's
file holds that row. It belongs to the target that it was trained for. `crossdraft train judge` makes one.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from crossdraft.engine.accept import Acceptance, Chance, Dice, acceptance_ratios, aligned, walk
from crossdraft.engine.rules.speculative import try_children
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.specs import Limit, check_settings

NAME = "judge"
CONTEXTUAL = (
    "The acceptance rule 'judge' reads the target's own logits; leave out settings that need a logits processor for "
    "each context, such as typical_p or no_repeat_ngram_size."
)
FILE, ROW, BIAS = "judge.safetensors", "row", "bias"
SHIPPED = Path(__file__).parents[2] / "reference" / "judge"
SHARE = Limit("a number between 0 and 1", lambda value: 0 <= value <= 1)


@dataclass(frozen=True, slots=True)
class Classifier:
    """Which judge, and how sure it must be.

    Args:
        threshold: least chance that a token is harmless, of one that is kept for it; the authors' default.
        dir: the folder of a judge; `reference` is the shipped one, for the reference target.

    Raises:
        CrossdraftError: a number outside its range.
    """

    threshold: Annotated[float, SHARE] = 0.5
    dir: str = "reference"

    def __post_init__(self) -> None:
        check_settings(self, NAME, "acceptance rule")

    def __call__(
        self, tree: DraftTree, probs: Tensor, generator: torch.Generator, logits: Tensor | None = None
    ) -> Acceptance:
        """Verify a tree against `probs` [1 + n, V], by raw `logits` [1 + n, V].

        Raises:
            CrossdraftError: there are no logits, the folder holds no judge, or one of another vocabulary.
        """
        if logits is None:
            raise CrossdraftError(CONTEXTUAL)
        tree = aligned(tree, probs)
        harmless, ratios = self.chances(logits[1:]).tolist(), acceptance_ratios(tree, probs)

        def step(tree: DraftTree, parent: int, p: Tensor, chance: Chance) -> tuple[int, Tensor]:
            for child in tree.children(parent):
                if harmless[child] > self.threshold and p[tree.tokens[child]] > 0:
                    return child, p
            return try_children(tree, parent, p, chance, ratios)

        return walk(tree, probs, Dice(generator), step)

    def read(self) -> tuple[Tensor, float]:
        """Its row and bias; see `read_classifier`."""
        return read_classifier(str(SHIPPED) if self.dir == "reference" else self.dir)

    def chances(self, logits: Tensor) -> Tensor:
        """[n] chance that a token does no harm, by the target's logits [n, V] after it."""
        row, bias = self.read()
        if len(row) != logits.shape[-1]:
            raise CrossdraftError(
                f"The judge in {self.dir} was trained for {len(row)} tokens, the target has {logits.shape[-1]}; give "
                "the judge of that target (judge:dir=FOLDER)."
            )
        return (logits.double() @ row.to(logits.device) + bias).sigmoid()


@lru_cache(maxsize=8)
def read_classifier(folder: str) -> tuple[Tensor, float]:
    """[V] the row and the bias of a judge, in float64.

    Raises:
        CrossdraftError: the folder holds none, or one of other shapes, or not of finite numbers.
    """
    path = Path(folder) / FILE
    try:
        found = load_file(path)
        row, bias = found[ROW].double(), found[BIAS].double()
    except (OSError, KeyError, SafetensorError) as error:
        raise CrossdraftError(f"{path} is no judge ({error}); train one with `crossdraft train judge`.") from error
    if row.dim() != 1 or bias.numel() != 1 or not bool(row.isfinite().all() and bias.isfinite().all()):
        raise CrossdraftError(
            f"{path} is no judge: it must hold one finite number for each token, and one more; train one with "
            "`crossdraft train judge`."
        )
    return row, float(bias)
