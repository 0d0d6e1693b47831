"""Drafters that read what the target's own layers say. One file each; `coupled` is what they share."""
