"""The identity check passes where the tokens are the target's, and fails where they are not."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.reference import full_forward
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench import identity
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.identity import (
    ALL_SPECS,
    CACHED_CONFIGS,
    EVENT_CONFIGS,
    PROCESS,
    IdentityCheck,
    RunConfig,
    about_shared_clips,
    cached_bytes,
    check_config,
    choose_configs,
    configs_of,
    reference_answers,
    run_identity,
    run_made_pairs,
)
from crossdraft_lab.bench.made_pairs import made_pairs
from crossdraft_lab.bench.workload import Workload, items


@pytest.fixture(scope="module")
def pairs():
    return list(items(Workload(pairs=8, answers="any", max_new_tokens=16)))


@pytest.fixture(scope="module")
def known(target, pairs):
    return list(reference_answers(target, pairs))


def test_single_and_shared_passes_are_identical(models, target, known):
    drafter = models.drafter(models.event, target)()
    for size, hidden in ((1, "before"), (3, "before"), (4, "off")):
        check = IdentityCheck(f"batch of {size}")
        decoder = DecodeLoop(target, DraftRunner(drafter, hidden), max_batch=size)
        check_config(target, check, [decoder], known)
        assert (check.equal, check.total) == (8, 8)
        assert check.to_json()["identical"] == {"equal": 8, "total": 8}
        assert 0 < check.accepted <= check.drafted


def test_another_models_tokens_are_found_out(models, target, known):
    model = models.load_target(packed=False).model
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head += 0.3 * head.std() * torch.randn(head.shape, generator=torch.Generator().manual_seed(0)) * (head != 0)
    other = Target(model, target.prepare, target.decode, tuple(target.eos), tuple(target.reserved))
    check = IdentityCheck("another model")
    check_config(target, check, [DecodeLoop(other)], known[:4])
    assert check.divergences
    assert not check.to_json()["lossless"]
    assert check.remark.startswith("top-2 logit gaps at divergences: ")
    answers = {pair.item.seed: pair for pair in known}
    for divergence in check.divergences:  # how far the target's own token leads, by the model alone
        pair = answers[divergence["seed"]]
        logits = full_forward(target, target.prepare(pair.item.request), pair.tokens[: divergence["position"]]).double()
        own = logits[pair.tokens[divergence["position"]]].clone()
        logits[pair.tokens[divergence["position"]]] = -torch.inf
        assert 0 < divergence["top2_gap"] == pytest.approx(float(own - logits.max()))


@pytest.mark.parametrize("spec", ["union:memory,ngram", "fallback:event,ngram", "phased:event,memory", "blind"])
def test_any_drafter_in_batches_gives_the_targets_tokens(models, target, pairs, spec):
    config = RunConfig(spec, spec, (("before", 2), ("beside", 3), ("off", 4)), adaptive=False)
    ticks = []
    (check,) = run_identity(target, models, None, [[config]], pairs[:6], ticks.append)
    assert (check.name, check.drafter, check.equal, check.total) == (spec, spec, 6, 6)
    assert check.accepted > 0
    assert not check.notes
    assert ticks == ["target"] * 6 + [f"opening {spec}"] + [spec] * 6


def test_few_pairs_still_meet_every_decoder(target, known):
    decoders = [DecodeLoop(target, max_batch=size) for size in (2, 3, 4)]
    requests = Counter()
    for index, decoder in enumerate(decoders):
        submit = decoder.submit
        decoder.submit = lambda request, submit=submit, index=index: requests.update([index]) or submit(request)
    check_config(target, check := IdentityCheck("turns"), decoders, known[:3])
    assert check.equal == check.total == 3
    assert requests == {0: 1, 1: 1, 2: 1}


def test_all_is_every_example():
    assert [configs[0].spec for configs in choose_configs(["all"])] == list(ALL_SPECS)
    assert {"event", "union:event,memory", "text:how=omni"} <= set(ALL_SPECS)


def test_a_drafter_is_checked_in_its_process_inline_and_in_batches_of_every_size():
    placements = [placement for config in configs_of("blind") for placement in config.placements]
    assert {where for where, _ in placements} == {PROCESS, "before", "beside", "off"}
    assert {size for _, size in placements} == {1, 2, 3, 4}
    assert [config.adaptive for config in configs_of("blind")] == [True, False, False, False]
    assert [config.sampled for config in configs_of("blind")] == [False, False, False, True]


def test_sampled_answers_are_compared_with_sampled_ones(models, target, pairs):
    config = replace(configs_of("memory")[-1], placements=(("off", 1), ("off", 4)))
    (check,) = run_identity(target, models, None, [[config]], pairs[:6])
    assert (check.equal, check.total) == (6, 6)
    assert check.drafted
    greedy = [one.tokens for one in reference_answers(target, pairs[:6])]
    drawn = [one.tokens for one in reference_answers(target, [identity._sampled(item) for item in pairs[:6]])]
    assert greedy != drawn


def test_made_targets_are_asked_with_their_own_drafters(models, tmp_path, pairs):
    """All three; of the first one way: its assistant in shared passes."""
    made = made_pairs(tmp_path, models, pairs[:4])
    first = next(made)
    config = replace(configs_of(first.specs["assistant of Gemma 4"])[2], placements=(("off", 4),))
    (check,) = run_identity(first.target, first.models, None, [[config]], first.items)
    assert (check.equal, check.total, check.notes) == (4, 4, set())
    assert check.drafted > 20
    rest = [*made]
    assert [pair.target.model.config.model_type for pair in rest] == ["muse_glimmer", "video_llava"]
    assert all(item.request.video is not None for item in rest[-1].items)


@pytest.mark.slow
def test_all_made_pairs_are_identical_every_way(models, tmp_path, pairs):
    checks = run_made_pairs(tmp_path, models, None, pairs[:3])
    assert len(checks) == 3 * 3 * 4  # targets, drafters, ways
    assert [check.name for check in checks if check.divergences or check.notes] == []
    assert sum(check.accepted for check in checks) > 20


def test_without_a_name_it_is_the_event_drafter_in_nine_ways():
    assert choose_configs([]) == [EVENT_CONFIGS]
    assert len({config.name for config in EVENT_CONFIGS}) == 9


@pytest.mark.parametrize(
    ("drafters", "message"),
    [
        (["memry"], "did you mean 'memory'"),
        (["ngram", "ngram"], "named twice"),
        (["all", "event"], "named twice"),
        (["union:(ngram"], "brackets"),
    ],
)
def test_a_drafter_that_cannot_be_checked_is_one_clear_sentence(drafters, message):
    with pytest.raises(CrossdraftError, match=message):
        choose_configs(drafters)


def test_shared_clips_are_asked_about_in_disorder_from_two_namespaces():
    found = about_shared_clips(items(Workload(12, questions=4)))
    assert [item.seed for item in found] != sorted(item.seed for item in found)
    assert {item.request.namespace for item in found} == {"one", "other"}
    clips = {(item.seed, item.request.video.tobytes()) for item in found}
    assert len(clips) == 6  # three scenes, each also with another pixel
    for seed in {seed for seed, _ in clips}:
        one, other = (np.frombuffer(clip, np.uint8) for own, clip in clips if own == seed)
        assert (one != other).sum() == 1


def test_a_budget_is_that_of_a_clip():
    target = Models().load_target()
    (item,) = items(Workload(1, max_new_tokens=2))
    one = cached_bytes(target, item)
    tokens = len(target.prepare(item.request))
    text = target.text_config
    of_token = (
        2 * text.num_hidden_layers * text.num_key_value_heads * (text.hidden_size // text.num_attention_heads) * 4
    )
    assert one > tokens * of_token  # the features are kept, too
    assert one == cached_bytes(target, item)


def test_with_prefix_caches_every_way_knows_prompts():
    models = Models()
    target = models.load_target()
    asked = about_shared_clips(items(Workload(9, max_new_tokens=6, questions=9)))
    configs = [config for config in CACHED_CONFIGS if config.spec == "memory"]
    checks = run_identity(target, models, None, [configs], asked)
    assert [(check.equal, check.total) for check in checks] == [(9, 9)] * 2
    assert checks[0].known >= checks[1].known > 0


def test_named_drafters_are_not_those_with_caches():
    with pytest.raises(CrossdraftError, match="leave out --drafters"):
        choose_configs(["event"], cached=True)


class OneWrongToken(DecodeLoop):
    """Changes the last token of one answer, on the way out."""

    given = 0

    def __init__(self, target):
        super().__init__(target)
        self.answer = self.falsified

    def falsified(self, request_id):
        found = self.queue.answer(request_id)
        self.given += 1
        if self.given == 5:
            found = replace(found, tokens=(*found.tokens[:-1], found.tokens[-1] + 1))
        return found


def test_one_token_of_one_answer_is_found_out(target, known):
    check = IdentityCheck("planted")
    check_config(target, check, [OneWrongToken(target)], known)
    assert (check.equal, check.total) == (7, 8)
    assert check.divergences[0]["position"] == len(known[4].tokens) - 1
