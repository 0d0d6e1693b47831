"""Drafts of a checkpoint's own MTP layers, node by node against other implementations; answers are the target's own."""

from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import crossdraft as cd
from crossdraft.api import default_drafter
from crossdraft.checkpoints.mtp import has_mtp
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.drafter import Draft
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.opening import Opening
from crossdraft.engine.prefix_cache import PrefixCache
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.heads.drafting.head_drafter import TREES
from crossdraft.heads.mtp.drafter import MtpDrafter
from crossdraft.heads.mtp.load import load_mtp
from crossdraft.load import adapt_model
from crossdraft_lab.bench.identity import choose_configs
from tests.engine.zoo import IMAGE, ROPE, SPACE_TIME, TEXT, VIDEO, as_target, build, patches, stamped_frames
from tests.heads.mtp.folders import EXPERTS, LATENT, add_mtp, save_kimi, save_text, text_model
from tests.heads.mtp.oracles import of_qwen3_5, of_transformers, stored_mtp
from tests.tiny_families import save_family

REQUESTS = [Request("x" * length, max_new_tokens=12) for length in (1, 2, 1, 3)]  # the third is the first again
KINDS = ["sliding_attention", "full_attention"]
STEP = {
    "layer_types": KINDS, "mlp_layer_types": ["sparse", "dense"], "sliding_window": 8, "moe_intermediate_size": 32,
    "share_expert_dim": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "head_dim": 16,
    "num_sliding_attention_heads": 4, "num_hidden_layers": 2, "num_nextn_predict_layers": 3,
    "mtp_mlp_layer_types": ["dense"] * 3,
    "mtp_layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in KINDS},
}  # fmt: skip
DELTA = {
    "layer_types": ["linear_attention", "linear_attention", "full_attention"], "linear_num_value_heads": 4,
    "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
}  # fmt: skip
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 1, "patch_size": 4}


def step3p7():
    """A VLM with three MTP layers, one of which slides."""
    config = transformers.Step3p7Config(
        text_config=TEXT | STEP, vision_config=TOWER | {"image_size": 16}, image_token_id=IMAGE
    )
    pixels = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(7))
    model = build(transformers.Step3p7ForConditionalGeneration, config, "sdpa")
    return model, Prompt(torch.tensor([1, 5, 6, IMAGE, 7, 8, 9]), {"pixel_values": pixels})


def kimi_k25():
    """A VLM whose attention has latent keys and values, with experts."""
    text = TEXT | EXPERTS | LATENT | {"n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
    config = transformers.Kimi_K25Config(
        text_config=text | {"num_key_value_heads": 4},
        vision_config=TOWER | {"pos_emb_height": 8, "pos_emb_width": 8, "pos_emb_time": 4},
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        projection_hidden_size=32,
    )
    prompt = patches(torch.tensor([1, 5, 96, *[IMAGE] * 6, 95, 7, 8, 9]), IMAGE, "image")
    pixels = prompt.features["pixel_values"][:, :48].reshape(-1, 3, 4, 4)
    model = build(transformers.Kimi_K25ForConditionalGeneration, config, "sdpa")
    return model, Prompt(prompt.input_ids, {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, 4, 6]])})


def qwen3_5(attention="sdpa"):
    """A VLM with interleaved M-RoPE, gated delta nets and gated attention."""
    rope = ROPE | {"mrope_interleaved": True, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
    config = transformers.Qwen3_5Config(
        vision_config=SPACE_TIME | {"intermediate_size": 48, "num_position_embeddings": 16},
        text_config=TEXT | DELTA | {"rope_parameters": rope, "head_dim": 16},
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=95,
        vision_end_token_id=96,
    )
    prompt = patches(stamped_frames(VIDEO, 95, 96, "video"), VIDEO, "video")
    return build(transformers.Qwen3_5ForConditionalGeneration, config, attention), prompt


def text(kind):
    """A text model behind the same prompt."""
    model = text_model(kind, TEXT).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    model.set_experts_implementation("eager")
    return model, Prompt(torch.tensor([1, 5, 6, 11, 12, 13, 14, 15, 7, 8, 9]))


class Watched(MtpDrafter):
    """Notes its drafts; every second round the target gets two tokens of its answer in place of the draft."""

    def __init__(self, head, tree, wholes):
        super().__init__(head, TREES[tree])
        self.wholes, self.seen = wholes, []

    def propose(self, states, budgets):
        made = []
        for state, draft in zip(states, super().propose(states, budgets), strict=True):
            self.seen.append((tuple(state.tokens), draft))
            rest = next(one for one in self.wholes if one[: len(state.tokens)] == tuple(state.tokens))
            chain = DraftTree.chain(rest[len(state.tokens) :][:2])
            made.append(Draft(chain) if len(self.seen) % 2 and chain.tokens else draft)
        return made


def probability(layer, model, layers, features, positions, root, path):
    """The chance that MTP layers give a path behind the root, by whole passes without a cache.

    Args:
        layers: number of MTP layers.
        features: [1, n, H] embeddings and last features of the text.
        positions: [axes, n] of it.
        root: its number in the text.
        path: tokens.
    """
    embeds, states = features[0][:, 1 : root + 1], features[1][:, :root]
    at, chance, table = positions[:, :root], 1.0, model.get_input_embeddings()
    outputs = layer(0, embeds, states, at)
    for depth, token in enumerate(path, 1):
        chance *= model.lm_head(outputs[:, -1]).softmax(-1)[0, token].item()
        embeds, at = torch.cat((embeds, table(torch.tensor([[token]]))), 1), torch.cat((at, at[:, -1:] + 1), 1)
        if depth < layers:  # the next layer reads the tokens behind those that this one read
            embeds, at, states = embeds[:, 1:], at[:, 1:], outputs
        elif layers == 1:
            states = torch.cat((states, outputs[:, -1:]), 1)
        else:
            break
        outputs = layer(depth if depth < layers else 0, embeds, states, at)
    return chance


def text_features(target, prompt, tokens):
    """Embeddings and last features [1, n, H] of a whole text, and positions [axes, n], by one plain pass."""
    more, features = len(tokens) - len(prompt), dict(prompt.features)
    if "mm_token_type_ids" in features:
        types = features["mm_token_type_ids"]
        features["mm_token_type_ids"] = torch.cat((types, types.new_zeros(1, more)), 1)
    features = {name: x.double() if x.is_floating_point() else x for name, x in features.items()}
    ids = torch.tensor([tokens])
    found = target.model(input_ids=ids, **features, output_hidden_states=True, use_cache=False).hidden_states
    if not target.traits.mrope:
        return (found[0], found[-1]), torch.arange(len(tokens))[None]
    grids = {name: features[name] for name in ("video_grid_thw", "mm_token_type_ids")}
    return (found[0], found[-1]), target.model.model.get_rope_index(input_ids=ids, **grids)[0][:, 0]


MODELS = {  # model and prompt, number of MTP layers, layout
    "step3p7": (step3p7, 3, False),
    "qwen3_5": (qwen3_5, 1, True),
    "qwen3_5_eager": (partial(qwen3_5, "eager"), 1, True),
    "deepseek_v3": (partial(text, "deepseek_v3"), 1, False),
    "kimi_k25": (kimi_k25, 1, False),
    "mellum": (partial(text, "mellum"), 1, True),
    "glm4_moe": (partial(text, "glm4_moe"), 1, False),
}


QUICK = {("step3p7", "dynamic"), ("qwen3_5", "dynamic"), ("deepseek_v3", "chain"), ("mellum", "dynamic")}


@pytest.mark.parametrize(
    ("name", "tree"),
    [
        pytest.param(name, tree, marks=[] if (name, tree) in QUICK else pytest.mark.slow)
        for name in MODELS
        for tree in ("chain", "dynamic")
    ],
)
def test_drafts_are_those_of_another_implementation(name, tree, tmp_path):
    compare(name, tree, tmp_path)


def test_drafts_without_visual_features_would_be_noticed(tmp_path, monkeypatch):
    """The planted bug: placeholders stand where visual features belong, as in transformers."""
    read = MtpDrafter._read
    monkeypatch.setattr(MtpDrafter, "_read", lambda self, own: read(self, setattr(own, "shown", None) or own))
    with pytest.raises(AssertionError, match="comparison failed"):
        compare("qwen3_5", "dynamic", tmp_path)


def test_wrong_positions_would_be_noticed(tmp_path, monkeypatch):
    """The planted bug: plain positions for a model of M-RoPE."""
    plain = Opening._positions
    monkeypatch.setattr(Opening, "_positions", lambda *known: plain(*known).amin(0))
    with pytest.raises(AssertionError, match="comparison failed"):
        compare("qwen3_5", "dynamic", tmp_path)


@torch.inference_mode()
def compare(name, tree, tmp_path):
    make, count, above = MODELS[name]
    model, prompt = make()
    model.lm_head.weight[[IMAGE, VIDEO]] = 0  # no answer shows something
    save_kimi(model, tmp_path) if name == "kimi_k25" else model.save_pretrained(tmp_path)
    add_mtp(tmp_path, count, above=above)
    target = as_target(model, prompt)
    expected = [answer.tokens for answer in DecodeLoop(target).generate(REQUESTS)]
    prompts = [target.prepare(request) for request in REQUESTS]
    wholes = [(*one.input_ids.tolist(), *tokens) for one, tokens in zip(prompts, expected, strict=True)]
    head = load_mtp(target, str(tmp_path))
    drafter = Watched(head, tree, wholes)
    loop = partial(DecodeLoop, cost=CostModel(), adaptive=False, prefixes=PrefixCache(1 << 24), nodes=10)
    answers = loop(target, DraftRunner(drafter, "off"), max_batch=2).generate(REQUESTS)
    assert [answer.tokens for answer in answers] == expected
    assert sum(answer.stats.accepted for answer in answers) > 10
    layer = (
        of_qwen3_5(stored_mtp(tmp_path), 4, 16, 8, (2, 1, 1)) if "qwen" in name else of_transformers(model, tmp_path)
    )
    known = {whole: text_features(target, one, whole) for one, whole in zip(prompts, wholes, strict=True)}
    compared = 0
    for tokens, draft in drafter.seen[::2] + drafter.seen[-3:]:
        features, positions = next(found for whole, found in known.items() if whole[: len(tokens)] == tokens)
        for node in range(0, len(draft.tree), 2):
            path = draft.tree.path_tokens(node)
            if len(path) <= max(3, count):
                chance = probability(layer, model, count, features, positions, len(tokens) - 1, path)
                # gated delta nets compute in float32
                assert draft.path_probs[node] == pytest.approx(chance, rel=1e-4 if "qwen" in name else 1e-6)
                compared += 1
    assert compared > 20


TEXTS = ("glm4_moe", "mellum", "qwen3")
ALONE = cd.Options(device="cpu", dtype="float32", placement="inline", adaptive=False, max_batch=4)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("mtp")
    texts = {kind: add_mtp(save_text(kind, base / kind), above=kind != "glm4_moe") for kind in TEXTS}
    seeing = {kind: save_family(kind, base / kind, noise=0.1) for kind in ("glm4v_moe", "qwen3_5")}
    return texts | {kind: add_mtp(folder, above=kind == "qwen3_5") for kind, folder in seeing.items()}


def asked(name, clip, sampling):
    shown = [{}, {"video": str(clip.video)}] if name not in TEXTS else [{}, {}]
    questions = enumerate(("what is the car doing?", "why?", "what is the car doing?", "and then?"))
    return [cd.Request(text, **shown[index % 2], max_new_tokens=16, sampling=sampling) for index, text in questions]


def often(name, *others):
    """One case that always runs, and others that run in the whole suite."""
    return [name, *(pytest.param(other, marks=pytest.mark.slow) for other in others)]


@pytest.mark.parametrize("batch", often(4, 1))
@pytest.mark.parametrize("sampling", [cd.Sampling(), cd.Sampling(temperature=0.8, top_p=0.9, seed=3)])
@pytest.mark.parametrize("spec", often("auto", "mtp:tree=chain", "union:mtp,memory"))
@pytest.mark.parametrize("name", often("glm4v_moe", "qwen3_5", *TEXTS))
def test_answers_are_the_target_s_own(name, spec, sampling, batch, folders, clip):
    requests = asked(name, clip, sampling)
    with cd.Engine.load(folders[name], spec, ALONE) as engine:
        assert engine.drafter_spec == ("mtp" if spec == "auto" else spec)
        expected = [engine.alone(request).tokens for request in requests]
        found = engine.generate(requests) if batch > 1 else [engine.generate(request) for request in requests]
        assert [answer.tokens for answer in found] == expected
        assert sum(answer.stats.drafted for answer in found) > 50  # a union may ask one part alone
        assert not any(answer.drafter_error for answer in found)
        if "memory" not in spec:  # which may draft what a random model says: an image's placeholder
            assert not any(answer.stats.bad_drafts for answer in found)


@pytest.mark.parametrize(
    ("leave_out", "message"),
    [("eh_proj", "its eh_proj.weight is missing"), ("k_proj", "self_attn.k_proj.weight is missing")],
)
def test_half_of_the_layers_is_refused_in_one_sentence(leave_out, message, tmp_path, caplog):
    folder = add_mtp(save_text("glm4_moe", tmp_path), leave_out=leave_out)
    with pytest.raises(CrossdraftError, match=message):
        cd.Engine.load(folder, "mtp", ALONE)
    with cd.Engine.load(folder, options=ALONE) as engine:  # it keeps the target from no answer
        assert engine.drafter_spec == "union:memory,ngram"
    assert (
        "eh_proj.weight is missing" if leave_out == "eh_proj" else "has not the shapes of the others"
    ) in caplog.text


def test_layers_of_other_shapes_are_left_alone_and_it_is_said_once(tmp_path, caplog):
    folder = add_mtp(save_text("qwen3", tmp_path), above=True)
    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    tensors["mtp.fc.weight"] = tensors["mtp.fc.weight"][:, :-1].contiguous()
    save_file(tensors, path, {"format": "pt"})
    assert [has_mtp(str(folder)) for _ in range(2)] == [False, False]
    assert caplog.text.count("has not the shapes of the others") == 1


def test_a_target_without_such_layers_or_with_others_is_refused(folders, tmp_path):
    with pytest.raises(
        CrossdraftError, match="holds no multi-token-prediction layers of a known layout, from which 'mtp' drafts"
    ):
        cd.Engine.load(save_text("qwen3", tmp_path / "plain"), "mtp", ALONE)
    with pytest.raises(CrossdraftError, match="holds no multi-token-prediction"):
        cd.Engine.load("reference", "mtp", ALONE)
    with pytest.raises(CrossdraftError, match="Unknown tree 'static'; choose one of dynamic"):
        cd.Engine.load(folders["qwen3"], "mtp:tree=static", ALONE)


def test_a_loaded_model_s_folder_must_hold_that_model(tmp_path):
    folder = add_mtp(save_text("qwen3", tmp_path), above=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    options = cd.Options(placement="inline", adaptive=False)  # of a random model no draft pays
    with cd.Engine.from_model(model, tokenizer, "mtp", options) as engine:
        assert engine.generate(cd.Request("why?", max_new_tokens=4)).stats.drafted
    save_text("glm4_moe", folder)  # another model, under the same name
    add_mtp(folder)
    with pytest.raises(
        CrossdraftError, match="are another model's: model_type is glm4_moe there and qwen3 in the loaded"
    ):
        cd.Engine.from_model(model, tokenizer, "mtp", options)
    Path(folder, "config.json").write_text('{"model_type": "nosuch"}')
    with pytest.raises(CrossdraftError, match=r"cannot be loaded with the decoder layers of Qwen3.*`nosuch`.*; name"):
        load_mtp(adapt_model(model, tokenizer), str(folder))


def test_by_itself_it_is_taken_where_the_target_lies_on_one_device(folders):
    found = [default_drafter(str(folders["qwen3"]), cd.Options(device_map=given)) for given in (None, "auto")]
    assert found == ["mtp", "union:memory,ngram"]


def test_identity_of_all_drafters_holds_those_of_the_checkpoint(folders):
    assert [group[0].spec for group in choose_configs(["all"], str(folders["qwen3"]))][-2:] == ["mtp", "mtp:tree=chain"]
