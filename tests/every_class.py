"""Trials of classes that are not in the table of families, by inputs made by hand: `python -m tests.every_class`.

Each is a small random model of the class's own configuration, tried as loading tries it (`crossdraft.trial`). The
results go into docs/results/models.json, from which docs/models.md is written (`python tools/tables.py`).
"""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES

from crossdraft.checkpoints.shrunk import shrunk_model
from crossdraft.checkpoints.weights import LIBRARY_ERRORS
from crossdraft.engine.encoded import visual_rows
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.target import Target
from crossdraft.trial import WORDS, conforms
from tests.any_class import little, with_ids

VOCABULARY, IMAGE, VIDEO = 300, 297, 298
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "models.json"
MIX = ["sliding_attention", "full_attention"]
POSITIONS = {"pos_emb_height": 8, "pos_emb_width": 8}


def mrope(*sections: int, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections), **more}


EDITS: dict[str, dict[str, Any]] = {
    "aria": {"projector_patch_to_query_dict": {16: 4}, "max_value_projector_patch_to_query_dict": 4},
    "aya_vision": {},
    "cohere2_vision": {},
    "cohere_compass": {"text_config": {"rope_parameters": {kind: mrope(16, 24, 24) for kind in MIX}}},
    "cosmos3_edge": {"text_config": {"rope_parameters": mrope(16, 24, 24)}, "vision_config": {"num_patches": 64}},
    "cosmos3_omni": {"text_config": {"rope_parameters": mrope(24, 20, 20, mrope_interleaved=True)}},
    "deepseek_ocr2": {
        "text_config": {"num_hidden_layers": 4, "mlp_layer_types": ["dense"] + ["sparse"] * 3, "num_experts_per_tok": 2}
    },
    "deepseek_vl": {},
    "deepseek_vl_hybrid": {"high_res_vision_config": {"image_size": 64, "patch_size": 4}},
    "exaone4_5": {},
    "got_ocr2": {"vision_config": {"image_size": 64}},
    "glm_ocr": {"text_config": {"rope_parameters": mrope(8, 12, 12)}},
    "glmga": {"text_config": {"rope_parameters": mrope(8, 12, 12, partial_rotary_factor=0.5)}},
    "granite_docling": {},
    "hyperclovax_vision_v2": {},
    "idefics2": {},
    "idefics3": {},
    "janus": {"vision_config": {"num_image_tokens": 16}},
    "kimi_k25": {"vision_config": POSITIONS | {"pos_emb_time": 4}},
    "lighton_ocr": {"vision_config": {"image_size": 32}},
    "llava": {},
    "llava_next": {"image_grid_pinpoints": [[16, 16], [16, 32]]},
    "mistral3": {"vision_config": {"image_size": 32}},
    "muse_glimmer": {"vision_config": POSITIONS},
    "muse_spark": {"vision_config": POSITIONS},
    "ovis2": {},
    "paddleocr_vl": {"text_config": {"rope_parameters": mrope(16, 24, 24)}},
    "qianfan_ocr": {},
    "step3p7": {"text_config": {"sliding_window": 512}},
    "video_llama_3": {},
    "vipllava": {},
    "granite4_vision": {
        "deepstack_layer_map": [[0, 0], [1, 1]],
        "spatial_target_layers": [2, 3],
        "downsample_rate": "1/2",
    },
    "phi4_multimodal": {},
    "fuyu": {},
}
WORDS_ALONE = ("deepseek_ocr2", "granite4_vision", "phi4_multimodal", "fuyu")  # no image was made for them
FRAME_BY_FRAME = ("glmga", "glm_ocr", "cosmos3_omni", "cosmos3_edge", "cohere_compass")  # text between a clip's frames
NESTED = ("idefics2", "idefics3", "granite_docling")
SIDES = {"got_ocr2": 64, "deepseek_ocr2": 256}  # of an image in pixels, where it is not the encoder's


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def pixels(kind: str, model: PreTrainedModel, clip: bool) -> dict[str, Tensor]:
    """Inputs that the class's processor would make of a small image, or of a clip of two frames."""
    function: Any = getattr(model.base_model, f"get_{'video' if clip else 'image'}_features")
    wanted, vision = inspect.signature(inspect.unwrap(function)).parameters, model.config.vision_config
    names = ("pixel_values_videos", "video_grid_thw") if clip else ("pixel_values", "image_grid_thw")
    if names[1] in wanted:
        grid, patch = torch.tensor([[1 + clip, 4, 4]]), vision.patch_size
        depth = getattr(vision, "temporal_patch_size", None) or getattr(vision, "patch_temporal", None) or 1
        shape = (3, patch, patch) if kind in ("kimi_k25", "paddleocr_vl") else (3 * depth * patch**2,)
        found = {names[0]: noise(int(grid.prod()), *shape), names[1]: grid}
        if kind == "video_llama_3":
            found["video_merge_sizes" if clip else "image_merge_sizes"] = torch.tensor([2])
            found |= {"video_compression_mask": torch.ones(8, dtype=torch.bool)} if clip else {}
        return found
    side = SIDES.get(kind) or getattr(vision, "image_size", 16)
    side = side[0] if isinstance(side, list | tuple) else side
    sized = "image_sizes" in wanted and kind != "llava"  # which wants them for another encoder
    size = {"image_sizes": torch.tensor([[side, side]])} if sized else {}
    if kind in NESTED:
        mask = {"pixel_attention_mask": torch.ones(1, 1, dtype=torch.bool)} if kind == "granite_docling" else {}
        return {"pixel_values": noise(1, 1, 3, side, side), **mask}
    if kind == "llava_next":
        return {"pixel_values": noise(1, 2, 3, side, side), **size}
    found = {"pixel_values": noise(1, 3, side, side), **size}
    if kind == "aria":
        found["pixel_mask"] = torch.ones(1, side, side, dtype=torch.bool)
    if kind == "deepseek_vl_hybrid":
        found["high_res_pixel_values"] = noise(1, 3, 64, 64)
    return found


def shown(kind: str, model: PreTrainedModel, clip: bool) -> Prompt:
    """Words, an image or a clip, words."""
    inputs, config, known = pixels(kind, model, clip), model.config, inspect.signature(model.forward).parameters
    function: Any = getattr(model.base_model, f"get_{'video' if clip else 'image'}_features")
    wanted = inspect.signature(inspect.unwrap(function)).parameters
    given = {name: value.to(model.dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    with torch.inference_mode():
        rows = len(visual_rows(function(**{name: given[name] for name in given if name in wanted}, return_dict=True)))
    ids = [getattr(config, f"{name}_token_{end}", None) for name in ("image", "video") for end in ("id", "index")]
    image = next((one for one in ids[:2] if isinstance(one, int)), IMAGE)
    video = next((one for one in ids[2:] if isinstance(one, int)), image)
    token = video if clip and not kind.startswith("glm") else image
    marks = [
        [mark] if isinstance(mark := getattr(config, f"vision_{end}_token_id", None), int) else []
        for end in ("start", "end")
    ]
    frames = 2 if clip and kind in FRAME_BY_FRAME else 1
    run = [*marks[0], *[token] * (rows // frames), *marks[1]]
    text = torch.tensor([41, 45, *(one for frame in range(frames) for one in (60 + frame, *run)), 47, 48, 49])
    types = (text == token)[None].int() * (2 if clip else 1)
    features = {**inputs, **dict.fromkeys(("mm_token_type_ids", "token_type_ids"), types)}
    return Prompt(text, {name: value for name, value in features.items() if name in known})


def config_of(kind: str) -> PretrainedConfig:
    """A class's own configuration, with little pictures and a vocabulary of its own."""
    ids = {"image_token": IMAGE, "video_token": VIDEO, "bos_token": 1, "eos_token": 2, "pad_token": 0}
    starts = ("vision_start_token", "image_start_token", "video_start_token")
    ids |= dict.fromkeys(starts, 290) | {name.replace("start", "end"): 291 for name in starts}
    return CONFIG_MAPPING[kind].from_dict(with_ids(little(kind, EDITS[kind]), ids, VOCABULARY))


def tried(kind: str) -> dict[str, Any]:
    """Result of one class: for words, an image and a clip the error, or what could not be tried."""
    name = MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES[kind]
    model = shrunk_model(getattr(transformers, name), config_of(kind), torch.float64)
    target = Target(model, lambda request: WORDS, str, ())
    found: dict[str, Any] = {"class": name}
    prompts: dict[str, Prompt] = {"text": WORDS}
    for what in ("image", "clip"):
        if kind in WORDS_ALONE or not hasattr(
            model.base_model, f"get_{'video' if what == 'clip' else 'image'}_features"
        ):
            continue
        try:
            prompts[what] = shown(kind, model, what == "clip")
        except LIBRARY_ERRORS as error:  # of the class itself, such as Kimi's clips in transformers 5.23
            found[what] = {"passes": False, "error": None, "why": f"its own encoder fails ({type(error).__name__})"}
    for what, prompt in prompts.items():
        test = conforms(target, what, prompt)
        found[what] = {"passes": test.passes, "error": test.error} | ({"why": test.why} if test.why else {})
    return found


def main(each: Callable[[str], object] = print) -> None:
    """Try every class, and write the results."""
    classes = {}
    for kind in EDITS:
        classes[kind] = tried(kind)
        each(f"{kind}: {classes[kind]}")
    facts = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "dtype": "float64"}
    RESULTS.write_text(json.dumps({**facts, "classes": classes}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
