"""Lossy acceptance rules, one file each, with its record; entry points of the group `crossdraft.rules` name them."""
