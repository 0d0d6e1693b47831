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
# Types of text models of which trees were verified against plain forwards (`tests/test_text_model.py`).
_TEXT = (
    "afmoe apertus arcee aria_text bitnet cohere cohere2 cohere2_moe cwm deepseek_v2 deepseek_v3 diffllama "
    "doge ernie4_5 ernie4_5_moe exaone4 exaone_moe flex_olmo gemma gemma3_text glm glm4 glm4_moe gpt2 "
    "gpt_bigcode gpt_neox granite granitemoe granitemoeshared hy_v3 hyperclovax internlm3 iquestcoder jais2 "
    "jetmoe kimi_linear kolibri1 laguna lfm2 lfm2_moe lfm3 llama longcat_flash mellum minicpm3 minimax_m2 "
    "ministral3 mistral mixtral nanochat nemotron nemotron_h olmo olmo2 olmo3 olmoe opt persimmon phi phi3 "
    "phimoe qwen2 qwen2_moe qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next seed_oss smollm3 "
    "solar_open stablelm starcoder2 youtu"
)
TEXT_TYPES = frozenset(_TEXT.split())

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
        CrossdraftError: the type is not in CLASSES, or for text models not in TEXT_TYPES.
    """
    if isinstance(model_type, str) and model_type in REFUSED:
        raise CrossdraftError(f"Models of type {model_type!r} cannot be a target: {REFUSED[model_type]}")
    if text and model_type not in TEXT_TYPES:
        raise CrossdraftError(
            f"Text models of type {model_type!r} were not tried, so that they may be wrong; use one of "
            f"{', '.join(sorted(TEXT_TYPES))}."
        )
    if text:
        return TEXT_CLASS
    if not isinstance(model_type, str) or model_type not in CLASSES:
        known = ", ".join(CLASSES)
        raise CrossdraftError(
            f"Video models of type {model_type!r} are not known; use one of {known}, or add the type as "
            "docs/adding_a_vlm.md shows."
        )
    return CLASSES[model_type]
