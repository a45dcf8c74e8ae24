"""Sentences about quota files: their sums, and the effects of an edit."""
