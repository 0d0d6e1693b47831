"""Sources and records made by hand, and tiny models to answer for them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from crossdraft.engine.target import Target
from crossdraft.train.capture.clip import Clip
from crossdraft.train.capture.plan import Owner, Plan
from crossdraft.train.capture.shard import ClipRecord, Told, Wanted
from tests.engine.zoo import ZOO, as_target

WIDTH, VOCABULARY = 4, 99
WANTED = Wanted((1, 3), (0,), top_k=2, max_new_tokens=12)


@dataclass(frozen=True)
class Given:
    """Clips that are simply there; the zoo's models bring their own pixels."""

    clips: tuple[Clip, ...]
    name: str = "given"

    @property
    def asked(self) -> Mapping[str, object]:
        return {"kind": self.name}

    @property
    def heavy(self) -> bool:
        return False

    def __len__(self) -> int:
        return len(self.clips)

    @property
    def answers(self) -> int:
        return sum(len(clip.prompts) for clip in self.clips)

    def locate(self, answer: int) -> tuple[int, int]:
        places = [(c, p) for c, clip in enumerate(self.clips) for p in range(len(clip.prompts))]
        return places[answer]

    def read(self, index: int) -> Clip:
        return self.clips[index]


def some_clips(count: int, prompts: int = 3) -> tuple[Clip, ...]:
    """Clips with questions of different lengths, which is all that a zoo model's `prepare` reads of them."""
    return tuple(Clip(f"clip {c}", None, tuple("?" * (1 + 7 * c + p) for p in range(prompts))) for c in range(count))


def zoo_target(name: str = "video_llava") -> Target:
    return as_target(*ZOO[name]())


def zoo_plan(source: Given, target: Target | None = None, wanted: Wanted = WANTED, **settings: int) -> Plan:
    target = target or zoo_target()
    owner = Owner("zoo", "0" * 64, 3, 64, VOCABULARY, "float64")
    return Plan(target, owner, source, wanted, **{"batch": 4, "workers": 0, "shard_clips": 2, **settings})


def record(visual: int, *answers: tuple[int, int], base: int = 0) -> ClipRecord:
    """A first piece of `visual` tokens, and answers of (length of the last piece, length of the answer).

    Every token and feature is a number of its own: tokens count on from `base`, the feature of layer k at the place of
    token t is t + k / 8 in each of its columns.
    """
    told, at = [], base + visual
    for text, said in answers:
        tokens = torch.arange(at, at + text + said)
        fed = tokens[:-1, None].expand(-1, WIDTH)
        hidden = {layer: (fed + layer / 8).bfloat16() for layer in WANTED.layers}
        ids = tokens[text:, None] + torch.tensor([0, 1])
        told.append(Told(tokens, text, hidden, ids, -ids.float()))
        at += text + said
    ids = torch.arange(base, base + visual)
    return ClipRecord(ids, tuple(told), {0: ids[:, None].expand(-1, WIDTH).bfloat16()})
