"""The pure core: standard library only; no clock, no input or output, no logging, no randomness."""
