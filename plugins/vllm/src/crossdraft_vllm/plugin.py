# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""The entry point `vllm.general_plugins`, which every process of vLLM calls: it makes Video-LLaVA known there."""

MODEL = "VideoLlavaForConditionalGeneration"


def register() -> None:
    """Have vLLM load our Video-LLaVA where a checkpoint names that architecture; the module is imported then."""
    from vllm import ModelRegistry

    if MODEL not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(MODEL, f"crossdraft_vllm.video_llava:{MODEL}")
