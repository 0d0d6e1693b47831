"""`crossdraft capture`: a target's answers and hidden states on disk, as training data for heads."""
