"""Tiny random models of every supported class, with a prompt that holds a clip."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from transformers import (
    CLIPVisionConfig,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Glm4vConfig,
    Glm4vForConditionalGeneration,
    Glm4vMoeConfig,
    Glm4vMoeForConditionalGeneration,
    Glm46VConfig,
    Glm46VForConditionalGeneration,
    InternVLConfig,
    InternVLForConditionalGeneration,
    LlamaConfig,
    LlavaNextVideoConfig,
    LlavaNextVideoForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3Config,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
    SiglipVisionConfig,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    VideoLlavaConfig,
    VideoLlavaForConditionalGeneration,
)

from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.models.eventgpt import EventGPTConfig, EventGPTForConditionalGeneration

VOCABULARY, IMAGE, VIDEO, EOS = 99, 97, 98, 2
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
Built = tuple[PreTrainedModel, Prompt]


def prompt_ids(placeholders: int, before: tuple[int, ...] = (), after: tuple[int, ...] = ()) -> Tensor:
    return torch.tensor([1, 5, 6, *before, *[VIDEO] * placeholders, *after, 7, 8, 9])


def video(frames: int, side: int = 8) -> Tensor:
    return torch.randn(1, frames, 3, side, side, generator=torch.Generator().manual_seed(7))


def video_llava(attention: str = "sdpa") -> Built:
    config = VideoLlavaConfig(
        vision_config=CLIPVisionConfig(**VISION),
        text_config=LlamaConfig(**TEXT),
        image_token_index=IMAGE,
        video_token_index=VIDEO,
    )
    return build(VideoLlavaForConditionalGeneration, config, attention), Prompt(
        prompt_ids(8 * 5), {"pixel_values_videos": video(8)}
    )


def any_resolution() -> Prompt:
    """A prompt with an image of 1 x 2 tiles: the whole, then the tiles' patches, each of whose rows has a newline."""
    ids = torch.tensor([1, 5, 6, *[IMAGE] * (4 + 2 * (4 + 1)), 7, 8, 9])
    return Prompt(ids, {"pixel_values": video(3)[0], "image_sizes": torch.tensor([[8, 16]])})


def llava_next_video(attention: str = "sdpa", kind: str = "video") -> Built:
    config = LlavaNextVideoConfig(
        vision_config=CLIPVisionConfig(**VISION),
        text_config=LlamaConfig(**TEXT),
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        image_grid_pinpoints=[[8, 8], [8, 16]],
    )
    clip = Prompt(prompt_ids(4), {"pixel_values_videos": video(4)})
    model = build(LlavaNextVideoForConditionalGeneration, config, attention)
    return model, clip if kind == "video" else any_resolution()


def llava_onevision(attention: str = "sdpa", kind: str = "video", text: type[PreTrainedConfig] = Qwen2Config) -> Built:
    config = LlavaOnevisionConfig(
        vision_config=SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=text(**TEXT),
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        image_grid_pinpoints=[[8, 8], [8, 16]],
    )
    clip = Prompt(prompt_ids(4 + 1), {"pixel_values_videos": video(4)})
    model = build(LlavaOnevisionForConditionalGeneration, config, attention)
    return model, clip if kind == "video" else any_resolution()


def qwen2_5_vl(attention: str = "sdpa") -> Built:
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 64,
        "window_size": 16,
        "fullatt_block_indexes": [1],
        "tokens_per_second": 2,
    }
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    config = Qwen2_5_VLConfig(
        vision_config=vision,
        text_config={**TEXT, "rope_parameters": rope},
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=95,
        vision_end_token_id=96,
    )
    grid = torch.tensor([[3, 4, 6]])
    ids = prompt_ids(18, (95,), (96,))
    pixels = torch.randn(int(grid.prod()), 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(7))
    features = {
        "pixel_values_videos": pixels,
        "video_grid_thw": grid,
        "second_per_grid_ts": torch.tensor([1.0]),
        "mm_token_type_ids": (ids == VIDEO)[None].int() * 2,
    }
    return build(Qwen2_5_VLForConditionalGeneration, config, attention), Prompt(ids, features)


ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
SPACE_TIME = {
    "depth": 3,
    "hidden_size": 32,
    "num_heads": 2,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 64,
}
EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
GRID = (3, 4, 6)  # patches of a clip: time, height, width; 2 x 2 of them become one token


def patches(ids: Tensor, token: int, kind: str) -> Prompt:
    """A prompt with a clip, or with an image, in space-time patches; `token` stands for it."""
    grid = torch.tensor([GRID if kind == "video" else (1, *GRID[1:])])
    pixels = torch.randn(int(grid.prod()), 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(7))
    names = ("pixel_values_videos", "video_grid_thw") if kind == "video" else ("pixel_values", "image_grid_thw")
    types = (ids == token)[None].int() * (2 if kind == "video" else 1)
    return Prompt(ids, {names[0]: pixels, names[1]: grid, "mm_token_type_ids": types})


def qwen2_vl(attention: str = "sdpa") -> Built:
    vision = SPACE_TIME | {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}
    del vision["out_hidden_size"]
    tokens = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": 95, "vision_end_token_id": 96}
    config = Qwen2VLConfig(vision_config=vision, text_config=TEXT | {"rope_parameters": ROPE}, **tokens)
    return build(Qwen2VLForConditionalGeneration, config, attention), patches(
        prompt_ids(18, (95,), (96,)), VIDEO, "video"
    )


def stamped_frames(token: int, start: int, end: int, kind: str) -> Tensor:
    """A prompt whose frames stand apart, each after its time; an image has none."""
    each = GRID[1] * GRID[2] // 4
    times = range(40, 40 + GRID[0]) if kind == "video" else [6]
    frames = [part for time in times for part in (time, start, *[token] * each, end)]
    return torch.tensor([1, 5, *frames, 7, 8, 9])


def qwen3_vl(attention: str = "sdpa", kind: str = "video", *, experts: bool = False) -> Built:
    """DeepStack: features of two vision layers are added behind the first two decoder layers."""
    vision = SPACE_TIME | {"intermediate_size": 48, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}
    text = TEXT | {"rope_parameters": ROPE | {"mrope_interleaved": True}, "head_dim": 16}
    tokens = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": 95, "vision_end_token_id": 96}
    token = VIDEO if kind == "video" else IMAGE
    prompt = patches(stamped_frames(token, 95, 96, kind), token, kind)
    if experts:
        config = Qwen3VLMoeConfig(
            vision_config=vision, text_config=text | EXPERTS | {"num_experts": 4}, tie_word_embeddings=False, **tokens
        )
        return build(Qwen3VLMoeForConditionalGeneration, config, attention), prompt
    config = Qwen3VLConfig(vision_config=vision, text_config=text, **tokens)
    return build(Qwen3VLForConditionalGeneration, config, attention), prompt


def glm4v(attention: str = "sdpa", kind: str = "video", version: str = "4.1") -> Built:
    """One token stands for images and for frames; only the token types say which."""
    vision = SPACE_TIME | {"intermediate_size": 48, "image_size": 16}
    text = TEXT | {"rope_parameters": ROPE | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}}
    tokens = {"image_token_id": IMAGE, "video_token_id": VIDEO, "image_start_token_id": 95, "image_end_token_id": 96}
    prompt = patches(stamped_frames(IMAGE, 95, 96, kind), IMAGE, kind)
    if version == "4.5":
        more = EXPERTS | {"n_routed_experts": 4, "first_k_dense_replace": 1}
        config = Glm4vMoeConfig(vision_config=vision, text_config=text | more, **tokens)
        return build(Glm4vMoeForConditionalGeneration, config, attention), prompt
    if version == "4.6":
        config = Glm46VConfig(vision_config=vision, text_config=text, **tokens)
        return build(Glm46VForConditionalGeneration, config, attention), prompt
    config = Glm4vConfig(vision_config=vision, text_config=text, **tokens)
    return build(Glm4vForConditionalGeneration, config, attention), prompt


def frames_of_images(count: int, each: int) -> Tensor:
    """A prompt that shows frames as images, with text between them."""
    frames = [token for frame in range(count) for token in (40 + frame, 95, *[IMAGE] * each, 96)]
    return torch.tensor([1, 5, 6, *frames, 7, 8, 9])


def internvl(attention: str = "sdpa", frames: int = 3) -> Built:
    config = InternVLConfig(
        vision_config=VISION | {"image_size": 16},
        text_config={**TEXT, "model_type": "qwen2"},
        image_token_id=IMAGE,
        tie_word_embeddings=False,
    )
    return build(InternVLForConditionalGeneration, config, attention), Prompt(
        frames_of_images(frames, 4), {"pixel_values": video(frames, 16)[0]}
    )


def smolvlm(attention: str = "sdpa", frames: int = 3) -> Built:
    config = SmolVLMConfig(
        vision_config=VISION | {"image_size": 16},
        text_config={**TEXT, "model_type": "llama"},
        image_token_id=IMAGE,
        scale_factor=2,
    )
    return build(SmolVLMForConditionalGeneration, config, attention), Prompt(
        frames_of_images(frames, 4), {"pixel_values": video(frames, 16)}
    )


def gemma3(attention: str = "sdpa", frames: int = 3, window: int = 8) -> Built:
    """Its prompt, its answers and the conformance test's tree with its path are longer than the window."""
    text = {**TEXT, "head_dim": 16, "sliding_window": window}
    config = Gemma3Config(
        vision_config={**VISION, "image_size": 16, "vision_use_head": False},
        text_config=text | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        image_token_index=IMAGE,
        mm_tokens_per_image=4,
        tie_word_embeddings=False,
    )
    ids = frames_of_images(frames, 4)
    features = {"pixel_values": video(frames, 16)[0], "token_type_ids": (ids == IMAGE)[None].int()}
    model = build(Gemma3ForConditionalGeneration, config, attention)
    with torch.no_grad():  # it begins with zeros
        model.model.multi_modal_projector.mm_input_projection_weight.normal_()
    return model, Prompt(ids, features)


def eventgpt(attention: str = "sdpa") -> Built:
    config = EventGPTConfig(vision_config=dict(VISION), text_config=dict(TEXT), event_token_id=VIDEO)
    return build(EventGPTForConditionalGeneration, config, attention), Prompt(
        prompt_ids(config.event_seq_length), {"pixel_values_videos": video(5)}
    )


ZOO: dict[str, Callable[..., Built]] = {
    "video_llava": video_llava,
    "llava_next_video": llava_next_video,
    "llava_onevision": llava_onevision,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "glm4v": glm4v,
    "internvl": internvl,
    "smolvlm": smolvlm,
    "gemma3": gemma3,
    "eventgpt": eventgpt,
}

# With one image: those that read a clip as a row of images, and those that tell images from clips.
IMAGES: dict[str, Callable[..., Built]] = {
    "llava_next_video_image": partial(llava_next_video, kind="image"),
    "llava_onevision_image": partial(llava_onevision, kind="image"),
    "internvl_image": partial(internvl, frames=1),
    "smolvlm_image": partial(smolvlm, frames=1),
    "gemma3_image": partial(gemma3, frames=1),
    "qwen3_vl_image": partial(qwen3_vl, kind="image"),
    "glm4v_image": partial(glm4v, kind="image"),
}


# Those whose decoder, or whose names, differ from a family's above.
KIN: dict[str, Callable[..., Built]] = {
    "qwen2_vl": qwen2_vl,
    "llava_onevision_qwen3": partial(llava_onevision, text=Qwen3Config),
    "qwen3_vl_moe": partial(qwen3_vl, experts=True),
    "glm4v_moe": partial(glm4v, version="4.5"),
    "glm46v": partial(glm4v, version="4.6"),
}


def build(kind: type[PreTrainedModel], config: object, attention: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = kind(config).double().eval()
    with torch.no_grad():  # freshly drawn weights repeat one token for ever; larger ones write varied text
        for weight in model.parameters():
            weight.mul_(3)
    model.set_attn_implementation(attention)
    model.set_experts_implementation("eager")  # the grouped kernel takes no float64
    return model


def noisy(model: PreTrainedModel, scale: float) -> PreTrainedModel:
    """Move every weight a little: a drafter that agrees with the model often, not always."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype), alpha=scale)
    return model


def as_target(model: PreTrainedModel, prompt: Prompt) -> Target:
    """A target whose prompt depends on the question: its length picks the last prompt token and drops some text."""

    def prepare(request: Request) -> Prompt:
        ids = prompt.input_ids.clone()
        ids[-1] = 10 + len(request.prompt) % 50
        return Prompt(ids, prompt.features)

    return Target(model, prepare, lambda tokens: "".join(chr(48 + token) for token in tokens), [EOS])
