"""An answer while it is written: what is final and by whom, what is still provisional."""

from dataclasses import dataclass, field

from rich.text import Text

from crossdraft.drawing.figures import origins
from crossdraft.drawing.kinds import ORIGINS
from crossdraft.engine.request import Answer, Origin, Piece

STYLES = {Origin.PROVISIONAL: "dim italic", Origin.HIDDEN: "green", Origin.DRAFTED: "cyan", Origin.TARGET: "bold"}


@dataclass
class Growing:
    """Pieces of one answer, in the order in which they came."""

    provisional: list[Piece] = field(default_factory=list)
    final: list[Piece] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        """Take up one more piece."""
        (self.provisional if piece.origin is Origin.PROVISIONAL else self.final).append(piece)

    @property
    def draft(self) -> str:
        """Provisional text behind the final text; empty once the target has written anything else."""
        final = [token for piece in self.final for token in piece.tokens]
        drafted: list[int] = []
        rest: list[str] = []
        for piece in self.provisional:
            if len(drafted) >= len(final):
                rest.append(piece.text)
            drafted += piece.tokens
        return "".join(rest) if drafted[: len(final)] == final else ""

    def text(self) -> Text:
        """All of it, each part in the colour of its origin."""
        shown = Text()
        for piece in self.final:
            shown.append(piece.text, STYLES[piece.origin])
        shown.append(self.draft, STYLES[Origin.PROVISIONAL])
        return shown[len(shown.plain) - len(shown.plain.lstrip()) :]


def legend(answer: Answer) -> Text:
    """What the colours of a final text mean; the origins that it has."""
    shown = [origin for origin, count in origins(answer) if count]
    return Text("   ").join(Text(f"■ {name}: {ORIGINS[name]}", STYLES[Origin(name)]) for name in shown)
