"""Preprocessor files: what HF writes is read as HF means it; what is broken is refused."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.glm4v.video_processing_glm4v import Glm4vVideoProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from crossdraft.checkpoints.parts import frame_settings
from crossdraft.errors import CrossdraftError
from crossdraft.video.clip import FrameSampling
from crossdraft.video.spec import FrameSpec, LongestEdge, PixelBudget, video_settings

CLIP = {
    "size": {"shortest_edge": 336},
    "crop_size": {"height": 336, "width": 336},
    "do_center_crop": True,
    "image_mean": [0.1, 0.2, 0.3],
    "image_std": [0.4, 0.5, 0.6],
}


def save(folder: Path, name: str, settings: object) -> Path:
    (folder / name).write_text(json.dumps(settings))
    return folder


def test_what_hf_saves_for_clip(tmp_path: Path) -> None:
    CLIPImageProcessorPil().save_pretrained(tmp_path)
    assert FrameSpec.from_pretrained(tmp_path) == FrameSpec()


def test_what_hf_saves_for_siglip(tmp_path: Path) -> None:
    SiglipImageProcessorPil(size={"height": 384, "width": 320}).save_pretrained(tmp_path)
    half = (0.5, 0.5, 0.5)
    assert FrameSpec.from_pretrained(tmp_path) == FrameSpec(size=(384, 320), crop=None, mean=half, std=half)


def test_what_hf_saves_for_qwen(tmp_path: Path) -> None:
    Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=12845056).save_pretrained(tmp_path)
    assert FrameSpec.from_pretrained(tmp_path) == FrameSpec(size=PixelBudget(3136, 12845056, 28), crop=None)


def test_what_hf_saves_for_smolvlm(tmp_path: Path) -> None:
    SmolVLMImageProcessorPil(size={"longest_edge": 1536}, max_image_size={"longest_edge": 384}).save_pretrained(
        tmp_path
    )
    half = (0.5, 0.5, 0.5)
    expected = FrameSpec(LongestEdge(1536), None, half, half, resample="lanczos", squeeze=(384, 384))
    assert FrameSpec.from_pretrained(tmp_path) == expected


def test_what_hf_saves_for_qwen3_and_glm(tmp_path: Path) -> None:
    Qwen3VLVideoProcessor(size={"shortest_edge": 4096, "longest_edge": 25165824}).save_pretrained(tmp_path)
    half = (0.5, 0.5, 0.5)
    spec, sampling = frame_settings(*video_settings(tmp_path))
    assert spec == FrameSpec(PixelBudget(4096, 25165824, 32), None, half, half)
    assert sampling == FrameSampling(None, 2, 4, 768)
    glm = Glm4vVideoProcessor(size={"shortest_edge": 12544, "longest_edge": 47040000}).to_dict()
    # Limits that the processor's own code does not read, as files have them too.
    glm |= {"max_image_size": {"longest_edge": 47040000}, "num_frames": 16, "max_duration": 300}
    spec, sampling = frame_settings("x", glm)
    assert spec == FrameSpec(PixelBudget(12544, 47040000, 28), None)
    assert sampling == FrameSampling(None, 2, max_frames=600)


def test_older_ways_to_write_a_size(tmp_path: Path) -> None:
    save(tmp_path, "preprocessor_config.json", CLIP | {"size": 200, "crop_size": 192})
    spec = FrameSpec.from_pretrained(tmp_path)
    assert (spec.size, spec.crop) == (200, (192, 192))


def test_steps_that_are_switched_off(tmp_path: Path) -> None:
    off = dict.fromkeys(("do_resize", "do_center_crop", "do_rescale", "do_normalize"), False)
    save(tmp_path, "preprocessor_config.json", CLIP | off)
    spec = FrameSpec.from_pretrained(tmp_path)
    assert spec == FrameSpec(size=None, crop=None, mean=(0.0,) * 3, std=(1.0,) * 3, rescale=1.0)


def test_the_video_settings_come_before_the_image_settings(tmp_path: Path) -> None:
    def size() -> object:
        return FrameSpec.from_pretrained(tmp_path).size

    def sized(edge: int) -> Mapping[str, object]:
        return CLIP | {"size": {"shortest_edge": edge}}

    save(tmp_path, "processor_config.json", {"image_processor": sized(1)})
    assert size() == 1
    save(tmp_path, "preprocessor_config.json", sized(2))
    assert size() == 2
    save(tmp_path, "video_preprocessor_config.json", sized(3))
    assert size() == 3
    save(tmp_path, "processor_config.json", {"image_processor": sized(1), "video_processor": sized(4)})
    assert size() == 4


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({key: value for key, value in CLIP.items() if key != "image_mean"}, "lacks 'image_mean'"),
        ({key: value for key, value in CLIP.items() if key != "size"}, "lacks 'size'"),
        (CLIP | {"size": {"longest_edge": 5}}, "lacks 'height'"),
        (CLIP | {"size": "large"}, "cannot be used"),
        (CLIP | {"resample": 4}, "resample must be lanczos or bilinear or bicubic, not '4'"),
        (CLIP | {"image_std": "grey"}, "cannot be used"),
        (CLIP | {"image_std": [0.5, 0.5]}, "three numbers"),
        (CLIP | {"image_std": [0.5, 0.5, 0]}, "above 0"),
        (CLIP | {"size": {"shortest_edge": 0}}, "at least one pixel"),
        ([], "has no"),
    ],
)
def test_settings_that_cannot_be_used(tmp_path: Path, settings: object, says: str) -> None:
    save(tmp_path, "preprocessor_config.json", settings)
    with pytest.raises(CrossdraftError, match=says):
        FrameSpec.from_pretrained(tmp_path)


def test_no_file_and_broken_json(tmp_path: Path) -> None:
    with pytest.raises(CrossdraftError, match="has no video_preprocessor_config"):
        FrameSpec.from_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"size":')
    with pytest.raises(CrossdraftError, match="not readable JSON"):
        FrameSpec.from_pretrained(tmp_path)
