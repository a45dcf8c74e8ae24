"""Simulation of traces and generated weeks in virtual time, with the shipped controllers and core."""
