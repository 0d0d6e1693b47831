"""Which layers of a target are captured, counted as Hugging Face's `hidden_states` are.

Layer k is what *enters* decoder layer k (0 = the embeddings); L, the number of layers, is what leaves the final norm.
EAGLE, vLLM and speculators count the same way; SpecForge and ModelOpt count outputs, one less.
"""

from collections.abc import Iterable

from crossdraft.errors import CrossdraftError


def canonical(layers: Iterable[int], depth: int) -> tuple[int, ...]:
    """Indexes 0 … `depth`, ascending, each once; negative ones count from the end.

    >>> canonical([-1, 2, 0, 7], 7)
    (0, 2, 7)

    Raises:
        CrossdraftError: an index is outside the model.
    """
    found = set()
    for layer in layers:
        if not -depth - 1 <= layer <= depth:
            raise CrossdraftError(
                f"Layer {layer} is outside the target: its {depth} layers have hidden states 0 (the embeddings) to "
                f"{depth} (behind the final norm); choose among these."
            )
        found.add(layer % (depth + 1))
    return tuple(sorted(found))


def default_layers(depth: int) -> tuple[int, ...]:
    """All that our heads read: EAGLE-3's three levels, what enters the last layer, and what leaves it."""
    wanted = {2, depth // 2, depth - 3, depth - 1, depth}
    return tuple(sorted(layer for layer in wanted if 0 <= layer <= depth))


def default_visual_layers(depth: int) -> tuple[int, ...]:
    """Of the visual part: the embeddings, and what leaves the last layer."""
    return (0, depth)
