"""Entry point of `model.generate(…, custom_generate=FOLDER)`."""

from crossdraft.integrations.huggingface.generation import generate

__all__ = ["generate"]
