"""`crossdraft capture`: what the target says of clips and what it thinks while it says it, for heads to learn from."""
