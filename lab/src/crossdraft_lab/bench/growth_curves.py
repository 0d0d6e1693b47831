"""The five curves of `bench growth`: what runs at each size, ours and Hugging Face's."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from crossdraft.checkpoints.locate import REFERENCE
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.decode import Decoder
from crossdraft.engine.devices import resolve
from crossdraft.engine.fast.packed_linear import prepack
from crossdraft.engine.fast.unused_layers import pass_unread
from crossdraft.engine.processors import generation_config
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft.methods import read_spec
from crossdraft_lab import scenes
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.baselines import LOOKUP_TOKENS, HFBaseline
from crossdraft_lab.bench.growth import Answers, Case, Curve, Way
from crossdraft_lab.bench.memory import LENGTH, MemoryTiming, time_memory
from crossdraft_lab.bench.scale_models import no_text
from crossdraft_lab.bench.workload import Item

NEW_TOKENS = 16  # of an answer where something else grows
ROUND_TOKENS = 32  # of each of several requests' answers
RANDOM = "random weights in the reference target's shape, its context lengthened"
SMALL = "random weights, a decoder of 2 layers of width 128"
QUESTION = "What is ahead?"
LOOKUPS, NODES = 20, 32


@dataclass(frozen=True, slots=True)
class TwinTarget:
    """The same target twice, ours and as Hugging Face has it, and what drafts for ours.

    Args:
        ours, plain: the target.
        drafter: its spec.
        runner: the drafter, in this process.
        cost: what ours knows of its times, from one answer to the next.
    """

    ours: Target
    plain: Target
    drafter: str
    runner: DraftRunner[Any]
    cost: CostModel = field(default_factory=CostModel)

    def answered(self, requests: Sequence[Request], batch: int = 1) -> Answers:
        """Our engine's answers; nothing is kept from one call to the next."""
        decoder = Decoder(self.ours, self.runner, max_batch=batch, cost=self.cost)
        return [answer.tokens for answer in decoder.generate(requests)]

    def generated(self, request: Request) -> Answers:
        """Hugging Face's answer."""
        return [HFBaseline(self.plain).answer(Item(0, "growth", request)).tokens]

    def both(self, size: int, request: Request) -> Case:
        """One request at this size."""
        return Case(size, Way(lambda: self.answered([request])), Way(lambda: self.generated(request)))


@dataclass(frozen=True, slots=True)
class SizedPrompt:
    """A `prepare` that makes the prompt which a request names by its size."""

    make: Callable[[int], Prompt]

    def __call__(self, request: Request) -> Prompt:
        return self.make(int(request.prompt))


def frames(sizes: Sequence[int], models: Models, drafter: str) -> Curve:
    """Clips of more and more frames, random pixels."""
    config = reference_config(sizes[-1] * 50 + 256)
    side = config.vision_config.image_size
    each = (side // config.vision_config.patch_size) ** 2 + 1

    def prompt(count: int) -> Prompt:
        generator = torch.Generator().manual_seed(count)
        pixels = torch.randn(1, count, 3, side, side, generator=generator)
        text = torch.randint(3, 4000, (24,), generator=generator)
        clip = torch.full((count * each,), config.video_token_index)
        return Prompt(torch.cat([text[:4], clip, text[4:]]), {"pixel_values_videos": pixels})

    pair = random_pair(config, prompt, models, drafter)
    return pair_curve("frames", RANDOM, pair, sizes, NEW_TOKENS)


def prompts(sizes: Sequence[int], models: Models, drafter: str) -> Curve:
    """Prompts of more and more tokens, all of them text."""
    config = reference_config(sizes[-1] + 256)
    text = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2}
    for name, value in {**text, "num_key_value_heads": 2, "head_dim": 64}.items():
        setattr(config.text_config, name, value)

    def prompt(count: int) -> Prompt:
        return Prompt(torch.randint(3, 4000, (count,), generator=torch.Generator().manual_seed(count)))

    return pair_curve("prompt", SMALL, random_pair(config, prompt, models, drafter), sizes, NEW_TOKENS)


def answers(sizes: Sequence[int], models: Models, drafter: str) -> Curve:
    """Answers of more and more tokens about one clip; no end of the answer before."""
    pair, clip = loaded_pair(models, drafter), made_clips(1)[0]
    least = [Sampling(min_new_tokens=size) for size in sizes]
    cases = (
        pair.both(size, Request(QUESTION, clip, max_new_tokens=size, sampling=sampling))
        for size, sampling in zip(sizes, least, strict=True)
    )
    return Curve("answer", _weights(models), _ours(pair), "generate", cases)


def requests(sizes: Sequence[int], models: Models, drafter: str) -> Curve:
    """More and more requests at a time, each about a clip of its own."""
    pair, clips = loaded_pair(models, drafter), made_clips(sizes[-1])
    kinds = [scenes.wordings(kind, True)[0] for kind in scenes.KINDS]
    asked = [Request(kinds[i % len(kinds)], clip, max_new_tokens=ROUND_TOKENS) for i, clip in enumerate(clips)]
    cases = (
        Case(
            size,
            Way(lambda size=size: pair.answered(asked[:size], size)),
            Way(lambda size=size: generated_together(pair.plain, asked[:size])),
        )
        for size in sizes
    )
    return Curve("requests", _weights(models), f"{_ours(pair)}, all in a batch", "generate, padded batch", cases)


def memory(sizes: Sequence[int], models: Models, drafter: str) -> Curve:
    """A draft out of a memory of more and more tokens, beside a prompt lookup in as many tokens."""
    del models, drafter

    def case(size: int) -> Case:
        found: MemoryTiming = time_memory(size, NODES)

        def looked_up() -> Answers:
            ids = torch.from_numpy(np.random.default_rng(0).integers(0, 32_000, (1, size)))
            lookup = PromptLookupCandidateGenerator(None, LOOKUP_TOKENS, max_length=2 * size)
            for _ in range(LOOKUPS):
                lookup.get_candidates(cast("torch.LongTensor", ids))
            return []

        ours = Way(held_bytes=int(found.megabytes * 1e6), seconds=found.draft.median)
        return Case(size, ours, Way(looked_up, LOOKUPS, 8 * size), compared=False)

    named = f"a draft of up to {NODES} nodes from the drafter memory"
    return Curve("memory", f"made-up answers of {LENGTH} tokens", named, "prompt lookup in one text", map(case, sizes))


CURVES: dict[str, Callable[[Sequence[int], Models, str], Curve]] = {
    "frames": frames,
    "prompt": prompts,
    "answer": answers,
    "requests": requests,
    "memory": memory,
}
DRAFTERS = {"answer": "eagle2", "requests": "eagle2"}  # random weights have no trained head
ANY_DRAFTER = "ngram"


def make_curve(of: str, sizes: Sequence[int], models: Models) -> Curve:
    """A curve, with the drafter that its weights allow; the shipped one's only with the shipped target."""
    drafter = DRAFTERS.get(of, ANY_DRAFTER) if models.target == "reference" else ANY_DRAFTER
    return CURVES[of](sizes, models, drafter)


def pair_curve(of: str, weights: str, pair: TwinTarget, sizes: Sequence[int], tokens: int) -> Curve:
    """One request at each size, which its prompt names."""
    cases: Iterator[Case] = (pair.both(size, Request(str(size), max_new_tokens=tokens)) for size in sizes)
    return Curve(of, weights, _ours(pair), "generate", cases)


def reference_config(context: int) -> Any:
    """The reference target's configuration with another context length."""
    config = AutoConfig.from_pretrained(REFERENCE / "target")
    config.text_config.max_position_embeddings = max(context, config.text_config.max_position_embeddings)
    return config


def random_pair(config: Any, prompt: Callable[[int], Prompt], models: Models, drafter: str) -> TwinTarget:
    """A model with random weights, twice; it never ends an answer by itself."""
    device = resolve(models.device)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    plain = model.requires_grad_(False).eval().to(device)
    packed = deepcopy(plain)
    if device.type == "cpu":
        pass_unread(packed)
        prepack(packed)
    ours, theirs = (Target(one, SizedPrompt(prompt), no_text, eos=()) for one in (packed, plain))
    return made_pair(ours, theirs, replace(models, target="reference"), drafter)


def loaded_pair(models: Models, drafter: str) -> TwinTarget:
    """The target, twice."""
    return made_pair(models.load_target(), models.load_target(packed=False), models, drafter)


def made_pair(ours: Target, plain: Target, models: Models, drafter: str) -> TwinTarget:
    """The pair with its drafter."""
    built = models.build(read_spec(drafter), ours)
    return TwinTarget(ours, plain, drafter, DraftRunner(built, "auto", ours.device))


def made_clips(count: int) -> list[Any]:
    """Decoded clips, uint8 [8, H, W, 3], of held-out scenes."""
    times = np.linspace(0, round(scenes.DURATION_S * scenes.VIDEO_FPS) - 1, 8, dtype=int) / scenes.VIDEO_FPS
    seeds = scenes.split_seeds("test")[:count]
    return [scenes.render(scenes.make_scene(seed), times, scenes.VIDEO_SIZE) for seed in seeds]


@torch.inference_mode()
def generated_together(target: Target, asked: Sequence[Request]) -> Answers:
    """Hugging Face's answers to several requests in one batch, padded on the left."""
    found = [target.prepare(request) for request in asked]
    longest = max(map(len, found))
    ids = torch.zeros(len(found), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(found):
        ids[row, longest - len(prompt) :], mask[row, longest - len(prompt) :] = prompt.input_ids, 1
    request = target.defaults.resolve(asked[0])
    eos = sorted(target.eos)
    config = generation_config(request.sampling, eos, longest, ROUND_TOKENS)
    names = found[0].features
    features = {name: torch.cat([prompt.features[name] for prompt in found]).to(target.device) for name in names}
    model: Any = target.model
    sent = {"input_ids": ids.to(target.device), "attention_mask": mask.to(target.device), **features}
    out = model.generate(**sent, generation_config=config)[:, longest:].tolist()
    return [_until_end(tokens, target.eos) for tokens in out]


def _until_end(tokens: list[int], eos: frozenset[int]) -> list[int]:
    """A row of a padded batch, up to the end of its answer."""
    end = next((i for i, token in enumerate(tokens) if token in eos), len(tokens) - 1)
    return tokens[: end + 1]


def _weights(models: Models) -> str:
    return "the reference pair" if models.target == "reference" else models.target


def _ours(pair: TwinTarget) -> str:
    return f"the engine with {pair.drafter}"
