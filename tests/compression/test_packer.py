"""TokenPacker: its attention by its definition and the authors' code, where its tokens stand, and who reads them."""

import json
import math

import pytest
import torch
from torch.nn import functional as F

from crossdraft.compressions import compressed
from crossdraft.engine.encoded import visual_rows
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import load_head, save_head
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.load import load_target, target_fingerprint
from crossdraft_lab.compression import packer_network
from crossdraft_lab.compression.packer import (
    TokenPackerSettings,
    default_heads,
    default_levels,
    encoder_levels,
    token_packer_target,
)
from crossdraft_lab.compression.packer_network import TokenPacker, TokenPackerConfig, regions
from tests.engine.zoo import ZOO, as_target

FRAMES, SIZE, LEVELS = 3, 8, (1, 2)


def some_packer(side=4, class_token=True, *, hidden=12, size=SIZE, levels=LEVELS, shared=None):
    shared = shared or SharedWeights(torch.zeros(20, hidden), torch.zeros(20, hidden))
    vocabulary, hidden = shared.embeddings.shape
    torch.manual_seed(0)
    packer = TokenPacker(
        TokenPackerConfig(
            hidden_size=hidden, vocab_size=vocabulary, num_layers=2, draft_ids=(3, 4), source_size=size, levels=levels,
            side=side, class_token=class_token, heads=2,
        ),
        shared,
    )  # fmt: skip
    with torch.no_grad():
        for weight in packer.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.3)
    return packer.eval()


@torch.no_grad()
def by_definition(packer, source):
    """[F, P, L·S] -> [F, M, H], query by query: the patches of its region are looked up on the grid."""
    side, size, heads = packer.config.side, SIZE, packer.config.heads
    count = side // packer.config.factor
    width = math.ceil(side / count)
    attention, found = packer.attention, []
    for frame in source:
        grid = frame[int(packer.config.class_token) :].view(side, side, -1)
        last = grid[..., -size:].permute(2, 0, 1)[None]
        coarse = F.interpolate(last, (count, count), mode="bilinear")[0].permute(1, 2, 0)
        tokens = [packer.mlp(frame[0, -size:])] if packer.config.class_token else []
        for row in range(count):
            for column in range(count):
                top, left = (at * (side - width) // max(1, count - 1) for at in (row, column))
                region = grid[top : top + width, left : left + width].flatten(0, 1)
                inputs = (
                    packer.query_norm(packer.query_proj(coarse[row, column])),
                    packer.key_norm(packer.key_proj(region)),
                    packer.value_norm(packer.value_proj(region)),
                )
                parts = zip(inputs, attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True)
                query, key, value = (
                    F.linear(one, weight, bias).unflatten(-1, (heads, -1)) for one, weight, bias in parts
                )
                scores = torch.einsum("hd,rhd->hr", query, key) / math.sqrt(size // heads)
                mixed = torch.einsum("hr,rhd->hd", scores.softmax(-1), value).flatten()
                tokens.append(packer.mlp(attention.out_proj(mixed)))
        found.append(torch.stack(tokens))
    return torch.stack(found)


# What the authors' own module (CircleRadon/TokenPacker, commit 771a16e) made, in double precision, of the inputs and
# weights that `noise` writes: a frame of 4 x 4 patches with 4 x 1024 features, packed by 2 into tokens of 4.
OF_THE_AUTHORS = (
    (-89.1649457630, 174.4963175579, 200.8861565617, -79.5422805327),
    (-80.9746190109, 166.4567670702, 191.9645868980, -72.3689591969),
    (-58.4704481106, 135.6808784491, 155.4282209990, -54.2871727686),
    (-57.9374749593, 142.9369472609, 169.9025752756, -55.6903268822),
)
ORDER = (  # of the authors' weights
    "query_proj.weight", "key_proj.0.weight", "key_proj.0.bias", "key_proj.2.weight", "key_proj.2.bias",
    "value_proj.0.weight", "value_proj.0.bias", "value_proj.2.weight", "value_proj.2.bias", "query_norm.weight",
    "query_norm.bias", "key_norm.weight", "key_norm.bias", "value_norm.weight", "value_norm.bias",
    "attention.in_proj_weight", "attention.in_proj_bias", "attention.out_proj.weight", "attention.out_proj.bias",
    "mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias",
)  # fmt: skip


def noise(shape, number):
    """-2 … 2, the same on every machine."""
    phase = torch.arange(math.prod(shape), dtype=torch.float64) + 0.5 * number
    return (2 * torch.frac(torch.sin(phase * 12.9898) * 43758.5453)).reshape(shape)


@pytest.fixture(scope="module")
def published():
    """A packer of the published sizes, with the weights of `OF_THE_AUTHORS`, and its input."""
    shared = SharedWeights(torch.zeros(9, 4).double(), torch.zeros(9, 4).double())
    packer = TokenPacker(
        TokenPackerConfig(
            hidden_size=4, vocab_size=9, num_layers=2, draft_ids=(3,), source_size=1024, levels=(12, 16, 22, 23),
            side=4, class_token=False, heads=default_heads(1024),
        ),
        shared,
    ).double().eval()  # fmt: skip
    weights = dict(packer.named_parameters())
    assert set(ORDER) == {name for name in weights if name != "lm_head.weight"}
    for number, name in enumerate(ORDER):
        scale = 2 / math.sqrt(weights[name].shape[-1]) if weights[name].dim() > 1 else 0.3
        first = 1.0 if name.endswith("norm.weight") else 0.0
        weights[name].data.copy_(first + scale * noise(weights[name].shape, number))
    return packer, noise((1, 1, 16, 4096), 100)


@torch.no_grad()
def test_it_is_what_the_authors_code_makes(published):
    packer, source = published
    assert torch.allclose(packer.predict(source)[0], torch.tensor(OF_THE_AUTHORS).double(), rtol=0, atol=1e-5)


@torch.no_grad()
def test_another_algorithm_is_not_what_the_authors_code_makes(published, monkeypatch):
    """The planted bugs: regions that are no squares, and queries of the first level in place of the last."""
    packer, source = published
    wanted = torch.tensor(OF_THE_AUTHORS).double()
    assert not torch.allclose(packer.predict(source.roll(1024, -1))[0], wanted, rtol=0, atol=1)
    monkeypatch.setattr(packer, "regions", torch.arange(16).view(4, 4))
    assert not torch.allclose(packer.predict(source)[0], wanted, rtol=0, atol=1)


@pytest.mark.parametrize(("side", "class_token"), [(4, False), (4, True), (7, True), (2, True), (6, False)])
def test_it_is_what_the_paper_defines(side, class_token):
    packer = some_packer(side, class_token)
    source = torch.randn(2, FRAMES, side**2 + class_token, len(LEVELS) * SIZE)
    found = packer.predict(source)
    assert found.shape == (2, FRAMES * ((side // 2) ** 2 + class_token), 12)
    for clip, wanted in zip(found, source, strict=True):
        assert torch.allclose(clip.view(FRAMES, -1, 12), by_definition(packer, wanted), atol=1e-5)


def test_regions_of_other_patches_would_be_noticed(monkeypatch):
    """The planted bug: a region is a run of patches, row by row, and no square."""
    monkeypatch.setattr(packer_network, "regions", lambda side, factor: torch.arange(side**2).view(-1, factor**2))
    packer, source = some_packer(4), torch.randn(1, FRAMES, 17, 2 * SIZE)
    assert not torch.allclose(
        packer.predict(source)[0].view(FRAMES, -1, 12), by_definition(packer, source[0]), atol=1e-3
    )


def test_regions_by_hand():
    """Of 4 x 4 they tile; of 7 x 7 nine of 3 x 3 overlap, and leave no patch out."""
    assert regions(4, 2).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert regions(7, 2)[0].tolist() == [0, 1, 2, 7, 8, 9, 14, 15, 16]
    assert regions(7, 2)[-1].tolist() == [32, 33, 34, 39, 40, 41, 46, 47, 48]
    for side in range(2, 12):
        for factor in range(2, side + 1):
            assert sorted(set(regions(side, factor).flatten().tolist())) == list(range(side**2))


def test_levels_are_those_of_the_authors():
    """Of CLIP's large encoder 12, 16, 22 and 23, whose last the projector reads; of five layers 2, 3 and 4."""

    class Config:
        vision_feature_layer = -2

        def __init__(self, depth):
            self.vision_config = type("Vision", (), {"num_hidden_layers": depth})

    assert default_levels(Config(24)) == (12, 16, 22, 23)
    assert default_levels(Config(5)) == (2, 3, 4)


def test_every_weight_learns():
    packer = some_packer()
    packer.predict(torch.randn(2, FRAMES, 17, 2 * SIZE)).square().sum().backward()
    learning = {name: weight for name, weight in packer.named_parameters() if weight.requires_grad}
    assert "lm_head.weight" not in learning
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in learning.values())


@pytest.fixture(scope="module")
def target(pair):
    return load_target(str(pair.target), "cpu", "float32", packed=False)


@pytest.fixture
def folder(pair, target, tmp_path):
    """A packer for the target: 8 frames of 2 x 2 patches and a class token, 40 visual tokens in 16."""
    size = target.model.config.vision_config.hidden_size
    packer = some_packer(
        2, size=size, levels=default_levels(target.model.config), shared=SharedWeights.of(target.model)
    )
    save_head(tmp_path, packer, "token_packer", target_fingerprint(str(pair.target)), torch.float32)
    return tmp_path


@pytest.fixture
def question(clip):
    return Request("What is ahead?", str(clip.video), max_new_tokens=12)


def test_the_last_level_is_what_the_projector_reads(target, question):
    prompt = target.prepare(question)
    levels = default_levels(target.model.config)
    with torch.no_grad():
        rows = target.model.model.multi_modal_projector(encoder_levels(target, prompt, levels[-1:])).flatten(0, 1)
    assert torch.allclose(rows, visual_rows(target.encode(prompt)["video"]), atol=1e-5)


def test_a_target_reads_packed_frames_at_the_places_of_their_patches(pair, target, folder, question):
    made = token_packer_target(target, TokenPackerSettings(folder))
    source = target_fingerprint(str(pair.target))
    packer = load_head(folder, SharedWeights.of(target.model), source, "token_packer")
    whole, packed = target.prepare(question), made.prepare(question)
    assert len(whole) - len(packed) == 8 * (5 - 2)
    rows = visual_rows(made.encode(packed)["video"])
    levels = encoder_levels(target, whole, packer.config.levels)
    assert torch.equal(rows, packer.predict(levels[None])[0])
    positions, delta = packed.positions(None)
    assert delta == len(whole) - len(packed)
    first = next(i for i, token in enumerate(packed.input_ids.tolist()) if token in target.traits.visual_ids)
    assert positions[first : first + 16].tolist() == [first + 5 * frame + at for frame in range(8) for at in (0, 1)]
    assert positions[-1] == len(whole) - 1


def test_it_answers_otherwise_and_says_so(target, folder, question):
    own = DecodeLoop(target, None).generate([question])[0]
    made = compressed(target, f"token_packer:dir={folder}")
    answer = DecodeLoop(made, None).generate([question])[0]
    assert answer.tokens != own.tokens
    assert answer.other_notes == ("Lossy: the target reads its clip compressed (token_packer).",)
    assert answer.stats.prompt_tokens == own.stats.prompt_tokens - 24
    text = Request(messages=[{"role": "user", "content": "What is ahead?"}], max_new_tokens=8)
    assert DecodeLoop(made, None).generate([text])[0].tokens == DecodeLoop(target, None).generate([text])[0].tokens


def test_what_does_not_fit_is_refused(target, folder, tmp_path_factory):
    with pytest.raises(CrossdraftError, match="is the reference target's; write token_packer:dir=FOLDER"):
        compressed(target, "token_packer")
    with pytest.raises(CrossdraftError, match="holds no head"):
        compressed(target, f"token_packer:dir={tmp_path_factory.mktemp('bare')}")
    with pytest.raises(CrossdraftError, match="with a vision encoder of clips, such as Video-LLaVA"):
        compressed(as_target(*ZOO["llava_onevision"]()), f"token_packer:dir={folder}")
    with pytest.raises(CrossdraftError, match="2 x 2 patches cannot be packed by 3"):
        TokenPackerConfig(
            hidden_size=8, vocab_size=9, num_layers=2, draft_ids=(3,), source_size=8, levels=(1,), side=2,
            class_token=True, heads=2, factor=3,
        )  # fmt: skip
    with pytest.raises(CrossdraftError, match="3 attention heads do not divide 8 features"):
        TokenPackerConfig(
            hidden_size=8, vocab_size=9, num_layers=2, draft_ids=(3,), source_size=8, levels=(1,), side=2,
            class_token=True, heads=3,
        )  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "target": "another"}))
    with pytest.raises(CrossdraftError, match="trained for another target"):
        compressed(target, f"token_packer:dir={folder}")
