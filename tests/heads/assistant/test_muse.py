"""Muse Glimmer's assistant (DFlash) against transformers' own, of tiny random pairs."""

import json

import pytest
import torch
import transformers
from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator

from crossdraft.checkpoints.shrunk import shrunk_model
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.prefix_cache import PrefixCache
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError
from crossdraft.heads.assistant.load import load_assistant
from tests.engine.zoo import as_target
from tests.every_class import config_of, shown
from tests.heads.assistant.test_assistant import helped

KIND = "muse_glimmer"


def pair(folder, clip=False, **more):
    """A target, its model, and transformers' own model of the assistant in the folder."""
    model = shrunk_model(transformers.MuseGlimmerForConditionalGeneration, config_of(KIND), torch.float64)
    prompt = shown(KIND, model, clip)
    with torch.no_grad():  # no answer shows something
        model.lm_head.weight[[model.config.image_token_id, model.config.video_token_id]] = 0
    sizes = {"hidden_size": model.config.get_text_config().hidden_size, "intermediate_size": 48, "head_dim": 16}
    sizes |= {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "block_size": 5}
    sizes |= {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 4}
    config = transformers.MuseGlimmerAssistantConfig(
        **sizes | {"mask_token_id": 3, "target_layer_ids": [0, 1], "max_position_embeddings": 512} | more
    )
    torch.manual_seed(1)
    theirs = transformers.MuseGlimmerAssistantModel(config).double().eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.mul_(3).add_(torch.randn_like(weight) * 0.1)
    theirs.save_pretrained(folder)
    return as_target(model, prompt), model, theirs


def answers(target, drafter, *requests):
    loop = DecodeLoop(target, None if drafter is None else DraftRunner(drafter), max_batch=4, nodes=12, adaptive=False)
    found = loop.generate(requests)
    loop.close()
    return found


@pytest.mark.parametrize("clip", [False, True])
@torch.inference_mode()
def test_a_chain_is_what_transformers_drafts(clip, tmp_path):
    """At every round, behind an image or a clip, read anew and from the prefix cache; its probabilities too."""
    target, model, theirs = pair(tmp_path, clip)
    requests = [Request(prompt=text, max_new_tokens=16) for text in ("What?", "Why", "Who?")]
    alone = [one.tokens for one in answers(target, None, *requests)]
    compared, prefixes = 0, PrefixCache(1 << 24)
    for request, expected in zip(requests, alone, strict=True):
        drafter = load_assistant(target, tmp_path, tree="chain")
        seen = helped(drafter, tuple(expected))
        loop = DecodeLoop(target, DraftRunner(drafter), nodes=12, adaptive=False, prefixes=prefixes)
        answer = loop.generate([request])[0]
        loop.close()
        assert answer.tokens == expected
        for tokens, draft in seen:
            if draft.tree.tokens:
                ids, probs = drafted_by(theirs, model, tokens, target.prepare(request).features)
                assert list(draft.tree.tokens) == ids[: len(draft.tree)]
                assert list(draft.path_probs) == pytest.approx(probs[: len(draft.tree)], rel=1e-4)
                compared += 1
    assert answer.stats.cached_tokens > 0
    assert compared > 12


def drafted_by(theirs, model, tokens, features):
    """transformers' greedy draft after `tokens`, the last of which the target has not read, and its probabilities."""
    ids = torch.tensor([tokens[:-1]])
    pad = {name: value for name, value in features.items() if "type" in name}
    types = {name: torch.nn.functional.pad(one, (0, ids.shape[1] - one.shape[1])) for name, one in pad.items()}
    pixels = {name: value.double() if value.is_floating_point() else value for name, value in features.items()}
    read = model(input_ids=ids, **pixels | types, use_cache=False, output_hidden_states=True)
    generation = transformers.GenerationConfig(max_length=4096, do_sample=False)
    tables = model.get_input_embeddings(), model.get_output_embeddings()
    generator = DFlashTokenCandidateGenerator(theirs, *tables, generation)
    whole = torch.tensor([tokens])
    given = {"position_ids": torch.arange(len(tokens))[None], "attention_mask": torch.ones_like(whole)}
    found, logits = generator.get_candidates(whole, given, read, is_first_iteration=False, n_last_matches=0)
    drafted = found[0, len(tokens) :]
    return drafted.tolist(), logits[0].softmax(-1)[range(len(drafted)), drafted].cumprod(0).tolist()


@pytest.mark.parametrize("tree", ["dynamic", pytest.param("chain", marks=pytest.mark.slow)])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)])
def test_a_batch_is_answered_as_by_the_target_alone(tree, sampling, tmp_path):
    target = pair(tmp_path)[0]
    requests = [Request(prompt="?" * count, max_new_tokens=12, sampling=sampling) for count in range(1, 5)]
    drafted = answers(target, load_assistant(target, tmp_path, tree), *requests)
    assert [one.tokens for one in drafted] == [one.tokens for one in answers(target, None, *requests)]
    assert sum(one.stats.drafted for one in drafted) > 32


def test_an_assistant_of_another_backbone_is_one_sentence(tmp_path):
    target = pair(tmp_path)[0]
    config = json.loads((tmp_path / "config.json").read_text())

    def refused(match, **more):
        (tmp_path / "config.json").write_text(json.dumps(config | more))
        with pytest.raises(CrossdraftError, match=match):
            load_assistant(target, tmp_path)

    refused("cannot be loaded: it is for a target of 48 features, and this one has 256", hidden_size=48)
    refused("cannot read layer 10: the target has hidden states 0", target_layer_ids=[0, 9])
    refused(r"cannot be loaded: its 'layers\.[\w.]+' is missing, left over or of another", intermediate_size=7)
    refused("cannot be loaded: its rope_type linear", rope_parameters={"rope_type": "linear", "factor": 2.0})
    refused(
        r"drafts for models of type 'gemma4', and this target is of type 'muse_glimmer'", model_type="gemma4_assistant"
    )
