"""A tiny event model over two clips of noise, and a target's answers about them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from crossdraft.models.eventgpt import EventGPTForConditionalGeneration, EventGPTProcessor
from crossdraft_lab.train.capture.shard import CapturedAnswer
from crossdraft_lab.train.heads.clip_answers import EventPromptCodec, PairedAnswers
from crossdraft_lab.train.reference.batches import BatchSpec
from crossdraft_lab.train.reference.clips import ClipCache
from crossdraft_lab.train.reference.models import TrainableEventGPT
from crossdraft_lab.train.reference.recipe import Jitter
from crossdraft_lab.train.reference.tokenizer import EVENT, PromptCodec
from tests.support import EVENT_FRAMES, SIDE, tiny_pair

CLIPS = 2
DEPTH, WIDTH = 3, 5  # of the target
TEXTS = (
    ("what is ahead?", "the car in front is turning left"),
    ("which light?", "red light"),
    ("what is the car doing?", "turning left near the red light."),
    ("near what?", "the light"),
)
CUT_SHORT = 1  # the answer that does not end by itself


class Store:
    """A capture of answers to the questions of `TEXTS`; the feature at position t of an answer is t everywhere."""

    folder = Path("here")

    def __init__(self, codec: PromptCodec, texts=TEXTS) -> None:
        self.index = type("Index", (), {"owner": type("Owner", (), {"depth": DEPTH})})
        self.rows = [
            (codec.question_ids(question), codec.answer_ids(text, whole=row != CUT_SHORT))
            for row, (question, text) in enumerate(texts)
        ]

    def answer(self, number, layers=(), visual_layers=()):
        assert layers in {(DEPTH,), ()}
        question, answer = self.rows[number]
        length = len(question) + len(answer)
        hidden = torch.arange(length - 1.0)[:, None].expand(-1, WIDTH)
        return CapturedAnswer(torch.tensor([*question, *answer]), len(question), {DEPTH: hidden}, torch.empty(0))


@dataclass(frozen=True)
class BatchFeatures:
    """Clips as training looks at them, without any adapter."""

    vlm: TrainableEventGPT
    spec: BatchSpec
    pool: int = CLIPS

    def numbers(self, step, count):
        return self.spec.clips(step, count)

    def visual(self, step, clips):
        return self.vlm.visual_tokens(self.vlm.patches(self.spec.pixels(step, clips)))


class DoubleDrafter(TrainableEventGPT):
    """In double precision, so that equal means equal."""

    def patches(self, pixels):
        return TrainableEventGPT.patches(self, pixels.double())


@pytest.fixture(scope="module")
def paired(tmp_path_factory) -> PairedAnswers:
    """Two answers about each of two clips of noise; `paired.features.vlm` is the event model that reads them."""
    folder = tmp_path_factory.mktemp("events")
    pair = tiny_pair(folder)
    model = EventGPTForConditionalGeneration.from_pretrained(pair.event, attn_implementation="sdpa").double()
    cache = ClipCache(folder / "cache", SIDE, event_frames=EVENT_FRAMES)
    cache.folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 2, (CLIPS, EVENT_FRAMES, SIDE, SIDE), dtype=np.uint8)
    noise[1] *= 2  # the second clip's events are of the other polarity
    np.save(cache.path("events", "train", 0), noise)
    features = BatchFeatures(DoubleDrafter(model), BatchSpec(cache, "events", CLIPS, Jitter(), 0))
    processor = EventGPTProcessor.from_pretrained(pair.event)
    store, questions = Store(PromptCodec(processor.tokenizer, EVENT)), [question for question, _ in TEXTS]
    by_clip = {0: [0, 1], 1: [2, 3]}
    return PairedAnswers(store, features, by_clip, CLIPS, 2, 0, EventPromptCodec(processor), questions.__getitem__)
