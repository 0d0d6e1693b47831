"""One drafter drafts the same trees wherever it may work: inline, in a process of its own, at an edge."""

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM

from crossdraft import Request
from crossdraft.drafters.event.load import load_drafter
from crossdraft.engine.arrivals import evenly
from crossdraft.engine.noise import choose
from crossdraft.engine.sampling import Sampling
from crossdraft.heads.files import save_head
from crossdraft.load import load_target, target_fingerprint
from crossdraft.methods import METHODS, needs_target, placements, read_spec
from crossdraft.specs import Spec
from tests.align.small import some_adapter
from tests.align.test_drafter import seen_by
from tests.align.test_vision import some_vision
from tests.heads.small import some_heads
from tests.placements import Drafted, cloud, drafted, engine_of
from tests.serve.conftest import with_clip
from tests.support import encodes_clips, tiny_clip

PHRASE = "the car in front is turning left near the red light."
MOST = 12  # tokens of an answer
pytestmark = pytest.mark.usefixtures("one_target")
KINDS = ("one clip", "two clips", "image and clip", "conversation", "system", "sampled")
SEEING = ("aligned:frames=all", "model", "model:how=tli")  # here they look at the clip, which is not at an edge
# Of records without an example: they need a folder.
MORE = {"model": ("model", "model:how=tli"), "aligned": ("aligned", SEEING[0]), "predicted": ("predicted",)}
MIXED = ("union:event,eagle2",)  # a part that looks into the target, and one that need not be beside it
JOINED = ("union:glance,ngram",)  # one that is sent what the target sees, and one that is sent the prompt's ids
SPECS = [
    *(spec for method in METHODS.values() for spec in method.examples or MORE.get(method.name, ())),
    *("event:words=2", *MIXED, *JOINED),
]
QUICK = ("event", "glance", "ngram", "union:event,memory", *JOINED)


def test_every_record_is_drafted_by_wherever_it_may_run():
    drafting = {read_spec(spec).name for spec in SPECS}
    alone = {name for name, method in METHODS.items() if method.needs_target}
    assert drafting | alone == set(METHODS)


def compared() -> list[object]:
    """The specs that may run in several placements; all but a few take their time."""

    def marked(spec):
        marks = [encodes_clips] if re.search("glance|aligned|predicted", spec) else []
        return pytest.param(spec, marks=marks if spec in QUICK else [*marks, pytest.mark.slow])

    return [marked(spec) for spec in SPECS if spec in MIXED or not needs_target(read_spec(spec))]


@pytest.fixture(scope="module")
def media(clip, tmp_path_factory):
    folder = tmp_path_factory.mktemp("media")
    for path in (clip.video, clip.events):
        shutil.copy(path, folder)
    shutil.copy(tiny_clip(tmp_path_factory.mktemp("other"), top=4).video, folder / "other.mp4")
    Image.fromarray(np.full((28, 28, 3), 90, np.uint8)).save(folder / "image.png")
    return folder


@pytest.fixture(scope="module")
def requests(media) -> Mapping[str, Request]:
    """By what they show and say."""
    clip, other, image, events = (str(media / name) for name in ("clip.mp4", "other.mp4", "image.png", "clip.h5"))
    one = Request(f"{PHRASE} What is ahead? {PHRASE}", clip, events, MOST)
    turns = [
        {"role": "user", "content": [{"type": "video", "video": other}, {"type": "text", "text": PHRASE}]},
        {"role": "assistant", "content": "A car."},
        {"role": "user", "content": [{"type": "video", "video": clip}, {"type": "text", "text": "Is it dark?"}]},
    ]
    found = (
        one,
        replace(one, video=[clip, other]),
        replace(one, image=image),
        Request(messages=turns, events=events, max_new_tokens=MOST),
        replace(one, system="Be brief."),
        replace(one, sampling=Sampling(temperature=1.0, top_k=20, seed=5)),
    )
    return dict(zip(KINDS, found, strict=True))


@pytest.fixture(scope="module")
def named(pair, clip, tmp_path_factory) -> Callable[[str], str]:
    """The spec with the tiny pair's own models in place of the shipped ones."""
    folder, event, own = tmp_path_factory.mktemp("heads"), str(pair.event), target_fingerprint(str(pair.target))
    some_heads(pair, folder, noise=0.5)
    model = load_drafter(event, "cpu", "float64", packed=False).model
    sizes = seen_by(pair.target, clip, "l4v")
    adapters = {"l4v": some_adapter("l4v", pair.target, pair.event, model, frames=3, **sizes)}
    adapters["l5"] = some_adapter("l5", pair.target, pair.event, model)
    adapters["vision_queries"] = some_vision("vision_queries", load_target(str(pair.target), "cpu"), pair.event)
    for name, adapter in adapters.items():
        (folder / name).mkdir()
        save_head(folder / name, adapter, name.split()[0], own, torch.float32)

    def with_models(spec: Spec) -> Spec:
        settings, name = dict(spec.settings), spec.name
        match name:
            case "event" | "foreign":
                name = event
            case "blind":
                name = str(pair.blind)
            case "text" | "model":
                name, settings["dir"] = "model", str(pair.target)
            case "event_medusa" | "glance":
                settings |= {"dir": str(folder / name), "model": event}
            case "predicted":
                settings |= {"dir": str(folder / "vision_queries"), "model": event}
            case "aligned":
                adapter = "l4v" if settings.pop("frames", None) else "l5"
                settings |= {"dir": str(folder / adapter), "model": event}
        return replace(spec, name=name, settings=settings, parts=tuple(map(with_models, spec.parts)))

    return lambda spec: str(with_models(read_spec(spec)))


@dataclass
class Matrix:
    """What a spec drafts in each placement, request by request."""

    target: str
    media: Path
    more: Mapping[str, str]

    def drafts(self, spec: str, placement: str, asked: Mapping[str, Request]) -> dict[str, Drafted]:
        if placement == "edge":
            with cloud(self.target, self.media, **self.more) as server, server.edge(spec) as edge:
                return {kind: edge.drafted(request) for kind, request in asked.items()}
        with engine_of(self.target, spec, placement, **self.more) as engine:
            return {kind: drafted(engine, request) for kind, request in asked.items()}

    def check(self, spec: str, asked: Mapping[str, Request], where: tuple[str, ...]) -> None:
        """The same is drafted in all these placements, and something is."""
        wanted, *others = (self.drafts(spec, placement, asked) for placement in where)
        for placement, found in zip(where[1:], others, strict=True):
            for kind in asked:
                assert found[kind] == wanted[kind], f"{spec}, {kind}: {placement} is not {where[0]}"
        assert any(len(tokens) > 0 for one in wanted.values() for tokens, _ in one.trees)


@pytest.fixture(scope="module")
def matrix(pair, media):
    return Matrix(str(pair.target), media, {"dtype": "float64"})


@pytest.mark.parametrize("spec", compared())
def test_a_drafter_drafts_the_same_wherever_it_works(spec, matrix, named, requests):
    own = named(spec)
    logits = "memory" in read_spec(own).names  # it recycles what the target thought likely, which no edge knows
    where = ("inline", "process") if logits or spec in (*MIXED, *SEEING) else placements(read_spec(own))
    matrix.check(own, dict(requests), where)


def test_a_text_model_drafts_the_same_wherever_it_works(pair, matrix, requests, tmp_path):
    """Also at an edge, as it reads no clip."""
    torch.manual_seed(0)
    LlamaForCausalLM(AutoConfig.from_pretrained(pair.target).text_config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(pair.target).save_pretrained(tmp_path)
    where = placements(read_spec(spec := f"model:dir={tmp_path}"))
    assert "edge" in where
    matrix.check(spec, {kind: requests[kind] for kind in ("one clip", "sampled")}, where)


def shipped():
    """The specs of records whose weights are shipped."""
    trained = {name for name, method in METHODS.items() if method.trained and not method.needs_target}
    return [spec for spec in SPECS if read_spec(spec).name in trained - {"model", "aligned"}]


@pytest.mark.slow
@encodes_clips
@pytest.mark.parametrize("spec", shipped())
def test_the_shipped_drafters_draft_the_same_wherever_they_work(spec, tmp_path_factory):
    folder = with_clip(tmp_path_factory.mktemp("scene"))
    one = Request("What is the car in front doing?", str(folder / "clip.mp4"), str(folder / "clip.h5"), 8)
    asked = {"two clips": replace(one, video=[one.video] * 2), "system": replace(one, system="Be brief.")}
    asked["sampled"] = replace(one, sampling=Sampling(temperature=1.0, seed=5))
    Matrix("reference", folder, {"dtype": "float32"}).check(spec, asked, placements(read_spec(spec)))


def test_a_placement_that_looks_at_other_frames_is_seen(matrix, named, requests, monkeypatch):
    """The control, in this process alone."""
    monkeypatch.setattr(
        "crossdraft.heads.glance.frame_encoder.evenly", lambda total, count: evenly(total, count + 1)[1:]
    )
    with pytest.raises(AssertionError, match="process is not inline"):
        matrix.check(named("glance"), {"one clip": requests["one clip"]}, ("inline", "process"))


def test_a_placement_that_draws_otherwise_is_seen(matrix, named, requests, monkeypatch):
    """The control for an edge, whose drafter is in this process: it draws by a seed that it was not given."""
    asked = {"sampled": requests["sampled"]}
    wanted = matrix.drafts(named("event"), "inline", asked)
    monkeypatch.setattr("crossdraft.drafters.base.choose", lambda dist, seed, at: choose(dist, seed + 1, at))
    found = matrix.drafts(named("event"), "edge", asked)
    assert found["sampled"].tokens == wanted["sampled"].tokens
    assert found["sampled"].trees != wanted["sampled"].trees
