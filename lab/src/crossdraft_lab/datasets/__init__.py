"""Data sets: readers of their own layouts, an index of their clips and questions, splits that do not leak."""
