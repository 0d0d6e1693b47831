"""PaSS (Monea et al. 2023): learned look-ahead embeddings that the target reads."""
