"""The engine: the loop and its five seams. Imports torch, transformers, numpy and nothing else."""
