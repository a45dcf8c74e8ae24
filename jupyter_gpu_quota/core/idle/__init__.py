"""Whether a notebook is idle, and what follows: warning, release, stop. Knows nothing of scheduling."""
