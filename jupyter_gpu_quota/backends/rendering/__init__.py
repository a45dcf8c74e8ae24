"""Renders the share of a workload as variables. Pure."""
