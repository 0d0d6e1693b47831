"""Images against HF's own image processors (the PIL ones): tiles, pixels, sizes, and what is written for them."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import (
    GotOcr2ImageProcessorPil,
    get_optimal_tiled_canvas,
)
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_next_video.processing_llava_next_video import LlavaNextVideoProcessor
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from crossdraft.errors import CrossdraftError
from crossdraft.video.inputs import FAMILIES, image_inputs, image_spec
from crossdraft.video.spec import NearestGrid
from crossdraft.video.tiles import cut, nearest_grid
from tests.video.test_inputs import CONFIGS
from tests.video.test_preprocess import scene, steps

SIZES = [(48, 64), (64, 48), (20, 20), (33, 121), (200, 37), (101, 333), (480, 270)]
CANVASES = [[20, 40], [40, 20], [40, 40], [20, 60], [60, 20]]
SQUARE = {"height": 20, "width": 20}
EVEN = {"height": 24, "width": 24}
LLAVA = {"size": {"shortest_edge": 20}, "crop_size": SQUARE, "image_grid_pinpoints": CANVASES}
ONEVISION = {"size": SQUARE, "image_grid_pinpoints": CANVASES, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
SMOL = {"size": {"longest_edge": 72}, "max_image_size": {"longest_edge": 24}}
PATCHES = {"patch_size": 4, "size": {"shortest_edge": 1024, "longest_edge": 9000}}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
PROCESSORS: dict[str, Any] = {
    "llava_next_video": lambda: LlavaNextImageProcessorPil(**LLAVA),
    "llava_onevision": lambda: LlavaOnevisionImageProcessorPil(**ONEVISION),
    "qwen2_vl": lambda: Qwen2VLImageProcessorPil(**PATCHES),
    "qwen3_vl": lambda: Qwen2VLImageProcessorPil(**PATCHES, **HALF),
    "glm4v": lambda: Glm4vImageProcessorPil(**PATCHES),
    "glm46v": lambda: Glm46VImageProcessorPil(**PATCHES),
    "internvl": lambda: GotOcr2ImageProcessorPil(size=EVEN, max_patches=6),
    "smolvlm": lambda: SmolVLMImageProcessorPil(**SMOL),
    "gemma3": lambda: Gemma3ImageProcessorPil(size=EVEN),
}


def config_of(kind: str) -> Any:
    config: Any = CONFIGS[kind]()
    if kind in ("llava_next_video", "llava_onevision"):
        config.image_grid_pinpoints = CANVASES
    return config


def by_hf(processor: Any, image: Any, **more: object) -> Any:
    """An image [1, H, W, 3], or one of PIL."""
    given = image[0].numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
    return processor([given], return_tensors="pt", input_data_format="channels_last", **more)


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("kind", PROCESSORS)
def test_inputs_of_an_image_are_those_of_hf_s_processor(kind: str, height: int, width: int) -> None:
    image = scene(height, width)
    check_inputs(kind, image, image)


def check_inputs(kind: str, image: torch.Tensor, given: Any) -> None:
    """Compare our inputs of an image [1, H, W, 3] with those that a checkpoint's processor makes of it is given."""
    config, processor = config_of(kind), PROCESSORS[kind]()
    spec = image_spec(config, processor.to_dict())
    text, features = image_inputs(config, spec, image)
    more = {"internvl": {"crop_to_patches": True}, "smolvlm": {"return_row_col_info": True}}.get(kind, {})
    theirs = by_hf(processor, given, **more)
    pixels = features["pixel_values"]
    expected = theirs["pixel_values"]
    if kind.startswith("llava"):
        expected = expected[0]
    assert pixels.shape == expected.shape
    flat = (-1, 3, 2 * 4 * 4) if pixels.ndim == 2 else (-1, 3, pixels.shape[-2] * pixels.shape[-1])
    off = steps(pixels.reshape(flat)[..., None], expected.reshape(flat)[..., None], spec)
    assert off.max() < 1.01
    assert (off > 0.5).float().mean() < 0.1
    for name in ("image_grid_thw", "image_sizes"):
        assert (name in features) == (name in theirs)
        if name in features:
            assert torch.equal(features[name], theirs[name])
    expanded = text.text.replace(FAMILIES[kind].still.placeholder, FAMILIES[kind].still.placeholder * text.run)
    assert expanded == written(kind, config, processor, theirs)


def written(kind: str, config: Any, processor: Any, inputs: Any) -> str:
    """What HF's processors write for an image, by their own code, with what it reads of a whole processor."""
    if kind in ("qwen2_vl", "qwen3_vl", "glm4v", "glm46v"):
        return FAMILIES[kind].still.placeholder * (int(inputs["image_grid_thw"].prod()) // 4)
    if kind == "smolvlm":
        rows, columns = inputs["rows"][0][0], inputs["cols"][0][0]
        return get_image_prompt_string(rows, columns, 9, "<fake_token_around_image>", "<image>", "<global-img>")
    if kind == "gemma3":
        own = SimpleNamespace(full_image_sequence=f"\n\n<start_of_image>{'<image_soft_token>' * 9}<end_of_image>\n\n")
        return cast("Any", Gemma3Processor).replace_image_token(own, inputs, 0)
    if kind == "internvl":
        own = SimpleNamespace(start_image_token="<img>", end_image_token="</img>", image_token="<IMG_CONTEXT>")
        own.image_seq_length = 9
        return cast("Any", InternVLProcessor).replace_image_token(own, {"num_patches": inputs["num_patches"]}, 0)
    owner: Any = LlavaNextVideoProcessor if kind == "llava_next_video" else LlavaOnevisionProcessor
    own = owner.__new__(owner)
    own.image_processor, own.image_token, own.patch_size, own.num_image_tokens = processor, "<image>", 4, 25
    own.num_additional_image_tokens = int(kind == "llava_next_video")  # the class token, which "default" leaves out
    own.vision_feature_select_strategy = config.vision_feature_select_strategy
    own.vision_aspect_ratio = getattr(config, "vision_aspect_ratio", None)
    return owner.replace_image_token(own, inputs, 0)


def test_internvl_s_grids_are_hf_s() -> None:
    for height, width in np.random.default_rng(0).integers(1, 3000, (300, 2)).tolist():
        columns, rows = get_optimal_tiled_canvas((height, width), (448, 448), 1, 12)
        assert nearest_grid((height, width), (448, 448), NearestGrid()) == (rows, columns)


def test_an_image_of_many_tiles_is_shrunk_by_onevision() -> None:
    """As `anyres_max_1`: of 2 x 3 tiles about one tile's patches are left."""
    config = config_of("llava_onevision")
    config.vision_aspect_ratio = "anyres_max_1"
    text, features = image_inputs(config, None, scene(400, 600))
    processor = PROCESSORS["llava_onevision"]()
    inputs = by_hf(processor, scene(400, 600))
    assert "<image>" * text.run == written("llava_onevision", config, processor, inputs)
    assert text.run < 25 + 10 * 11
    assert features["pixel_values"].shape[0] == len(inputs["pixel_values"][0])


def test_smolvlm_without_splitting() -> None:
    config = config_of("smolvlm")
    processor = SmolVLMImageProcessorPil(**SMOL, do_image_splitting=False)
    spec, image = image_spec(config, processor.to_dict()), scene(101, 333)
    tiles = cut(image, spec)
    assert (tiles.grid, len(tiles.pixels)) == ((0, 0), 1)
    assert steps(tiles.pixels, by_hf(processor, image)["pixel_values"][0], spec).max() < 1.01


def test_the_families_own_settings_are_those_of_hf_s_processors() -> None:
    """Where no file says them; but for what depends on the model's size."""
    for kind, processor in (("gemma3", Gemma3ImageProcessorPil), ("smolvlm", SmolVLMImageProcessorPil)):
        config = config_of(kind)
        config.vision_config.image_size = 364 if kind == "smolvlm" else 224
        assert image_spec(config) == image_spec(config, processor().to_dict())


@pytest.mark.parametrize("most", ["many", 0, 10**6])
def test_settings_that_are_broken_are_refused(most: object) -> None:
    settings = PROCESSORS["internvl"]().to_dict() | {"max_patches": most}
    with pytest.raises(CrossdraftError, match=r"The processor cannot be used: .*take it from the checkpoint again"):
        image_spec(config_of("internvl"), settings)
