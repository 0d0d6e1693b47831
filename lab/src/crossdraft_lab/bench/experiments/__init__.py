"""Experiments: each a typed configuration, resumable runs in a file, and a table, a figure and a paragraph of them."""
