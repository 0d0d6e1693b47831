"""The reference target in vLLM, whose packages are another environment's: a contestant of `bench throughput`."""
