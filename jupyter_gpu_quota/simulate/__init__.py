"""Traces and generated days, played by the shipped controllers and core in virtual time."""
