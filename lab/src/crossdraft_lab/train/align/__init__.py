"""Tuning of a drafter itself, so that it predicts its target's answers."""
