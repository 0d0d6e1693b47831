"""Heads: small networks that draft from what the target's own layers say. One file each, over the parts they share."""
