"""Models that can be a target: their types, and the classes in `transformers` that they load into.

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
        "glm4v": "Glm4vForConditionalGeneration",
        "glm4v_moe": "Glm4vMoeForConditionalGeneration",
        "glm46v": "Glm46VForConditionalGeneration",
        "internvl": "InternVLForConditionalGeneration",
        "smolvlm": "SmolVLMForConditionalGeneration",
        "gemma3": "Gemma3ForConditionalGeneration",
    }
)

_REMOTE = "transformers has no class for it, and its checkpoint runs code of its own, which is never done"
_RECURRENT = "its text layers are Qwen3.5's, most of them recurrent, and their state has no room for a draft tree"

# Model types that users may try, and the reason why they are not in CLASSES.
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "llavaonevision1_5": f"{_REMOTE}; take a llava_onevision.",
        "minicpmv": f"{_REMOTE}; take a model of another family.",
        "minicpmv4_6": f"{_RECURRENT}; take a model of another family.",
        "minicpmv4_7": f"{_RECURRENT}; take a model of another family.",
        "qwen3_5": f"{_RECURRENT}; take a qwen3_vl.",
        "qwen3_5_moe": f"{_RECURRENT}; take a qwen3_vl_moe.",
        "internvl_chat": f"{_REMOTE}; take the repository of the same model whose name ends with -hf.",
    }
)


def model_class(model_type: object) -> str:
    """Name of the class in `transformers` that a checkpoint of this `model_type` loads into.

    Raises:
        CrossdraftError: the type is not in CLASSES.
    """
    if isinstance(model_type, str) and model_type in REFUSED:
        raise CrossdraftError(f"Models of type {model_type!r} cannot be a target: {REFUSED[model_type]}")
    if not isinstance(model_type, str) or model_type not in CLASSES:
        known = ", ".join(CLASSES)
        raise CrossdraftError(
            f"Video models of type {model_type!r} are not known; use one of {known}, or add the type as "
            "docs/adding_a_vlm.md shows."
        )
    return CLASSES[model_type]
