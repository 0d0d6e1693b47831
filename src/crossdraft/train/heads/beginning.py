"""Where joint learning begins: a target, a head that has learned with it, and scenes; found and checked."""

from dataclasses import dataclass
from pathlib import Path

from crossdraft.errors import CrossdraftError
from crossdraft.load import REFERENCE, target_fingerprint
from crossdraft.load_heads import HEAD_WEIGHTS
from crossdraft.models.heads.files import WEIGHTS, read_config
from crossdraft.train.core.provenance import sha256


@dataclass(frozen=True)
class Beginning:
    """What a training of both begins with.

    Args:
        source: the target, `reference` or a folder.
        head: the folder of its head.
        target, weights: the target's fingerprint, and the hash of the head's weights.
        online: training scenes that it is asked about.
    """

    source: str
    head: Path
    target: str
    weights: str
    online: int

    @classmethod
    def of(cls, source: str, head: Path | None, online: int) -> "Beginning":
        """Found and checked.

        Raises:
            CrossdraftError: there are no scenes, no such target or head, or that of another target.
        """
        if online < 1:
            raise CrossdraftError(
                f"Target and head learn from what the target says, and --online asks it about {online} scenes; give 1 "
                "or more."
            )
        folder, own = head or HEAD_WEIGHTS / "medusa", target_fingerprint(source)
        if read_config(folder).target != own:
            raise CrossdraftError(
                f"The head in {folder} was trained for another target than '{source}'; give --head FOLDER, a head that "
                "this one has learned with."
            )
        if not (folder / WEIGHTS).is_file():
            raise CrossdraftError(f"The head in {folder} lacks its weights, {WEIGHTS}; copy the whole folder.")
        return cls(source, folder, own, sha256(folder / WEIGHTS), online)

    @property
    def folder(self) -> Path:
        """Of the target."""
        return REFERENCE / "target" if self.source == "reference" else Path(self.source)

    @property
    def known(self) -> dict[str, object]:
        """What tells one beginning from another."""
        return {"target": self.target, "head_sha256": self.weights, "online_scenes": self.online}
