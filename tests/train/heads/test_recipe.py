"""Sizes that a recipe leaves open: the shipped heads' for the reference pair, for another target its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open

from crossdraft.checkpoints.locate import shipped_at, shipped_heads
from crossdraft.drafters.event.load import load_drafter
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.heads.files import make, read_config
from crossdraft.heads.glance.network import GlanceConfig
from crossdraft.heads.networks.base import HeadConfig, SharedWeights
from crossdraft.heads.registry import NETWORKS
from crossdraft.load import load_target, target_fingerprint
from crossdraft_lab.align.networks.vision import QueriesConfig
from crossdraft_lab.compression.packer_network import TokenPackerConfig
from crossdraft_lab.networks import ALIGNED, VISION_ADAPTERS, task_of
from crossdraft_lab.sizes import default_levels, sizes_of
from crossdraft_lab.train.heads.clip_features import patches_per_frame
from crossdraft_lab.train.heads.recipe import load_head_recipe, recipe_names, scales_of
from crossdraft_lab.train.heads.run import head_config
from tests.support import ClipPaths

HEADS = {name: shipped_at(f"heads/{name}") for name in shipped_heads()}


# Sizes of what is encoded of a clip, which these read instead of the target's features.
ENCODED: Mapping[type[HeadConfig], tuple[str, ...]] = {
    TokenPackerConfig: ("source_size", "levels", "side", "class_token"),
    QueriesConfig: ("drafter", "source_size", "source_frames", "source_tokens", "tokens", "length", "scale"),
}


@dataclass
class ReferenceTask:
    """The part of a training of a shipped head that decides its sizes."""

    host: Target
    target: Target
    draft_ids: Sequence[int]
    clip: Path
    shipped: HeadConfig

    def measured_settings(self, kind: type[HeadConfig], settings: Mapping[str, Any]) -> dict[str, Any]:
        if found := ENCODED.get(kind):
            return {name: getattr(self.shipped, name) for name in found}
        if not issubclass(kind, GlanceConfig):
            return {}
        prompt = self.target.prepare(Request("What is ahead?", self.clip))
        patches = patches_per_frame(prompt, self.target.traits.visual_ids)
        return {
            "tower": target_fingerprint("reference"),
            "visual_size": self.target.text_config.hidden_size,
            "patches": patches,
        }


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target("reference", "cpu", "float32")


@pytest.fixture(scope="module")
def event(target: Target) -> Target:
    return load_drafter("event", "cpu", "float32", tuple(sorted(target.reserved))).model


@pytest.mark.parametrize("name", HEADS)
def test_the_shipped_recipe_gives_the_shipped_network(
    name: str, target: Target, event: Target, clip: ClipPaths
) -> None:
    """The same configuration and as many parameters, though recipes name no sizes but those that differ."""
    recipe = load_head_recipe(name, reference=True)
    shipped = read_config(HEADS[name]).config
    host = event if task_of(recipe.network) == "events" else target
    task = ReferenceTask(host, target, shipped.draft_ids, clip.video, shipped)
    config = head_config(recipe, task)  # pyright: ignore[reportArgumentType]
    assert config == shipped
    size = (config.vocab_size, config.hidden_size)
    head = make(name, config, SharedWeights(torch.zeros(size), torch.zeros(size)))
    with safe_open(HEADS[name] / "model.safetensors", "pt") as file:
        stored = {key: tuple(file.get_slice(key).get_shape()) for key in file.offset_keys()}
    assert {key: tuple(value.shape) for key, value in head.stored().items()} == stored


@pytest.mark.parametrize("name", recipe_names())
def test_without_the_reference_a_recipe_names_no_size_of_it(name: str) -> None:
    """7B sizes in, 7B sizes out: every width, head count and layer is the target's."""
    text = SimpleNamespace(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        intermediate_size=11008, rope_parameters={"rope_theta": 5e5}, rms_norm_eps=1e-5, head_dim=128,
    )  # fmt: skip
    host: Any = SimpleNamespace(text_config=text, context=4096, vocab_size=32064)
    recipe = load_head_recipe(name)
    known = {"hidden_size": 4096, "vocab_size": 32064, "num_layers": 32, "draft_ids": tuple(range(500))}
    known |= {"visual_size": 4096, "patches": 257} if name in {"glance", "l4v"} else {}
    known |= {"tower": "x"} if name == "glance" else {}
    known |= {"drafter": "x", "source_size": 4096, "source_layers": (32,)} if recipe.network in ALIGNED else {}
    seen = {"source_size": 1024, "source_frames": 5, "source_tokens": 577, "tokens": 257, "length": 2056}
    known |= {"drafter": "x", **seen} if name in VISION_ADAPTERS else {}
    packed = {"source_size": 1024, "levels": (12, 16, 22, 23), "side": 16, "class_token": True, "heads": 8}
    known |= packed if name == "token_packer" else {}
    config = NETWORKS[recipe.network].config_class(
        **{**known, **sizes_of(NETWORKS[recipe.network].config_class, host), **recipe.config}
    )
    expected = {"heads": 32, "kv_heads": 8, "head_dim": 128, "intermediate_size": 11008, "rope_theta": 5e5}
    expected |= {"eps": 1e-5, "max_positions": 4096, "levels": (2, 16, 29)}
    expected |= {"read_layers": (2, 16, 29, 31, 32), "token_size": 4096}
    expected |= {key: packed[key] for key in ("levels", "heads")} if name == "token_packer" else {}
    widths = {"l1": 256, "l2": 256, "l3": 1024, "mlp": 1024, "levels": 1024}
    widths |= {"token_projection": 2048, "logit_alignment": 2048}
    widths |= {"vision_mlp": 1024, "vision_queries": 1024}
    expected |= {"width": widths.get(name, 4096)}
    found = {field: getattr(config, field) for field in expected if hasattr(config, field)}
    assert found == {field: expected[field] for field in found}


def test_every_level_is_one_that_a_capture_keeps() -> None:
    from crossdraft_lab.sizes import default_layers

    for depth in range(2, 80):
        assert set(default_levels(depth)) <= set(default_layers(depth))


def test_a_setting_of_the_callers_own_stands_before_the_references() -> None:
    changed = load_head_recipe("eagle3", ["config.levels=1,2,3", "config.intermediate_size=null"], reference=True)
    assert changed.config["levels"] == [1, 2, 3]
    assert changed.config["intermediate_size"] is None  # the target's own
    assert changed.config["level_scales"] == [0.06, 0.045, 0.038]
    assert changed.optim.learning_rate == 1.5e-3 != load_head_recipe("eagle3").optim.learning_rate


def test_scales_are_one_over_the_root_mean_square_of_what_is_there() -> None:
    hidden = {3: torch.full((2, 4, 5), 8.0), 7: torch.full((2, 4, 5), 0.25)}
    hidden[3][0, 2:] = 1e9  # after the end of a shorter answer: of three tokens two have features
    assert scales_of(hidden, [3, 5], [3, 7, 3]) == [0.12, 4.0, 0.12]
    assert scales_of({1: torch.zeros(1, 4, 5)}, [4], [1]) == [1.0]
