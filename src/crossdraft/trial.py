"""Trial of a class that crossdraft does not know: is what the adapter reads right for it?

First on a small random model of the class and configuration (`checkpoints.shrunk`), by the conformance test, in
float64; then on the weights themselves, by three steps beside Hugging Face's own. A trial is noted on the disk, by
configuration and versions, and not made again, unless something could not be tried.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from crossdraft.checkpoints.shrunk import shrunk_ids, shrunk_model
from crossdraft.checkpoints.weights import LIBRARY_ERRORS, first_line, quiet
from crossdraft.engine.conformance import PARENTS, check_conformance, stepped_error
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.prefill import prefill
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.reference import full_forward
from crossdraft.engine.target import Target, as_input
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

WORDS = Prompt(torch.arange(40, 53))  # more tokens than a shrunk window holds
TOKENS = range(20, 20 + len(PARENTS))
SINGLE = 1e-5  # error of logits of size 1, by which classes that compute in float32 differ; others by 1e-14
OWN = {torch.float64: 1e-5, torch.float32: 1e-2}  # error allowed on the weights themselves, in standard deviations
HALF = 0.25  # of the logits, and for dtypes of 16 bits
GREEDY = 24  # tokens of a greedy answer
SLOW_S = 0.25  # a forward of a small model that takes longer is compared in steps, not node by node


@dataclass(frozen=True)
class Test:
    """Result of one comparison.

    Args:
        name: what was compared.
        error: largest difference of logits; `None` = it could not be tried.
        passes: it is right, and planted faults show.
        why: what went wrong, or why it could not be tried.
    """

    name: str
    error: float | None
    passes: bool
    why: str = ""

    @property
    def shows(self) -> str:
        """`image` or `clip`; empty for words."""
        return next((one for one in ("image", "clip") if f", {one}" in self.name), "")

    @property
    def said(self) -> str:
        """The finding, for an error message."""
        return f"it was tried, and {self.name}: {self.why}{'' if self.error is None else f' by {self.error:.1e}'}"

    @property
    def refusal(self) -> str:
        """The reason why what it shows is refused, and what to do; empty if it passes."""
        return "" if self.passes else f"{self.said}; ask in words alone, or take another model."


def try_class(model: PreTrainedModel, prompts: Mapping[str, Prompt]) -> list[Test]:
    """Try the adapter on a small random model of a model's class and configuration.

    Args:
        model: the model; its weights are not used.
        prompts: prompts of the checkpoint by what they show; words are tried in any case.
    """
    try:
        with quiet():
            small = shrunk_model(type(model), model.config, torch.float64)
            target = Target(small, lambda request: WORDS, str, ())
    except (CrossdraftError, *LIBRARY_ERRORS) as error:
        return [Test("small model", None, False, f"none can be made of its configuration: {first_line(error)}")]
    shown = {name: Prompt(shrunk_ids(model.config, one.input_ids), one.features) for name, one in prompts.items()}
    return [conforms(target, name, prompt) for name, prompt in ({"text": WORDS} | shown).items()]


def conforms(target: Target, name: str, prompt: Prompt) -> Test:
    """Compare every node of a tree with a forward of its own, and steps with Hugging Face's."""
    name = f"conformance, {name}"
    try:
        with torch.inference_mode():
            start = time.perf_counter()
            scale = max(1.0, full_forward(target, prompt, ()).abs().max().item())
            slow = time.perf_counter() - start > SLOW_S
        if slow and prompt.features:
            error = stepped_error(target, prompt)
            passes = error <= SINGLE * scale
            return Test(f"{name}, in steps", error, passes, "" if passes else "logits differ from the model's own")
        found = check_conformance(target, prompt, TOKENS)
    except (CrossdraftError, *LIBRARY_ERRORS) as error:
        return Test(name, None, False, f"it fails: {first_line(error)}")
    error = max(found.riding, found.batched, found.compacted, found.stepped)
    passes = found.passes(SINGLE * scale)
    why = "a planted fault does not show" if error <= SINGLE * scale else "logits differ from the model's own"
    return Test(name, error, passes, "" if passes else why)


def try_weights(target: Target, name: str, prompt: Prompt) -> Test:
    """Compare a prompt and two tokens, one a pass, with Hugging Face's own cache, on the weights themselves."""
    name = f"steps, {name}"
    try:
        with torch.inference_mode(), quiet():
            spread = full_forward(target, prompt, ()).double().std().item()
            error = stepped_error(target, prompt)
    except (CrossdraftError, *LIBRARY_ERRORS) as error:
        return Test(name, None, False, f"it fails: {first_line(error)}")
    passes = error <= OWN.get(target.model.dtype, HALF) * spread
    return Test(name, error, passes, "" if passes else "logits differ from Hugging Face's own cached steps")


def try_greedy(target: Target, name: str, prompt: Prompt, *, chains: bool) -> Test:
    """Compare a greedy answer, by drafts that are right in part, with the one of Hugging Face's `generate`."""
    name = f"greedy {'chains' if chains else 'trees'}, {name}"
    ids = prompt.input_ids[None].to(target.device)
    features = {key: as_input(target.model, target.device, value) for key, value in prompt.features.items()}
    settings = {"max_new_tokens": GREEDY, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    model: Any = target.model
    try:
        with torch.inference_mode(), quiet():
            answer = model.generate(ids, attention_mask=torch.ones_like(ids), **features, **settings)
            wanted = answer[0, len(prompt) :].tolist()
            found = _answered(target, prompt, wanted, chains=chains)
            if found == wanted:
                return Test(name, 0.0, passes=True)
            at = next(at for at, pair in enumerate(zip(found, wanted, strict=True)) if len({*pair}) > 1)
            first, second = full_forward(target, prompt, wanted[:at]).double().topk(2).values.tolist()
    except (CrossdraftError, *LIBRARY_ERRORS) as error:
        return Test(name, None, passes=False, why=f"it fails: {first_line(error)}")
    why = f"token {at} differs from generate's, where the first two logits are {first - second:.1e} apart"
    return Test(name, first - second, passes=False, why=why)


def _answered(target: Target, prompt: Prompt, wanted: Sequence[int], *, chains: bool) -> list[int]:
    """The greedy answer of a target whose drafts hold one to three tokens of the wanted one, and wrong ones."""
    cache, found = target.new_cache(), list[int]()
    while len(found) < len(wanted):
        right = [*wanted[len(found) : len(found) + 1 + len(found) % 3], TOKENS[0]]
        tree = DraftTree.chain(right) if chains else DraftTree.from_paths([list(TOKENS[1:3]), right, [right[0], 7, 8]])
        if not found:
            logits = prefill(target, cache, prompt, target.encode(prompt), len(prompt) + 2 * GREEDY, tree).logits[0]
        else:
            logits = target.extend(cache, [PassRow(0, Chunk(torch.tensor(found[-1:])), tree)]).logits[0]
        best = logits.argmax(-1).tolist()
        path, node = list[int](), -1
        while following := [child for child in tree.children(node) if tree.tokens[child] == best[node + 1]]:
            node = following[0]
            path.append(node)
        cache.keep(0, path)
        found += [*(tree.tokens[one] for one in path), best[node + 1]]
    return found[: len(wanted)]


def check_class(target: Target, prompts: Mapping[str, Prompt]) -> dict[str, str]:
    """Try a class, unless its trial is noted (`keep_trial`), and its weights each time.

    Args:
        target: the target as it was loaded.
        prompts: prompts of the checkpoint by what they show.

    Returns:
        Which of the prompts must not be shown, and why.

    Raises:
        CrossdraftError: it is not right with words, with what was wrong.
    """
    note = _note(target.model, prompts)
    try:
        tests = [Test(**one) for one in json.loads(note.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        tests = try_class(target.model, prompts)
        keep_trial(target.model, prompts, tests)
    tests += [try_weights(target, name, prompt) for name, prompt in ({"text": WORDS} | dict(prompts)).items()]
    refused: dict[str, str] = {}
    for test in tests:
        if test.passes:
            continue
        if not test.shows:
            name = type(target.model).__name__
            raise CrossdraftError(
                f"{target.source or name} cannot be used: its class {name} is not in the table of families, so "
                f"{test.said}; take another model; `crossdraft check` lists all comparisons."
            )
        refused.setdefault(test.shows, test.refusal)
    return refused


def keep_trial(model: PreTrainedModel, prompts: Mapping[str, Prompt], tests: Sequence[Test]) -> None:
    """Note the trial of a class that is right with words, for the next loading, unless something could not be tried."""
    if all(test.passes or (test.shows and test.error is not None) for test in tests):
        note = _note(model, prompts)
        with suppress(OSError):  # a home that cannot be written to costs a trial each time
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(json.dumps([asdict(test) for test in tests]), encoding="utf-8")


def _note(model: PreTrainedModel, prompts: Mapping[str, Prompt]) -> Path:
    """The file that a trial is noted in, named by a digest of what it depends on."""
    config: Any = {**model.config.to_dict(), "_name_or_path": ""}
    facts = [type(model).__name__, sorted(prompts), torch.__version__, transformers.__version__, version("crossdraft")]
    key = hashlib.sha256(json.dumps([facts, config], sort_keys=True, default=str).encode()).hexdigest()[:32]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "crossdraft" / "trials" / f"{key}.json"
