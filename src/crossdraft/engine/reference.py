"""Speculative decoding by its definition: the oracle of the tests, and the first file to read.

One request, one tree a round, no cache: the target is asked about every node by a plain forward over the prompt, the
answer so far and the node's path. The engine gives the same tokens, in one pass a round, for many requests.

    propose    the drafter writes a tree of tokens that may follow the answer so far
    verify     the target's distributions after the answer and after every node; the rule accepts a path down the tree,
               and the target adds one token of its own, the bonus
    commit     path and bonus join the answer, and the drafter learns of them
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from crossdraft.engine.drafter import NOTHING, Budget, Drafter, VerifyOutput
from crossdraft.engine.noise import Noise
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.rules import rule_for
from crossdraft.engine.sampling import warp_tree
from crossdraft.engine.structure import masked
from crossdraft.engine.target import Target


@torch.inference_mode()
def generate(
    target: Target, drafter: Drafter[Any] | None, request: Request, rule: str | None = None, nodes: int = 8
) -> list[int]:
    """The tokens of an answer.

    Args:
        target: the model that answers.
        drafter: one that needs nothing of the target; `None` = the target answers alone.
        request: a sampled one with a seed; nothing in its sampling is `contextual`, and no stop string ends it.
        rule: as in `rule_for`.
        nodes: most nodes of a tree.
    """
    request = target.defaults.resolve(request)
    prompt, accept = target.prepare(request), rule_for(rule, request.sampling)
    limit = request.max_new_tokens or target.defaults.limit(len(prompt), target.context)
    ends = {*request.stop_token_ids, *(() if request.ignore_eos else target.eos)}
    structure, answer = request.constraint, list[int]()
    masks = None if structure is None else structure.begin(target.text, target.vocab_size, target.defaults.eos)
    states = [] if drafter is None else drafter.begin([request])
    while True:
        tree = NOTHING.tree if drafter is None else drafter.propose(states, [Budget(nodes)])[0].tree
        tree = tree if masks is None else tree.keep(masks.allowed(tree))
        paths = [tree.path_tokens(node) for node in range(-1, len(tree))]  # -1 is the root, after the answer so far
        logits = torch.stack([full_forward(target, prompt, (*answer, *path)) for path in paths])
        logits = logits if masks is None else masked(logits, torch.stack([masks.mask(path) for path in paths]))
        warped = warp_tree(logits, tree, (*prompt.input_ids.tolist(), *answer), request.sampling, answer)
        accepted = accept(tree, warped, Noise(request.sampling.seed or 0, len(answer)))
        tokens = (*(tree.tokens[node] for node in accepted.path), accepted.bonus)
        for token in tokens:
            answer.append(token)
            if token in ends or len(answer) == limit:
                if drafter is not None:
                    drafter.end(states)
                return answer
        if masks is not None:
            masks.commit(tokens)
        if drafter is not None:
            drafter.commit(states, [VerifyOutput(accepted.path, tokens)])


def full_forward(target: Target, prompt: Prompt, continuation: Sequence[int]) -> Tensor:
    """[V] logits after prompt + continuation, by the model alone: no cache, no pre-encoding, no mask of ours."""
    features = {name: value.to(target.device) for name, value in prompt.features.items()}
    for name in [name for name in features if name.endswith("token_type_ids")]:
        features[name] = torch.cat([features[name], features[name].new_zeros(1, len(continuation))], 1)
    ids = torch.cat([prompt.input_ids, torch.tensor(continuation, dtype=torch.long)])[None].to(target.device)
    pixels = {
        name: value.to(target.model.dtype) if value.is_floating_point() and "pixel" in name else value
        for name, value in features.items()
    }
    whole = torch.ones_like(ids)  # some classes number their positions by the mask alone
    return target.model(input_ids=ids, attention_mask=whole, **pixels, use_cache=False, logits_to_keep=1).logits[0, -1]
