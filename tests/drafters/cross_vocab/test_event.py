"""An EventGPT of another vocabulary: it drafts for the target all the same, and changes nothing of its answers."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from crossdraft.api import Engine
from crossdraft.drafters import base
from crossdraft.drafters.cross_vocab.slem import StringLevelMatch
from crossdraft.drafters.cross_vocab.tli import TokenIntersection
from crossdraft.engine.reference import full_forward
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling, warp
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.files import fingerprint
from crossdraft.options import Options
from tests.heads.small import some_heads
from tests.support import ClipPaths, PairPaths

OPTIONS = Options(placement="inline", device="cpu", dtype="float64", max_batch=3, nodes=6, adaptive=False)
QUESTIONS = ("What is ahead?", "Describe the road.", "Is it raining?")
MERGES_LEFT = 20  # of the target's; so its texts are other tokens here, most of them shorter
DRAWS, LENGTH = 400, 3


@pytest.fixture(scope="module")
def foreign(pair: PairPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The event model with every ordinary token at another id, and a tokenizer that knows few of the merges."""
    folder = tmp_path_factory.mktemp("foreign") / "event"
    shutil.copytree(pair.event, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {token["content"] for token in tokenizer["added_tokens"]}
    vocabulary = tokenizer["model"]["vocab"]
    ordinary = sorted(i for token, i in vocabulary.items() if token not in special)
    other = dict(zip(ordinary, reversed(ordinary), strict=True))
    tokenizer["model"]["vocab"] = {token: other.get(i, i) for token, i in vocabulary.items()}
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:MERGES_LEFT]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    weights = load_file(folder / "model.safetensors")
    for name in ("lm_head.weight", "model.language_model.embed_tokens.weight"):
        weights[name][ordinary] = weights[name][ordinary[::-1]].clone()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def requests(clip: ClipPaths, sampling: Sampling) -> list[Request]:
    return [Request(text, str(clip.video), str(clip.events), 20, sampling=sampling) for text in QUESTIONS]


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("{}", StringLevelMatch),
        ("event:dir={},how=slem", StringLevelMatch),
        ("event:dir={},how=tli", TokenIntersection),
        ("{}:how=omni", TokenIntersection),
    ],
)
def test_greedy_answers_are_the_targets_own(
    foreign: Path, pair: PairPaths, clip: ClipPaths, spec: str, kind: type
) -> None:
    asked = requests(clip, Sampling())
    with Engine.load(str(pair.target), None, OPTIONS) as engine:
        alone = [answer.tokens for answer in engine.generate(asked)]
    with Engine.load(str(pair.target), spec.format(foreign), OPTIONS) as engine:
        assert isinstance(engine.drafter.drafter, kind)
        assert engine.drafter.drafter.needs.video is False
        first, again = engine.generate(asked), engine.generate(asked)
    assert [answer.tokens for answer in first] == [answer.tokens for answer in again] == alone
    assert not any(answer.other_notes for answer in first)
    assert sum(answer.stats.accepted for answer in first) > 5  # it is understood


def test_it_drafts_in_a_process_of_its_own(foreign: Path, pair: PairPaths, clip: ClipPaths) -> None:
    asked = requests(clip, Sampling())
    with Engine.load(str(pair.target), None, OPTIONS) as engine:
        alone = [answer.tokens for answer in engine.generate(asked)]
    with Engine.load(str(pair.target), f"event:dir={foreign}", replace(OPTIONS, placement="process")) as engine:
        found = engine.generate(asked)
    assert [answer.tokens for answer in found] == alone
    assert sum(answer.stats.accepted for answer in found) > 5


def test_the_same_vocabulary_may_be_crossed_too(pair: PairPaths, clip: ClipPaths) -> None:
    asked = requests(clip, Sampling())
    with Engine.load(str(pair.target), None, OPTIONS) as engine:
        alone = [answer.tokens for answer in engine.generate(asked)]
    with Engine.load(str(pair.target), f"event:dir={pair.event},how=tli", OPTIONS) as engine:
        assert isinstance(engine.drafter.drafter, TokenIntersection)
        assert [answer.tokens for answer in engine.generate(asked)] == alone


@pytest.mark.parametrize("rule", ["gumbel", "rejection"])
def test_sampled_answers_follow_the_targets_distribution(
    foreign: Path, pair: PairPaths, clip: ClipPaths, rule: str
) -> None:
    assert distance(foreign, pair, clip, "tli", rule) < 0.1  # about 0.05 is expected of 400 draws over 8 outcomes


def test_a_planted_bug_in_sampling_is_seen(
    foreign: Path, pair: PairPaths, clip: ClipPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the likeliest token is drafted, and reported as drawn."""
    monkeypatch.setattr(base, "sample_one", lambda dist, generator: int(dist.argmax()))
    assert distance(foreign, pair, clip, "tli", "rejection", draws=150) > 0.2


def distance(foreign: Path, pair: PairPaths, clip: ClipPaths, how: str, rule: str, draws: int = DRAWS) -> float:
    """Total variation of sampled answers, three tokens of the two likeliest each, from the exact distribution."""
    sampling = Sampling(temperature=4.0, top_k=2)
    request = Request(QUESTIONS[0], str(clip.video), str(clip.events), LENGTH)
    asked = [replace(request, sampling=replace(sampling, seed=seed)) for seed in range(draws)]
    with Engine.load(str(pair.target), f"event:dir={foreign},how={how}", replace(OPTIONS, rule=rule)) as engine:
        exact = joint(engine.target, request, sampling)
        answers = engine.generate(asked)
    assert sum(answer.stats.drafted for answer in answers) > draws / 2
    found = Counter(answer.tokens for answer in answers)
    return 0.5 * sum(abs(found[tokens] / draws - exact.get(tokens, 0.0)) for tokens in {*exact, *found})


def joint(target: Target, request: Request, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The exact probability of each answer."""
    prompt = target.prepare(request)
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        longer: dict[tuple[int, ...], float] = {}
        for tokens, probability in found.items():
            if not target.eos.isdisjoint(tokens):
                longer[tokens] = probability
                continue
            q = warp(full_forward(target, prompt, list(tokens)), sampling)
            for token in q.nonzero().flatten().tolist():
                longer[*tokens, token] = probability * float(q[token])
        found = longer
    return found


@pytest.mark.parametrize("setting", ["words=2", "words=3"])
def test_a_tree_does_not_cross_vocabularies(foreign: Path, pair: PairPaths, setting: str) -> None:
    with pytest.raises(CrossdraftError, match="what crosses vocabularies is a chain; leave out how, or words"):
        Engine.load(str(pair.target), f"event:how=slem,{setting}", OPTIONS)
    with pytest.raises(CrossdraftError, match="another vocabulary than the target, and what crosses vocabularies is a"):
        Engine.load(str(pair.target), f"event:dir={foreign},{setting}", OPTIONS)


def test_one_model_is_named_once(foreign: Path, pair: PairPaths) -> None:
    with pytest.raises(CrossdraftError, match="names two models; write event:dir="):
        Engine.load(str(pair.target), f"blind:dir={foreign}", OPTIONS)


def test_a_head_on_an_event_model_needs_the_targets_vocabulary(foreign: Path, pair: PairPaths, tmp_path: Path) -> None:
    with pytest.raises(CrossdraftError, match=r"another event model than .*; name its own with model=FOLDER"):
        Engine.load(str(pair.target), f"glance:model={foreign}", OPTIONS)
    own = some_heads(pair, tmp_path) / "event_medusa"
    described = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps({**described, "target": fingerprint(foreign)}))
    with pytest.raises(CrossdraftError, match=r"another vocabulary than the target.*event:dir=FOLDER"):
        Engine.load(str(pair.target), f"event_medusa:dir={own},model={foreign}", OPTIONS)
