"""Ways of drafting, a module each with its record; its imports need no PyTorch. Builders import what they build."""

from typing import Annotated

from crossdraft.specs import Limit

WORDS = 3  # top-k tokens of one position that may become nodes of a draft
Words = Annotated[int, Limit(f"a whole number from 1 to {WORDS}", lambda value: 1 <= value <= WORDS)]
