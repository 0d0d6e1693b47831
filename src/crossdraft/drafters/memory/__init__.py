"""Drafting from earlier answers: a store of them, and a vote among places that look like where this one is now."""
