"""The packed forward equals the model's own on every unpacked row, and so does greedy decoding, whatever the draft."""

import pytest
import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlamaForCausalLM

from crossdraft.models.eventgpt import EventGPTConfig, EventGPTForConditionalGeneration
from crossdraft_lab.train.reference.batches import IGNORE, pack
from crossdraft_lab.train.reference.models import TrainableEventGPT
from crossdraft_lab.train.reference.packed import (
    BranchCache,
    branch_states,
    greedy_decode,
    read_prefix,
    read_together,
    run_branches,
    step_branches,
)

CLIPS, QUESTIONS, PREFIX = 2, 3, 7


@pytest.fixture(scope="module", params=[(2, 2), (4, 2)], ids=lambda heads: f"{heads[1]} of {heads[0]} heads")
def model(request: pytest.FixtureRequest) -> LlamaForCausalLM:
    heads, keys = request.param
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=heads,
        num_key_value_heads=keys, head_dim=16, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).double().eval()


@pytest.fixture(scope="module")
def prefix_embeds() -> torch.Tensor:
    return torch.randn(CLIPS, PREFIX, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture(scope="module")
def pairs() -> list[tuple[list[int], list[int]]]:
    generator = torch.Generator().manual_seed(2)

    def ids(count: int) -> list[int]:
        return torch.randint(1, 40, (count,), generator=generator).tolist()

    return [(ids(2 + row % 3), ids(1 + row)) for row in range(CLIPS * QUESTIONS)]


def own_forward(model, prefix_embeds, pairs, row: int) -> torch.Tensor:
    """Logits of one unpacked row after its clip's prefix."""
    question, answer = pairs[row]
    text = model.model.embed_tokens(torch.tensor([[*question, *answer]]))
    embeds = torch.cat((prefix_embeds[row // QUESTIONS][None], text), 1)
    with torch.no_grad():
        return model(inputs_embeds=embeds).logits[0, PREFIX:]


def test_packed_logits_equal_unpacked_ones(model, prefix_embeds, pairs) -> None:
    rows = pack(pairs, pad_id=0)
    with torch.no_grad():
        prefix = read_prefix(model.model, prefix_embeds)
        packed = model.lm_head(run_branches(model.model, prefix, model.model.embed_tokens(rows.tokens)))
    for row, (question, answer) in enumerate(pairs):
        expected = own_forward(model, prefix_embeds, pairs, row)
        torch.testing.assert_close(packed[row, : len(question) + len(answer)], expected, atol=1e-6, rtol=0)


def test_a_prefix_shared_by_all_rows_needs_to_be_read_once(model, prefix_embeds, pairs) -> None:
    rows = pack(pairs, pad_id=0)
    embeds = model.model.embed_tokens(rows.tokens)
    with torch.no_grad():
        one = run_branches(model.model, read_prefix(model.model, prefix_embeds[:1]), embeds)
        many = run_branches(model.model, read_prefix(model.model, prefix_embeds[:1].expand(CLIPS, -1, -1)), embeds)
    torch.testing.assert_close(one, many)


def test_prefix_and_branches_in_one_pass_give_the_same_states_and_gradients(model, prefix_embeds, pairs) -> None:
    branches = model.model.embed_tokens(pack(pairs, pad_id=0).tokens)
    weights = [model.model.layers[0].self_attn.k_proj.weight, model.model.layers[2].mlp.up_proj.weight]
    found = []
    for states in (
        branch_states(model.model, read_prefix(model.model, prefix_embeds), branches),
        read_together(model.model, prefix_embeds, branches),
    ):
        pulled = sum((state * state.detach().sin()).sum() for state in states)
        found.append([*states, *torch.autograd.grad(pulled, weights, retain_graph=True)])
    for two, one in zip(*found, strict=True):
        torch.testing.assert_close(one, two, atol=1e-9, rtol=1e-9)


def test_branches_of_another_clip_differ(model, prefix_embeds, pairs) -> None:
    """The comparison above can fail: with the clips swapped the logits are far away."""
    rows = pack(pairs, pad_id=0)
    with torch.no_grad():
        prefix = read_prefix(model.model, prefix_embeds.flip(0))
        packed = model.lm_head(run_branches(model.model, prefix, model.model.embed_tokens(rows.tokens)))
    assert (packed[0, :3] - own_forward(model, prefix_embeds, pairs, 0)).abs().max() > 1e-2


def test_gradients_equal_unpacked_ones(model, prefix_embeds, pairs) -> None:
    rows = pack(pairs, pad_id=0)
    weight = model.model.layers[0].self_attn.k_proj.weight

    def gradient(loss: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(loss, weight)[0]

    prefix = read_prefix(model.model, prefix_embeds)
    packed = model.lm_head(run_branches(model.model, prefix, model.model.embed_tokens(rows.tokens)))
    wanted = rows.targets != IGNORE
    together = gradient(torch.nn.functional.cross_entropy(packed[wanted], rows.targets[wanted], reduction="sum"))
    separate = torch.zeros_like(together)
    for row, (question, answer) in enumerate(pairs):
        text = model.model.embed_tokens(torch.tensor([[*question, *answer]]))
        embeds = torch.cat((prefix_embeds[row // QUESTIONS][None], text), 1)
        logits = model(inputs_embeds=embeds).logits[0, PREFIX + len(question) - 1 : -1]
        separate += gradient(torch.nn.functional.cross_entropy(logits, torch.tensor(answer), reduction="sum"))
    torch.testing.assert_close(together, separate, atol=1e-6, rtol=1e-5)


def test_steps_equal_one_pass_and_a_rejected_token_leaves_no_trace(model, prefix_embeds, pairs) -> None:
    rows = pack(pairs, pad_id=0)
    embed = model.model.embed_tokens
    with torch.no_grad():
        prefix = read_prefix(model.model, prefix_embeds)
        whole = run_branches(model.model, prefix, embed(rows.tokens))
        cache = BranchCache(prefix, len(pairs), capacity=rows.tokens.shape[1] + 2)
        start = torch.tensor([0, 1, 2, 0, 1, 2])
        length = 3
        step_branches(model.model, cache, embed(rows.tokens[:, :3]), torch.zeros(6, dtype=torch.long))
        wrong = (rows.tokens[:, 3:5] + 7) % 40
        step_branches(model.model, cache, embed(wrong), start + 1)
        again = torch.stack([rows.tokens[row, begin : begin + length] for row, begin in enumerate(start.tolist())])
        stepped = step_branches(model.model, cache, embed(again), start)
    for row, begin in enumerate(start.tolist()):
        torch.testing.assert_close(stepped[row], whole[row, begin : begin + length], atol=1e-6, rtol=0)


def test_pack_lays_out_a_case_worked_by_hand() -> None:
    rows = pack([([5, 6], [7, 8]), ([5], [9])], pad_id=0, multiple=1)
    assert rows.tokens.tolist() == [[5, 6, 7, 8], [5, 9, 0, 0]]
    assert rows.targets.tolist() == [[IGNORE, 7, 8, IGNORE], [9, IGNORE, IGNORE, IGNORE]]
    assert rows.answer_start.tolist() == [1, 0]


EOS, LIMIT = 1, 9
QUESTION_IDS = [[5, 6], [7], [8, 9, 10], [5, 7]]


@pytest.fixture(scope="module", params=[2, 4], ids=lambda heads: f"2 of {heads} heads")
def vlm(request: pytest.FixtureRequest) -> TrainableEventGPT:
    torch.manual_seed(3)
    text = LlamaConfig(
        vocab_size=30, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=request.param, num_key_value_heads=2, head_dim=16, max_position_embeddings=64,
        initializer_range=0.4,
    )  # fmt: skip
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14
    )
    config = EventGPTConfig(vision_config=vision, text_config=text, event_token_id=29, num_event_frames=5)
    return TrainableEventGPT(EventGPTForConditionalGeneration(config).double().eval())


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return torch.randn(2, 5, 3, 28, 28, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def own_words(vlm: TrainableEventGPT, pixels: torch.Tensor, row: int) -> list[int]:
    """The model's own greedy continuation, one full forward a token."""
    clip = pixels[row // 2][None]
    ids = [2, 3, *[29] * vlm.model.config.event_seq_length, *QUESTION_IDS[row]]
    answer: list[int] = []
    while len(answer) < LIMIT and (not answer or answer[-1] != EOS):
        with torch.no_grad():
            logits = vlm.model(input_ids=torch.tensor([[*ids, *answer]]), pixel_values_videos=clip).logits
        answer.append(int(logits[0, -1].argmax()))
    return answer


@pytest.mark.parametrize("draft", ["none", "wrong", "right", "nearly"])
def test_any_draft_gives_the_models_own_answer(vlm: TrainableEventGPT, pixels: torch.Tensor, draft: str) -> None:
    own = [own_words(vlm, pixels, row) for row in range(4)]
    drafts = {
        "none": [[] for _ in own],
        "wrong": [[(t + 1) % 30 for t in words] for words in own],
        "right": own,
        "nearly": [[*words[:3], (words[3] + 1) % 30 if len(words) > 3 else 0, *words[4:]] for words in own],
    }[draft]
    with torch.no_grad():
        prefix = read_prefix(vlm.llama, vlm.prefix_embeds([2, 3], vlm.visual_tokens(vlm.patches(pixels))))
    answer, passes = greedy_decode(
        vlm.llama, vlm.head, prefix, QUESTION_IDS, drafts, eos_id=EOS, max_new_tokens=LIMIT, window=4
    )
    assert answer == own
    assert len({tuple(words) for words in own}) > 1, "the rows must differ for the test to mean anything"
    if draft == "right":
        assert passes <= 1 + -(-LIMIT // 4)
    if draft == "wrong":
        assert passes == max(len(words) for words in own)
