"""`glance`: cross-attention from the event drafter to the target's visual features of a few frames."""
