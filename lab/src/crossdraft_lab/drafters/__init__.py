"""Drafters for studies; entry points of the group `crossdraft.drafters` name their records."""
