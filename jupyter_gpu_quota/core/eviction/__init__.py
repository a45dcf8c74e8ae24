"""Eviction: drains, deadlines, removed projects and pools, unavailable devices."""
