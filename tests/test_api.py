"""The public surface, on a pair of checkpoint folders."""

import json
import os
import shutil
import threading
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import crossdraft as cd
from crossdraft import api
from crossdraft.assembly import assemble
from crossdraft.drafters.event.load import load_drafter
from crossdraft.engine.request import Finish, Origin
from crossdraft.events import read_events
from crossdraft.load import vocabulary_of
from tests.support import encodes_clips


@pytest.fixture(scope="module")
def request_(clip):
    return cd.Request("what is the car doing?", str(clip.video), str(clip.events), max_new_tokens=32)


@pytest.fixture(scope="module")
def alone(pair, request_):
    with cd.Engine.load(str(pair.target), None) as engine:
        return engine.generate(request_)


def test_one_request_or_several(pair, request_, alone):
    with cd.Engine.load(
        str(pair.target), str(pair.event), cd.Options(placement="inline", adaptive=False, max_batch=2)
    ) as engine:
        assert engine.generate(request_).tokens == alone.tokens
        assert [answer.tokens for answer in engine.generate([request_] * 3)] == [alone.tokens] * 3


def test_several_answers_to_one_request(pair, request_):
    """Drawn apart, the first as that of one; whatever drafts, one at a time or two."""
    sampled = replace(request_, sampling=cd.Sampling(temperature=1.5, seed=5))
    with cd.Engine.load(str(pair.target), None) as engine:
        wanted = [engine.generate(replace(one)).tokens for one in sampled.several(3)]
        assert engine.generate(sampled).tokens == wanted[0]
        assert len(set(wanted)) == 3
        with pytest.raises(cd.CrossdraftError, match="greedy ones are equal"):
            engine.generate(request_.several(2))
        unseeded = replace(request_, sampling=cd.Sampling(temperature=1.5), max_new_tokens=24)
        assert len({one.stats.seed for one in engine.generate(unseeded.several(3))}) == 3
    for more in ({}, {"max_batch": 2}, {"cache_bytes": 0}):
        options = cd.Options(placement="inline", adaptive=False, **more)
        with cd.Engine.load(str(pair.target), str(pair.event), options) as engine:
            found = engine.generate(sampled.several(3))
        assert [one.tokens for one in found] == wanted
        prompt = found[0].stats.prompt_tokens
        assert [one.stats.cached_tokens for one in found] == [0, prompt - 1, prompt - 1]
        assert sum(one.stats.accepted for one in found) > 0


def test_a_prompt_is_read_once_though_an_answer_to_it_is_asked_for_while_another_runs(pair, request_):
    """The first piece of the first answer hands over the second: no other waited for the prompt when it was read."""
    first, second = replace(request_, sampling=cd.Sampling(temperature=1.5, seed=5)).several(2)
    later = []
    with cd.Engine.load(str(pair.target), None, cd.Options(cache_bytes=0)) as engine:

        def then(piece):
            if not later:
                later.append(engine.submit(second))

        prompt = engine.submit(first, then).result().stats.prompt_tokens
        assert later[0].result().stats.cached_tokens == prompt - 1


def test_a_stream_ends_with_the_answer(pair, request_, alone):
    with cd.Engine.load(str(pair.target), str(pair.event), cd.Options(placement="inline", adaptive=False)) as engine:
        stream = engine.stream(request_)
        pieces = list(stream)
    assert stream.answer is not None
    assert stream.answer.tokens == alone.tokens
    final = [piece for piece in pieces if piece.origin is not Origin.PROVISIONAL]
    assert "".join(piece.text for piece in final) == alone.text
    assert len(final) < len(pieces)


def test_leaving_a_stream_cancels_it(pair, request_):
    with cd.Engine.load(
        str(pair.target), str(pair.event), cd.Options(placement="inline", adaptive=False, nodes=1)
    ) as engine:
        stream = engine.stream(request_)
        for piece in stream:
            if piece.origin is not Origin.PROVISIONAL:
                break
        assert stream.answer is not None
        assert stream.answer.finish is Finish.CANCELLED
        assert engine.generate(request_).finish is not Finish.CANCELLED


def test_an_error_in_a_stream_reaches_its_reader(pair, clip):
    with cd.Engine.load(str(pair.target), None) as engine, pytest.raises(cd.CrossdraftError, match=r"missing\.mp4"):
        list(engine.stream(cd.Request("where?", "missing.mp4")))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"placement": "moon"}, "Unknown placement 'moon'"),
        ({"hidden": "always"}, "Unknown hidden"),
        ({"max_batch": 0}, "max_batch is 0"),
        ({"nodes": 0}, "nodes is 0"),
        ({"draft_cores": (4096,)}, "core 4096"),
    ],
)
def test_bad_options_are_one_sentence(options, words):
    with pytest.raises(cd.CrossdraftError, match=words):
        cd.Options(**options)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer_config.json"])
def test_a_folder_that_lacks_a_file(pair, tmp_path, missing):
    shutil.copytree(pair.target, tmp_path / "t")
    (tmp_path / "t" / missing).unlink()
    with pytest.raises(cd.CrossdraftError, match="lacks"):
        cd.Engine.load(str(tmp_path / "t"), None)


@pytest.mark.parametrize("damage", ["missing", "extra", "shape", "cut"])
def test_weights_that_do_not_fit(pair, tmp_path, damage):
    shutil.copytree(pair.target, tmp_path / "t")
    path = tmp_path / "t" / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if name.endswith("q_proj.weight"))
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        if damage == "missing":
            del weights[name]
        elif damage == "extra":
            weights["surprise"] = weights[name].clone()
        else:
            weights[name] = weights[name][:-1].clone()
        save_file(weights, path, {"format": "pt"})
    words = {"missing": "lacks", "extra": "unknown surprise", "shape": "wrong shape", "cut": "cut off or damaged"}
    with pytest.raises(cd.CrossdraftError, match=words[damage]):
        cd.Engine.load(str(tmp_path / "t"), None)


def test_a_type_without_a_class_that_reads_images_is_refused(pair, tmp_path):
    shutil.copytree(pair.target, tmp_path / "t")
    config = json.loads((tmp_path / "t" / "config.json").read_text())
    (tmp_path / "t" / "config.json").write_text(json.dumps(config | {"model_type": "bert"}))
    with pytest.raises(cd.CrossdraftError, match=r"Models of type 'bert' cannot be a target: .* no class of that type"):
        cd.Engine.load(str(tmp_path / "t"), None)
    with pytest.raises(cd.CrossdraftError, match="must be an 'eventgpt'"):
        cd.Engine.load(str(pair.target), str(pair.target))


@pytest.mark.parametrize("other", ["tokenizer_config.json", ""])
def test_a_configuration_that_is_none_is_one_sentence(pair, tmp_path, other):
    shutil.copytree(pair.target, tmp_path / "t")
    (tmp_path / "t" / "config.json").write_text("[]")
    if other:
        (tmp_path / "t" / other).unlink()
    with pytest.raises(cd.CrossdraftError, match=r"config\.json is no configuration"):
        cd.Engine.load(str(tmp_path / "t"), None)


def test_a_head_on_an_event_model_of_another_vocabulary_is_refused(pair, tmp_path):
    shutil.copytree(pair.event, tmp_path / "d")
    path = tmp_path / "d" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    one, two = [token for token in vocabulary if len(token) == 1][:2]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(cd.CrossdraftError, match="another vocabulary"):
        load_drafter(str(tmp_path / "d"), vocabulary=vocabulary_of(str(pair.target)))
    with pytest.raises(cd.CrossdraftError, match="belongs to another event model"):  # before any model is loaded
        cd.Engine.load(str(pair.target), f"glance:model={tmp_path / 'd'}")


def test_dtypes_and_devices_that_are_not_there(pair):
    with pytest.raises(cd.CrossdraftError, match="Unknown dtype"):
        cd.Engine.load(str(pair.target), None, cd.Options(dtype="int3"))
    for device in ("cuda:77", "foo", "meta"):
        with pytest.raises(cd.CrossdraftError, match=f"^device is '{device}', which cannot be used here; choose cpu"):
            cd.Engine.load(str(pair.target), None, cd.Options(device=device))
        for drafter in (str(pair.event), "memory"):
            with pytest.raises(cd.CrossdraftError, match=f"^draft_device is '{device}', which cannot be used here"):
                cd.Engine.load(str(pair.target), drafter, cd.Options(draft_device=device, device="cpu"))


def test_without_video_or_events_the_request_says_so(pair, clip, caplog):
    inline = cd.Options(placement="inline", hidden="before")  # else it is not read before a draft is asked for
    with cd.Engine.load(str(pair.target), str(pair.event), inline) as engine:
        answer = engine.generate(cd.Request("where?", video=str(clip.video)))
        assert "The request has no event recording (`events`)" in answer.other_notes[0]
        assert "--events" not in answer.other_notes[0]
        engine.generate(cd.Request("where?", video=str(clip.video)))
        assert engine.drafter is not None
        other = engine.generate(cd.Request("where?", video=str(clip.video), events=5))
        assert "The event recording (`events`) is of type int" in other.other_notes[0]
    (warning,) = caplog.messages  # once for an engine
    assert "The request has no event recording (`events`)" in warning


def test_what_the_reader_noted_of_a_recording_is_in_the_answer(pair, request_):
    noted = read_events(request_.events).noting(["The clock stepped back."])
    options = cd.Options(placement="inline", hidden="before")  # else it may not pay to read the recording
    with cd.Engine.load(str(pair.target), str(pair.event), options) as engine:
        for _ in range(2):  # the second time the recording is known
            assert engine.generate(replace(request_, events=noted)).other_notes == ("The clock stepped back.",)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_pinned_cores_are_the_target_s_alone_and_given_back(pair, request_):
    cores = tuple(sorted(os.sched_getaffinity(0)))
    options, others = cd.Options(placement="process", target_cores=cores[:1]), set(threading.enumerate())
    with cd.Engine.load(str(pair.target), str(pair.event), options) as engine:
        engine.generate(request_)
        (thread,) = [one for one in threading.enumerate() if one.name == "crossdraft" and one not in others]
        assert os.sched_getaffinity(thread.native_id) == set(cores[:1])
        assert os.sched_getaffinity(engine.drafter.workers[0].pid) == set(cores[1:])
        assert os.sched_getaffinity(0) == set(cores)  # whoever asks keeps its own
        closing = threading.Thread(target=engine.close)
        closing.start()
        closing.join()
    assert os.sched_getaffinity(0) == set(cores)


def test_an_engine_whose_calibration_fails_leaves_nothing_behind(pair, monkeypatch):
    workers = []
    monkeypatch.setattr(api, "calibrate", lambda *given: workers.extend(given[3].__self__.workers) or 1 / 0)
    with pytest.raises(ZeroDivisionError) as held:  # whose traceback keeps the engine from being collected
        cd.Engine.load(str(pair.target), str(pair.event), cd.Options(placement="process"))
    assert ([worker.alive for worker in workers], held.type) == ([False], ZeroDivisionError)


@encodes_clips
def test_alone_a_prompt_is_read_in_the_same_pieces(pair, request_, monkeypatch):
    monkeypatch.setattr("crossdraft.engine.queue.ALONE", 4)
    with cd.Engine.load(str(pair.target), None, cd.Options(cache_bytes=0)) as engine:
        read, extend = list[int](), engine.target.extend
        monkeypatch.setattr(engine.target, "extend", lambda *a: read.append(len(a[1][0].chunk.tokens)) or extend(*a))
        assert engine.generate(request_).tokens == engine.alone(request_).tokens
    assert read[: len(read) // 2] == read[len(read) // 2 :]
    assert read.count(4) > 2


def test_a_stream_cancelled_before_it_begins_just_ends(pair, request_):
    with cd.Engine.load(str(pair.target), None) as engine:
        stream = engine.stream(request_)
        stream.cancel()
        assert list(stream) == []
        assert stream.answer is None


@pytest.mark.parametrize("damage", ["missing", "cut off"])
def test_a_broken_tokenizer_is_one_sentence(pair, tmp_path, damage):
    folder = tmp_path / "target"
    shutil.copytree(pair.target, folder)
    path = folder / "tokenizer.json"
    text = path.read_text()
    path.unlink()
    if damage == "cut off":
        path.write_text(text[: len(text) // 2])
    with pytest.raises(cd.CrossdraftError, match="tokenizer"):
        cd.Engine.load(str(folder), None)


@pytest.mark.parametrize("drafter", ["union:ngram,memory", "memory"])
def test_a_rule_that_cannot_verify_a_drafter_s_trees_is_refused_at_load(pair, drafter):
    with pytest.raises(cd.CrossdraftError, match=f"'block' verifies chains, and the drafter '{drafter}' drafts trees"):
        cd.Engine.load(str(pair.target), drafter, cd.Options(rule="block"))
    cd.Engine.load(str(pair.target), "ngram", cd.Options(rule="block")).close()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_by_default_a_drafter_with_a_network_of_its_own_has_a_process_and_a_core(pair):
    cores = tuple(sorted(os.sched_getaffinity(0)))
    with cd.Engine.load(str(pair.target), str(pair.event)) as engine:
        assert engine.options.placement == "process"
        assert (engine.options.target_cores, engine.options.draft_cores) == (cores[:-1], cores[-1:])
    with cd.Engine.load(str(pair.target), "union:memory,ngram") as engine:
        assert (engine.options.placement, engine.options.target_cores) == ("inline", None)


def test_the_drafter_that_is_taken_by_default_fits_any_target(pair, request_, alone):
    with cd.Engine.load(str(pair.target)) as engine:
        answer = engine.generate(request_)
    assert (answer.tokens, answer.other_notes) == (alone.tokens, ())


@pytest.mark.parametrize(("cores", "complaint"), [((), "cores is empty"), ((99999,), "cores names core 99999")])
def test_cores_that_are_not_there_are_refused(cores, complaint, pair, request_):
    with cd.Engine.load(str(pair.target), None) as engine:
        with pytest.raises(cd.CrossdraftError, match=complaint):
            engine.alone(request_, cores)
        assert engine.alone(request_).tokens


def test_of_no_requests_there_are_no_answers(pair):
    with cd.Engine.load(pair.target, None) as engine:
        assert engine.generate([]) == engine.generate(()) == []


def test_where_one_request_is_answered_several_are_refused_and_none_is_lost(pair, request_):
    with cd.Engine.load(str(pair.target), None) as engine:
        stepped = engine.decoder()
        for ask in (engine.submit, engine.stream, engine.astream, engine.alone, stepped.submit):
            with pytest.raises(cd.CrossdraftError, match="2 requests came where one is answered; hand several"):
                ask([request_, request_])
            with pytest.raises(cd.CrossdraftError, match=r"A request is of the type int; give a crossdraft\.Request"):
                ask(3)
        stepped.drop()


@pytest.mark.parametrize(
    ("inputs", "part"),
    [
        ({}, r"need input_ids, a tensor \[1, L\], as a processor makes it; it is not there"),
        ({"input_ids": [[1, 5]]}, "it is not there"),
        ({"input_ids": torch.tensor([1, 5])}, r"of shape \[2\]"),
        ({"input_ids": torch.tensor([[1, 5], [1, 6]])}, r"of shape \[2, 2\]"),
        ({"input_ids": torch.tensor([[1, 10**9]])}, "has the token 1000000000"),
    ],
)
def test_inputs_that_are_no_prompt_are_refused_in_a_sentence(pair, inputs, part):
    with cd.Engine.load(str(pair.target), None) as engine:
        with pytest.raises(cd.CrossdraftError, match=part):
            engine.generate(cd.Request("x", inputs=inputs, max_new_tokens=2))
        assert engine.generate(cd.Request("x", inputs={"input_ids": torch.tensor([[1, 5]])}, max_new_tokens=2)).tokens


@pytest.mark.parametrize(("field", "value"), [("inputs", [1]), ("namespace", 3)])
def test_fields_of_another_type_are_refused(field, value):
    with pytest.raises(cd.CrossdraftError, match=f"{field} is "):
        cd.Request("x", **{field: value})


def test_a_rule_of_another_target_is_refused_before_a_drafter_starts(pair, monkeypatch):
    monkeypatch.setattr("crossdraft.api.assemble", lambda *_: pytest.fail("a drafter was started"))
    with pytest.raises(cd.CrossdraftError, match="trained for another target"):
        cd.Engine.load(str(pair.target), "memory", cd.Options(rule="judge", device="cpu", dtype="float32"))


def test_an_engine_that_cannot_be_made_leaves_no_drafter_behind(pair, monkeypatch):
    runners = []

    def assembled(*given):
        runners.append(assemble(*given))
        return runners[0]

    def full(*_):
        raise MemoryError

    monkeypatch.setattr("crossdraft.api.assemble", assembled)
    monkeypatch.setattr("crossdraft.api.PrefixCache", full)
    with pytest.raises(MemoryError):
        cd.Engine.load(str(pair.target), "memory@process", cd.Options(device="cpu", dtype="float32"))
    (worker,) = runners[0].workers
    assert worker._child.poll() is not None
