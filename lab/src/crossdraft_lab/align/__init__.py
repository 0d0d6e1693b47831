"""Adapters between two models' features, and the drafter that speaks through them."""
