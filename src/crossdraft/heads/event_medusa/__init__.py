"""Medusa heads on the event drafter."""
