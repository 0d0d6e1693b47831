"""Heads: small networks that draft from the features of a model, and the drafters around them."""
