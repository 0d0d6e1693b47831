"""The fast draft head: an answer's beginning from event features, without a language model."""
