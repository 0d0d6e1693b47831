"""Heads of the real `speculators` package, on a CPU: its own in ours, and our EAGLE-3 in it, with the same logits.

Its EAGLE-3, P-EAGLE, DFlash and DSpark are written by the package itself, with random weights.

The package wants an older transformers than ours, so it runs in an environment of its own: `make interop`. The test
runner does not collect this file; `tests/heads/convert/test_interop.py` runs what of it is ours.
"""

import sys
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config

from crossdraft.heads.convert.convert import import_head
from crossdraft.heads.convert.converter import TargetInfo
from crossdraft.heads.files import load_head, make, revived, save_head
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.eagle3 import Eagle3Config
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft_lab.train.heads.export import LONG, export_head, random_batch

TOLERANCE, STEPS = 1e-5, 4
HIDDEN, VOCABULARY, DEEP, SHA = 64, 200, 7, "0" * 64
PADDED, LEVELS = 208, [1, 2, 4, 6]  # of a head by the package: rows of its vocabulary, and what it reads
DRAFTED = (3, 5, 90, 150, 199, 201, 207)  # the last two are padding that the target does not have


def make_target(folder: Path, rows: int = VOCABULARY) -> TargetInfo:
    """A small random Llama, saved: the package looks its verifier up."""
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=HIDDEN, vocab_size=rows, num_hidden_layers=DEEP, num_attention_heads=4, intermediate_size=96
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return TargetInfo(SharedWeights.of(model), DEEP, SHA, str(folder), ("LlamaForCausalLM",))


def write_head(folder: Path, host: TargetInfo, drafted: int) -> None:
    """An EAGLE-3 whose every weight matters; scaled levels, grouped heads, whose width is not hidden_size / heads."""
    ids = tuple(sorted(torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(2))[:drafted].tolist()))
    config = Eagle3Config(
        hidden_size=HIDDEN, vocab_size=VOCABULARY, num_layers=DEEP, draft_ids=ids, heads=4, kv_heads=2, head_dim=24,
        intermediate_size=96, rope_theta=5000.0, eps=1e-5, steps=STEPS, level_scales=(1.0, 0.5, 2.0),
    )  # fmt: skip
    torch.manual_seed(3)
    head = make("eagle3", config, host.shared)
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    folder.mkdir()
    save_head(folder, head, "eagle3", SHA, torch.float32)


@torch.no_grad()
def theirs(folder: Path, batch: TrainBatch) -> list[Tensor]:
    """[T, D] logits of each step, for the lesson's first row; they are seen where their output layer puts them out."""
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    config = Eagle3SpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"  # the default needs a compiler and a GPU
    model = Eagle3DraftModel.from_pretrained(folder, config=config).eval()
    said: list[Tensor] = []
    model.lm_head.register_forward_hook(lambda module, given, logits: said.append(logits[0]))
    levels = model.config.eagle_aux_hidden_state_layer_ids
    ahead = torch.nn.functional.pad(batch.tokens[:1, 1:], (0, 1))
    features = torch.cat([batch.hidden[layer][:1] for layer in levels], -1)
    model(features, ahead, torch.zeros_like(ahead), ttt_steps=STEPS)
    return said


@torch.no_grad()
def compare(drafted: int) -> float:
    """The largest difference between the two programs' logits."""
    with tempfile.TemporaryDirectory() as room:
        own, foreign = Path(room) / "own", Path(room) / "foreign"
        host = make_target(Path(room) / "target")
        write_head(own, host, drafted)
        export_head(own, foreign, "speculators", host)
        head = load_head(own, host.shared)
        batch = random_batch(head)
        ours = [prediction.logits[0] for prediction in head(batch)]
        found = theirs(foreign, batch)
    if len(found) != STEPS:
        raise SystemExit(f"speculators drafted {len(found)} steps, not {STEPS}.")
    whole = batch.tokens.shape[1] - STEPS - 1  # after it, places read tokens that are not there
    return max(float((a[:whole] - b[:whole]).abs().max()) for a, b in zip(ours, found, strict=True))


def write_theirs(folder: Path, host: TargetInfo) -> None:
    """A head that the package writes: EAGLE-3.1 of four levels, its residual after the norm, a padded vocabulary."""
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    proposals = SpeculatorsConfig(
        algorithm="eagle3", proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
        default_proposal_method="greedy", verifier=VerifierConfig.from_pretrained(host.name),
    )  # fmt: skip
    layer = LlamaConfig(
        hidden_size=HIDDEN, vocab_size=PADDED, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=24, intermediate_size=96, attn_implementation="eager",
    )  # fmt: skip
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer, draft_vocab_size=len(DRAFTED), norm_before_residual=True, fc_norm=True,
        norm_output=True, eagle_aux_hidden_state_layer_ids=LEVELS, speculators_config=proposals,
    )  # fmt: skip
    model = Eagle3DraftModel(config)
    torch.manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.2)
        model.embed_tokens.weight.copy_(host.shared.embeddings)
    drafted = torch.zeros(PADDED, dtype=torch.bool)
    drafted[list(DRAFTED)] = True
    model.load_vocab_mappings(drafted, torch.tensor(DRAFTED) - torch.arange(len(DRAFTED)))
    model.save_pretrained(folder)


@torch.no_grad()
def compare_imported() -> float:
    """The largest difference between the logits of a head by the package and those of the same, imported."""
    with tempfile.TemporaryDirectory() as room:
        own, foreign = Path(room) / "own", Path(room) / "foreign"
        padded = make_target(Path(room) / "target", PADDED)
        write_theirs(foreign, padded)
        rows = padded.shared.embeddings[:VOCABULARY], padded.shared.lm_head[:VOCABULARY]
        host = replace(padded, shared=SharedWeights(*rows))
        import_head(foreign, own, host)
        head = load_head(own, host.shared)
        batch = random_batch(head)
        kept = len([one for one in DRAFTED if one < VOCABULARY])
        pairs = zip(head(batch), theirs(foreign, batch), strict=True)
        whole = batch.tokens.shape[1] - STEPS - 1
        return max(float((a.logits[0, :whole] - b[:whole, :kept]).abs().max()) for a, b in pairs)


PARALLEL = ("dspark", "dflash", "peagle")
MASK, BLOCK, ROOT = 5, 4, 12  # id of the mask; rows of a block; position of the root in the text


def parallel_head(algorithm: str, host: TargetInfo) -> Any:
    """A head of the package that drafts in one pass, of two layers, with random weights."""
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
    from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
    from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    classes = {
        "dspark": (DSparkDraftModel, DSparkSpeculatorConfig), "dflash": (DFlashDraftModel, DFlashSpeculatorConfig),
        "peagle": (PEagleDraftModel, PEagleSpeculatorConfig),
    }  # fmt: skip
    proposals = SpeculatorsConfig(
        algorithm=algorithm, proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
        default_proposal_method="greedy", verifier=VerifierConfig.from_pretrained(host.name),
    )  # fmt: skip
    layer = (LlamaConfig if algorithm == "peagle" else Qwen3Config)(
        hidden_size=HIDDEN, vocab_size=VOCABULARY, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=24, intermediate_size=96, attn_implementation="eager",
    )  # fmt: skip
    own: dict[str, Any] = {"aux_hidden_state_layer_ids": LEVELS, "block_size": BLOCK}
    if algorithm == "peagle":
        own = {"eagle_aux_hidden_state_layer_ids": LEVELS, "fc_norm": True, "norm_before_residual": True}
    if algorithm == "dspark":
        own["markov_rank"] = 8
    kind, settings = classes[algorithm]
    made = settings(
        transformer_layer_config=layer, draft_vocab_size=VOCABULARY, mask_token_id=MASK, speculators_config=proposals,
        **own,
    )  # fmt: skip
    model = kind(made).eval()
    torch.manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.2)
        if algorithm != "peagle":  # which trains its embeddings
            model.embed_tokens.weight.copy_(host.shared.embeddings)
            model.lm_head.weight.copy_(host.shared.lm_head)
    return model


@torch.no_grad()
def parallel_logits(algorithm: str, model: Any, batch: TrainBatch) -> Tensor:
    """[steps, D] logits of the package's draft after the token at `ROOT`: those that its loss is computed from."""
    from speculators.models.dflash import core as blocks
    from speculators.models.dspark import core as sparks
    from speculators.models.peagle import core as parallel

    said: list[Tensor] = []

    def keep(logits: Tensor, *rest: object, **more: object) -> tuple[Tensor, dict[str, Any]]:
        said.append(logits[0])
        return logits.sum(), {}

    features = torch.cat([batch.hidden[level][:1] for level in LEVELS], -1)
    given = {"document_ids": torch.zeros_like(batch.tokens[:1]), "loss_mask": torch.ones_like(batch.tokens[:1])}
    last = batch.hidden[DEEP][:1]
    if algorithm == "peagle":  # every pair, and the masks behind the last one before the root
        anchors = torch.cat((torch.arange(ROOT), torch.full((STEPS - 1,), ROOT - 1)))
        depth = torch.cat((torch.zeros(ROOT, dtype=torch.long), torch.arange(1, STEPS)))
        with patch.multiple(parallel, generate_cod_sample_indices=lambda **_: (anchors, depth), compute_metrics=keep):
            ahead = torch.nn.functional.pad(batch.tokens[:1, 1:], (0, 1))
            model(features, ahead, verifier_last_hidden_states=last, **given)
        return said[0][-STEPS:]
    front = torch.cat([batch.visual[level][:1] for level in LEVELS], -1)  # read as the whole prompt
    features, tokens = torch.cat((front, features), 1), torch.cat((batch.visual_ids, batch.tokens), 1)[:1]
    given = {"document_ids": torch.zeros_like(tokens), "loss_mask": torch.ones_like(tokens)}
    last = torch.cat((batch.visual[DEEP], batch.hidden[DEEP]), 1)[:1]
    places = torch.tensor([front.shape[1] + ROOT]), torch.tensor([True])
    core = sparks if algorithm == "dspark" else blocks
    with patch.object(blocks, "select_anchors", lambda *_: places), patch.object(core, "compute_metrics", keep):
        model(features, tokens, verifier_last_hidden_states=last, max_anchors=1, **given)
    return said[0] if algorithm == "dspark" else said[0][1:]


@torch.no_grad()
def compare_parallel(algorithm: str) -> float:
    """The largest difference between the logits of such a head and those of the same, imported."""
    with tempfile.TemporaryDirectory() as room:
        own, foreign = Path(room) / "own", Path(room) / "foreign"
        host = make_target(Path(room) / "target")
        model = parallel_head(algorithm, host)
        model.save_pretrained(foreign)
        import_head(foreign, own, host)
        head = load_head(own, host.shared)
        if algorithm != "peagle":
            settings = replace(head.config, anchors=LONG)  # a block at each position
            head = revived(algorithm, settings, host.shared, head.stored())
        batch = random_batch(head)
        found = torch.stack([prediction.logits[0, ROOT - 1] for prediction in head(batch)])
        return float((found - parallel_logits(algorithm, model, batch)).abs().max())


def say(line: str) -> None:
    """On stdout."""
    sys.stdout.write(f"{line}\n")


def main() -> None:
    """Compare with a short and with the whole vocabulary; exit status 1 if they differ."""
    say(f"speculators {version('speculators')}, torch {torch.__version__}")
    worst = 0.0
    for drafted in (50, VOCABULARY):
        separate = compare(drafted)
        say(f"EAGLE-3 drafting {drafted} of {VOCABULARY} ids, {STEPS} steps: logits differ by {separate:.1e} at most")
        worst = max(worst, separate)
    separate = compare_imported()
    say(f"EAGLE-3.1 by speculators, imported: logits differ by {separate:.1e} at most")
    worst = max(worst, separate)
    for algorithm in PARALLEL:
        separate = compare_parallel(algorithm)
        say(f"{algorithm} by speculators, imported: logits differ by {separate:.1e} at most")
        worst = max(worst, separate)
    sys.exit(not worst <= TOLERANCE)


if __name__ == "__main__":
    main()
