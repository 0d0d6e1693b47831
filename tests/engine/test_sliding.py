"""Sliding-window layers, in texts longer than their window, and images whose tokens see each other."""

from dataclasses import replace

import pytest
import torch
from transformers import CLIPVisionConfig, LlavaNextVideoConfig, LlavaNextVideoForConditionalGeneration, MistralConfig

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.conformance import PARENTS, check_conformance, planted
from crossdraft.engine.drafter import NO_NEEDS, Draft
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.passes import Chunk, PassBuilder, PassRow
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.tree import DraftTree
from tests.engine.scripted import IgnoresCommits
from tests.engine.zoo import IMAGE, TEXT, VIDEO, VISION, as_target, build, gemma3, noisy, prompt_ids, video

TOKENS = range(20, 20 + len(PARENTS))
WINDOW, LONG = 8, 24
REQUESTS = [Request("x" * length, max_new_tokens=LONG) for length in (1, 5, 9, 14)]


class FullMask(PassBuilder):
    """Planted fault: a sliding layer sees everything."""

    def near(self, *args):
        return torch.ones_like(super().near(*args))


class WindowByIndex(PassBuilder):
    """Planted fault: how far back a node is, is counted in the cache and not along its path."""

    def near(self, cache, rows, width, keys):
        chains = [replace(row, tree=DraftTree.chain(row.tree.tokens)) for row in rows]
        return super().near(cache, chains, width, keys)


class OneDirection(PassBuilder):
    """Planted fault: an image's tokens see only those before them."""

    def mask(self, cache, rows, width, keys):
        blind = [replace(row, chunk=replace(row.chunk, images=None)) for row in rows]
        return super().mask(cache, blind, width, keys)


def riding_error(fault, window=WINDOW):
    model, prompt = gemma3(window=window)
    return check_conformance(planted(as_target(model, prompt), fault), prompt, TOKENS).riding


@pytest.mark.parametrize("window", [2, 3, 5, 8, 13, 27, 28, 200])
def test_conformance_of_every_window(window):
    """Shorter than a path of the tree, than the tree, than an image's tokens; about the prompt's length; longer."""
    model, prompt = gemma3(window=window)
    found = check_conformance(as_target(model, prompt), prompt, TOKENS)
    assert found.passes(1e-10), found


@pytest.mark.parametrize("window", [2, 4, 8, 200])
def test_conformance_where_every_layer_slides(window):
    """Mistral's configuration names no types of layers, and its model takes one mask."""
    config = LlavaNextVideoConfig(
        vision_config=CLIPVisionConfig(**VISION),
        text_config=MistralConfig(**TEXT, sliding_window=window),
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        image_grid_pinpoints=[[8, 8]],
    )
    model = build(LlavaNextVideoForConditionalGeneration, config, "sdpa")
    prompt = Prompt(prompt_ids(4), {"pixel_values_videos": video(4)})
    found = check_conformance(as_target(model, prompt), prompt, TOKENS)
    assert found.passes(1e-10), found


@pytest.mark.parametrize(("fault", "window"), [(FullMask, WINDOW), (WindowByIndex, WINDOW), (OneDirection, WINDOW)])
def test_planted_faults_are_seen(fault, window):
    assert riding_error(PassBuilder, window) < 1e-10
    assert riding_error(fault, window) > 1e-4


def test_who_sees_what_in_a_sliding_layer():
    """Window 3; six tokens are known, one is pending, and of the tree the last node is two below the root."""
    model, prompt = gemma3(window=3)
    target = as_target(model, prompt)
    cache = target.new_cache()
    cache.lengths[cache.add_row(32)] = 6
    tree, root = DraftTree((20, 21, 22), (-1, -1, 1)), Chunk(torch.tensor([9]))
    (segment,) = target.passes.build(cache, [PassRow(0, root, tree)]).segments
    masks = segment.mask
    seen = {kind: [row.nonzero().flatten().tolist() for row in mask[0, 0]] for kind, mask in masks.items()}
    known = list(range(6))
    assert seen["full_attention"] == [[*known, 6], [*known, 6, 7], [*known, 6, 8], [*known, 6, 8, 9]]
    assert seen["sliding_attention"] == [[4, 5, 6], [5, 6, 7], [5, 6, 8], [6, 8, 9]]


def test_an_image_s_tokens_see_each_other_as_far_as_the_window_lets_them():
    model, _ = gemma3(window=3)
    target = as_target(model, Prompt(torch.tensor([1])))
    ids = torch.tensor([1, *[IMAGE] * 4, 5, *[IMAGE] * 2, 9])
    prompt = Prompt(ids, {"token_type_ids": (ids == IMAGE)[None].int()})
    (piece, _), _ = target.chunks(prompt, {})
    assert piece.images.tolist() == [-1, 0, 0, 0, 0, -1, 1, 1]
    cache = target.new_cache()
    cache.add_row(32)
    (segment,) = target.passes.build(cache, [PassRow(0, piece)]).segments
    masks = segment.mask
    first, last = (masks["sliding_attention"][0, 0, row].nonzero().flatten().tolist() for row in (1, 4))
    assert first == [0, 1, 2, 3, 4]
    assert last == [2, 3, 4]
    assert masks["full_attention"][0, 0, 1].nonzero().flatten().tolist() == [0, 1, 2, 3, 4]
    assert masks["full_attention"][0, 0, 6].nonzero().flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


class Branching(IgnoresCommits):
    """Knows the answers, and drafts three of their tokens as a tree in which a wrong one comes first at two depths."""

    needs = NO_NEEDS

    def __init__(self, answers):
        self.answers = answers

    def begin(self, requests):
        return [[self.answers[request.prompt], 0] for request in requests]

    def propose(self, states, budgets):
        return [Draft(self.tree(answer[done : done + 3])) for answer, done in states]

    def tree(self, tokens):
        if len(tokens) < 3:
            return DraftTree.empty()
        one, two, three = tokens
        return DraftTree((one + 1, one, two + 1, two, three), (-1, -1, 1, 1, 3))

    def commit(self, states, outputs):
        for state, output in zip(states, outputs, strict=True):
            state[1] += len(output.tokens)


def generated(model, prompt):
    """The model's own answer, with its own cache, which forgets what is out of the window."""
    features = {name: x.double() if x.is_floating_point() else x for name, x in prompt.features.items()}
    out = model.generate(input_ids=prompt.input_ids[None], **features, max_new_tokens=LONG, do_sample=False)
    return tuple(out[0, len(prompt) :].tolist())


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("window", [4, WINDOW])
def test_long_answers_are_those_of_generate(window, batch):
    model, prompt = gemma3(window=window)
    target = as_target(model, prompt)
    expected = [generated(model, target.prepare(request)) for request in REQUESTS]
    assert max(map(len, expected)) > 2 * window
    answers = {request.prompt: tokens for request, tokens in zip(REQUESTS, expected, strict=True)}
    kin = IndependentDrafter(as_target(noisy(gemma3(window=window)[0], 1e-3), prompt), sorted(target.reserved))
    for drafter in (None, Branching(answers), kin):
        runner = None if drafter is None else DraftRunner(drafter, "before")
        found = DecodeLoop(target, runner, max_batch=batch, adaptive=False).generate(REQUESTS)
        assert [answer.tokens for answer in found] == expected
        assert drafter is None or sum(answer.stats.accepted for answer in found) > 0


def test_a_full_mask_changes_long_answers():
    """The control of the test above."""
    model, prompt = gemma3()
    target = as_target(model, prompt)
    wrong = planted(target, FullMask)
    expected = [generated(model, target.prepare(request)) for request in REQUESTS]
    assert [answer.tokens for answer in DecodeLoop(wrong).generate(REQUESTS)] != expected
