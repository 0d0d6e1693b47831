"""The folder that transformers looks for; it copies `generate.py` and runs the copy."""
