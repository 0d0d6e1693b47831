"""Models that can be a target, VLMs and text models: their types, and their classes in `transformers`.

Importing this table needs no PyTorch, so that other types are refused before anything is loaded.
"""

from collections.abc import Mapping
from types import MappingProxyType

from crossdraft.errors import CrossdraftError

CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "video_llava": "VideoLlavaForConditionalGeneration",
        "llava_next_video": "LlavaNextVideoForConditionalGeneration",
        "llava_onevision": "LlavaOnevisionForConditionalGeneration",
        "qwen2_vl": "Qwen2VLForConditionalGeneration",
        "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
        "qwen3_vl": "Qwen3VLForConditionalGeneration",
        "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
        "qwen3_5": "Qwen3_5ForConditionalGeneration",
        "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
        "glm4v": "Glm4vForConditionalGeneration",
        "glm4v_moe": "Glm4vMoeForConditionalGeneration",
        "glm46v": "Glm46VForConditionalGeneration",
        "internvl": "InternVLForConditionalGeneration",
        "smolvlm": "SmolVLMForConditionalGeneration",
        "gemma3": "Gemma3ForConditionalGeneration",
    }
)

TEXT_CLASS = "AutoModelForCausalLM"
ANY_CLASS = "AutoModelForMultimodalLM"  # of types that are not in CLASSES: tried when they are loaded (`trial`)

_REMOTE = "transformers has no class for it, and its checkpoint runs code of its own, which is never done"

# Model types that users may try, and the reason why they are not in CLASSES.
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "llavaonevision1_5": f"{_REMOTE}; take a llava_onevision.",
        "minicpmv": f"{_REMOTE}; take a model of another family.",
        "internvl_chat": f"{_REMOTE}; take the repository of the same model whose name ends with -hf.",
    }
)


def model_class(model_type: object, *, text: bool = False) -> str:
    """Name of the class in `transformers` that a checkpoint of this `model_type` loads into.

    Args:
        model_type: as in the checkpoint's configuration.
        text: the checkpoint holds a causal language model without vision.

    Raises:
        CrossdraftError: the type is known not to work, or there is none.
    """
    if isinstance(model_type, str) and model_type in REFUSED:
        raise CrossdraftError(f"Models of type {model_type!r} cannot be a target: {REFUSED[model_type]}")
    if not isinstance(model_type, str):
        raise CrossdraftError(f"The model's type is {model_type!r}; take config.json from the checkpoint again.")
    return TEXT_CLASS if text else CLASSES.get(model_type, ANY_CLASS)
