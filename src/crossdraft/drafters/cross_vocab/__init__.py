"""Drafting with a model of another vocabulary (heterogeneous vocabularies; "universal assisted generation" in HF)."""
