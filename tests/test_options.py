"""Values from Python: accepted in every sensible form, and else refused at once in one sentence."""

import copy
import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import crossdraft as cd
from crossdraft.engine.fast.cores import available_cores
from crossdraft.engine.fast.quantized_linear import QUANTIZATIONS
from crossdraft.engine.policy import HIDDEN_NODES, ROUND_NODES
from crossdraft.options import OPTIONS


def test_words_and_defaults_that_are_known_early_are_the_engines():
    assert OPTIONS["quantize"].words == ("none", *QUANTIZATIONS)
    assert (cd.Options().nodes, cd.Options().hidden_nodes) == (ROUND_NODES, HIDDEN_NODES)


@pytest.mark.parametrize("value", ["ssd", "pearl", "off"])
def test_an_option_that_is_gone_is_refused_with_what_to_do(value):
    with pytest.raises(cd.CrossdraftError, match=r"^parallel was taken out in 0\.2, .*; leave it out\.$"):
        cd.Options(parallel=value)


def test_there_are_no_more_options_than_a_page_holds_and_help_says_each():
    assert len(OPTIONS) <= 24
    for name, option in OPTIONS.items():
        assert f"{name}: {option.sentence}." in str(cd.Options.__doc__)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_batch": 1.5}, r"max_batch is 1\.5; it must be a whole number"),
        ({"nodes": "x"}, "nodes is 'x'; it must be a whole number"),
        ({"nodes": True}, "nodes is True; it must be a whole number"),
        ({"hidden_nodes": None}, "hidden_nodes is None; it must be a whole number"),
        ({"target_cores": 0}, r"target_cores is 0; give the numbers of cores, such as \(\d+,\)"),
        ({"target_cores": "x"}, "'x' is no list of cores; write it as 0, 0,2 or 0-3"),
        ({"draft_cores": 0}, "draft_cores is 0; give the numbers of cores"),
        ({"draft_cores": ("a",)}, "A core in draft_cores is 'a'"),
        ({"draft_cores": ()}, "draft_cores is empty; give the numbers of cores, or None for all of them"),
        ({"compile": True, "kv_bytes": 1 << 30}, "kv_bytes and compile exclude each other"),
        ({"dtype": "int3"}, "Unknown dtype 'int3'; choose one of float32"),
        ({"dtype": torch.int8}, "Unknown dtype 'int8'"),
        ({"draft_dtype": 16}, "Unknown draft_dtype '16'"),
        ({"rule": "typcal"}, "no acceptance rule 'typcal' .did you mean 'typical'"),
        ({"rule": 3}, "rule is 3; give a string"),
        ({"placement": ["inline"]}, "Unknown placement"),
        ({"adaptive": "no"}, "Unknown adaptive 'no'; choose one of True, False"),
        ({"compile": True, "lossy_prefill": "pool"}, "lossy_prefill and compile exclude each other"),
        ({"placement": "process", "hidden": "before"}, "placement is 'process' and hidden is 'before'"),
        ({"device": "cpu", "device_map": "auto"}, "device and device_map exclude each other"),
        ({"device_map": "both"}, "Unknown device_map 'both'; choose one of auto, balanced"),
        ({"num_frames": 0}, "num_frames is 0; it must be at least 1"),
        ({"num_frames": 2.5}, r"num_frames is 2\.5; it must be a whole number"),
        ({"fps": 0}, "fps is 0; it must be a number above 0"),
        ({"fps": "2"}, "fps is '2'; it must be a number above 0"),
        ({"fps": float("nan")}, "fps is nan"),
        ({"fps": 2, "num_frames": 8}, "give one of them"),
    ],
)
def test_options_are_refused_at_once(options, words):
    with pytest.raises(cd.CrossdraftError, match=words):
        cd.Options(**options)


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (cd.Options, {"max_bach": 2}, r"^Options has no 'max_bach' \(did you mean 'max_batch'\?\); help\(crossdraft"),
        (cd.Options, {"zzz": 2}, r"^Options has no 'zzz'; help\(crossdraft.Options\) lists"),
        (cd.Request, {"prompt": "?", "vidoe": "clip.mp4"}, "^Request has no 'vidoe' .did you mean 'video'"),
        (cd.Sampling, {"temprature": 1}, "^Sampling has no 'temprature' .did you mean 'temperature'"),
    ],
)
def test_a_field_that_is_not_there_is_refused_with_the_nearest_name(kind, given, words):
    with pytest.raises(cd.CrossdraftError, match=words):
        kind(**given)


@pytest.mark.parametrize("value", [cd.Options(nodes=3), cd.Request("?"), cd.Sampling(seed=3)])
def test_what_is_checked_by_name_is_copied_and_pickled_as_before(value):
    assert pickle.loads(pickle.dumps(value)) == copy.copy(value) == dataclasses.replace(value) == value


def test_options_take_what_torch_and_numpy_give():
    options = cd.Options(dtype=torch.float32, draft_dtype="bf16", device=torch.device("cpu"), nodes=np.int64(7))
    assert (options.dtype, options.draft_dtype, options.device) == ("float32", "bfloat16", "cpu")
    assert type(options.nodes) is int
    first = available_cores()[0]
    assert cd.Options(target_cores=[first]).target_cores == cd.Options(target_cores=f"{first}").target_cores == (first,)
    assert cd.Options(fps=2).fps == 2.0


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"prompt": None}, "prompt is None; give a string"),
        ({"prompt": 5}, "prompt is 5; give a string"),
        ({"prompt": "why?", "max_new_tokens": 1.5}, r"max_new_tokens is 1\.5; it must be a whole number"),
        ({"prompt": "why?", "max_new_tokens": "5"}, "max_new_tokens is '5'; it must be a whole number"),
        ({"prompt": "why?", "max_new_tokens": 0}, "max_new_tokens is 0; it must be at least 1"),
    ],
)
def test_requests_are_refused_at_once(request_, words):
    with pytest.raises(cd.CrossdraftError, match=words):
        cd.Request(**request_)


def test_folders_may_be_paths(pair):
    with cd.Engine.load(Path(pair.target), Path(pair.event)) as engine:
        assert engine.drafter is not None


def test_a_loaded_model_is_not_a_folder():
    with pytest.raises(cd.CrossdraftError, match=r"target is a Linear; .*Engine\.from_model"):
        cd.Engine.load(torch.nn.Linear(1, 1))
    with pytest.raises(cd.CrossdraftError, match="drafter is 5; give a string"):
        cd.Engine.load("reference", 5)


@pytest.mark.parametrize(
    ("drafter", "options", "words"),
    [
        ("union:ngram,memry", None, "did you mean 'memory'"),
        ("ngram:longest", None, "write longest=VALUE"),
        ("ngram", {"max_batch": 3}, r"options is a dict; write crossdraft\.Options"),
        ("memory", cd.Options(rule="block"), "verifies chains"),
        ("ngram", cd.Options(rule="kseq"), "verifies what the drafter 'iid' drafts, and 'ngram' is another"),
        (None, {"max_batch": 3}, "options is a dict"),
    ],
)
def test_what_the_words_alone_tell_is_reported_before_a_model_is_loaded(monkeypatch, drafter, options, words):
    monkeypatch.setattr("crossdraft.api.load_target", lambda *_args, **_named: pytest.fail("the target was loaded"))
    with pytest.raises(cd.CrossdraftError, match=words):
        cd.Engine.load("reference", drafter, options)


def test_none_may_be_written_and_an_engine_shows_what_it_is(pair):
    with cd.Engine.load(pair.target, "none") as engine:
        assert engine.drafter is None
        assert repr(engine) == "Engine(target=VideoLlavaForConditionalGeneration, drafter=None, placement='inline')"


@pytest.mark.parametrize("given", ["why?", {"prompt": "why?"}, ["why?"], 5, [None]])
def test_what_is_no_request_is_refused(pair, given):
    with cd.Engine.load(pair.target, None) as engine:
        with pytest.raises(cd.CrossdraftError, match=r"A request is of the type .*Request"):
            engine.generate(given)
        with pytest.raises(cd.CrossdraftError, match=r"A request is of the type .*Request"):
            engine.stream(given)
