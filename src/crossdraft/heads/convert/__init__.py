"""Checkpoint conversion between crossdraft's heads and those of other projects."""
