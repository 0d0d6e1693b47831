"""The converter against an independent forward of the official layout, and its decisions."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText

from crossdraft.cli.main import main
from crossdraft.errors import CrossdraftError
from crossdraft.models import EventGPTForConditionalGeneration
from crossdraft.models.eventgpt import EventGPTProcessor, convert_eventgpt
from tests.models.converting import ROWS, convert, official_source
from tests.models.official import (
    GRID,
    HIDDEN,
    IMAGE,
    TEXT,
    VISION_PREFIX,
    byte_tokenizer,
    official_features,
    official_logits,
    official_weights,
    write_official,
)

FRAMES = 5
FEATURES = FRAMES + GRID * GRID + 1
BEFORE, AFTER = [1, 40, 41, 42], [50, 51, 52]


def window(dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(FRAMES, 3, IMAGE, IMAGE, generator=generator, dtype=torch.float64).to(dtype)


def load(folder: Path, dtype: torch.dtype = torch.float64) -> Any:
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype).eval()
    assert isinstance(model, EventGPTForConditionalGeneration)
    return model


def differences(folder: Path, weights: Mapping[str, Tensor], segment: str = "vision_model.") -> tuple[float, float]:
    """Largest errors of the converted model's features and logits against the official forward."""
    dtype = weights["lm_head.weight"].dtype
    model = load(folder, dtype)
    expected = official_features(weights, window(dtype), segment)
    with torch.inference_mode():
        features = model.model.get_video_features(window(dtype)[None]).pooler_output[0]
        event = model.config.event_token_id
        ids = torch.tensor([[*BEFORE, *[event] * FEATURES, *AFTER]])
        logits = model(input_ids=ids, pixel_values_videos=window(dtype)[None]).logits[0]
    official = official_logits(weights, [*BEFORE, -200, *AFTER], expected)
    rows = official.shape[1]
    return (features - expected).abs().max().item(), (logits[:, :rows] - official).abs().max().item()


@pytest.mark.parametrize("segment", ["vision_model.", ""])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("pickled", [False, True])
def test_the_converted_model_is_the_official_one(tmp_path, pickled: bool, shards: int, segment: str):
    weights = official_weights(ROWS, segment=segment)
    source = official_source(tmp_path, weights, pickled=pickled, shards=shards)
    report = convert_eventgpt(source, tmp_path / "out")
    features, logits = differences(tmp_path / "out", weights, segment)
    assert features < 1e-12
    assert logits < 1e-12
    assert report.tensors == len(weights)
    assert not list(tmp_path.glob(".*"))


def test_the_same_in_float32(tmp_path):
    """Features are of the order of 1, logits reach 4.5: their error is relative to that."""
    weights = official_weights(ROWS, torch.float32)
    convert(tmp_path, weights)
    features, logits = differences(tmp_path / "out", weights)
    assert features < 1e-6
    assert logits < 1e-6 * 4.5


def test_the_comparison_sees_the_fork_s_doubled_adaptor(tmp_path):
    """A planted fault: `xifan-zhang`'s fork applies the adaptor twice."""
    weights = official_weights(ROWS)
    convert(tmp_path, weights)
    name = "model.feature_adaptor"
    twice = dict(weights)
    twice[f"{name}.weight"] = weights[f"{name}.weight"] @ weights[f"{name}.weight"]
    twice[f"{name}.bias"] = weights[f"{name}.weight"] @ weights[f"{name}.bias"] + weights[f"{name}.bias"]
    assert min(differences(tmp_path / "out", twice)) > 1e-2


def test_dtype_and_shapes_are_those_of_the_checkpoint(tmp_path):
    report = convert(tmp_path, official_weights(ROWS, torch.bfloat16))
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "out")
    vision, text = model.config.vision_config, model.config.text_config
    assert (report.dtype, model.dtype) == ("bfloat16", torch.bfloat16)
    assert (vision.hidden_size, vision.num_attention_heads, vision.intermediate_size) == (128, 2, 160)
    assert (vision.image_size, vision.patch_size, vision.num_hidden_layers) == (12, 4, 2)
    assert (text.rms_norm_eps, text.rope_parameters["rope_theta"], text.vocab_size) == (1e-5, 5000.0, ROWS + 1)
    assert report.vision == "2 layers of 2 heads and reads 12 px in patches of 4"


def test_the_vision_encoder_s_configuration_can_be_given(tmp_path):
    weights = official_weights(ROWS)
    source = official_source(tmp_path, weights)
    path = tmp_path / "clip.json"
    shape = {"hidden_size": 128, "intermediate_size": 160, "num_hidden_layers": 2, "image_size": 12, "patch_size": 4}
    path.write_text(json.dumps({"vision_config": shape | {"num_attention_heads": 4}}))
    convert_eventgpt(source, tmp_path / "out", vision_config=path)
    assert load(tmp_path / "out").config.vision_config.num_attention_heads == 4
    assert differences(tmp_path / "out", weights)[0] > 1e-3  # and heads do matter
    path.write_text(json.dumps({"hidden_size": "wide"}))
    with pytest.raises(CrossdraftError, match="not a CLIP vision configuration"):
        convert_eventgpt(source, tmp_path / "other", vision_config=path)


def test_the_placeholder_gets_a_row_that_greedy_decoding_never_picks(tmp_path):
    weights = official_weights(ROWS)
    report = convert(tmp_path, weights)
    assert (report.rows_read, report.rows_written) == (ROWS, ROWS + 1)
    assert report.tokens == {"<event>": ROWS}
    assert report.fresh_tokens == ("<event>",)
    model = load(tmp_path / "out")
    head = model.lm_head.weight.detach()
    assert torch.equal(head[:ROWS], weights["lm_head.weight"])
    assert torch.allclose(head[ROWS], head[:ROWS].mean(dim=0), atol=1e-15)
    logits = torch.randn(100, HIDDEN, dtype=torch.float64) @ head.T
    assert (logits.argmax(dim=1) != ROWS).all()
    assert model.generation_config.suppress_tokens == [ROWS]


def test_start_and_end_follow_the_flag(tmp_path):
    report = convert(tmp_path, mm_use_im_start_end=True)
    assert report.tokens == {"<ev_start>": ROWS, "<ev_end>": ROWS + 1, "<event>": ROWS + 2}
    processor = EventGPTProcessor.from_pretrained(tmp_path / "out")
    assert processor.config.add_start_end
    ids = processor.prompt_ids("Q?")
    first, last = ids.index(ROWS + 2), len(ids) - 1 - ids[::-1].index(ROWS + 2)
    assert (ids[first - 1], ids[last + 1], last - first + 1) == (ROWS, ROWS + 1, FEATURES)
    assert any("is set: prompts wrap the event" in line for line in report.decisions())


def test_absent_flags_have_the_official_defaults(tmp_path):
    report = convert(tmp_path, mm_use_im_start_end=None, mm_use_im_patch_token=None)
    assert report.tokens == {"<ev_patch>": ROWS, "<event>": ROWS + 1}
    assert not load(tmp_path / "out").config.add_start_end


def test_rows_that_training_added_are_kept_though_the_saved_tokenizer_lacks_them(tmp_path):
    """270 tokens, 273 rows: the official loader would add its three tokens onto the trained rows, and so do we."""
    weights = official_weights(ROWS + 3)
    flags = {"mm_use_im_patch_token": True, "mm_use_im_start_end": True}
    report = convert(tmp_path, weights, **flags)
    assert report.tokens == {"<ev_patch>": 270, "<ev_start>": 271, "<ev_end>": 272, "<event>": 273}
    assert report.fresh_tokens == ("<event>",)
    embedding = load(tmp_path / "out").get_input_embeddings().weight
    assert torch.equal(embedding[: ROWS + 3], weights["model.embed_tokens.weight"])


def test_tokens_of_the_saved_tokenizer_keep_their_ids(tmp_path):
    tokenizer = byte_tokenizer(ROWS - 2, ["<ev_end>", "<ev_start>"])
    source = write_official(tmp_path / "source", official_weights(ROWS), tokenizer, mm_use_im_start_end=True)
    report = convert_eventgpt(source, tmp_path / "out")
    assert report.tokens == {"<ev_start>": ROWS - 1, "<ev_end>": ROWS - 2, "<event>": ROWS}


def test_padded_rows_stay(tmp_path):
    report = convert(tmp_path, official_weights(ROWS + 50))
    assert (report.rows_read, report.rows_written, report.fresh_tokens) == (ROWS + 50, ROWS + 50, ())
    assert max(differences(tmp_path / "out", official_weights(ROWS + 50))) < 1e-12


def test_the_collision_at_id_32000_is_reported(tmp_path):
    """Vicuna's 32000 tokens and the official default flag: `<ev_patch>` falls on Video-LLaVA's `<image>`."""
    weights = official_weights(32000, torch.float32)
    source = write_official(tmp_path / "source", weights, byte_tokenizer(32000), mm_use_im_patch_token=True)
    report = convert_eventgpt(source, tmp_path / "out")
    assert report.tokens == {"<ev_patch>": 32000, "<event>": 32001}
    assert [line for line in report.decisions() if "<image> in Video-LLaVA" in line and "<ev_patch>" in line]


def test_no_collision_no_warning(tmp_path):
    assert "Video-LLaVA" not in " ".join(convert(tmp_path).decisions())


def test_stored_constants_are_left_out(tmp_path):
    weights = official_weights(ROWS)
    constants = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        f"{VISION_PREFIX}vision_model.embeddings.position_ids": torch.arange(10)[None],
    }
    report = convert(tmp_path, weights | constants)
    assert set(report.dropped) == set(constants)
    assert max(differences(tmp_path / "out", weights)) < 1e-12


def test_a_converted_folder_answers_on_its_own(tmp_path):
    convert(tmp_path, official_weights(ROWS, torch.float32))
    model, processor = (load(tmp_path / "out", torch.float32), EventGPTProcessor.from_pretrained(tmp_path / "out"))
    frames = np.random.default_rng(0).integers(0, 256, (FRAMES, 20, 30, 3), dtype=np.uint8)
    inputs = processor(["What moves?", "Where?"], [frames, frames[::-1].copy()])
    out = model.generate(**inputs, max_new_tokens=6)
    assert inputs["input_ids"].shape[1] < out.shape[1] <= inputs["input_ids"].shape[1] + 6
    assert not (out[:, inputs["input_ids"].shape[1] :] == model.config.event_token_id).any()


def test_the_command_reports_as_text_and_as_json(tmp_path, capsys):
    source = official_source(tmp_path, **TEXT)
    assert main(["convert", "eventgpt", str(source), str(tmp_path / "a")]) == 0
    text = capsys.readouterr().out
    assert "mm_use_im_start_end is not set" in text
    assert f"<event> is id {ROWS}" in text
    assert "No event Q-Former" in text
    assert main(["convert", "eventgpt", str(source), str(tmp_path / "b"), "--json", "--num-frames", "3"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rows_read"], report["rows_written"], report["num_event_frames"]) == (ROWS, ROWS + 1, 3)
    assert len(report["decisions"]) == 7
    assert load(tmp_path / "b").config.num_event_frames == 3


def test_the_command_leaves_with_2_and_one_sentence(tmp_path, capsys):
    assert main(["convert", "eventgpt", str(tmp_path / "nowhere"), str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip().startswith("crossdraft: Cannot read")
    assert "Traceback" not in captured.err
