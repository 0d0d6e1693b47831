"""Measuring: how fast, against what, and is it still the same text.

Nothing is imported here: `scale` must start where only the engine's own needs are installed.
"""
