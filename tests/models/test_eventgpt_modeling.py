"""EventGPT's network: its features, and that caches, masks and `generate` treat it as any other model."""

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForImageTextToText, DynamicCache, StaticCache
from transformers.generation import utils

from crossdraft.errors import CrossdraftError
from crossdraft.models import EventGPTConfig, EventGPTForConditionalGeneration, EventGPTModel
from tests.models.conftest import TEXT, VISION

EVENT, FEATURES = 299, 8
Model = Any  # transformers' own types lead pyright astray: generate, to, optional outputs


def prompt(*question: int) -> Tensor:
    return torch.tensor([[1, 5, 6, *[EVENT] * FEATURES, *(question or (7, 8, 9))]])


def window(seed: int = 0, batch: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, 3, 8, 8, generator=generator, dtype=torch.float64)


def logits(model: Model, ids: Tensor, pixels: Tensor) -> Tensor:
    with torch.inference_mode():
        return model(input_ids=ids, pixel_values_videos=pixels).logits


def greedy(model: Model, ids: Tensor, pixels: Tensor, count: int) -> list[int]:
    """A full forward for every token: the slowest and plainest decoding."""
    for _ in range(count):
        ids = torch.cat([ids, logits(model, ids, pixels)[:, -1:].argmax(dim=-1)], dim=1)
    return ids[0, -count:].tolist()


def gap(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


def test_the_released_shape_has_582_tokens():
    config = EventGPTConfig()
    assert (config.vision_config.hidden_size, config.text_config.hidden_size) == (1024, 4096)
    assert config.event_seq_length == 5 + 24 * 24 + 1 == 582


def test_features_are_the_official_ones_adaptor_last(model: Model):
    pixels = window()
    inner = model.model
    with torch.inference_mode():
        hidden = inner.vision_tower(pixels[0], output_hidden_states=True).hidden_states[-1]
        adapted = [inner.event_adaptor(inner.multi_modal_projector(frame)) for frame in hidden]
        temporal = torch.stack([frame.mean(dim=0) for frame in adapted])
        expected = torch.cat([temporal, torch.stack(adapted).mean(dim=0)])
        out = inner.get_video_features(pixels)
    assert out.pooler_output.shape == (1, FEATURES, 64)
    assert gap(out.pooler_output[0], expected) < 1e-13
    assert gap(out.pooler_output[0], expected.roll(1, 0)) > 1e-2


def test_the_answer_depends_on_every_frame(model: Model):
    reference = logits(model, prompt(), window())
    for frame in range(3):
        changed = window()
        changed[:, frame] += 1
        assert gap(reference, logits(model, prompt(), changed)) > 1e-4


def test_a_saved_folder_loads_through_the_auto_classes(model: Model, tmp_path):
    model.float().save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is EventGPTConfig
    assert type(AutoModel.from_pretrained(tmp_path)) is EventGPTModel
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert type(loaded) is EventGPTForConditionalGeneration
    assert (loaded.config.event_token_id, loaded.config.event_seq_length) == (EVENT, FEATURES)
    assert torch.equal(logits(loaded, prompt(), window()), logits(model, prompt(), window()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_every_result_has_the_dtype_of_the_weights(model: Model, dtype: torch.dtype):
    model.to(dtype)
    out = model(input_ids=prompt(), pixel_values_videos=window().float(), output_hidden_states=True)
    features = model.model.get_video_features(window().float())
    assert {out.logits.dtype, features.pooler_output.dtype, *(h.dtype for h in out.hidden_states)} == {dtype}


def generated(model: Model, **inputs: Any) -> list[int]:
    return model.generate(prompt(), **inputs, max_new_tokens=8, do_sample=False, eos_token_id=-1)[0, -8:].tolist()


def test_generate_is_greedy_decoding(model: Model):
    expected = greedy(model, prompt(), window(), 8)
    assert len(set(expected)) > 2  # a constant answer would prove little
    assert generated(model, pixel_values_videos=window()) == expected
    static = {"cache_implementation": "static", "disable_compile": True}
    assert generated(model, pixel_values_videos=window(), **static) == expected


@pytest.mark.skipif(
    "mm_encoder_outputs" not in utils.MULTIMODAL_INPUTS_TO_DROP_OUTSIDE_PREFILL,
    reason="this transformers' generate takes no pre-encoded features",
)
def test_generate_from_features(model: Model):
    encoded = {"video": model.model.get_video_features(window())}
    assert generated(model, mm_encoder_outputs=encoded) == greedy(model, prompt(), window(), 8)


@pytest.mark.skipif(
    not hasattr(utils, "_slice_mm_encoder_output"),
    reason="this transformers' chunked prefill drops the features of every vision-language model",
)
def test_generate_in_chunks_that_cut_through_the_features(model: Model):
    chunked = generated(model, pixel_values_videos=window(), prefill_chunk_size=5)
    assert chunked == greedy(model, prompt(), window(), 8)


def test_generate_expands_the_features_for_beams_and_samples(model: Model):
    shared = {"max_new_tokens": 3, "eos_token_id": -1}
    beams = model.generate(prompt(), pixel_values_videos=window(), num_beams=3, num_return_sequences=3, **shared)
    samples = model.generate(prompt(), pixel_values_videos=window(), do_sample=True, num_return_sequences=4, **shared)
    assert beams.shape == (3, prompt().shape[1] + 3)
    assert samples.shape == (4, prompt().shape[1] + 3)


def test_a_left_padded_batch_decodes_as_its_rows_alone(model: Model):
    questions, pixels = [(7, 8, 9), (20, 21, 22, 23, 24, 25)], window(batch=2)
    width = FEATURES + 3 + 6
    ids = torch.stack([F.pad(prompt(*q)[0], (width - FEATURES - 3 - len(q), 0)) for q in questions])
    mask = (ids != 0).long()
    batch = model.generate(
        ids, attention_mask=mask, pixel_values_videos=pixels, max_new_tokens=6, do_sample=False, eos_token_id=-1
    )
    for row, question in enumerate(questions):
        assert batch[row, -6:].tolist() == greedy(model, prompt(*question), pixels[row : row + 1], 6)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("cuts", [(11, 13), (12,), tuple(range(11, 14))])
def test_a_prompt_read_in_pieces_gives_the_same_logits(model: Model, static: bool, cuts: tuple[int, ...]):
    ids, pixels = prompt(), window()
    text = model.config.text_config
    cache = StaticCache(config=text, max_cache_len=32) if static else DynamicCache()
    pieces, edges = [], (0, *cuts, ids.shape[1])
    with torch.inference_mode():
        for start, end in pairwise(edges):
            visual = {"mm_encoder_outputs": {"video": model.model.get_video_features(pixels)}} if start == 0 else {}
            positions = torch.arange(start, end)[None]
            out = model(
                input_ids=ids[:, start:end], position_ids=positions, past_key_values=cache, use_cache=True, **visual
            )
            pieces.append(out.logits)
    assert gap(torch.cat(pieces, dim=1), logits(model, ids, pixels)) < 1e-12


def test_a_tree_is_verified_in_one_pass_under_a_4d_mask(model: Model):
    ids, pixels = prompt(), window()
    tokens, parents = [10, 11, 12, 13, 14], [-1, 0, 0, 1, -1]
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    visible = torch.zeros(5, 5, dtype=torch.bool)
    for node, path in enumerate(paths):
        visible[node, path] = True
    length = ids.shape[1]
    positions = torch.tensor([[length - 1 + len(path) for path in paths]])

    def verify(mask: Tensor, position_ids: Tensor) -> Tensor:
        cache = DynamicCache()
        with torch.inference_mode():
            model(input_ids=ids, pixel_values_videos=pixels, past_key_values=cache)
            past = torch.ones(5, length, dtype=torch.bool)
            return model(
                input_ids=torch.tensor([tokens]),
                attention_mask=torch.cat([past, mask], dim=1)[None, None],
                position_ids=position_ids,
                past_key_values=cache,
            ).logits[0]

    expected = torch.stack(
        [
            logits(model, torch.cat([ids, torch.tensor([[tokens[i] for i in path]])], dim=1), pixels)[0, -1]
            for path in paths
        ]
    )
    assert gap(verify(visible, positions), expected) < 1e-10
    assert gap(verify(torch.ones(5, 5, dtype=torch.bool).tril(), positions), expected) > 1e-3
    assert gap(verify(visible, torch.arange(length, length + 5)[None]), expected) > 1e-3


def test_logits_to_keep_and_hidden_states(model: Model):
    inputs = {"input_ids": prompt(), "pixel_values_videos": window()}
    with torch.inference_mode():
        out = model(**inputs, output_hidden_states=True)
        last = model(**inputs, logits_to_keep=2).logits
        chosen = model(**inputs, logits_to_keep=torch.tensor([0, 12])).logits
        head = model.lm_head(out.hidden_states[-1])
    assert len(out.hidden_states) == 4
    assert gap(head, out.logits) == 0
    assert gap(last, out.logits[:, -2:]) < 1e-14
    assert gap(chosen, out.logits[:, [0, 12]]) < 1e-14


def test_the_loss_is_next_token_cross_entropy_and_reaches_every_used_weight(model: Model):
    labels = prompt().clone()
    labels[:, : 3 + FEATURES] = -100
    out = model(input_ids=prompt(), pixel_values_videos=window(), labels=labels)
    expected = F.cross_entropy(out.logits[0, 10:13].float(), prompt()[0, 11:14])
    assert gap(out.loss, expected) < 1e-6
    out.loss.backward()
    idle = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert idle == {f"model.vision_tower.post_layernorm.{part}" for part in ("weight", "bias")}


def test_placeholders_and_features_must_match(model: Model):
    with pytest.raises(CrossdraftError, match=r"\[7\], do not match 1 window\(s\) of 8 event features"):
        model(input_ids=prompt()[:, [0, *range(4, 14)]], pixel_values_videos=window())
    with pytest.raises(CrossdraftError, match=r"\[8\], do not match 2 window"):
        model(input_ids=prompt(), pixel_values_videos=window(batch=2))


def test_features_never_shift_into_the_next_row(model: Model):
    """7 + 9 placeholders for 2 x 8 features: the total is right, the rows are not."""
    ids = prompt().repeat(2, 1)
    ids[0, 3], ids[1, 2] = 50, EVENT
    with pytest.raises(CrossdraftError, match=r"\[7, 9\], do not match"):
        model(input_ids=ids, pixel_values_videos=window(batch=2))


def test_contradicting_inputs_are_refused(model: Model):
    encoded = {"video": model.model.get_video_features(window())}
    embeds = model.get_input_embeddings()(prompt())
    with pytest.raises(CrossdraftError, match="not both"):
        model(input_ids=prompt(), pixel_values_videos=window(), mm_encoder_outputs=encoded)
    with pytest.raises(CrossdraftError, match="either input_ids or inputs_embeds"):
        model(pixel_values_videos=window())
    with pytest.raises(CrossdraftError, match="either input_ids or inputs_embeds"):
        model(input_ids=prompt(), inputs_embeds=embeds)
    with pytest.raises(CrossdraftError, match="need input_ids"):
        model(inputs_embeds=embeds, mm_encoder_outputs=encoded)


def test_the_callers_encoded_features_are_left_alone(model: Model):
    encoded = {"video": model.model.get_video_features(window())}
    before = encoded["video"].pooler_output.clone()
    model(input_ids=prompt(), mm_encoder_outputs=encoded)
    model(input_ids=prompt(), pixel_values_videos=window())
    assert list(encoded) == ["video"]
    assert torch.equal(encoded["video"].pooler_output, before)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("event_token_id", 300, "outside the vocabulary of 300 ids"),
        ("event_token_id", -200, "outside the vocabulary"),
        ("num_event_frames", 0, "at least one frame"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(field: str, value: int, sentence: str):
    good: dict[str, Any] = {"vision_config": VISION, "text_config": TEXT, "event_token_id": 299}
    with pytest.raises(CrossdraftError, match=sentence):
        EventGPTConfig(**{**good, field: value})
