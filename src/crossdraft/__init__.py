"""crossdraft: lossless speculative decoding for video VLMs, with a drafter that runs during the target's prefill.

    import crossdraft as cd
    engine = cd.Engine.load("reference")
    answer = engine.generate(cd.Request(video="clip.mp4", events="clip.h5", prompt="What is ahead?"))

Importing this package imports nothing heavy: each public name is loaded when it is first used.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crossdraft.api import Engine, Options
    from crossdraft.engine.drafter import Budget, Draft, Drafter, Needs, VerifyOutput
    from crossdraft.engine.request import Answer, Piece, Request
    from crossdraft.engine.sampling import Sampling
    from crossdraft.engine.stats import Stats
    from crossdraft.engine.timeline import Timeline
    from crossdraft.engine.tree import DraftTree
    from crossdraft.errors import BatchError, CrossdraftError, QueueFullError, RequestError
    from crossdraft.methods import register
    from crossdraft.records import DrafterContext, Method
    from crossdraft.specs import Count, Spec
    from crossdraft.structure.structure import Structure
    from crossdraft.structure.tools import Tools

__version__ = "0.2.0"

# Huge pages for blocks of 2 MiB and more on a CPU, where Linux gives them on request: a pass over a large model's
# weights takes less time. PyTorch reads this once, when it first allocates.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__all__ = [
    "Answer",
    "BatchError",
    "Budget",
    "Count",
    "CrossdraftError",
    "Draft",
    "DraftTree",
    "Drafter",
    "DrafterContext",
    "Engine",
    "Method",
    "Needs",
    "Options",
    "Piece",
    "QueueFullError",
    "Request",
    "RequestError",
    "Sampling",
    "Spec",
    "Stats",
    "Structure",
    "Timeline",
    "Tools",
    "VerifyOutput",
    "__version__",
    "register",
]

_HOME = {
    "Answer": "crossdraft.engine.request",
    "BatchError": "crossdraft.errors",
    "Budget": "crossdraft.engine.drafter",
    "Count": "crossdraft.specs",
    "CrossdraftError": "crossdraft.errors",
    "Draft": "crossdraft.engine.drafter",
    "DraftTree": "crossdraft.engine.tree",
    "Drafter": "crossdraft.engine.drafter",
    "DrafterContext": "crossdraft.records",
    "Engine": "crossdraft.api",
    "Method": "crossdraft.records",
    "Needs": "crossdraft.engine.drafter",
    "Options": "crossdraft.api",
    "Piece": "crossdraft.engine.request",
    "QueueFullError": "crossdraft.errors",
    "Request": "crossdraft.engine.request",
    "RequestError": "crossdraft.errors",
    "Sampling": "crossdraft.engine.sampling",
    "Spec": "crossdraft.specs",
    "Stats": "crossdraft.engine.stats",
    "Structure": "crossdraft.structure.structure",
    "Timeline": "crossdraft.engine.timeline",
    "Tools": "crossdraft.structure.tools",
    "VerifyOutput": "crossdraft.engine.drafter",
    "register": "crossdraft.methods",
}


def __getattr__(name: str) -> object:
    """Load a public name from its home (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'crossdraft' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
