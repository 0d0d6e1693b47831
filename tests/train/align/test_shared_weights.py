"""Two ranks that share a drafter's weights (FSDP2) tune it as one process does, and neither holds all of it."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed.tensor import DTensor

from crossdraft.drafters.event.load import load_drafter
from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.align.tuned import RECIPE, TuneInputs, TuneRecipe, tune_drafter
from crossdraft_lab.train.align.tuned_drafter import TunedDrafter, load_tuned
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.checkpoint import read_checkpoint
from crossdraft_lab.train.core.dist import SINGLE, Distributed, full_tensors, parallelise, rank_mesh
from crossdraft_lab.train.core.recipe import read_section
from crossdraft_lab.train.core.trainer import Trainer
from crossdraft_lab.train.reference.packed import read_together
from tests.train.align.test_tuned import SMALL, losses
from tests.train.core.two import run_command, run_two

QUICK = (
    *SMALL, "optim.steps=6", "optim.checkpoint_every=2", "optim.bf16=false", "optim.ema=0.5", "optim.watch=prefix",
    "measure.pairs=0",
)  # fmt: skip
WAYS: Mapping[str, tuple[str, ...]] = {
    "lora": (),
    "whole": ("rank=0", "optim.learning_rate=0.003"),
    "head": ("rank=0", "head=target", "loss={mse: 1.0, cross_entropy: 0.1}"),
    "int4": ("base=int4",),
}
EXACT = ("lora", "whole", "head")  # in bfloat16 a product rounds otherwise if its batch is cut otherwise
STEPS = ("lora", "whole", "int4")  # trained by ranks that share steps alone, too
TURNS = ("lora", "whole")  # taken in turns by two ranks and one process
FSDP = "optim.parallel=fsdp"
QUERY = "model.language_model.layers.1.self_attn.q_proj.weight"


def tune(folder: Path, settings: Mapping[str, Any], ranks: Distributed = SINGLE) -> None:
    """A tuning, alone or in one of two ranks; it is stopped at the checkpoint `until`, if there is one."""
    pair, store = settings["pair"], settings["store"]
    recipe = read_section(TuneRecipe, RECIPE, [*QUICK, *settings["changes"]], ("reference", False))
    stores = (CaptureStore.open(one) for one in (store, store.with_name("validation")))
    inputs = TuneInputs(recipe, str(pair.target), str(pair.blind), *stores, folder)
    until, save = settings.get("until"), Trainer.save

    def stop(self: Trainer) -> None:
        save(self)
        if self.step == until:
            raise CrossdraftError("The light went out.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "save", stop)
        patch.setattr("crossdraft_lab.train.heads.task.LONGEST", 16)  # in ranks, too, which no fixture reaches
        if until is None:
            tune_drafter(inputs, ranks)
        else:
            with pytest.raises(CrossdraftError, match="The light went out"):
                tune_drafter(inputs, ranks)


@pytest.fixture(scope="module")
def tuned(pair, captured, tmp_path_factory) -> Path:
    """Folders `HOW-WAY`: `one` process, `ddp`, `fsdp`, or `back`, where two ranks, one, and two again took turns."""
    folder = tmp_path_factory.mktemp("tuned")

    def of(way: str, *changes: str, **more: int) -> dict[str, Any]:
        return {"pair": pair, "store": captured, "changes": (*WAYS[way], *changes), **more}

    for way in EXACT:
        tune(folder / f"one-{way}", of(way))
    trainings = [(f"fsdp-{way}", of(way, FSDP, f"measure.pairs={int(way == 'lora')}")) for way in WAYS]
    trainings += [(f"ddp-{way}", of(way)) for way in STEPS]
    run_two(tune, folder, *trainings, *((f"back-{way}", of(way, FSDP, until=2)) for way in TURNS))
    for way in TURNS:
        tune(folder / f"back-{way}", of(way, until=4))
    run_two(tune, folder, *((f"back-{way}", of(way, FSDP)) for way in TURNS))
    return folder


def checks(folder: Path) -> list[float]:
    """The validation loss of every check."""
    log = map(json.loads, (folder / "train.log.jsonl").read_text().splitlines())
    return [entry["check"]["loss"] for entry in log if "check" in entry]


def assert_same(ours: Path, theirs: Path) -> None:
    """Two trainings' losses, checks, checkpoints and drafters are the same, but for rounding."""
    assert len(losses(ours)) == 6
    assert losses(ours) == pytest.approx(losses(theirs), abs=1e-4)
    assert len(checks(ours)) == 3
    assert checks(ours) == pytest.approx(checks(theirs), abs=1e-4)
    first, second = (read_checkpoint(folder / "train.ckpt") for folder in (ours, theirs))
    for part in ("modules", "average"):
        torch.testing.assert_close(first[part], second[part], rtol=1e-2, atol=1e-3)
    one, two = (load_file(folder / "drafter" / "model.safetensors") for folder in (ours, theirs))
    torch.testing.assert_close(one, two, rtol=0.02, atol=1e-3)  # in bfloat16


@pytest.mark.parametrize("way", EXACT)
def test_two_ranks_learn_what_one_process_does(tuned, way):
    assert_same(tuned / f"fsdp-{way}", tuned / f"one-{way}")


@pytest.mark.parametrize("way", TURNS)
def test_so_do_two_ranks_that_share_steps_alone(tuned, way):
    assert_same(tuned / f"ddp-{way}", tuned / f"one-{way}")


@pytest.mark.parametrize("way", STEPS)
def test_sharing_weights_changes_nothing_that_sharing_steps_does_not(tuned, way):
    """Two ranks either way: the same products, also of frozen weights in 4 bits."""
    assert_same(tuned / f"fsdp-{way}", tuned / f"ddp-{way}")


@pytest.mark.parametrize("way", TURNS)
def test_two_ranks_and_one_process_resume_each_other(tuned, way):
    assert_same(tuned / f"back-{way}", tuned / f"one-{way}")


def test_what_is_saved_has_learned_and_is_measured(pair, tuned):
    before = {name: weight.bfloat16() for name, weight in load_file(pair.blind / "model.safetensors").items()}
    for way in WAYS:
        after = load_file(tuned / f"fsdp-{way}" / "drafter" / "model.safetensors")
        assert after.keys() == before.keys()
        assert not torch.equal(after[QUERY], before[QUERY])
    record = json.loads((tuned / "fsdp-lora" / "drafter" / "provenance.json").read_text())
    hidden = record["figures"]["engine"]["hidden"]
    assert (hidden["tau"] > 1) == (hidden["per_position"][0] > 0)  # what is accepted is counted


def held(module: nn.Module) -> int:
    """Bytes of memory behind a module's weights in this rank."""
    local = [weight.to_local() if isinstance(weight, DTensor) else weight for weight in module.parameters()]
    return sum(weight.untyped_storage().nbytes() for weight in local)


def hold(folder: Path, settings: Mapping[str, Any], ranks: Distributed) -> None:
    """Leave in `held.json` what each rank holds: after loading, in each layer's forward, after a backward."""
    make = partial(TunedDrafter, draft_ids=[40, 41, 77], rank=settings["rank"], scale=1.0)
    mesh = rank_mesh(torch.device("cpu"), ranks)
    _, drafter = load_tuned(str(settings["pair"].blind), "cpu", settings["base"], make, mesh)
    step, layers = parallelise(drafter.learning, "fsdp", ranks, drafter), []
    found = {"layer": held(drafter.layers[0]), "sharded": held(step), "in_forward": layers}
    for layer in drafter.layers:
        layer.register_forward_pre_hook(lambda *_: layers.append([held(one) for one in drafter.layers]))

    def work() -> torch.Tensor:
        llama = drafter.vlm.llama
        words = llama.embed_tokens(torch.tensor([[5, 40, 60]]))
        return drafter.draft_head(read_together(llama, words, words, drafter.layers)[-1]).float().sum()

    step(work).backward()
    gradients = [weight.grad.to_local().numel() for weight in drafter.learning.parameters() if weight.grad is not None]
    whole = full_tensors(drafter.learning.state_dict(), keep=ranks.first)
    kept = sum(weight.numel() for weight in whole.values() if weight is not None)
    every = ranks.all_gather(found | {"after": held(step), "gradients": sum(gradients), "put_together": kept})
    if ranks.first:
        folder.mkdir()
        (folder / "held.json").write_text(json.dumps(every))


HELD = {"lora": (4, "float32"), "whole": (0, "float32"), "int4": (4, "int4")}  # rank and base


@pytest.fixture(scope="module")
def shares(pair, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("held")
    run_two(hold, folder, *((way, {"pair": pair, "rank": rank, "base": base}) for way, (rank, base) in HELD.items()))
    return folder


@pytest.mark.parametrize("way", HELD)
def test_a_rank_holds_half_of_the_weights_and_one_layer_at_a_time_is_whole(pair, shares, way):
    """Frozen weights count, too; so do those in 4 bits."""
    rank, base = HELD[way]
    make = partial(TunedDrafter, draft_ids=[40, 41, 77], rank=rank, scale=1.0)
    _, alone = load_tuned(str(pair.blind), "cpu", base, make)
    whole, layer = held(alone), held(alone.layers[0])
    learning = sum(weight.numel() for weight in alone.learning.parameters())
    every = json.loads((shares / way / "held.json").read_text())
    assert [found["put_together"] for found in every] == [learning, 0]  # for a checkpoint, by the one that writes it
    for found in every:
        assert found["sharded"] == pytest.approx(whole / 2, rel=0.05)
        assert found["after"] == found["sharded"]
        assert found["gradients"] == pytest.approx(learning / 2, rel=0.05)
        half = found["layer"]
        assert half == pytest.approx(layer / 2, rel=0.05)
        assert found["in_forward"] == [[layer, half], [half, layer]]


def test_torchrun_aligns_a_pair_with_shared_weights(pair, tmp_path):
    """Each rank runs the command: the first captures, both tune."""
    out = tmp_path / "out"
    scenes = "--clips 2 --validation-clips 1 --prompts 2 --max-new-tokens 8 --workers 0 --device cpu --no-measure"
    run_command(
        "align", str(pair.target), str(pair.blind), "scenes", str(out), *scenes.split(), *SMALL, "optim.clips=4",
        "optim.steps=4", "optim.checkpoint_every=2", "measure.pairs=0", FSDP,
    )  # fmt: skip
    assert json.loads((out / "align.json").read_text())["tuning"]["steps"] == 4
    assert load_drafter(str(out / "drafter"), "cpu", "float32").model.vocab_size == 320
