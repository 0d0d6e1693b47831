"""Heads in the files of other projects: theirs into ours, ours into theirs. One file a layout, pure functions."""
