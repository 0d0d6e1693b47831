"""Heads that learn from what a target said: recipe, lessons, loss, and what the engine makes of the result."""
