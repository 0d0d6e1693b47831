"""DREAM's choice of a layer: entropies recomputed from hidden states are those of the target's own attention."""

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.entropy import choose_layer, entropies
from crossdraft.heads.networks.train_batch import TrainBatch
from tests.engine.zoo import ZOO

START = 3


@torch.no_grad()
def read(kind):
    """A target's attention over a prompt and its answer, and the lesson that would be captured of it."""
    model, prompt = ZOO[kind]("eager")
    ids = torch.cat((prompt.input_ids, torch.tensor([11, 12, 13, 14])))[None]
    out = model(
        input_ids=ids,
        pixel_values_videos=prompt.features["pixel_values_videos"].double(),
        output_attentions=True,
        output_hidden_states=True,
    )
    prefix = int((ids[0] == 98).nonzero()[-1]) + 1
    text = ids[:, prefix:]
    hidden = {layer: rows[:, prefix:] for layer, rows in enumerate(out.hidden_states)}
    visual = {layer: rows[:, :prefix] for layer, rows in enumerate(out.hidden_states)}
    batch = TrainBatch(text, hidden, torch.tensor([START]), torch.tensor([text.shape[1]]), visual, ids[:, :prefix])
    asked = slice(prefix + START - 1, ids.shape[1] - 1)
    rows = [torch.special.entr(law[0, :, asked]).sum(-1).mean() for law in out.attentions]
    return model, batch, [float(row) for row in rows]


@pytest.mark.parametrize("kind", ["video_llava", "llava_onevision"])
def test_entropies_are_those_of_the_targets_own_attention(kind):
    model, batch, own = read(kind)
    found = entropies(model, [batch, batch])
    assert found == pytest.approx({1: own[1], 2: own[2]}, abs=1e-5)
    assert choose_layer(model, [batch]) == (1 if own[1] <= own[2] else 2)


def test_only_layers_that_were_captured_are_chosen_from():
    model, batch, _ = read("video_llava")
    for layer in (1, 2):
        held = TrainBatch(batch.tokens, {layer: batch.hidden[layer], 3: batch.hidden[3]}, batch.starts, batch.lengths)
        assert choose_layer(model, [held]) == layer
    with pytest.raises(CrossdraftError, match="No layer between 1 and 2"):
        choose_layer(model, [TrainBatch(batch.tokens, {3: batch.hidden[3]}, batch.starts, batch.lengths)])


def test_the_sharper_layer_is_chosen():
    """Queries that count a hundredfold look at one place only."""
    for sharp in (1, 2):
        model, batch, _ = read("video_llava")
        with torch.no_grad():
            model.base_model.language_model.layers[sharp].self_attn.q_proj.weight.mul_(100)
        assert choose_layer(model, [batch]) == sharp


def test_a_target_of_another_anatomy_is_refused():
    model, _ = ZOO["qwen2_5_vl"]()
    with pytest.raises(CrossdraftError, match="set middle_layer by hand"):
        choose_layer(model, [])
