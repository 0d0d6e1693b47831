# pyright: basic, reportMissingImports=false
"""vLLM as a contestant, in an environment of its own: answers batches for `child_batches`.

Its environment is described in docs/many_requests.md. vLLM answers alone, with the Video-LLaVA of `crossdraft_vllm`.
Prefix caching is off, as for every contestant.

python -m crossdraft_lab.bench.vllm_child TARGET DTYPE
"""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from crossdraft_lab.bench.batch_child import Asked, keep_stdout, serve, served

LONGEST, MOST = 1024, 64  # tokens of a prompt with its answer; requests that share a pass
BATCH_TOKENS = 2048  # tokens of a pass
PLACEHOLDER = "<video>"


class VllmBatches:
    """Answers batches with vLLM's engine, whose steps run in this thread.

    Args:
        source: folder of the target.
        dtype: dtype of the target's weights and features.
    """

    def __init__(self, source: str, dtype: str) -> None:
        from transformers import AutoConfig, AutoTokenizer
        from vllm import LLM

        from crossdraft_vllm.plugin import register

        register()
        self.config = AutoConfig.from_pretrained(source)
        self.in_words = self.config.get_text_config() is self.config
        self.tokenizer = AutoTokenizer.from_pretrained(source)
        self.engine = LLM(
            model=source,
            dtype=dtype,
            enforce_eager=True,
            max_model_len=LONGEST,
            max_num_seqs=MOST,
            max_num_batched_tokens=BATCH_TOKENS,
            enable_prefix_caching=False,
            mm_processor_cache_gb=0,
            limit_mm_per_prompt=None if self.in_words else {"video": 1},
        ).llm_engine
        self._count = 0

    def answer(self, asked: Sequence[Asked]) -> list[dict[str, object]]:
        """Answer a batch; return tokens and times of each answer."""
        from vllm import SamplingParams

        start = time.perf_counter()
        names = [f"{self._count}-{number}" for number in range(len(asked))]
        self._count += 1
        for name, one in zip(names, asked, strict=True):
            penalty = one.penalty
            greedy = SamplingParams(
                temperature=0, repetition_penalty=penalty, max_tokens=one.max_new_tokens, detokenize=False
            )
            self.engine.add_request(name, self._prompt(one), greedy)
        first: dict[str, float] = {}
        last: dict[str, float] = {}
        tokens: dict[str, list[int]] = {}
        while self.engine.has_unfinished_requests():
            outputs = self.engine.step()
            now = time.perf_counter()
            for output in outputs:
                first.setdefault(output.request_id, now)
                last[output.request_id], tokens[output.request_id] = now, list(output.outputs[0].token_ids)
        return [served(tokens[name], first[name] - start, last[name] - start) for name in names]

    def _prompt(self, asked: Asked) -> dict[str, Any]:
        if asked.ids:
            return {"prompt_token_ids": list(asked.ids)}
        from crossdraft.video.clip import DEFAULT_FRAMES, FrameSampling, read_clip
        from crossdraft.video.inputs import ClipText, question_inputs

        clip = read_clip(asked.video, FrameSampling(DEFAULT_FRAMES))
        frames = clip.pixels if clip.indices is None else clip.pixels[clip.indices]
        one = ClipText(PLACEHOLDER, 1)  # vLLM replaces it by as many as the clip has tokens
        ids = question_inputs(self.config, self.tokenizer, one, asked.prompt)["input_ids"]
        return {"prompt_token_ids": ids[0].tolist(), "multi_modal_data": {"video": frames.numpy()}}


def main() -> None:
    """Serve until standard input ends."""
    out = keep_stdout()
    # The engine runs in this process, so that its times are those of this thread's steps.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["HF_HUB_OFFLINE"] = "1"
    source, dtype = sys.argv[1:]
    batches = VllmBatches(source, dtype)
    import torch
    import vllm

    about = {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "max_num_batched_tokens": BATCH_TOKENS,
        "dtype": dtype,
        "compiled": False,
        "clock": "from the token ids on" if batches.in_words else "from the request on",
    }
    serve(out, about, batches.answer)


if __name__ == "__main__":
    main()
