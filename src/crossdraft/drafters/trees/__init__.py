"""Draft trees: static shapes from measured acceptance, and trees built by the drafter's own probabilities.

Every builder is a function over two callbacks, so that any drafter may use it; see `builder`.
"""
