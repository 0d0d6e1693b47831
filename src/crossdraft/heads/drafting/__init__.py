"""Drafters around heads that read the target's features. `head_drafter` holds what they share."""
