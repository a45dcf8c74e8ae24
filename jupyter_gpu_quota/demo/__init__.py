"""``jupyter gpu-quota demo``: a scenario on a temporary hub with simulated devices. Importing this starts nothing."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run the demo with the arguments after ``demo`` on the command line. Returns the exit code."""
    from .command import main as run

    return run(arguments)
