"""The story every release must be able to play, live: ``jupyter gpu-quota demo``. Importing this starts nothing."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Play the demo; takes what stands after ``demo`` on the command line, returns the exit code."""
    from .command import main as play

    return play(arguments)
