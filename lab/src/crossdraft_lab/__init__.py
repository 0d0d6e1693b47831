"""The laboratory of crossdraft: trains drafters, measures them, publishes what was found."""

from pathlib import Path

__version__ = "0.2.0"

WEIGHTS = str(Path(__file__).parent / "reference")  # the reference pair's models that crossdraft does not ship
