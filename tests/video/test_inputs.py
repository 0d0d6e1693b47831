"""Model inputs: every family's real forward must take them, and count the placeholders as we do."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PretrainedConfig, PreTrainedTokenizerFast
from transformers.models.glm4v.processing_glm4v import Glm4vProcessor
from transformers.models.glm46v.processing_glm46v import Glm46VProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from crossdraft.errors import CrossdraftError
from crossdraft.video.classes import CLASSES, model_class
from crossdraft.video.inputs import FAMILIES, clip_inputs, placeholder_id
from crossdraft.video.preprocess import preprocess
from crossdraft.video.spec import FrameSpec, PixelBudget
from tests.video.helpers import model_inputs

SPECIAL = ("<s>", "</s>", "<pad>", "<image>", "<video>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>")
SPECIAL += ("<|vision_end|>", "<|im_start|>", "<|im_end|>", "<IMG_CONTEXT>", "<img>", "</img>", "<end_of_utterance>")
SPECIAL += ("<fake_token_around_image>", "<global-img>", "<image_soft_token>", "<start_of_image>", "<end_of_image>")
SPECIAL += ("<start_of_turn>", "<end_of_turn>", "<|image|>", "<|video|>", "<|user|>", "<|assistant|>")
SPECIAL += tuple(f"<|{edge}_of_{kind}|>" for edge in ("begin", "end") for kind in ("image", "video"))
SPECIAL += tuple(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5))
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
IDS = {token: len(BYTES) + index for index, token in enumerate(SPECIAL)}
TEXT = {
    "vocab_size": len(BYTES) + len(SPECIAL),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": IDS["<s>"],
    "eos_token_id": IDS["</s>"],
    "pad_token_id": IDS["<pad>"],
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 20,  # five patches a side: halving must round, and the families round differently
    "patch_size": 4,
}
QWEN_VISION = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
LLAVA_TOKENS = {"image_token_index": IDS["<image>"], "video_token_index": IDS["<video>"]}
QWEN_TOKENS = {
    "image_token_id": IDS["<|image_pad|>"],
    "video_token_id": IDS["<|video_pad|>"],
    "vision_start_token_id": IDS["<|vision_start|>"],
    "vision_end_token_id": IDS["<|vision_end|>"],
}
EVEN_VISION = VISION | {"image_size": 24}  # six patches a side, whose 2 x 2 become one token: nine a frame
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}


def llava_config(kind: str, encoder: str, text: str) -> PretrainedConfig:
    vision = getattr(transformers, f"{encoder}VisionConfig")(
        **VISION, **({"vision_use_head": False} if encoder == "Siglip" else {})
    )
    grid = {} if kind == "VideoLlava" else {"image_grid_pinpoints": [[20, 40], [40, 20], [40, 40]]}
    return getattr(transformers, f"{kind}Config")(
        vision_config=vision, text_config=getattr(transformers, f"{text}Config")(**TEXT), **LLAVA_TOKENS, **grid
    )


def qwen_config(kind: str) -> PretrainedConfig:
    sizes = {
        "Qwen2VL": {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2},
        "Qwen2_5_VL": {
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "window_size": 16,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 4,
        },
    }
    return getattr(transformers, f"{kind}Config")(
        vision_config=QWEN_VISION | sizes[kind], text_config=TEXT | {"rope_parameters": ROPE}, **QWEN_TOKENS
    )


def framed_config(kind: str, token: str, text: str, **more: object) -> PretrainedConfig:
    """Of a model to which a clip is a row of images with text between them."""
    return getattr(transformers, f"{kind}Config")(
        vision_config=EVEN_VISION | ({"vision_use_head": False} if kind == "Gemma3" else {}),
        text_config=TEXT | {"model_type": text},
        image_token_id=IDS[token],
        **more,
    )


def patched_config(kind: str) -> PretrainedConfig:
    """Of a model whose frames stand apart, in space-time patches, with their times between them."""
    vision = QWEN_VISION | {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64}
    experts = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
    if kind.startswith("Qwen"):
        vision |= {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
        text, tokens = TEXT | {"rope_parameters": ROPE | {"mrope_interleaved": True}, "head_dim": 16}, QWEN_TOKENS
        text |= experts | {"num_experts": 4} if kind.endswith("Moe") else {}
        if kind.startswith("Qwen3_5"):
            text["layer_types"] = ["linear_attention", "full_attention"] * (TEXT["num_hidden_layers"] // 2)
    else:
        vision |= {"image_size": 16}
        text = TEXT | {"rope_parameters": ROPE | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}}
        text |= experts | {"n_routed_experts": 4} if kind.endswith("Moe") else {}
        tokens = {"image_token_id": IDS["<|image|>"], "video_token_id": IDS["<|video|>"]}
    return getattr(transformers, f"{kind}Config")(
        vision_config=vision, text_config=text, tie_word_embeddings=False, **tokens
    )


CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "video_llava": lambda: llava_config("VideoLlava", "CLIP", "Llama"),
    "llava_next_video": lambda: llava_config("LlavaNextVideo", "CLIP", "Llama"),
    "llava_onevision": lambda: llava_config("LlavaOnevision", "Siglip", "Qwen2"),
    "qwen2_vl": lambda: qwen_config("Qwen2VL"),
    "qwen2_5_vl": lambda: qwen_config("Qwen2_5_VL"),
    "qwen3_vl": lambda: patched_config("Qwen3VL"),
    "qwen3_vl_moe": lambda: patched_config("Qwen3VLMoe"),
    "qwen3_5": lambda: patched_config("Qwen3_5"),
    "qwen3_5_moe": lambda: patched_config("Qwen3_5Moe"),
    "glm4v": lambda: patched_config("Glm4v"),
    "glm4v_moe": lambda: patched_config("Glm4vMoe"),
    "glm46v": lambda: patched_config("Glm46V"),
    "internvl": lambda: framed_config("InternVL", "<IMG_CONTEXT>", "qwen2"),
    "smolvlm": lambda: framed_config("SmolVLM", "<image>", "llama", scale_factor=2),
    "gemma3": lambda: framed_config("Gemma3", "<image_soft_token>", "gemma3_text", mm_tokens_per_image=9),
}
# Five patches a side: 25 and a class token; 2 x 2 of a floored pool; 3 x 3 of a rounded-up one, and a newline.
LLAVA_COUNTS = {"video_llava": 3 * 26, "llava_next_video": 3 * 4, "llava_onevision": 3 * 9 + 1}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE({token: index for index, token in enumerate(BYTES)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(SPECIAL))
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", IDS["<s>"])])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


@pytest.fixture(scope="module")
def frames() -> torch.Tensor:
    return torch.randint(0, 256, (3, 30, 44, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


TIMES_S = np.array([0.0, 0.5, 1.0])
SMALL = FrameSpec(size=(24, 32), crop=None)  # Qwen's own budget starts at 128 tokens a frame


def spec_for(kind: str) -> FrameSpec | None:
    return SMALL if kind.startswith(("qwen", "glm")) else None


def build(kind: str) -> Any:
    config = CONFIGS[kind]()
    torch.manual_seed(0)
    model = getattr(transformers, model_class(config.model_type))(config).eval()
    if kind == "gemma3":
        torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)  # it begins with zeros
    return model


def text_of(tokenizer: PreTrainedTokenizerFast, inputs: dict[str, torch.Tensor]) -> str:
    """The prompt, with a row of placeholders written once."""
    text = str(tokenizer.decode(inputs["input_ids"][0]))
    for token in ("<video>", "<|video_pad|>", "<IMG_CONTEXT>", "<image>", "<image_soft_token>", "<|image|>"):
        while token * 2 in text:
            text = text.replace(token * 2, token)
    return text


def test_every_family_is_tested() -> None:
    assert CONFIGS.keys() == FAMILIES.keys() == CLASSES.keys()


@pytest.mark.parametrize("kind", CONFIGS)
def test_forward_and_generate_take_the_inputs(
    kind: str, tokenizer: PreTrainedTokenizerFast, frames: torch.Tensor
) -> None:
    model = build(kind)
    inputs = model_inputs(model.config, tokenizer, spec_for(kind), frames, TIMES_S, "What is ahead?")
    length = inputs["input_ids"].shape[1]
    with torch.inference_mode():
        logits = model(**inputs).logits
        assert logits.shape[:2] == (1, length)
        out = model.generate(**inputs, max_new_tokens=3, do_sample=False, pad_token_id=IDS["<pad>"])
        assert length < out.shape[1] <= length + 3
        # The model looks at the frames, and one placeholder more or less is an error of its own.
        other = model_inputs(model.config, tokenizer, spec_for(kind), 255 - frames, TIMES_S, "What is ahead?")
        assert not torch.allclose(model(**other).logits, logits)
        at = int((inputs["input_ids"][0] == placeholder_id(model.config)).nonzero()[0])
        fewer = dict(inputs)
        for name in ("input_ids", "mm_token_type_ids", "token_type_ids"):
            if name in fewer:
                fewer[name] = torch.cat([fewer[name][:, :at], fewer[name][:, at + 1 :]], dim=1)
        with pytest.raises((ValueError, RuntimeError)):
            model(**fewer)


@pytest.mark.parametrize("kind", CONFIGS)
def test_families_that_read_times_are_named(kind: str, frames: torch.Tensor) -> None:
    (text, features), (later, other) = (
        clip_inputs(CONFIGS[kind](), spec_for(kind), frames, times_s) for times_s in (TIMES_S, 7 * TIMES_S)
    )
    same = text == later and all(torch.equal(features[name], other[name]) for name in features)
    assert FAMILIES[kind].timed == (not same)


@pytest.mark.parametrize("kind", LLAVA_COUNTS)
def test_placeholders_of_the_llavas(kind: str, tokenizer: PreTrainedTokenizerFast, frames: torch.Tensor) -> None:
    config = CONFIGS[kind]()
    inputs = model_inputs(config, tokenizer, None, frames, TIMES_S, "What is ahead?")
    assert int((inputs["input_ids"] == config.video_token_id).sum()) == LLAVA_COUNTS[kind]
    spec = FAMILIES[kind].spec(config)
    assert torch.equal(inputs["pixel_values_videos"], preprocess(frames, spec)[None])


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
def test_placeholders_and_types_of_qwen(kind: str, tokenizer: PreTrainedTokenizerFast, frames: torch.Tensor) -> None:
    config = CONFIGS[kind]()
    inputs = model_inputs(config, tokenizer, SMALL, frames, TIMES_S, "What is ahead?")
    assert inputs["video_grid_thw"].tolist() == [[2, 6, 8]]  # three frames are two pairs
    assert inputs["pixel_values_videos"].shape == (2 * 6 * 8, 3 * 2 * 4 * 4)
    video = inputs["input_ids"] == config.video_token_id
    assert int(video.sum()) == 2 * 3 * 4
    assert torch.equal(inputs["mm_token_type_ids"], video.int() * 2)
    assert ("second_per_grid_ts" in inputs) == (kind == "qwen2_5_vl")


@pytest.mark.parametrize("kind", ["qwen3_vl", "qwen3_vl_moe", "qwen3_5", "glm4v", "glm4v_moe", "glm46v"])
def test_every_patch_of_frames_has_its_own_run_of_placeholders(
    kind: str, tokenizer: PreTrainedTokenizerFast, frames: torch.Tensor
) -> None:
    config = CONFIGS[kind]()
    inputs = model_inputs(config, tokenizer, SMALL, frames, TIMES_S, "What is ahead?")
    assert inputs["video_grid_thw"].tolist() == [[2, 6, 8]]
    shown = inputs["input_ids"] == placeholder_id(config)
    assert torch.equal(inputs["mm_token_type_ids"], shown.int() * 2)
    runs = (torch.diff(shown[0].int(), prepend=torch.zeros(1)) == 1).sum()
    assert (int(shown.sum()), int(runs)) == (2 * 3 * 4, 2)


@pytest.mark.parametrize("times_s", [[0.0, 0.5, 1.0], [0.0], [0.04, 0.2], [0.0, 0.25, 0.6, 1.1, 59.96, 61.3, 100.0]])
def test_what_hf_s_processors_write_for_a_clip(times_s: list[float]) -> None:
    """Their own code, with what it reads of a processor that needs torchvision."""
    grid = torch.tensor([[-(-len(times_s) // 2), 2, 2]])
    metadata = SimpleNamespace(fps=100, frames_indices=[round(100 * time) for time in times_s], timestamps=times_s)
    video = {"video_grid_thw": grid, "video_metadata": [metadata]}
    processors = {"qwen3_vl": Qwen3VLProcessor, "glm4v": Glm4vProcessor, "glm46v": Glm46VProcessor}
    for kind, processor in processors.items():
        own = SimpleNamespace(video_processor=SimpleNamespace(merge_size=2, temporal_patch_size=2))
        own.image_token, own.video_token = "<|image|>", "<|video_pad|>"
        own.vision_start_token, own.vision_end_token = "<|vision_start|>", "<|vision_end|>"
        for name in ("_calculate_timestamps", "replace_frame_token_id"):
            if hasattr(processor, name):
                setattr(own, name, partial(getattr(processor, name), own))
        theirs = cast("Any", processor).replace_video_token(own, video, 0)
        text = FAMILIES[kind].text
        assert text is not None
        assert text(CONFIGS[kind](), np.array(times_s)) == theirs, kind


def test_a_clip_s_budget_counts_all_of_its_frames(frames: torch.Tensor) -> None:
    """Also where the first two frames tell how long the prompt will be."""
    config, spec = CONFIGS["qwen3_vl"](), FrameSpec(size=PixelBudget(64, 24 * 64 * 12, 8), crop=None)
    _, two = clip_inputs(config, spec, frames[:2], TIMES_S[:2], count=24)
    _, whole = clip_inputs(config, spec, frames.repeat(8, 1, 1, 1), np.arange(24.0))
    assert two["video_grid_thw"][0, 1:].tolist() == whole["video_grid_thw"][0, 1:].tolist() == [4, 8]
    _, alone = clip_inputs(config, spec, frames[:2], TIMES_S[:2])
    assert alone["video_grid_thw"].tolist() == [[1, 8, 12]]


@pytest.mark.parametrize("kind", ["internvl", "smolvlm", "gemma3"])
def test_every_frame_is_an_image_of_its_own(
    kind: str, tokenizer: PreTrainedTokenizerFast, frames: torch.Tensor
) -> None:
    config = CONFIGS[kind]()
    inputs = model_inputs(config, tokenizer, None, frames, TIMES_S, "What is ahead?")
    assert int((inputs["input_ids"] == config.image_token_id).sum()) == 3 * 9
    if kind == "gemma3":
        assert torch.equal(inputs["token_type_ids"], (inputs["input_ids"] == config.image_token_id).int())
    pixels = preprocess(frames, FAMILIES[kind].spec(config))
    assert torch.equal(inputs["pixel_values"].reshape(pixels.shape), pixels)


def test_qwen_gets_the_seconds_of_a_pair(tokenizer: PreTrainedTokenizerFast, frames: torch.Tensor) -> None:
    def seconds(times_s: list[float]) -> list[float]:
        shown = frames[: len(times_s)]
        inputs = model_inputs(config, tokenizer, SMALL, shown, np.array(times_s), "What?")
        return inputs["second_per_grid_ts"].tolist()

    config = CONFIGS["qwen2_5_vl"]()
    assert seconds([0.0, 0.5, 1.0]) == [1.0]
    assert seconds([3.0, 3.25]) == [0.5]
    assert seconds([2.0]) == seconds([2.0, 2.0]) == [1.0]  # a still


def test_qwen_takes_its_own_budget(tokenizer: PreTrainedTokenizerFast, frames: torch.Tensor) -> None:
    config = CONFIGS["qwen2_vl"]()
    inputs = model_inputs(config, tokenizer, None, frames, TIMES_S, "What?")
    assert 128 <= int((inputs["input_ids"] == config.video_token_id).sum()) // 2 <= 768


QWEN_PROMPT = (
    "<s><|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
    "<|vision_start|><|video_pad|><|vision_end|>What {is} it?<|im_end|>\n<|im_start|>assistant\n"
)


# As HF's processors write them; the frames were taken at 0, 0.5 and 1 s.
INTERN_PROMPT = (
    "<s><|im_start|>user\nFrame1: <img><IMG_CONTEXT></img>\nFrame2: <img><IMG_CONTEXT></img>\n"
    "Frame3: <img><IMG_CONTEXT></img>\nWhat {is} it?<|im_end|>\n<|im_start|>assistant\n"
)
GEMMA_IMAGE = "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"
GEMMA_PROMPT = f"<s><start_of_turn>user\n{GEMMA_IMAGE * 3}What {{is}} it?<end_of_turn>\n<start_of_turn>model\n"
SMOL_IMAGE = "<fake_token_around_image><global-img><image><fake_token_around_image>"
SMOL_PROMPT = (
    "<s><|im_start|>User: You are provided the following series of three frames from a 0:00:01 [H:MM:SS] video.\n"
    f"\nFrame from 00:00:{SMOL_IMAGE}\nFrame from 00:00:{SMOL_IMAGE}\nFrame from 00:01:{SMOL_IMAGE}\n\n"
    "What {is} it?<end_of_utterance>\nAssistant:"
)


QWEN3_FRAME = "<|vision_start|><|video_pad|><|vision_end|>"
QWEN3_PROMPT = (
    f"<s><|im_start|>user\n<|vision_start|><0.2 seconds>{QWEN3_FRAME}<1.0 seconds>{QWEN3_FRAME}<|vision_end|>"
    "What {is} it?<|im_end|>\n<|im_start|>assistant\n"
)
GLM_FRAME = "<|begin_of_image|><|image|><|end_of_image|>"
GLM_PROMPT = (
    f"<s>[gMASK]<sop><|user|>\n<|begin_of_video|>{GLM_FRAME}0{GLM_FRAME}1<|end_of_video|>What {{is}} it?<|assistant|>\n"
)
GLM46_PROMPT = GLM_PROMPT.replace(f"{GLM_FRAME}0{GLM_FRAME}1", f"{GLM_FRAME}0.0 seconds{GLM_FRAME}1.0 seconds")


@pytest.mark.parametrize(
    ("kind", "prompt"),
    [
        ("video_llava", "<s>USER: <video>\nWhat {is} it? ASSISTANT:"),
        ("llava_next_video", "<s>USER: <video>\nWhat {is} it? ASSISTANT:"),
        ("llava_onevision", "<s><|im_start|>user <video>\nWhat {is} it?<|im_end|><|im_start|>assistant\n"),
        ("qwen2_vl", QWEN_PROMPT),
        ("qwen3_vl", QWEN3_PROMPT),
        ("glm4v", GLM_PROMPT),
        ("glm4v_moe", GLM_PROMPT),
        ("glm46v", GLM46_PROMPT),
        ("internvl", INTERN_PROMPT),
        ("smolvlm", SMOL_PROMPT),
        ("gemma3", GEMMA_PROMPT),
    ],
)
def test_the_documented_prompts(
    kind: str, prompt: str, tokenizer: PreTrainedTokenizerFast, frames: torch.Tensor
) -> None:
    inputs = model_inputs(CONFIGS[kind](), tokenizer, spec_for(kind), frames, TIMES_S, "What {is} it?")
    assert text_of(tokenizer, inputs) == prompt


def with_template(tokenizer: PreTrainedTokenizerFast, template: str) -> PreTrainedTokenizerFast:
    copy = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    copy.chat_template = template
    return copy


PARTS = "{% for part in messages[0].content %}{% if part.type == 'video' %}<video>{% else %}{{ part.text }}{% endif %}"
OWN = "Q: " + PARTS + "{% endfor %}{% if add_generation_prompt %} A:{% endif %}"


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        (OWN, "<s>Q: <video>What? A:"),
        ("{{ bos_token }}" + OWN, "<s>Q: <video>What? A:"),  # one start token, not two
        ("U: {{ messages[0].content + 'x' }}", "<s>USER: <video>\nWhat? ASSISTANT:"),  # takes plain text only
        ("{{ raise_exception('no video') }}", "<s>USER: <video>\nWhat? ASSISTANT:"),
        ("{% for i in range(10**9) %}a{% endfor %}", "<s>USER: <video>\nWhat? ASSISTANT:"),  # OverflowError
        ("{{ 1 // 0 }}", "<s>USER: <video>\nWhat? ASSISTANT:"),  # ZeroDivisionError
        ("Q: {{ messages[0].content[1].text }}", "<s>USER: <video>\nWhat? ASSISTANT:"),  # ignores the video
    ],
)
def test_a_tokenizers_own_template(
    template: str, prompt: str, tokenizer: PreTrainedTokenizerFast, frames: torch.Tensor
) -> None:
    own = with_template(tokenizer, template)
    inputs = model_inputs(CONFIGS["video_llava"](), own, None, frames, TIMES_S, "What?")
    assert text_of(own, inputs) == prompt


@pytest.mark.parametrize(
    ("kind", "question"),
    [
        ("video_llava", "What is <video>?"),
        ("video_llava", "Is this an <image>?"),
        ("internvl", "What is <video>?"),
        ("internvl", "What is <IMG_CONTEXT>?"),
        ("smolvlm", "Is this an <image>?"),
        ("gemma3", "Is this <start_of_image>?"),
    ],
)
def test_a_placeholder_in_the_question(
    kind: str, question: str, tokenizer: PreTrainedTokenizerFast, frames: torch.Tensor
) -> None:
    with pytest.raises(CrossdraftError, match="leave it out"):
        model_inputs(CONFIGS[kind](), tokenizer, None, frames, TIMES_S, question)


def test_an_unknown_model_is_loaded_by_the_general_way() -> None:
    assert model_class("kimi_k25") == "AutoModelForMultimodalLM"
    with pytest.raises(CrossdraftError, match="type is None; take config"):
        model_class(None)
    with pytest.raises(CrossdraftError, match="'llava' are not in the table of families"):
        clip_inputs(transformers.LlavaConfig(), None, torch.zeros(2, 8, 8, 3, dtype=torch.uint8), TIMES_S)


def test_another_models_tokenizer(tokenizer: PreTrainedTokenizerFast, frames: torch.Tensor) -> None:
    config = CONFIGS["video_llava"]()
    config.video_token_id = 7
    with pytest.raises(CrossdraftError, match="but the model expects 7"):
        model_inputs(config, tokenizer, None, frames, TIMES_S, "What?")


def test_another_models_frames(tokenizer: PreTrainedTokenizerFast, frames: torch.Tensor) -> None:
    with pytest.raises(CrossdraftError, match="makes frames of 224x224, but the model's vision encoder takes 20x20"):
        model_inputs(CONFIGS["video_llava"](), tokenizer, FrameSpec(), frames, TIMES_S, "What?")
    odd = FrameSpec(size=(24, 30), crop=None)
    with pytest.raises(CrossdraftError, match="frames of 30x24, but the model's vision encoder takes multiples of 8"):
        model_inputs(CONFIGS["qwen2_vl"](), tokenizer, odd, frames, TIMES_S, "What?")
