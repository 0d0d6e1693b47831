"""Structured answers: JSON by a schema, a regular expression, one of several texts, or a grammar."""
