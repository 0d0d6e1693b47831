"""How an independent drafter looks at the clip as well: a few frames, through the target's vision tower.

See `models.heads.glance`. In a process of its own the tower is a copy, so that it looks on the drafter's cores while
the target reads; it sees `frames` frames where the target sees all.
"""

from collections.abc import Sequence

from torch import Tensor

from crossdraft.drafters.frames import fewer_frames
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target, visual_rows
from crossdraft.errors import CrossdraftError
from crossdraft.models.heads.glance import Glance
from crossdraft.models.heads.parts import Rows


class Glancer:
    """The glance and its eyes.

    Args:
        glance: the network.
        tower: a target, of which no more is used than `prepare` and `encode`.

    Raises:
        CrossdraftError: what the target makes of a clip cannot be had apart from its reading.
    """

    def __init__(self, glance: Glance, tower: Target) -> None:
        if not tower.traits.takes_encoded:
            raise CrossdraftError(
                "This version of transformers does not tell a model's vision from its reading, which a glance needs; "
                "update transformers."
            )
        self.glance, self.tower = glance.eval(), tower

    def look(self, request: Request) -> list[Rows]:
        """What of the clip may be asked about.

        Raises:
            CrossdraftError: the request has no clip, or the target does not see it frame by frame.
        """
        prompt = fewer_frames(self.tower.prepare(request), self.glance.config.frames)
        features = self.tower.encode(prompt)["video"]
        return self.glance.see(visual_rows(features)[None])

    def say(self, features: Tensor, seen: Sequence[Rows]) -> Tensor:
        """[n, H] last features of the drafter's model -> [n, V] logits, -inf where the glance knows no word."""
        return self.glance.everywhere(self.glance.say(features[None], seen)[0])
