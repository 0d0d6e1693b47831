"""Acceptance rules for studies, one file each with its record; entry points of `crossdraft.rules` name them."""
