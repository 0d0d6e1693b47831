"""Every class of docs/models.md from its folder, with its real Hugging Face processor: `make interop-processors`.

A folder is written by `save_pretrained` of a small random model and of its processor. crossdraft loads it as any other;
ids, pixels and answers must be those of Hugging Face's own processor and `generate`, loaded from the same folder. The
results go into docs/results/processors.json, from which docs/models.md is written (`python tools/tables.py`).
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import AutoProcessor
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES

import crossdraft as cd
from crossdraft.video.clip import DecodedClip
from crossdraft.video.clip_frames import ClipFrames
from tests.any_processor import CASES, FRAMES, QUESTION, RATE, compared, own_inputs, save_kind

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "processors.json"
OPTIONS = cd.Options(device="cpu", dtype="float32", placement="inline", adaptive=False)
TOKENS = 12
Result = dict[str, str]  # `status`: same, differs or refused; and `why`


def main(kinds: Sequence[str], each: Callable[[str], object] = print) -> int:
    """Try the classes, all by default; returns 1 if something differs, or is refused and was not before."""
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))["classes"]
    classes: dict[str, dict[str, Result]] = {}
    for kind in kinds or CASES:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"  # no trial that was noted before
            classes[kind] = tried(kind, save_kind(kind, Path(folder)))
        each(f"{kind}: {classes[kind]}")
    if not kinds:
        facts = {name: version(name).split("+")[0] for name in ("transformers", "torch", "torchvision")}
        RESULTS.write_text(json.dumps({**facts, "classes": classes}, indent=1) + "\n", encoding="utf-8")
    for kind, found in classes.items():
        for name, one in found.items():
            before = kept.get(kind, {}).get(name, {}).get("status")
            if one["status"] != "same" and not one["status"] == before == "refused":
                return 1
    return 0


def cause(sentence: str) -> str:
    """The cause in a refusal: what the trial found, or what stands before the advice."""
    tested = sentence.rpartition("conformance, ")[2].partition(": ")[2]
    return tested.partition(";")[0] or sentence.partition(",")[0]


def tried(kind: str, folder: Path) -> dict[str, Result]:
    """For words, an image and a clip: `same` as Hugging Face's, or what `differs`, or why it is `refused`."""
    processor: Any = AutoProcessor.from_pretrained(folder)
    model = getattr(transformers, MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES[kind]).from_pretrained(folder).eval()
    pixels = torch.from_numpy(FRAMES[:4])
    clip = DecodedClip(b"noise", None, ClipFrames(pixels, np.arange(4) / RATE))
    requests = {"words": {}, "image": {"image": FRAMES[4]}, "clip": {"video": clip}}
    if not hasattr(processor, "video_processor") or processor.video_processor is None:
        del requests["clip"]
    with cd.Engine.load(str(folder), "union:memory,ngram", OPTIONS) as engine:
        found: dict[str, Result] = {}
        for name, shown in requests.items():
            request = cd.Request(QUESTION, **shown, max_new_tokens=TOKENS)
            try:
                ours = engine.target.prepare(request)
            except cd.CrossdraftError as error:
                found[name] = {"status": "refused", "why": cause(str(error).replace(str(folder), kind))}
                continue
            inputs = own_inputs(processor, model, name)
            why = compared(inputs, ours.input_ids, ours.features)
            length = inputs["input_ids"].shape[1]
            wanted = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)[0, length:].tolist()
            if not why and list(engine.generate(request).tokens) != wanted:
                why = "answers differ"
            if not why and name != "words" and not sees(model, inputs):
                why = "logits do not move with what is shown"
            found[name] = {"status": "differs", "why": why} if why else {"status": "same"}
    return found


@torch.inference_mode()
def sees(model: Any, inputs: Mapping[str, Tensor]) -> bool:
    """True if the logits move with the pixels."""
    other = {name: -value if value.is_floating_point() else value for name, value in inputs.items()}
    other |= {name: 255 - value for name, value in inputs.items() if value.dtype == torch.uint8}  # pixels of Molmo2
    return not torch.equal(model(**inputs).logits, model(**other).logits)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
