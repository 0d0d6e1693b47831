"""One drafter drafts the same trees wherever it works: inline, in a process of its own, at an edge."""

import re
import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from PIL import Image

from crossdraft import Request
from crossdraft.engine.runner.forks import forking
from crossdraft.engine.sampling import Sampling
from crossdraft.load import load_target
from crossdraft.methods import SHIPPED, methods_in, needs_target, read_spec
from tests.placements import cloud, drafted, engine_of

PHRASE = "the car in front is turning left near the red light."


@pytest.fixture(scope="module", autouse=True)
def one_target():
    """Every engine here shares the target that the first one has loaded."""
    with pytest.MonkeyPatch.context() as patch, forking(["crossdraft.load", "crossdraft.engine.runner.worker", "crossdraft.drafters.independent", "crossdraft.models.eventgpt"]):
        patch.setattr("crossdraft.api.load_target", cache(load_target))
        yield


@pytest.fixture(scope="module")
def media(clip, tmp_path_factory):
    folder = tmp_path_factory.mktemp("media")
    for path in (clip.video, clip.events):
        shutil.copy(path, folder)
    Image.fromarray(np.full((28, 28, 3), 90, np.uint8)).save(folder / "image.png")
    return folder


KINDS = ("one clip", "two clips", "image and clip", "conversation", "system", "sampled")


@pytest.fixture(scope="module")
def requests(media):
    clip, image, events = (str(media / name) for name in ("clip.mp4", "image.png", "clip.h5"))
    one = Request(f"{PHRASE} What is ahead? {PHRASE}", clip, events, max_new_tokens=12)
    turns = [
        {"role": "user", "content": [{"type": "video", "video": clip}, {"type": "text", "text": PHRASE}]},
        {"role": "assistant", "content": "A car."},
        {"role": "user", "content": [{"type": "video", "video": clip}, {"type": "text", "text": "Is it dark?"}]},
    ]
    found = (
        one,
        replace(one, video=[clip, clip]),
        replace(one, image=image),
        Request(messages=turns, events=events, max_new_tokens=12),
        replace(one, system="Be brief."),
        replace(one, sampling=Sampling(temperature=1.0, top_k=20, seed=5)),
    )
    return dict(zip(KINDS, found, strict=True))


@pytest.mark.parametrize("spec", ["EVENT", "ngram", "memory", "union:EVENT,memory", "view", "model:dir=TARGET", "EVENT:words=2"])
def test_it(pair, spec, requests, media):
    import time
    t=time.time()
    spec=spec.replace("EVENT",str(pair.event)).replace("TARGET",str(pair.target))
    found = {}
    for placement in ("inline", "process"):
        with engine_of(str(pair.target), spec, placement, dtype="float64") as engine:
            print(placement, "open", time.time()-t); t=time.time()
            found[placement] = {kind: drafted(engine, request) for kind, request in requests.items()}
            print(placement, "asked", time.time()-t); t=time.time()
    if "view" not in spec and "model" not in spec:
        with cloud(str(pair.target), media, dtype="float64") as server, server.edge(spec) as edge:
            print("edge", "open", time.time()-t); t=time.time()
            found["edge"] = {kind: edge.drafted(request) for kind, request in requests.items()}
            print("edge", "asked", time.time()-t); t=time.time()
    for kind in requests:
        same = all(f[kind]==found["inline"][kind] for f in found.values())
        print(kind, same)
        if not same:
            for p in found:
                print("  ", p, found[p][kind])
