"""What `model.generate(…, custom_generate=FOLDER)` runs."""

from crossdraft.integrations.huggingface.generation import generate

__all__ = ["generate"]
