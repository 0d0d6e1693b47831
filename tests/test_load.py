"""Damaged and unsupported checkpoints: one sentence, soon, and without building or reading what is large."""

import json
import shutil
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import crossdraft as cd
from crossdraft import load
from crossdraft.drafters.event.load import load_drafter
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target

SECONDS = 2.0
Damage = Callable[[Path], None]


def edited(name: str, change: Callable[[dict], object]) -> Damage:
    """Change a JSON file in place."""

    def damage(folder: Path) -> None:
        found = json.loads((folder / name).read_text())
        change(found)
        (folder / name).write_text(json.dumps(found))

    return damage


def config(**values: object) -> Damage:
    return edited("config.json", lambda found: found.update(values))


def part(name: str, **values: object) -> Damage:
    return edited("config.json", lambda found: found[name].update(values))


def written(name: str, content: str | bytes) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return damage


def removed(*names: str) -> Damage:
    def damage(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return damage


def both(*damages: Damage) -> Damage:
    def damage(folder: Path) -> None:
        for one in damages:
            one(folder)

    return damage


def index(**positions: str) -> Damage:
    text = json.dumps({"metadata": {}, "weight_map": positions})
    return both(removed("model.safetensors"), written("model.safetensors.index.json", text))


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def damage(folder: Path) -> None:
        found = load_file(folder / "model.safetensors")
        change(found)
        save_file(found, folder / "model.safetensors", {"format": "pt"})

    return damage


HEAD = "language_model.lm_head.weight"  # as save_pretrained calls it
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 27302640\n"
CUT_HEADER = (2**40).to_bytes(8, "little") + b"{}"

CASES: dict[str, tuple[Damage, str]] = {
    "bitsandbytes": (
        config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
        "is quantised .quantization_config: bitsandbytes.*16 or 32 bits",
    ),
    "gptq": (config(quantization_config={"quant_method": "gptq", "bits": 4}), "is quantised .*gptq"),
    "awq": (config(quantization_config={"quant_method": "awq", "bits": 4}), "is quantised .*awq"),
    "fp8": (config(quantization_config={"quant_method": "fp8"}), "is quantised .*fp8"),
    "unknown method": (config(quantization_config={"quant_method": "nope"}), "is quantised .*nope"),
    "in the text part": (part("text_config", quantization_config={"bits": 4}), "is quantised .*'bits': 4"),
    "compressed": (config(compression_config={"quant_method": "compressed-tensors"}), "is quantised"),
    "old gptq": (written("quantize_config.json", "{}"), "is quantised .quantize_config.json"),
    "lora": (written("adapter_config.json", "{}"), "holds an adapter .*merge_and_unload"),
    "an assistant": (config(model_type="gemma4_assistant"), "is a drafter's folder, an assistant's; .*assistant:dir="),
    "a wrong class": (
        config(model_type="llama", architectures=["LlamaModel"], vision_config=None),
        r"architectures = .'LlamaModel'., and models of type 'llama' that write text are LlamaForCausalLM; mend",
    ),
    "weights are NaN": (weights(lambda found: found[HEAD][0].fill_(float("nan"))), "have numbers that are not finite"),
    "unknown type": (config(model_type="bert"), "'bert' cannot be a target: transformers .* has no class"),
    "no type": (config(model_type=None), "type is None; take config.json"),
    "an unknown state": (
        part("text_config", layer_types=["linear_attention", "full_attention"]),
        r"Layer 0 of .*, of type linear_attention, keeps a state by a rule that is not known here",
    ),
    "layers of another type": (
        part("text_config", layer_types=["hybrid_mamba", "full_attention"]),
        r"layers of the types hybrid_mamba, .*linear_attention and sliding_attention alone",
    ),
    "layers as text": (part("text_config", num_hidden_layers="four"), "describes no model .*num_hidden_layers"),
    "no layers": (part("text_config", num_hidden_layers=0), "unknown model.language_model.layers.0"),
    "many layers": (part("text_config", num_hidden_layers=10**6), "describes 1000000 layers, but only"),
    "many blocks": (part("vision_config", num_hidden_layers=10**6), "describes 1000000 layers, but only"),
    "heads that do not divide": (
        part("text_config", num_attention_heads=3, head_dim=None),
        "describes no model .*multiple of the number",
    ),
    "no text_config": (edited("config.json", lambda found: found.pop("text_config")), "no text_config"),
    "no vision_config": (edited("config.json", lambda found: found.pop("vision_config")), "wrong shape"),
    "text_config is text": (config(text_config="x"), "describes no model"),
    "huge": (part("text_config", hidden_size=10**6, intermediate_size=10**6), "wrong shape .*1000000"),
    "unknown rope": (
        part("text_config", rope_parameters={"rope_type": "zzz"}),
        "describes no model .*'zzz' is unknown or missing",
    ),
    "config is cut off": (written("config.json", '{"model_type": '), r"config\.json is not valid JSON"),
    "config is a list": (written("config.json", "[]"), r"config\.json is no configuration"),
    "config is a pointer": (written("config.json", POINTER), "config.json is a Git LFS pointer"),
    "weights are a pointer": (written("model.safetensors", POINTER), "is a Git LFS pointer.*git lfs pull"),
    "weights are empty": (written("model.safetensors", b""), "is empty, cut off or no safetensors"),
    "header is cut off": (written("model.safetensors", CUT_HEADER), "is empty, cut off or no safetensors"),
    "header is no JSON": (written("model.safetensors", b"\2\0\0\0\0\0\0\0{{"), "header that is damaged"),
    "pickled only": (
        both(removed("model.safetensors"), written("pytorch_model.bin", b"x")),
        "pytorch_model.bin is not read.*can run code",
    ),
    "no weights": (removed("model.safetensors"), "lacks its weights"),
    "no index": (
        lambda folder: (folder / "model.safetensors").rename(folder / "model-1.safetensors") and None,
        r"holds model-1\.safetensors but lacks model\.safetensors\.index",
    ),
    "a shard is missing": (
        index(a="model-00001-of-00002.safetensors", b="model-00002-of-00002.safetensors"),
        "lacks model-00001-of-00002.safetensors .2 of 2 weight files",
    ),
    "index outside": (index(a="../../x.safetensors"), "lies outside the folder"),
    "index is empty": (index(), "lacks weight_map"),
    "tensor is missing": (weights(lambda found: found.pop(HEAD)), r"lacks lm_head\.weight"),
    "tensor too many": (weights(lambda found: found.update(x=torch.ones(1))), "has an unknown x "),
    "tensor of another shape": (
        weights(lambda found: found.update({HEAD: torch.ones(2, 3)})),
        r"wrong shape for lm_head.weight, \[2, 3\] where config.json asks for \[320, 32\]",
    ),
    "no tokenizer.json": (removed("tokenizer.json"), r"lacks its tokenizer .tokenizer\.json"),
    "tokenizer is empty": (written("tokenizer.json", ""), r"tokenizer\.json is empty or cut off"),
    "tokenizer is a pointer": (written("tokenizer.json", POINTER), r"tokenizer\.json is a Git LFS pointer"),
    "tokenizer is another JSON": (written("tokenizer.json", "{}"), "tokenizer in .* cannot be loaded: .+"),
    "tokenizer with code": (
        edited(
            "tokenizer_config.json",
            lambda found: found.update(auto_map={"AutoTokenizer": ["x.M", None]}, tokenizer_class="M"),
        ),
        "code is never run",
    ),
    "tokenizer_config is a list": (written("tokenizer_config.json", "[]"), "must hold a JSON object"),
    "frames of no number": (
        edited("preprocessor_config.json", lambda found: found.update(num_frames="eight")),
        r"preprocessor_config\.json cannot be used: num_frames is 'eight'",
    ),
    "a token beyond the vocabulary": (
        edited("tokenizer_config.json", lambda found: found.update(eos_token="<nope>")),
        "writes '<nope>' as 320, but the model embeds only 320",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_folder_is_one_sentence_soon(pair, tmp_path, case, capfd):
    damage, words = CASES[case]
    folder = tmp_path / "t"
    shutil.copytree(pair.target, folder)
    damage(folder)
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(cd.CrossdraftError, match=words) as received:
        load_target(str(folder), "cpu")
    seconds, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < SECONDS
    assert peak < 100e6
    assert "\n" not in str(received.value)
    assert capfd.readouterr().out == ""  # no report of somebody else's


def test_a_shard_that_was_not_downloaded_names_the_command(pair, tmp_path):
    folder = tmp_path / "models--owner--name" / "snapshots" / "0a1b"
    shutil.copytree(pair.target, folder)
    index(a="model-00001-of-00002.safetensors")(folder)
    with pytest.raises(cd.CrossdraftError, match="complete it with `hf download owner/name`"):
        load_target(str(folder))


def test_weights_in_several_files_load(pair, tmp_path):
    folder = tmp_path / "t"
    shutil.copytree(pair.target, folder)
    found = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, positions = sorted(found), {}
    for number, start in enumerate((0, len(names) // 2)):
        file = f"model-{number}.safetensors"
        own = names[start : len(names) // 2 if start == 0 else None]
        save_file({name: found[name] for name in own}, folder / file, {"format": "pt"})
        positions |= dict.fromkeys(own, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": positions}))
    loaded, whole = (load_target(str(source), "cpu", packed=False).model for source in (folder, pair.target))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name


def test_names_as_they_are_in_memory_load_too(pair, tmp_path):
    """Files carry the names of older checkpoints; those of the newer layout are told apart from damage as well."""
    folder = tmp_path / "t"
    shutil.copytree(pair.target, folder)
    whole = load_target(str(pair.target), "cpu", packed=False).model.state_dict()
    assert HEAD in load_file(folder / "model.safetensors")
    assert HEAD not in whole
    save_file({name: value.clone() for name, value in whole.items()}, folder / "model.safetensors", {"format": "pt"})
    loaded = load_target(str(folder), "cpu", packed=False).model.state_dict()
    for name, value in whole.items():
        assert torch.equal(value, loaded[name]), name


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty Hugging Face cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))  # for the drafter's process
    return tmp_path / "hub"


def test_a_repository_in_the_cache_is_found_there(fresh_processes, pair, cache, request_):
    for name, source in (("target", pair.target), ("event", pair.event)):
        home = cache / f"models--owner--{name}"
        shutil.copytree(source, home / "snapshots" / "0a1b")
        (home / "refs").mkdir()
        (home / "refs" / "main").write_text("0a1b")
    with cd.Engine.load("owner/target", "owner/event") as engine:
        answer = engine.generate(request_)
    with cd.Engine.load(pair.target, None) as engine:
        assert answer.tokens == engine.generate(request_).tokens
    # The drafter was found too: without it, the answer would say so. On a busy machine it may come late.
    assert answer.other_notes == ()


@pytest.fixture
def request_(clip):
    return cd.Request("what is the car doing?", str(clip.video), str(clip.events), max_new_tokens=24)


def test_a_repository_that_is_not_there_names_the_command(pair, cache):
    with pytest.raises(cd.CrossdraftError, match=r"download it with `hf download Qwen/Qwen2\.5-VL-7B-Instruct`"):
        cd.Engine.load("Qwen/Qwen2.5-VL-7B-Instruct")
    with pytest.raises(cd.CrossdraftError, match="`hf download owner/event`"):
        cd.Engine.load(pair.target, "owner/event")
    with pytest.raises(cd.CrossdraftError, match=r"neither the name of a shipped model .* nor a folder.*owner/name"):
        cd.Engine.load("nowhere")
    with pytest.raises(cd.CrossdraftError, match="did you mean 'reference'"):
        cd.Engine.load("refernce")


def test_an_empty_name_is_not_the_folder_where_we_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CrossdraftError, match="'' is neither the name of a shipped model"):
        load_target("")


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu"), torch.device("cpu", 0)])
def test_the_usual_dtype_is_that_of_the_device_however_it_is_written(pair, monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # what would be used if nobody said another device
    monkeypatch.setattr(load, "has_bf16", lambda: True)
    assert load.load_target(str(pair.target), device).model.dtype == torch.float32
    assert load_drafter(str(pair.event), device).model.model.dtype == torch.bfloat16


@pytest.mark.parametrize(("drafter", "batch", "rows"), [(None, 1, 1), (None, 6, 6), ("ngram", 6, load.VERIFIED)])
def test_the_layout_of_weights_is_chosen_for_the_rows_of_a_usual_pass(drafter, batch, rows, monkeypatch):
    """Alone a target reads one row of each request."""
    chosen = []
    monkeypatch.setattr(load, "prepack", lambda model, fill, *, rows: chosen.append(rows) or 0)
    with cd.Engine.load("reference", drafter, cd.Options(device="cpu", max_batch=batch)):
        assert chosen == [rows]
