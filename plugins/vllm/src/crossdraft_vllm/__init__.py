"""Hidden drafts inside vLLM: docs/vllm.md. `scheduler` and `video_llava` import vLLM, the other modules need none."""

__version__ = "0.2.0"
