"""Classes whose images see each other, whose layers borrow keys or see chunks, whose positions have more axes."""

from dataclasses import replace

import pytest
import torch

from crossdraft.engine.conformance import PARENTS, check_conformance
from crossdraft.engine.own_forward import OwnForward
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.target import Target
from crossdraft.engine.traits import ImageBlocks, Traits
from crossdraft.errors import CrossdraftError
from crossdraft.trial import try_greedy
from tests.engine.newer import CLIPS, NEWER, SINGLE, mllama, paligemma
from tests.engine.zoo import as_target

TOKENS = range(20, 20 + len(PARENTS))
WORDS = Prompt(torch.tensor([1, 5, 6, 11, 12, 13, 14, 15, 16, 17, 7, 8, 9]))
FAST = {("gemma4_31B", "image"), ("gemma4_E4B", "video")}
CASES = [(name, kind) for name in NEWER for kind in ("words", "image", "video") if kind != "video" or name in CLIPS]


@pytest.mark.parametrize(
    ("name", "kind"), [pytest.param(*case, marks=() if case in FAST else pytest.mark.slow) for case in CASES]
)
def test_conformance(name, kind):
    model, prompt = NEWER[name](kind if kind == "video" else "image")
    prompt = WORDS if kind == "words" else prompt
    found = check_conformance(as_target(model, prompt), prompt, TOKENS)
    assert found.passes(1e-5 if name in SINGLE else 1e-10), found


@pytest.mark.parametrize("dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "kind"), [pytest.param(*case, marks=() if case in FAST else pytest.mark.slow) for case in CASES]
)
def test_greedy_chains_and_trees_are_those_of_generate(name, kind, dtype):
    model, prompt = NEWER[name](kind if kind == "video" else "image")
    prompt = WORDS if kind == "words" else prompt
    target = as_target(model.float() if dtype == torch.float32 else model, prompt)
    for chains in (True, False):
        found = try_greedy(target, kind, prompt, chains=chains)
        assert found.passes, found


@pytest.mark.slow
def test_mllama_reads_words_and_refuses_images():
    """Its images enter by layers of their own: no token stands for them."""
    model, shown = mllama("image")
    found = check_conformance(as_target(model, WORDS), WORDS, TOKENS)
    assert found.passes(1e-10), found
    with pytest.raises(CrossdraftError, match="no token of the prompt stands for it: MllamaForConditionalGeneration"):
        as_target(model, shown).chunks(shown, None)


def test_text_that_sees_later_text_is_refused():
    """PaliGemma: the prompt sees itself both ways."""
    with pytest.raises(CrossdraftError, match="PaliGemmaForConditionalGeneration lets text see later tokens"):
        as_target(paligemma(), WORDS)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("gemma4_31B", lambda traits: replace(traits, blocks=None)),
        pytest.param(
            "gemma4_31B",
            lambda traits: replace(
                traits, blocks=replace(traits.blocks, layers=traits.blocks.layers | {"full_attention"})
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "gemma4_unified_near",
            lambda traits: replace(traits, blocks=replace(traits.blocks, beyond=False)),
            marks=pytest.mark.slow,
        ),
        pytest.param("molmo2", lambda traits: replace(traits, blocks=None), marks=pytest.mark.slow),
        pytest.param("ernie4_5_vl_moe", lambda traits: replace(traits, routed=()), marks=pytest.mark.slow),
        pytest.param("llama4", lambda traits: replace(traits, span=None), marks=pytest.mark.slow),
    ],
)
def test_a_trait_that_is_missed_shows(name, fault):
    model, prompt = NEWER[name]("image")
    target = with_traits(as_target(model, prompt), fault)
    assert check_conformance(target, prompt, TOKENS).riding > 1e-3


def with_traits(target: Target, fault) -> Target:
    target.traits = fault(target.traits)
    target.passes = replace(target.passes, traits=target.traits)
    target._own = OwnForward(target.passes)
    return target


@pytest.mark.parametrize(
    ("joined", "marks", "blocks"),
    [
        (False, {1}, [-1, 0, 0, -1, 1, -1, -1]),  # each image for itself
        (False, {1, 2}, [-1, 0, 0, -1, 1, -1, 2]),  # clips, too
        (True, {1}, [-1, 0, 0, -1, 0, -1, -1]),  # all images together
    ],
)
def test_blocks_worked_by_hand(joined, marks, blocks):
    types = torch.tensor([0, 1, 1, 0, 1, 0, 2])
    found = ImageBlocks("token_type_ids", frozenset(marks), frozenset(), joined).of(types)
    assert found.tolist() == blocks


def test_a_model_s_own_masks_say_whose_images_see_each_other():
    def blocks(name: str) -> ImageBlocks | None:
        model, prompt = NEWER[name]("image")
        traits: Traits = as_target(model, prompt).traits
        return traits.blocks

    both = frozenset(("full_attention", "sliding_attention"))
    assert blocks("gemma4") is None
    sliding = ImageBlocks("mm_token_type_ids", frozenset((1, 2)), both - {"full_attention"}, joined=False)
    assert blocks("gemma4_31B") == sliding
    assert blocks("gemma4_31B_near") == sliding
    assert blocks("gemma4_unified") == blocks("gemma4_unified_near") == replace(sliding, layers=both, beyond=True)
    molmo = blocks("molmo2")
    assert molmo is not None
    assert (molmo.marks, molmo.joined) == (frozenset((1,)), True)
