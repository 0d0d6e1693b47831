"""Drafting by retrieval from earlier answers (REST: He et al. 2023; SAM decoding: Hu et al. 2024)."""
