"""Models of any size with random weights: the cost of a pass does not depend on the weights' values."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    CLIPVisionConfig,
    LlamaConfig,
    PretrainedConfig,
    VideoLlavaConfig,
)

from crossdraft.checkpoints.memory import free_memory
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.fast.packed_linear import PrepackedLinear
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.models.eventgpt import EventGPTConfig

VOCABULARY, IMAGE, VIDEO = (32064, 32000, 32001)  # Video-LLaVA-7B's head has padded rows after its 32003 tokens
FRAMES = 8
BEFORE, AFTER = 6, 30  # text tokens in front of the clip and after it
SPARE = 1.1  # room for activations and caches, relative to the weights


def clip(
    hidden: int, layers: int, patch: int, projection: int, side: int = 224, intermediate: int = 0
) -> CLIPVisionConfig:
    """Configuration of CLIP's ViT, with heads of width 64."""
    return CLIPVisionConfig(
        hidden_size=hidden,
        intermediate_size=intermediate or 4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        image_size=side,
        patch_size=patch,
        projection_dim=projection,
    )


def video_llava(text: LlamaConfig, vision: CLIPVisionConfig | None = None) -> VideoLlavaConfig:
    """Configuration of Video-LLaVA for eight 224 x 224 frames; with CLIP ViT-L/14, the default, 8 x 257 tokens."""
    seen = vision or clip(1024, 24, 14, 768)
    return VideoLlavaConfig(vision_config=seen, text_config=text, image_token_index=IMAGE, video_token_index=VIDEO)


def small_llama(hidden: int, layers: int, vocabulary: int, intermediate: int = 0) -> LlamaConfig:
    """Configuration of a Llama with heads of width 64."""
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate or 4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=4096,
    )


TARGETS: dict[str, Callable[[], PretrainedConfig]] = {
    "video-llava-7b": lambda: video_llava(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=4096)),
    "0.5b": lambda: video_llava(small_llama(1024, 24, VOCABULARY)),
}
DRAFTERS: dict[str, Callable[[], PretrainedConfig]] = {
    "eventgpt-7b": EventGPTConfig,
    "1b": lambda: EventGPTConfig(text_config=small_llama(2048, 16, 32001)),
    "small": lambda: EventGPTConfig(vision_config=clip(768, 12, 16, 512), text_config=small_llama(512, 8, 32001)),
}


def shape_of(name: str, presets: dict[str, Callable[[], PretrainedConfig]]) -> PretrainedConfig:
    """Read a configuration: a preset by name, or a Hugging Face `config.json` by path.

    Raises:
        CrossdraftError: neither a preset nor a file, or a model class whose prompt is not known here.
    """
    if name in presets:
        return presets[name]()
    path = Path(name)
    if not path.is_file():
        raise CrossdraftError(f"'{name}' is neither {', '.join(presets)} nor a file; give the path of a config.json.")
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        config = AutoConfig.for_model(**raw)
    except (ValueError, TypeError, KeyError) as error:
        raise CrossdraftError(f"{path} is no configuration of a known model ({str(error).splitlines()[0]}).") from error
    if config.model_type not in ("video_llava", "eventgpt"):
        raise CrossdraftError(f"{path} describes a '{config.model_type}'; scale knows video_llava and eventgpt.")
    return config


def random_prompt(config: Any, seed: int) -> Prompt:
    """Build a prompt of text, a clip of noise, and text, with as many tokens as a real prompt."""
    generator = torch.Generator().manual_seed(seed)
    side = config.vision_config.image_size
    if config.model_type == "eventgpt":
        frames, count = config.num_event_frames, config.event_seq_length
    else:
        frames, count = FRAMES, FRAMES * ((side // config.vision_config.patch_size) ** 2 + 1)
    clip = torch.full((count,), config.video_token_id)
    lowest = min(i for i in (config.video_token_id, getattr(config, "image_token_id", None)) if i is not None)
    text = torch.randint(3, lowest, (BEFORE + AFTER,), generator=generator)
    pixels = torch.randn(1, frames, 3, side, side, generator=generator)
    return Prompt(torch.cat([text[:BEFORE], clip, text[BEFORE:]]), {"pixel_values_videos": pixels})


def random_target(config: PretrainedConfig, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Target:
    """Build a target with random weights. It never ends an answer by itself.

    The weights are drawn on the device in their final dtype: there is no copy in float32 anywhere.

    Raises:
        CrossdraftError: the model does not fit into the free memory.
    """
    check_memory(config, device, dtype)
    torch.manual_seed(seed)
    with torch.device(device):
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype, attn_implementation="sdpa")
    prompt = random_prompt(config, seed)
    return Target(model.requires_grad_(False), lambda _: prompt, lambda _: "", eos=())  # random weights write no text


def random_drafter(
    name: str, device: str, dtype: torch.dtype, banned: Sequence[int] = (), seed: int = 1, *, compiled: bool = False
) -> IndependentDrafter:
    """Build a drafter with random weights; as a function of a module, it can be called in another process.

    Args:
        compiled: compile the drafter's passes over one token.
    """
    target = random_target(shape_of(name, DRAFTERS), torch.device(device), dtype, seed)
    if compiled:
        target.compile(widest=1)
    return IndependentDrafter(target, banned)


def attending_drafter(cudnn: bool, *shape: Any) -> IndependentDrafter:
    """`random_drafter(*shape)`, with cuDNN's attention on or off in the process that it is built in."""
    drafter = random_drafter(*shape)  # its target switches cuDNN's attention off
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    return drafter


def check_memory(config: PretrainedConfig, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse a model that does not fit into memory, before hours of swapping."""
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype)
    needed = model.num_parameters() * dtype.itemsize * SPARE
    free = free_memory(device)
    if needed > free:
        raise CrossdraftError(
            f"The {config.model_type} needs {needed / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')}, {device} has "
            f"{free / 1e9:.1f} GB free; choose a smaller --config, another --dtype or another --device."
        )


def decode_bytes(model: Any) -> int:
    """Bytes of weights that decoding one token must read: the language model and its head.

    Only one row of the embedding table is read; a tied head is the whole table, and counts once.
    """
    head = list(model.get_output_embeddings().parameters())
    table = {id(parameter) for parameter in model.get_input_embeddings().parameters()}
    text: Any = getattr(model.base_model, "language_model", model.base_model)
    body = [p for p in text.parameters() if id(p) not in table]
    modules = [*text.modules(), model.get_output_embeddings()]
    packed = sum(module.nbytes for module in modules if isinstance(module, PrepackedLinear))  # no parameters
    return packed + sum(parameter.numel() * parameter.element_size() for parameter in (*body, *head))


def cache_bytes(text: Any, tokens: int, dtype: torch.dtype) -> int:
    """Bytes of keys and values of `tokens` tokens."""
    heads = text.num_key_value_heads or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return 2 * text.num_hidden_layers * heads * width * tokens * dtype.itemsize
