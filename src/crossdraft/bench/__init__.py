"""Measuring: how fast, against what, and is it still the same text. Nothing is imported here: `scale` must stay light."""
