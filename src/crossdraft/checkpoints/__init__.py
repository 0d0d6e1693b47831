"""Checkpoints of Hugging Face models: found, and checked before anything large is built or read."""
