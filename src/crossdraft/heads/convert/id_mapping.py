"""Numbers that projects write differently: hidden layers, and the ids of a short vocabulary. Pure functions.

    layer                 embeddings   0    1    2   …    L-1   final norm
    canonical (entering)  0            1    2    3   …    L-1   L           HF's `hidden_states[k]`
    output                -1           0    1    2   …    L-2   L-1

Ours are canonical, and so are EAGLE's, vLLM's and speculators': the hidden state that *enters* layer k. SpecForge,
ModelOpt, SGLang's `eagle_config` and DFlash name a layer by its *output*, which enters the next one. The same tensors
bear numbers that differ by one, and a head that reads its neighbour's drafts nothing and says nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from crossdraft.errors import CrossdraftError

Convention = Literal["entering", "output"]


def layer_numbers(layers: Sequence[int], given: Convention, wanted: Convention) -> list[int]:
    """The same hidden states in the other convention.

    >>> layer_numbers([2, 16, 29], "entering", "output")
    [1, 15, 28]

    Raises:
        CrossdraftError: the embeddings are wanted as an output: no layer puts them out.
    """
    shift = {"entering": 0, "output": 1}
    found = [layer + shift[given] - shift[wanted] for layer in layers]
    if any(layer < 0 for layer in found):
        raise CrossdraftError(
            f"Hidden states {list(layers)} have no number as layers' outputs: the embeddings are none."
        )
    return found


def draft_maps(draft_ids: Sequence[int], vocab_size: int) -> dict[str, Tensor]:
    """A short vocabulary as EAGLE-3 stores it.

    Returns:
        `d2t` [D] int64, *offsets*: draft token i is the target's i + d2t[i]; `t2d` [V] bool, which ids can be drafted.
    """
    ids = torch.tensor(draft_ids)
    drafted = torch.zeros(vocab_size, dtype=torch.bool)
    drafted[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": drafted}


def draft_ids_of(tensors: Mapping[str, Tensor], count: int, vocab_size: int) -> tuple[int, ...]:
    """The ids that `count` output rows stand for, from what maps there are; without any, all of the target's.

    Raises:
        CrossdraftError: the maps do not agree, or no map says what fewer rows than ids stand for.
    """
    offsets, drafted = tensors.get("d2t"), tensors.get("t2d")
    if offsets is None and drafted is None:
        if count != vocab_size:
            raise CrossdraftError(
                f"The head drafts {count} of {vocab_size} ids and neither 'd2t' nor 't2d' says which; export it whole."
            )
        return tuple(range(vocab_size))
    by_mask = None if drafted is None else drafted.bool().nonzero().flatten()
    if drafted is not None and len(drafted) != vocab_size:
        raise CrossdraftError(f"'t2d' is about {len(drafted)} ids, the target has {vocab_size}.")
    by_offset = None if offsets is None else offsets.long() + torch.arange(len(offsets))
    ids = by_mask if by_offset is None else by_offset
    if ids is None or len(ids) != count:
        raise CrossdraftError(f"The vocabulary's map tells of {0 if ids is None else len(ids)} ids, not of {count}.")
    if by_mask is not None and by_offset is not None and not torch.equal(by_mask, by_offset):
        raise CrossdraftError(
            "'d2t' and 't2d' do not agree on the draft vocabulary; 'd2t' must hold offsets: target id = i + d2t[i]."
        )
    return tuple(ids.tolist())
