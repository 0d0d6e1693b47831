"""Measurements: speed, comparison with other methods, and equality of the text.

Nothing is imported here: `scale` must start where only the engine's own needs are installed.
"""
