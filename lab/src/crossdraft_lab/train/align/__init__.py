"""Tuning a drafter itself to speak as its target does."""
