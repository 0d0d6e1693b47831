"""Layers that keep a state instead of keys and values: their rules along a tree, their cache, their models' modules."""
