"""An answer and its timeline as a picture. Needs nothing of the engine but its values; matplotlib only for PNG."""
