"""Measurements: speed, comparison with other methods, and equality of the text.

Nothing is imported here: `scale` must start in an environment that has only the engine's dependencies.
"""
