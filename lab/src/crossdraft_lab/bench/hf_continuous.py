"""Hugging Face's continuous batching, in a process of its own: `generate_batch`'s manager on the target's weights.

The manager (transformers 5.17 to 5.23) feeds token ids alone: no pixels, no embeddings. So the clips are encoded
beforehand, inside the clock, and each visual feature gets an id of its own beyond the vocabulary, which the embedding
layer looks up; everything behind that layer is the target's. Paging, scheduling and attention are Hugging Face's own.

python -m crossdraft_lab.bench.hf_continuous TARGET DEVICE DTYPE [CORES]
"""

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from crossdraft_lab.bench.batch_child import Asked, keep_stdout, serve, served

# The manager infers these from a GPU's memory; on a CPU it must be given them: pages, tokens and requests of a pass.
BLOCKS, BATCH_TOKENS, MOST = 256, 2048, 64


class ClipEmbedding(nn.Module):
    """Token embeddings, and behind the last one the features of clips: id V + i is row i of `clips`.

    Args:
        tokens: embedding of the vocabulary, [V, h].
    """

    def __init__(self, tokens: nn.Embedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.clips = tokens.weight[:0]  # [N, h]

    @property
    def weight(self) -> Tensor:
        """Weight of the token embeddings, under the name that models expect."""
        return self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Look up embeddings [..., h] of ids [...]."""
        first = self.tokens.num_embeddings
        found = self.tokens(ids.clamp(max=first - 1))
        visual = ids >= first
        found[visual] = self.clips[ids[visual] - first]
        return found


def text_model(model: Any) -> tuple[Any, ClipEmbedding]:
    """Build a causal LM from a VLM's language model and head, sharing every weight; return it with its embedding."""
    from transformers import AutoModelForCausalLM

    config = model.config.get_text_config()
    with torch.device("meta"):
        alone = AutoModelForCausalLM.from_config(config)
    inner = model.model.language_model
    weights = {f"model.{name}": value for name, value in inner.state_dict().items()}
    alone.load_state_dict({**weights, "lm_head.weight": model.lm_head.weight}, assign=True)
    alone.model.rotary_emb = inner.rotary_emb  # no checkpoint stores its frequencies
    embedding = ClipEmbedding(alone.model.embed_tokens)
    alone.model.embed_tokens = embedding
    return alone.eval(), embedding


class ContinuousBatches:
    """Answers batches; the encoding thread and that of the manager's loop end with each batch, its pages stay.

    Two lasting threads that compute would have more OpenMP helpers than there are cores; see `EngineMethod`.

    Args:
        source, device, dtype: checkpoint, device and dtype of the target.
    """

    def __init__(self, source: str, device: str | None = None, dtype: str | None = None) -> None:
        from crossdraft.load import load_target

        self.target = load_target(source, device, dtype, packed=False)
        self.model, self.embedding = text_model(self.target.model)

    def answer(self, asked: Sequence[Asked]) -> list[dict[str, object]]:
        """Answer a batch; return tokens and times of each answer."""
        start = time.perf_counter()
        with ThreadPoolExecutor(1) as pool:
            prompts = pool.submit(self._prompts, asked).result()
        found = self._generate(prompts, asked)
        return [served(one.generated_tokens, one.timestamps[0] - start, one.timestamps[-1] - start) for one in found]

    @torch.inference_mode()
    def _prompts(self, asked: Sequence[Asked]) -> list[list[int]]:
        """Token ids of each prompt; the clip's ids stand for rows of its features, which the embedding then holds."""
        from crossdraft.engine.request import Request

        prompts = [self.target.prepare(Request(one.prompt, one.video)) for one in asked]
        model: Any = self.target.model
        pixels = torch.cat([prompt.features["pixel_values_videos"] for prompt in prompts]).to(self.target.device)
        features = model.model.get_video_features(pixels.to(model.dtype)).pooler_output
        rows = features if isinstance(features, Tensor) else torch.cat(list(features))
        self.embedding.clips = rows.flatten(0, -2)
        first, found = self.embedding.tokens.num_embeddings, []
        for prompt in prompts:
            ids = prompt.input_ids.clone()
            visual = ids == model.config.video_token_id
            ids[visual] = torch.arange(first, first + int(visual.sum()))
            first += int(visual.sum())
            found.append(ids.tolist())
        return found

    def _generate(self, prompts: Sequence[list[int]], asked: Sequence[Asked]) -> list[Any]:
        """Return the model's outputs in the order of the prompts."""
        from transformers import ContinuousBatchingConfig, GenerationConfig

        eos = sorted(self.target.eos)
        settings = GenerationConfig(do_sample=False, eos_token_id=eos, max_new_tokens=asked[0].max_new_tokens)
        paging = ContinuousBatchingConfig(
            num_blocks=BLOCKS, max_batch_tokens=BATCH_TOKENS, max_requests_per_batch=MOST, allow_block_sharing=False
        )
        found = self.model.generate_batch(
            list(prompts),
            generation_config=settings,
            continuous_batching_config=paging,
            record_timestamps=True,
            warmup=False,
            persistent_manager=True,
        )
        by_number = sorted(found.items(), key=lambda named: int(named[0].rpartition("_")[2]))
        return [output for _, output in by_number]


def main() -> None:
    """Serve until standard input ends."""
    out = keep_stdout()
    from transformers.utils import logging

    from crossdraft.engine.fast.pinning import pin

    logging.set_verbosity_error()
    source, device, dtype, *cores = sys.argv[1:]
    pin([int(core) for core in cores[0].split(",")] if cores else None)
    batches = ContinuousBatches(source, device, dtype)
    import transformers

    model = batches.model
    about = {
        "transformers": transformers.__version__,
        "max_batch_tokens": BATCH_TOKENS,
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
    }
    serve(out, about, batches.answer)


if __name__ == "__main__":
    main()
