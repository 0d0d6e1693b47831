"""Processes that do a part of the target's own work: its vision encoder on a share of the frames, or a prefill."""
