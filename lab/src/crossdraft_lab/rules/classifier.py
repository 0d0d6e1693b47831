"""`judge`: LOSSY, when sampling. Any tree (judge decoding, Bachmann et al. 2025).

A linear judge of the target's last feature at a drafted token says how likely the token does no harm, whoever would
have written it. It is kept where that is above a threshold, else as in `rejection`:

    accept x if σ(w · h(x) + b) > threshold   and   p(x) > 0:

what the request rules out, by top-k or a bias, stays out.

The rule reads logits: what is linear in the feature is linear in them (`train.heads.token_classifier`), and the judge's
file holds that row, and the fingerprint of the target that it was trained for: it verifies no other.
`crossdraft train judge` makes one.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from crossdraft.checkpoints.locate import shipped_at
from crossdraft.engine.accept import Acceptance, Chance, Dice, Rule, acceptance_ratios, aligned, walk
from crossdraft.engine.rules import NO_LOGITS
from crossdraft.engine.rules.rejection import try_children
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.files import fingerprint
from crossdraft.specs import Limit, check_settings

NAME = "judge"
FILE, ROW, BIAS = "judge.safetensors", "row", "bias"
TARGET = "target"  # key of the file's metadata: the fingerprint of the target that it was trained for
SHIPPED = shipped_at("judge")
SHARE = Limit("a number between 0 and 1", lambda value: 0 <= value <= 1)


@dataclass(frozen=True, slots=True)
class LogitRow:
    """Contents of a judge's folder: σ(row · logits + bias) is the chance that a token does no harm.

    Args:
        row: [V], in float64.
        bias: bias of the formula above.
        target: fingerprint of the target's weights (`files.fingerprint`).
    """

    row: Tensor
    bias: float
    target: str


@dataclass(frozen=True, slots=True)
class Classifier:
    """Acceptance rule that keeps tokens which a trained classifier calls harmless.

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
            raise CrossdraftError(NO_LOGITS.format(NAME))
        tree = aligned(tree, probs)
        harmless, ratios = self.chances(logits[1:]).tolist(), acceptance_ratios(tree, probs)

        def step(tree: DraftTree, parent: int, p: Tensor, chance: Chance) -> tuple[int, Tensor]:
            for child in tree.children(parent):
                if harmless[child] > self.threshold and p[tree.tokens[child]] > 0:
                    return child, p
            return try_children(tree, parent, p, chance, ratios)

        return walk(tree, probs, Dice(generator), step)

    def check_target(self, source: str) -> None:
        """Refuse any target but the one that the judge was trained for: another target's logits mean other things.

        Args:
            source: the folder of the target's weights; empty = it was loaded from none.

        Raises:
            CrossdraftError: there is no folder, it holds other weights, or the judge names no target.
        """
        if not source or not Path(source).is_dir():
            raise CrossdraftError(
                f"{self._name} belongs to one target's weights, and this target was loaded from no folder; load it "
                "from its folder, or name another rule."
            )
        own, theirs = fingerprint(Path(source)), self.read().target
        if own != theirs:
            raise CrossdraftError(
                f"{self._name} was trained for another target ({theirs[:12]}…, this one is {own[:12]}…); give the "
                "judge of this target (judge:dir=FOLDER), or name another rule."
            )

    @property
    def _name(self) -> str:
        return "The shipped judge" if self.dir == "reference" else f"The judge in {self.dir}"

    def read(self) -> LogitRow:
        """Load the judge from its folder; see `read_classifier`."""
        return read_classifier(str(SHIPPED) if self.dir == "reference" else self.dir)

    def chances(self, logits: Tensor) -> Tensor:
        """[n] chance that a token does no harm, by the target's logits [n, V] after it."""
        found = self.read()
        if len(found.row) != logits.shape[-1]:
            raise CrossdraftError(
                f"{self._name} was trained for {len(found.row)} tokens, the target has {logits.shape[-1]}; give the "
                "judge of that target (judge:dir=FOLDER)."
            )
        return (logits.double() @ found.row.to(logits.device) + found.bias).sigmoid()


@lru_cache(maxsize=8)
def read_classifier(folder: str) -> LogitRow:
    """Load a judge from its folder.

    Raises:
        CrossdraftError: the folder holds none, or one of other shapes, not of finite numbers, or of no known target.
    """
    path = Path(folder) / FILE
    try:
        with safe_open(path, "pt") as file:
            row, bias = file.get_tensor(ROW).double(), file.get_tensor(BIAS).double()
            target = (file.metadata() or {}).get(TARGET)
    except (OSError, KeyError, SafetensorError) as error:
        raise CrossdraftError(f"{path} is no judge ({error}); train one with `crossdraft train judge`.") from error
    if row.dim() != 1 or bias.numel() != 1 or not bool(row.isfinite().all() and bias.isfinite().all()):
        raise CrossdraftError(
            f"{path} is no judge: it must hold one finite number for each token, and one more; train one with "
            "`crossdraft train judge`."
        )
    if not target:
        raise CrossdraftError(
            f"{path} does not say which target it was trained for; train it anew with `crossdraft train judge`."
        )
    return LogitRow(row, float(bias), target)


RULE = Rule(
    NAME, lossless=False, greedy=False, verify=Classifier(), reads_logits=True,
    paper="judge decoding, Bachmann et al. 2025",
)  # fmt: skip
